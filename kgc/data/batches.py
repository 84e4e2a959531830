"""Batches drawn on the device: no worker processes, no Python per triple.

Both iterables give every process the same number of batches, so that no collective call waits for ever; what one of
them repeats to get there is harmless (a triple trained once more; a query ranked twice counts once).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgc.types import Queries, Side, Triples


def derive_seed(*parts: int) -> int:
    """A 63-bit seed that is a pure function of its parts, such as (seed, epoch, step, process)."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def data_place(trainer: Any) -> tuple[int, int]:
    """(rank, number) of a trainer's process among those whose batches differ: all, but for those that share a table."""
    place = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    return (0, 1) if place is None else (place["rank"], place["num_replicas"])


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds what torch draws on a device and on the CPU, as `torch.manual_seed` does.

    That one seeds every kind of device that there could be, and notes the stack for each that is not in use: hundreds
    of microseconds, which is too much for every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class TripleBatches:
    """Indices of training triples in an order that is a pure function of (seed, epoch).

    Args:
        num_triples: T.
        batch_size: triples a process takes per step.
        seed: of the permutation.
        device: where the indices are wanted.
        rank, world_size: this process and their number; each takes a slice of the same permutation.

    Yields [B] int64 indices; the last batch of an epoch may be smaller. A position inside an epoch is part of
    `state_dict`, so that a run stopped there goes on with the next batch.
    """

    def __init__(
        self,
        num_triples: int,
        batch_size: int,
        seed: int,
        device: torch.device | str,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.num_triples = num_triples
        self.batch_size = batch_size
        self.seed = seed
        self.device = torch.device(device)
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self._start = 0
        self._position = 0

    @property
    def sampler(self) -> TripleBatches:
        """Where Lightning looks for `set_epoch`, which it calls at the start of every epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        own = -(-self.num_triples // self.world_size)
        return -(-own // self.batch_size)

    def examples(self, first: int, number: int) -> int:
        """How many examples there are in `number` batches from the `first` on, or in those that are left."""
        own = -(-self.num_triples // self.world_size)
        return min((first + number) * self.batch_size, own) - first * self.batch_size

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.epoch))
        # int32 draws the same permutation and takes half the memory.
        kind = torch.int32 if self.num_triples < 2**31 else torch.int64
        order = torch.randperm(self.num_triples, generator=generator, dtype=kind)
        if self.world_size > 1:
            own = -(-self.num_triples // self.world_size)
            order = order[(torch.arange(own) * self.world_size + self.rank) % self.num_triples]
        batches = order.to(self.device).split(self.batch_size)
        start, self._start = self._start, 0
        for position in range(start, len(batches)):
            self._position = position + 1
            yield batches[position].long()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self._position % max(1, len(self))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._start = state["epoch"], state["position"]
        self._position = self._start


class QueryBatches:
    """The two queries of every triple, sorted so that equal queries and equal relations lie together.

    Args:
        triples: the T triples of a split, on any device.
        batch_size: queries per batch; a group of equal queries is not cut, so a batch may be larger.
        rank, world_size: this process and their number.

    Yields (queries, targets, index): the queries of one side with their [B] right answers and their [B] places in the
    list of all 2T queries: triple i is i when its head is asked for, and T + i when its tail is.
    """

    def __init__(self, triples: Triples, batch_size: int, rank: int = 0, world_size: int = 1):
        self.num_queries = 2 * len(triples)
        batches = []
        for side in Side:
            queries = triples.queries(side)
            anchor, relation = queries.anchor.cpu().numpy(), queries.relation.cpu().numpy()
            order = np.lexsort((anchor, relation))
            changes = (np.diff(anchor[order]) != 0) | (np.diff(relation[order]) != 0)
            groups = np.flatnonzero(np.r_[True, changes]) if len(order) else np.zeros(0, int)
            # A batch starts at the first group at or after each multiple of the batch size.
            wanted = np.arange(0, len(order), batch_size)
            starts = np.unique(groups[np.searchsorted(groups, wanted).clip(max=max(0, len(groups) - 1))])
            for part in np.split(order, starts[1:]) if len(order) else []:
                index = torch.from_numpy(part).to(queries.anchor.device)
                batches.append((queries[index], triples.target(side)[index], index + side * len(triples)))
        rounds = -(-len(batches) // world_size)
        self.batches = [batches[(i * world_size + rank) % len(batches)] for i in range(rounds)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Queries, Tensor, Tensor]]:
        return iter(self.batches)
