"""Products of matrices in float64 whose digits depend on the numbers alone.

A floating-point sum depends on the order of its additions, and with it on shapes, threads and processors. Here numbers
are cut into slices of so few bits that products of slices, and sums of these, are whole numbers below 2⁵³, which every
order adds up alike (Ozaki et al. 2012, "Error-free transformations of matrix multiplication by using fast routines of
matrix multiplication"). Three slices hold more bits than a float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_SLICES = 3


@dataclass(frozen=True)
class _Factor:
    """One side of a product: [..., n, 3k] slices side by side, or for the right side [..., 3k, m], and their units."""

    slices: Tensor
    unit: Tensor

    def __getitem__(self, rows: slice) -> _Factor:
        return _Factor(self.slices[rows], self.unit[rows])


@torch.no_grad()
def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """[..., n, k] times [..., k, m], both float64, k > 0, to [..., n, m] float64.

    Off by at most k·2⁻⁵² times the largest number of the row of `a` and of the column of `b`. What is not finite makes
    its row or column NaN.
    """
    return _product(_cut(a, -1), _right(b))


def _product(left: _Factor, right: _Factor) -> Tensor:
    terms = right.slices.shape[-2] // _SLICES
    total = None
    for last in range(_SLICES, 0, -1):  # the smallest first
        product = left.slices[..., : last * terms] @ right.slices[..., (_SLICES - last) * terms :, :]  # exact
        total = product if total is None else total.mul_(2.0 ** -_bits(terms)).add_(product)
    return total.mul_(left.unit).mul_(right.unit)


def _right(b: Tensor) -> _Factor:
    """[..., k, m] cut along its columns, least significant slices first, in the layout it lies in."""
    if b.stride(-2) == 1:
        factor = _cut(b.mT, -1, least_first=True)
        return _Factor(factor.slices.mT, factor.unit.mT)
    return _cut(b, -2, least_first=True)


def _cut(x: Tensor, dim: int, least_first: bool = False) -> _Factor:
    """Whole numbers of few bits along `dim`, and the power of two that each row or column counts in."""
    bits = _bits(x.shape[dim])
    exponent = torch.frexp(x.abs().amax(dim, keepdim=True)).exponent.long().clamp(-900, 900) - bits
    rest = x * _power_of_two(-exponent)
    shape = list(x.shape)
    shape[dim] *= _SLICES
    slices = x.new_empty(shape)
    parts = slices.chunk(_SLICES, dim)
    for part in reversed(parts) if least_first else parts:
        torch.round(rest, out=part)
        rest.sub_(part).mul_(2.0**bits)
    return _Factor(slices, _power_of_two(exponent))


def _bits(terms: int) -> int:
    """Of a slice, so that products of slices, and sums of `terms` of them in all orders that occur, are exact."""
    return (53 - (_SLICES * terms - 1).bit_length()) // 2


def _power_of_two(exponent: Tensor) -> Tensor:
    """In float64, made of its bits: no library rounds it."""
    return ((exponent + 1023) << 52).view(torch.float64)


@torch.no_grad()
def bilinear_queries(vector: Tensor, matrix: Callable[[int], Tensor], place: Tensor, asks_head: Tensor) -> Tensor:
    """[B, n] float64 vectors times the matrices of their places, or where heads are asked for their transposes.

    Args:
        vector: [B, n].
        matrix: from a place to its [n, n] float64 matrix; asked for once or twice, in order.
        place: [B] places, from 0 on.
        asks_head: [B, 1] or [1, 1].
    """
    kind = 2 * place + asks_head.squeeze(-1).long()
    order = torch.argsort(kind, stable=True)
    sorted_vectors = _cut(vector[order], -1)
    products = []
    start = 0
    for which, size in enumerate(torch.bincount(kind).tolist()):
        if size:
            form = matrix(which // 2)
            right = _right(form.mT if which % 2 else form)
            products.append(_product(sorted_vectors[start : start + size], right))
            start += size
    result = torch.empty_like(vector)
    result[order] = torch.cat(products) if products else vector
    return result
