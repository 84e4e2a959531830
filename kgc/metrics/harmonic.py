"""Harmonic numbers in float64, to the last digits or so."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TABLE = 64  # up to here sums, from here on series that are good to 1e-17
_EULER = 0.57721566490153286


def harmonic(n: Tensor) -> Tensor:
    """[...] H(n) = Σ 1/i, i = 1 … n, of whole numbers n ≥ 0 (Euler–Maclaurin beyond the table)."""
    x = n.double().clamp(min=_TABLE)
    far = x.log() + _EULER + 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)
    return torch.where(n <= _TABLE, _sums(1)[n.clamp(max=_TABLE).long()], far)


def harmonic_of_squares(n: Tensor) -> Tensor:
    """[...] Σ 1/i², i = 1 … n, of whole numbers n ≥ 0."""
    x = n.double().clamp(min=_TABLE)
    far = math.pi**2 / 6 - 1 / x + 1 / (2 * x**2) - 1 / (6 * x**3) + 1 / (30 * x**5) - 1 / (42 * x**7)
    return torch.where(n <= _TABLE, _sums(2)[n.clamp(max=_TABLE).long()], far)


def _sums(power: int) -> Tensor:
    terms = 1 / torch.arange(1, _TABLE + 1, dtype=torch.float64) ** power
    return torch.cat([terms.new_zeros(1), terms.cumsum(0)])
