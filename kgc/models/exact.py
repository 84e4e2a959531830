"""Products of matrices in float64 whose digits depend on the numbers alone.

A floating-point sum depends on the order of its additions, and with it on shapes, threads and processors. Here numbers
are cut into slices of so few bits that products of slices, and sums of these, are whole numbers below 2⁵³, which every
order adds up alike (Ozaki et al. 2012, "Error-free transformations of matrix multiplication by using fast routines of
matrix multiplication"). Three slices hold more bits than a float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SLICES = 3


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """[..., n, k] times [..., k, m], both float64, k > 0, to [..., n, m] float64.

    Off by at most k·2⁻⁵² times the largest number of the row of `a` and of the column of `b`. What is not finite makes
    its row or column NaN.
    """
    bits = (53 - (_SLICES * a.shape[-1] - 1).bit_length()) // 2
    (left, left_unit), (right, right_unit) = _sliced(a, -1, bits), _sliced(b, -2, bits)
    total = None
    for last in range(_SLICES, 0, -1):  # the smallest first
        product = torch.cat(left[:last], dim=-1) @ torch.cat(right[:last][::-1], dim=-2)  # exact
        total = product if total is None else product + total * 2.0**-bits
    return total * left_unit * right_unit


def _sliced(x: Tensor, dim: int, bits: int) -> tuple[list[Tensor], Tensor]:
    """Whole numbers of `bits` bits, most significant first, and the power of two that each row or column counts in."""
    exponent = torch.frexp(x.abs().amax(dim, keepdim=True)).exponent.long().clamp(-900, 900) - bits
    unit = ((exponent + 1023) << 52).view(torch.float64)
    rest = x / unit
    slices = []
    for _ in range(_SLICES):
        slices.append(rest.round())
        rest = (rest - slices[-1]) * 2.0**bits
    return slices, unit


def bilinear_queries(vector: Tensor, matrix: Callable[[int], Tensor], place: Tensor, asks_head: Tensor) -> Tensor:
    """[B, n] float64 vectors times the matrices of their places, or where heads are asked for their transposes.

    Args:
        vector: [B, n].
        matrix: from a place to its [n, n] float64 matrix; asked for once or twice.
        place: [B] places, from 0 on.
        asks_head: [B, 1] or [1, 1].
    """
    result = torch.empty_like(vector)
    kind = 2 * place + asks_head.squeeze(-1).long()
    order = torch.argsort(kind, stable=True)
    for which, rows in enumerate(order.split(torch.bincount(kind).tolist())):
        if len(rows):
            form = matrix(which // 2)
            result[rows] = exact_product(vector[rows], form.mT if which % 2 else form)
    return result
