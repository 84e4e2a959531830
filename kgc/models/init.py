"""Initial values of embedding tables. Each is a callable that fills a [n, d] tensor in place."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Init = Callable[[Tensor], Tensor]


class Uniform:
    """Uniform in [−bound, bound]."""

    def __init__(self, bound: float):
        self.bound = bound

    def __call__(self, table: Tensor) -> Tensor:
        return nn.init.uniform_(table, -self.bound, self.bound)


class Normal:
    """Normal with mean 0 and the given standard deviation (ComplEx-N3 uses 1e-3)."""

    def __init__(self, std: float):
        self.std = std

    def __call__(self, table: Tensor) -> Tensor:
        return nn.init.normal_(table, std=self.std)


class Xavier:
    """Uniform in ±√(6 / d) for vectors of width d (Bordes et al. 2013, algorithm 1; Glorot & Bengio 2010)."""

    def __call__(self, table: Tensor) -> Tensor:
        return Uniform(math.sqrt(6 / table.shape[-1]))(table)


class MarginRange:
    """Uniform in ±(margin + 2) / d for d coordinates: distances start near the margin (RotatE's repository)."""

    def __init__(self, margin: float, coordinates: int):
        self.bound = (margin + 2.0) / max(1, coordinates)

    def __call__(self, table: Tensor) -> Tensor:
        return Uniform(self.bound)(table)


class Phases:
    """Angles in radians, uniform in [−π, π]."""

    def __call__(self, table: Tensor) -> Tensor:
        return Uniform(math.pi)(table)


class Constant:
    """One value everywhere."""

    def __init__(self, value: float):
        self.value = value

    def __call__(self, table: Tensor) -> Tensor:
        return nn.init.constant_(table, self.value)


class Identity:
    """Every row the [rows, columns] matrix with ones on its diagonal, row by row."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns

    def __call__(self, table: Tensor) -> Tensor:
        return table.copy_(torch.eye(self.rows, self.columns).flatten())


class Columns:
    """Columns that mean different things: (width, init) of each group, from left to right."""

    def __init__(self, *groups: tuple[int, Init]):
        self.widths = [width for width, _ in groups]
        self.inits = [init for _, init in groups]

    def __call__(self, table: Tensor) -> Tensor:
        for part, init in zip(table.split(self.widths, dim=-1), self.inits, strict=True):
            init(part)
        return table
