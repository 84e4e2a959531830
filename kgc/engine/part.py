"""The queries of one batch of rows, shared by both ways of ranking.

Where entities lie on several processes each counts among its own. What crosses the wire is the anchors' vectors, the
score of each target and the counts: calls of these come in one order on all processes, and none stands in the loops
over blocks, which differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.sharding import Shard, held
from kgc.types import Queries, Scorer

# Marks in `better` for targets whose score is NaN, +inf, -inf; `kgc.ranking` makes them an error or the worst rank.
NAN, PLUS_INFINITY, MINUS_INFINITY = -2, -3, -4


class Part:
    """P queries that ask U distinct questions.

    Args:
        scorer: what is ranked.
        rows: the U questions.
        row: [P] question of each query.
        target: [P] right answers.
        known_target: [P] bool, the filter holds the target itself.
        known: the filter, or None.

    Attributes:
        entities: how many this process compares with.
        target: [P] right answers, numbered from the first entity of this process on; those of others are 0.
        mine: [P] bool, this process holds the right answer.
        known_row, known_entity: [M] the cells of the filter among the entities of this process, numbered alike.
    """

    def __init__(
        self,
        scorer: Scorer,
        rows: Queries,
        row: Tensor,
        target: Tensor,
        known_target: Tensor,
        known: KnownAnswers | None,
    ):
        self.scorer = scorer
        self.rows = rows
        self.row = row
        self.target = target
        self.known_target = known_target
        self.entities = held(scorer)
        self.shard: Shard | None = getattr(scorer, "shard", None)
        self.mine = torch.ones_like(target, dtype=torch.bool)
        none = target.new_empty(0)
        self.known_row, self.known_entity = known.answers(rows) if known else (none, none)
        known_count = torch.bincount(self.known_row, minlength=len(rows))[row]
        self.candidates = scorer.num_entities - known_count + known_target.long()  # [P], the target included
        if self.shard is not None:
            self.mine = self.shard.holds(target)
            self.target = torch.where(self.mine, target - self.shard.first, 0)
            own = self.shard.holds(self.known_entity)
            self.known_row, self.known_entity = self.known_row[own], self.known_entity[own] - self.shard.first

    def shared(self, values: Tensor) -> Tensor:
        """[P] values of the targets, each by the process that holds it, to those of all."""
        return values if self.shard is None else self.shard.shared(values, self.mine)

    def total(self, *counts: Tensor) -> tuple[Tensor, ...]:
        """[P] counts over the entities of each process, to those over all."""
        if self.shard is None:
            return counts
        return self.shard.summed(torch.stack(counts).int()).long().unbind()

    def locally(self, count: Callable[[int], tuple[Tensor, ...]], block: int) -> tuple[Tensor, ...]:
        """`count(block)`; where others wait for this process it tries smaller blocks when its memory is full."""
        while True:
            try:
                return count(block)
            except (RuntimeError, MemoryError) as error:
                if self.shard is None or not out_of_memory(error) or block == 1:
                    raise
                block = -(-block // 2)
                warnings.warn(f"out of memory: now in blocks of {block} entities", stacklevel=2)

    def judged(
        self, value: Tensor, better: Tensor, equal: Tensor, nonfinite: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[P] better, equal, candidates and non-finite scores, from the targets' [P] scores and counts over all cells
        outside the filter: a target outside it tied with itself, and one inside it was not looked at."""
        nonfinite = nonfinite + (self.known_target & ~value.isfinite()).long()
        return mark_nonfinite(better, value), equal - (~self.known_target).long(), self.candidates, nonfinite

    def known_cells(self, blocks: list[tuple[int, int, int]]) -> list[tuple[Tensor, Tensor]]:
        """For each block the (row, column) of its known answers."""
        if len(blocks) == 1:
            return [(self.known_row, self.known_entity)]
        starts = torch.tensor([start for _, start, _ in blocks], device=self.row.device)
        block_of = torch.searchsorted(starts, self.known_entity, right=True) - 1
        order = torch.argsort(block_of, stable=True)
        sizes = torch.bincount(block_of, minlength=len(blocks)).tolist()
        rows, columns = self.known_row[order], (self.known_entity - starts[block_of])[order]
        return list(zip(rows.split(sizes), columns.split(sizes), strict=True))


class Room:
    """The memory of a block of scores, reused by the next one: fresh pages cost as much as the scores."""

    def __init__(self) -> None:
        self._floats: Tensor | None = None

    def take(self, like: Tensor, rows: int, columns: int) -> Tensor:
        """[rows, columns] of any content, of the dtype and device of `like`; what was taken before is given up."""
        if self._floats is None or self._floats.numel() < rows * columns or self._floats.dtype != like.dtype:
            self._floats = None
            self._floats = like.new_empty(rows * columns)
        return self._floats[: rows * columns].view(rows, columns)

    def clear(self) -> None:
        """Gives the memory back."""
        self._floats = None


def ranges(entities: int, block: int) -> Iterator[tuple[int, int, int]]:
    """(first entity scored, first entity counted, end) of blocks of one width; the last overlaps the one before."""
    for start in range(0, entities, block):
        stop = min(start + block, entities)
        yield max(0, stop - block), start, stop


def mark_nonfinite(better: Tensor, own: Tensor) -> Tensor:
    """[P] `better` with marks where the target's score [P] is not finite."""
    marks = torch.where(own.isnan(), NAN, torch.where(own > 0, PLUS_INFINITY, MINUS_INFINITY))
    return torch.where(own.isfinite(), better, marks)


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory is full."""
    words = ("can't allocate memory", "not enough memory", "bad_alloc")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)
