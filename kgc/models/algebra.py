"""Complex arithmetic on real vectors stored [real half | imaginary half]."""

from __future__ import annotations

import torch
from torch import Tensor


def complex_product(a: Tensor, b: Tensor, conjugate: bool = False) -> Tensor:
    """Coordinatewise a·b, or a·b̄ with `conjugate`; a, b, result [*, D] hold D/2 complex numbers."""
    a_re, a_im = a.chunk(2, dim=-1)
    b_re, b_im = b.chunk(2, dim=-1)
    if conjugate:
        b_im = -b_im
    return torch.cat([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=-1)


def modulus(a: Tensor) -> Tensor:
    """[*, D] of D/2 complex numbers to their [*, D/2] absolute values; the gradient at 0 is 0."""
    re, im = a.chunk(2, dim=-1)
    return (re.square() + im.square()).clamp_min(torch.finfo(a.dtype).tiny).sqrt()


def unit(phase: Tensor) -> Tensor:
    """[*, d] angles in radians to [*, 2d] complex numbers of modulus 1."""
    return torch.cat([phase.cos(), phase.sin()], dim=-1)


def reflect(a: Tensor, phase: Tensor) -> Tensor:
    """[*, D] complex numbers a to e^{iφ}·ā: reflections of the plane in the line at angle φ/2; its own inverse."""
    return complex_product(unit(phase), a, conjugate=True)
