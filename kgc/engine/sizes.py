"""Shapes of blocks, chosen by measurement on the work itself.

Which shape is fastest depends on caches, memory and the library behind matrix products. The first batches of large work
are ranked in each shape in turn, which loses nothing since no shape changes a certified rank; from then on the fastest
is used. What was found is kept as long as the process lives, per device, number of threads, similarity and table.
"""

from __future__ import annotations

import time

import torch

# Rows of a block, and cells: 2^21 floats (8 MiB) stay in a CPU's caches, 2^27 (512 MiB) keep a GPU busy.
DEFAULT = {"cpu": (1024, 1 << 21), "cuda": (1024, 1 << 27)}
_TRIED = {
    "cpu": [(1024, 1 << 22), (1024, 1 << 21), (512, 1 << 20), (2048, 1 << 22)],
    "cuda": [(1024, 1 << 27), (4096, 1 << 27), (4096, 1 << 28)],
}
# Measurements of a shape; the first of them may compile or warm up.
_ROUNDS = 3


def width(entities: int, rows: int, cells: int, block: int | None = None) -> int:
    """Entities in a block: the user's `block`, or what makes about `cells` cells.

    The table is then cut evenly, in multiples of 64 (four vector registers). fp32 counts 2^24 cells in a row at most.
    """
    if block is None:
        blocks = -(-entities // max(16, cells // rows))
        block = -(-entities // blocks // 64) * 64
    return min(entities, block, 1 << 24)


class Sizes:
    """The shape of the next batch, and what was learnt from the ones before.

    Args:
        device: where scores are made.
        entities: E.
        batch, block: fixed by the user, or None.

    Only the measured speed decides; ties go to the shape listed first.
    """

    def __init__(self, device: torch.device, entities: int, batch: int | None = None, block: int | None = None):
        kind = device.type if device.type in _TRIED else "cpu"
        self.device = device
        shapes = []
        for rows, cells in _TRIED[kind]:
            shape = batch or rows, width(entities, batch or rows, cells, block)
            if shape not in shapes:
                shapes.append(shape)
        self.shapes = shapes
        self.rates: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}

    @property
    def settled(self) -> bool:
        """Whether every shape has been measured."""
        return len(self.shapes) == 1 or all(len(rates) >= _ROUNDS for rates in self.rates.values())

    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the next block: the one least measured, or the fastest."""
        if self.settled:
            return max(self.shapes, key=lambda shape: max(self.rates[shape], default=0.0))
        return min(self.shapes, key=lambda shape: len(self.rates[shape]))

    def forbid(self, shape: tuple[int, int]) -> None:
        """Tries a shape no more that memory does not suffice for, unless it is the only one."""
        if len(self.shapes) > 1 and shape in self.rates:
            self.shapes.remove(shape)
            del self.rates[shape]

    def start(self) -> float:
        """The time now, when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def learn(self, shape: tuple[int, int], queries: int, began: float) -> None:
        """Files how long a full batch of this shape took since `began`."""
        if queries == shape[0] and shape in self.rates:
            self.rates[shape].append(queries / (self.start() - began))


_KNOWN: dict[tuple, Sizes] = {}


def measured_sizes(device: torch.device, entities: int, kind: object, batch: int | None, block: int | None) -> Sizes:
    """The `Sizes` of this device, number of threads, table and kind of work; the same object for the same work."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    key = (name, torch.get_num_threads(), entities, kind, batch, block)
    if key not in _KNOWN:
        _KNOWN[key] = Sizes(device, entities, batch, block)
    return _KNOWN[key]
