"""Products of vectors, complex numbers and quaternions; arithmetic on real vectors stored part after part.

In float64 products that add many terms add them one after another, so that they depend on nothing but the vectors
(`kgc.models.exact` does so faster); the matrices of TuckER, too many numbers for either, are products of one shape
(`row_by_row`). In fp32 they are matrix products and Fourier transforms, which are fast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def complex_product(a: Tensor, b: Tensor, conjugate: bool = False) -> Tensor:
    """Coordinatewise a·b, or a·b̄ with `conjugate`; a, b, result [*, D] hold D/2 complex numbers."""
    a_re, a_im = a.chunk(2, dim=-1)
    b_re, b_im = b.chunk(2, dim=-1)
    if conjugate:
        b_im = -b_im
    return torch.cat([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=-1)


def quaternion_product(a: Tensor, b: Tensor, conjugate: bool = False) -> Tensor:
    """Coordinatewise Hamilton product a⊗b, or a⊗b̄ with `conjugate`.

    a, b, result [*, D] hold D/4 quaternions w + xi + yj + zk, stored [w | x | y | z].
    """
    aw, ax, ay, az = a.chunk(4, dim=-1)
    bw, bx, by, bz = b.chunk(4, dim=-1)
    if conjugate:
        bx, by, bz = -bx, -by, -bz
    parts = (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )
    return torch.cat(parts, dim=-1)


def vector_matrix(vector: Tensor, matrix: Tensor) -> Tensor:
    """[*, n] vectors times [*, n, m] matrices, broadcast, to [*, m]."""
    if vector.dtype != torch.float64:
        return (vector.unsqueeze(-2) @ matrix).squeeze(-2)
    return ordered_vector_matrix(vector, matrix)


def ordered_vector_matrix(vector: Tensor, matrix: Tensor) -> Tensor:
    """`vector_matrix` adding one term after another: equal vectors have equal products, whatever they stand among."""
    total = vector[..., :1] * matrix[..., 0, :]
    for i in range(1, vector.shape[-1]):
        total = total + vector[..., i : i + 1] * matrix[..., i, :]
    return total


@torch.no_grad()
def row_by_row(vectors: Tensor, matrix: Tensor, at_once: int) -> Tensor:
    """[n, d] times [d, m] in products of so many rows each: equal rows have equal products, however many they are.

    Columns are filled up to a multiple of 16: products of few columns go through kernels that treat rows unlike.
    """
    width = matrix.shape[1]
    matrix = F.pad(matrix, (0, -width % 16)) if width % 16 else matrix
    padded = F.pad(vectors, (0, 0, 0, -len(vectors) % at_once)) if len(vectors) % at_once else vectors
    product = vectors.new_empty(len(padded), matrix.shape[1])
    for rows, result in zip(padded.split(at_once), product.split(at_once), strict=True):
        torch.mm(rows, matrix, out=result)
    return product[: len(vectors), :width]


def circular_convolution(a: Tensor, b: Tensor) -> Tensor:
    """[*, d] (a ∗ b)ₖ = Σᵢ aᵢ b₍ₖ₋ᵢ₎ of [*, d] and [*, d], indices modulo d."""
    if a.dtype == torch.float64 or not a.numel():
        return _rolled(a, b, 1)
    return torch.fft.irfft(torch.fft.rfft(a) * torch.fft.rfft(b), n=a.shape[-1])


def circular_correlation(a: Tensor, b: Tensor) -> Tensor:
    """[*, d] (a ⋆ b)ₖ = Σᵢ aᵢ b₍ₖ₊ᵢ₎ of [*, d] and [*, d], indices modulo d."""
    if a.dtype == torch.float64 or not a.numel():
        return _rolled(a, b, -1)
    return torch.fft.irfft(torch.fft.rfft(a).conj() * torch.fft.rfft(b), n=a.shape[-1])


def _rolled(a: Tensor, b: Tensor, step: int) -> Tensor:
    width = a.shape[-1]
    twice = torch.cat([b, b], dim=-1)  # b rolled is a part of it
    total = a[..., :1] * b
    for i in range(1, width):
        start = width - i if step > 0 else i
        total += a[..., i : i + 1] * twice[..., start : start + width]
    return total


def modulus(a: Tensor, parts: int = 2) -> Tensor:
    """[*, D] of D/parts numbers to their [*, D/parts] absolute values; the gradient at 0 is 0.

    Numbers of 2 parts are complex, of 4 quaternions.
    """
    first, *others = a.chunk(parts, dim=-1)
    squared = first.square()
    for part in others:
        squared = squared + part.square()
    return squared.clamp_min(torch.finfo(a.dtype).tiny).sqrt()


def unit(phase: Tensor) -> Tensor:
    """[*, d] angles in radians to [*, 2d] complex numbers of modulus 1."""
    return torch.cat([phase.cos(), phase.sin()], dim=-1)


def reflect(a: Tensor, phase: Tensor) -> Tensor:
    """[*, D] complex numbers a to e^{iφ}·ā: reflections of the plane in the line at angle φ/2; its own inverse."""
    return complex_product(unit(phase), a, conjugate=True)


def without_denormals(vectors: Tensor) -> Tensor:
    """The same numbers, those smaller than the smallest normal one as 0, whatever the processor makes of them."""
    return torch.where(vectors.abs() < torch.finfo(vectors.dtype).tiny, 0.0, vectors)
