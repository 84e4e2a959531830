"""Initial values of embedding tables. Each is a callable that fills a [n, d] tensor in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

Init = Callable[[Tensor], Tensor]

# Rows filled at once where few of a table are kept; torch's normal numbers come in groups of 16.
_ROWS = 1 << 14


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


def rows_of(init: Init, rows: int, width: int, first: int, stop: int) -> Tensor:
    """[stop − first, width]: the rows first … stop − 1 of a [rows, width] table as `init` fills it.

    The numbers drawn are those of the whole table, in its order, so that processes that hold parts of it start from
    what one process would; memory is that of the part. An `init` that is not of this module fills a whole table.
    """
    kept = torch.empty(stop - first, width)
    if isinstance(init, Columns):
        at = 0
        for part, own in zip(init.inits, init.widths, strict=True):
            _fill(part, kept[:, at : at + own], rows, first, width)
            at += own
    elif type(init).__module__ == __name__ and not isinstance(init, Identity):
        _fill(init, kept, rows, first, width)
    else:
        kept.copy_(init(torch.empty(rows, width))[first:stop])
    return kept


def _fill(init: Init, kept: Tensor, rows: int, first: int, width: int) -> None:
    """Fills the columns `kept` of rows from `first` on, drawing those of all rows in turn; see `rows_of`."""
    if isinstance(init, Constant):
        init(kept)
        return
    starts = [*range(0, max(1, rows - _ROWS // 2), _ROWS), rows]  # the last turn is no shorter than half
    for start, stop in pairwise(starts):
        # Columns of a wider table lie apart in memory, and are then drawn one by one.
        drawn = torch.empty(stop - start, width)[:, : kept.shape[1]]
        init(drawn)
        low, high = max(start, first), min(stop, first + len(kept))
        if low < high:
            kept[low - first : high - first] = drawn[low - start : high - start]
