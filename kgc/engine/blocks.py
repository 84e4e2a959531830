"""The block path: ranks as the fp32 scores of one kernel say, for any scorer.

Floating-point products depend on the shape of the call, so all scores come from calls of one shape: [batch, block], the
last rows padded, the last block overlapping. The target's score is read from the block that holds its rivals' scores;
where the entities take several blocks it is read from a block of the same shape made of the targets, compared with its
value in the block that contains it, and a query whose two values differ is ranked again from one whole row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kgc.engine.counting import Counter, Key, RowLayout
from kgc.engine.part import Part, Room, mark_nonfinite, ranges
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
        score = _bind(self.scorer, self.rows[layout.order[padding]], key, room)
        blocks = list(ranges(self.scorer.num_entities, block))
        target_score = self._scores_of_targets(score, layout, block) if len(blocks) > 1 else None
        better, equal, nonfinite = (torch.zeros_like(self.target) for _ in range(3))
        unsteady = torch.zeros_like(self.target, dtype=torch.bool)
        finite = torch.ones((), dtype=torch.bool, device=self.row.device)
        for (low, start, stop), known in zip(blocks, self.known_cells(blocks), strict=True):
            scores = score(range(low, stop))[:count]  # [U, n]
            own = scores[layout.row, (self.target - low).clamp(0, stop - low - 1)]  # [P]
            if target_score is None:
                target_score = own
            unsteady |= (self.target >= start) & (self.target < stop) & (own != target_score)
            finite &= _all_finite(scores)
            scores[:, : start - low] = torch.nan  # counted in the block before
            scores[layout.rank_of_row[known[0]], known[1] + (start - low)] = torch.nan
            found = counter(scores, layout, target_score, target_score, 0)
            better += found.above
            equal += found.inside
        equal -= (~self.known_target).long()  # a target outside the filter tied with itself
        if not bool(finite) or bool(unsteady.any()):
            chosen = torch.ones_like(unsteady) if not bool(finite) else unsteady
            self._rank_whole_rows(score, layout, blocks, chosen, better, equal, nonfinite)
        return better, equal, self.candidates(), nonfinite

    def _scores_of_targets(self, score: Score, layout: RowLayout, block: int) -> Tensor:
        """[P] scores read from blocks of the same shape whose columns are the targets."""
        found = []
        place = torch.arange(block, device=self.row.device)
        for columns, rows in zip(self.target.split(block), layout.row.split(block), strict=True):
            padded = columns[place.clamp(max=len(columns) - 1)]
            found.append(score(padded)[rows, place[: len(columns)]])
        return torch.cat(found)

    def _rank_whole_rows(
        self,
        score: Score,
        layout: RowLayout,
        blocks: list[tuple[int, int, int]],
        chosen: Tensor,
        better: Tensor,
        equal: Tensor,
        nonfinite: Tensor,
    ) -> None:
        """Ranks the rows of the chosen queries again from whole rows of scores, setting non-finite scores aside."""
        width = blocks[0][2] - blocks[0][0]
        at_once = max(1, width * 512 // self.scorer.num_entities)
        place = torch.empty(len(self.rows), dtype=torch.int64, device=self.row.device)
        for rows in self.row[chosen].unique().split(at_once):
            at = layout.rank_of_row[rows]
            whole = torch.cat([score(range(low, stop))[at, start - low :] for low, start, stop in blocks], dim=1)
            place.fill_(-1)[rows] = torch.arange(len(rows), device=rows.device)
            mine = (place[self.row] >= 0).nonzero().squeeze(-1)
            here = place[self.row[mine]]
            own = whole[here, self.target[mine]]
            cells = place[self.known_row] >= 0
            known = place[self.known_row[cells]], self.known_entity[cells]
            whole[known] = 0.0  # a filtered score is nobody's rival
            odd = ~whole.isfinite()
            nonfinite[mine] = odd.sum(1)[here] + (self.known_target[mine] & ~own.isfinite()).long()
            whole[odd] = torch.nan
            whole[known] = torch.nan
            for part in torch.arange(len(mine), device=mine.device).split(at_once):
                scores, score_of_target = whole[here[part]], own[part, None]
                better[mine[part]] = mark_nonfinite((scores > score_of_target).sum(1), own[part])
                equal[mine[part]] = (scores == score_of_target).sum(1) - (~self.known_target[mine[part]]).long()


def _bind(scorer: Scorer, queries: Queries, key: Key | None, room: Room) -> Score:
    """A function from candidates to scores for fixed queries; query vectors are computed once where there are any."""
    if not hasattr(scorer, "query_vectors"):

        def score(candidates: Tensor | range) -> Tensor:
            scores = scorer.score(queries, candidates)
            return scores.clone() if scores.is_floating_point() else scores.double()  # NaN marks what is not counted

        return score
    count = len(queries)
    vectors = _filled(scorer.query_vectors(queries))

    def compare(candidates: Tensor | range) -> Tensor:
        table = _filled(scorer.candidate_vectors(candidates))
        if key is not None:
            scores = key(vectors, table)
        else:
            out = room.take(vectors, len(vectors), len(table))
            scores = scorer.similarity.ranking_key(vectors, table, None, out)
        return scores[:count, : len(candidates)]

    return compare


def _filled(vectors: Tensor) -> Tensor:
    """[n, D] vectors, n > 0, the last one repeated up to `_SMALLEST`."""
    missing = _SMALLEST - len(vectors)
    return torch.cat([vectors, vectors[-1:].expand(missing, -1)]) if 0 < missing < _SMALLEST else vectors


def _all_finite(scores: Tensor) -> Tensor:
    low, high = torch.aminmax(scores)
    return torch.isfinite(low) & torch.isfinite(high)
