"""The queries of one batch of rows, shared by both ways of ranking."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
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
        none = target.new_empty(0)
        self.known_row, self.known_entity = known.answers(rows) if known else (none, none)

    def candidates(self) -> Tensor:
        """[P] how many entities compete, the target included."""
        known_count = torch.bincount(self.known_row, minlength=len(self.rows))[self.row]
        return self.scorer.num_entities - known_count + self.known_target.long()

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
