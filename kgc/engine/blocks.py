"""The block path: ranks as the fp32 scores of one kernel say, for any scorer.

Floating-point products depend on the shape of the call, so all scores come from calls of one shape: [batch, block], the
last rows padded, the last block overlapping. The target's score is read from the block that holds its rivals' scores;
where the entities take several blocks it is read from a block of the same shape made of the targets, compared with its
value in the block that contains it, and a query whose two values differ is ranked again from one whole row.

Where entities lie on several processes calls have the shape that one process would use, filled up: scores are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from kgc.engine.counting import Counter, Key, RowLayout
from kgc.engine.part import Part, Room, ranges
from kgc.types import Queries, Scorer

Score = Callable[[Tensor | range], Tensor]

# Products of fewer rows or columns go through kernels that do not treat all their rows or columns alike.
_SMALLEST = 16


class BlockPart(Part):
    """Ranks one batch of rows by blocks of fp32 scores."""

    def rank(
        self, batch: int, block: int, counter: Counter, key: Key | None, room: Room
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[P] better, equal, candidates and non-finite scores, all scored in calls of shape [batch, block].

        Args:
            batch, block: that shape.
            counter: how cells are counted.
            key: a faster form of the similarity's ranking key, or None.
            room: where blocks of scores lie; a block is gone when the next is asked for.
        """
        count = len(self.rows)
        layout = RowLayout(self.row, count)
        padding = torch.arange(batch, device=self.row.device).clamp_(max=count - 1)
        bind = _binder(self.scorer, self.rows[layout.order[padding]], key, room)
        blocks = list(ranges(self.entities, min(block, self.entities)))
        steady = len(blocks) == 1 and self.shard is None
        value = self.shared(torch.zeros(0) if steady else self._scores_of_targets(bind(block), layout, block))
        *counts, unsteady, seen = self.locally(
            lambda size: self._count(bind(size), layout, size, counter, None if steady else value), block
        )
        better, equal, nonfinite, unsteady = self.total(*counts, unsteady.long())
        if steady:
            value = seen
        elif bool(unsteady.any()):
            # The target's score in the block of its rivals is what counts.
            value = torch.where(unsteady > 0, self.shared(seen), value)
            again = self.total(
                *self.locally(lambda size: self._count_whole_rows(bind(size), layout, size, unsteady > 0, value), block)
            )
            better, equal, nonfinite = (
                torch.where(unsteady > 0, new, old) for new, old in zip(again, (better, equal, nonfinite), strict=True)
            )
        return self.judged(value, better, equal, nonfinite)

    def _count(
        self, score: Score, layout: RowLayout, block: int, counter: Counter, value: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """[P] better, equal and non-finite scores among the cells of this process outside the filter; bool, the
        target's score there is not `value`; and the target's score there.

        Args:
            score: makes blocks.
            layout: the rows that the queries look at.
            block: width of a block.
            counter: how cells are counted.
            value: [P] the targets' scores; None where they are read from the only block.
        """
        count = len(self.rows)
        blocks = list(ranges(self.entities, min(block, self.entities)))
        better, equal, nonfinite = (torch.zeros_like(self.target) for _ in range(3))
        seen = value
        finite = torch.ones((), dtype=torch.bool, device=self.row.device)
        for (low, start, stop), known in zip(blocks, self.known_cells(blocks), strict=True):
            scores = score(range(low, stop))[:count]  # [U, n]
            own = scores[layout.row, (self.target - low).clamp(0, stop - low - 1)]  # [P]
            if value is None:
                seen = value = own
            seen = torch.where(self.mine & (self.target >= start) & (self.target < stop), own, seen)
            finite &= _all_finite(scores)
            scores[:, : start - low] = torch.nan  # counted in the block before
            scores[layout.rank_of_row[known[0]], known[1] + (start - low)] = torch.nan
            found = counter(scores, layout, value, value, 0)
            better += found.above
            equal += found.inside
        if not bool(finite):
            every = torch.ones_like(self.mine)
            better, equal, nonfinite = self._count_whole_rows(score, layout, block, every, value)
        return better, equal, nonfinite, seen != value, seen

    def _scores_of_targets(self, score: Score, layout: RowLayout, block: int) -> Tensor:
        """[P] scores read from blocks of the same shape whose columns are the targets; of those of this process."""
        found = []
        place = torch.arange(block, device=self.row.device)
        for columns, rows in zip(self.target.split(block), layout.row.split(block), strict=True):
            padded = columns[place.clamp(max=len(columns) - 1)]
            found.append(score(padded)[rows, place[: len(columns)]])
        return torch.cat(found)

    def _count_whole_rows(
        self, score: Score, layout: RowLayout, block: int, chosen: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[P] better, equal and non-finite scores of the chosen queries, 0 for others, from whole rows of scores, with
        non-finite ones set aside."""
        better, equal, nonfinite = (torch.zeros_like(self.target) for _ in range(3))
        width = min(block, self.entities)
        blocks = list(ranges(self.entities, width))
        at_once = max(1, width * 512 // self.entities)
        place = torch.empty(len(self.rows), dtype=torch.int64, device=self.row.device)
        for rows in self.row[chosen].unique().split(at_once):
            at = layout.rank_of_row[rows]
            whole = torch.cat([score(range(low, stop))[at, start - low :] for low, start, stop in blocks], dim=1)
            place.fill_(-1)[rows] = torch.arange(len(rows), device=rows.device)
            mine = ((place[self.row] >= 0) & chosen).nonzero().squeeze(-1)
            here = place[self.row[mine]]
            cells = place[self.known_row] >= 0
            known = place[self.known_row[cells]], self.known_entity[cells]
            whole[known] = 0.0  # a filtered score is nobody's rival
            odd = ~whole.isfinite()
            nonfinite[mine] = odd.sum(1)[here]
            whole[odd] = torch.nan
            whole[known] = torch.nan
            for part in torch.arange(len(mine), device=mine.device).split(at_once):
                scores, score_of_target = whole[here[part]], value[mine[part], None]
                better[mine[part]] = (scores > score_of_target).sum(1)
                equal[mine[part]] = (scores == score_of_target).sum(1)
        return better, equal, nonfinite


def _binder(scorer: Scorer, queries: Queries, key: Key | None, room: Room) -> Callable[[int], Score]:
    """From the width of blocks to a function from candidates to scores for fixed queries.

    Query vectors are computed once where there are any. Ids of candidates are those of this process.
    """
    if not hasattr(scorer, "query_vectors"):

        def score(candidates: Tensor | range) -> Tensor:
            scores = scorer.score(queries, candidates)
            return scores.clone() if scores.is_floating_point() else scores.double()  # NaN marks what is not counted

        return lambda width: score
    count = len(queries)
    vectors = _filled(scorer.query_vectors(queries), _SMALLEST)
    shard = getattr(scorer, "shard", None)

    def of_width(width: int) -> Score:
        def compare(candidates: Tensor | range) -> Tensor:
            with contextlib.nullcontext() if shard is None else shard.region(scorer):
                table = _filled(scorer.candidate_vectors(candidates), max(width, _SMALLEST))
            if key is not None:
                scores = key(vectors, table)
            else:
                out = room.take(vectors, len(vectors), len(table))
                scores = scorer.similarity.ranking_key(vectors, table, None, out)
            return scores[:count, : len(candidates)]

        return compare

    return of_width


def _filled(vectors: Tensor, least: int) -> Tensor:
    """[n, D] vectors, n > 0, the last one repeated up to `least`."""
    missing = least - len(vectors)
    return torch.cat([vectors, vectors[-1:].expand(missing, -1)]) if missing > 0 else vectors


def _all_finite(scores: Tensor) -> Tensor:
    low, high = torch.aminmax(scores)
    return torch.isfinite(low) & torch.isfinite(high)
