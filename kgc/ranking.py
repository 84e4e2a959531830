"""Exact filtered ranks, in blocks of one shape.

`rank_queries` scores queries against all entities and counts, for every query, the unfiltered rivals that score
strictly higher than the target (`better`) and those that tie with it (`equal`).

How it stays exact. Floating-point matrix products depend on the shape of the call, so all scores come from calls of one
shape: [batch, block], the last rows padded, the last block overlapping. The target's score is read from the block that
holds its rivals' scores; where the entities take several blocks it is read from a block of the same shape made of the
targets, compared with its value in the block that contains it, and a query whose two values differ is ranked again from
one whole row. Known answers are set to NaN by index, which no comparison counts.

Cost: every distinct (anchor, relation, side) is scored once, U · E · D multiplications for U of them. Memory above the
tables and the index: a few times batch · block floats, and the known answers of one batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.types import Queries, RankCounts, Scorer, Side

# Cells of one block of scores: 2^23 floats (32 MiB) stay near a CPU's caches, 2^27 (512 MiB) keep a GPU busy.
_CELLS = {"cpu": 1 << 23, "cuda": 1 << 27}


class NonFiniteScore(UserError):
    """A right answer scored NaN or ±inf; `queries` and `targets` hold the first offending query, `count` how many."""

    def __init__(self, queries: Queries, targets: Tensor, value: float, count: int):
        self.queries, self.targets, self.value, self.count = queries, targets, value, count
        side = Side(int(queries.side)).label
        super().__init__(
            f"{count} right answer(s) have a non-finite score, first: score {value} for {side} {int(targets)} of "
            f"anchor {int(queries.anchor)}, relation {int(queries.relation)}; a diverged model cannot be ranked "
            "(ranking.nonfinite=worst gives such queries the worst rank)"
        )


@dataclass(frozen=True)
class RankingOptions:
    """How ranks are computed; none of these changes a rank.

    Args:
        batch: distinct queries scored together; None picks 512 (1024 on CUDA).
        block: entities scored together; None picks what keeps batch · block at 2^23 cells (2^27 on CUDA).
        nonfinite: `error` raises `NonFiniteScore` when a target's score is not finite; `worst` gives it the worst rank.
    """

    batch: int | None = None
    block: int | None = None
    nonfinite: str = "error"

    def __post_init__(self) -> None:
        for name in ("batch", "block"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"ranking.{name}={value}: must be at least 1, or null for the default")
        if self.nonfinite not in ("error", "worst"):
            raise UserError(f"ranking.nonfinite={self.nonfinite}: choices are error, worst")

    def shape(self, num_entities: int, device: torch.device) -> tuple[int, int]:
        """The (rows, columns) of every block of scores."""
        rows = self.batch or (1024 if device.type == "cuda" else 512)
        cells = _CELLS.get(device.type, _CELLS["cpu"])
        return rows, min(num_entities, self.block or max(1, cells // rows))


@torch.no_grad()
def rank_queries(
    scorer: Scorer,
    queries: Queries,
    targets: Tensor,
    known: KnownAnswers | None = None,
    options: RankingOptions | None = None,
) -> RankCounts:
    """Ranks the right answer of every query among all entities.

    Args:
        scorer: a `KGEModel`, or anything with `num_entities` and `score(queries, candidates)`.
        queries: Q questions, on the scorer's device.
        targets: [Q] the right answers.
        known: answers to leave out of the competition (the target itself always competes); None ranks unfiltered.
        options: sizes and the policy for non-finite scores.

    Returns:
        The counts of the Q queries, in their order.

    Raises:
        NonFiniteScore: a target's score is NaN or infinite and `options.nonfinite` is `error`.
        torch.OutOfMemoryError: even one query against one entity does not fit.
    """
    options = options or RankingOptions()
    device = targets.device
    side = queries.side if isinstance(queries.side, Tensor) else torch.full_like(targets, int(queries.side))
    # One row of scores per distinct query, sorted by side, then relation.
    distinct, row_of_query = torch.unique(
        torch.stack([side, queries.relation, queries.anchor]), dim=1, return_inverse=True
    )
    rows = Queries(distinct[2], distinct[1], distinct[0])
    known_target = (
        known.contains(queries, targets.unsqueeze(-1)).squeeze(-1) if known else torch.zeros_like(targets, dtype=bool)
    )
    better, equal, candidates, nonfinite = (torch.empty_like(targets) for _ in range(4))
    batch, block = options.shape(scorer.num_entities, device)
    order = torch.argsort(row_of_query, stable=True)
    sorted_rows = row_of_query[order].cpu()
    start = 0
    with exact_arithmetic(device):
        while start < len(rows):
            stop = min(start + batch, len(rows))
            first, last = torch.searchsorted(sorted_rows, torch.tensor([start, stop])).tolist()
            mine = order[first:last]  # the queries of this batch of rows
            part = _Part(scorer, rows[start:stop], row_of_query[mine] - start, targets[mine], known_target[mine], known)
            try:
                result = part.rank(batch, block)
            except RuntimeError as error:
                if not _out_of_memory(error) or batch * block == 1:
                    raise
                if block > 1024 or batch == 1:
                    block = -(-block // 2)
                else:
                    batch = -(-batch // 2)
                warnings.warn(
                    f"out of memory: going on with blocks of {batch} queries x {block} entities", stacklevel=2
                )
                continue
            for whole, piece in zip((better, equal, candidates, nonfinite), result, strict=True):
                whole[mine] = piece
            start = stop
    return _judge(RankCounts(better, equal, candidates, nonfinite), queries, side, targets, options)


def _judge(counts: RankCounts, queries: Queries, side: Tensor, targets: Tensor, options: RankingOptions) -> RankCounts:
    """Applies the policy for targets without a finite score (marked better = -2 − their position among NaN, ±inf)."""
    bad = counts.better < 0
    number = int(bad.sum())
    if not number:
        return counts
    if options.nonfinite == "error":
        i = int(bad.nonzero()[0])
        value = {-2: float("nan"), -3: float("inf"), -4: float("-inf")}[int(counts.better[i])]
        query = Queries(queries.anchor[i], queries.relation[i], side[i])
        raise NonFiniteScore(query, targets[i], value, number)
    warnings.warn(f"{number} right answer(s) have a non-finite score and get the worst rank", stacklevel=3)
    worst = torch.where(bad, counts.candidates - 1, counts.better)
    return RankCounts(worst, torch.where(bad, 0, counts.equal), counts.candidates, counts.nonfinite)


class _Part:
    """The queries of one batch of rows: P queries that ask U distinct questions."""

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
        self.row = row  # [P], ascending
        self.target = target  # [P]
        self.known_target = known_target  # [P] bool: the filter holds the target itself
        none = target.new_empty(0)
        self.known_row, self.known_entity = known.answers(rows) if known else (none, none)

    def rank(self, batch: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[P] better, equal, candidates and non-finite scores, all scored in calls of shape [batch, block]."""
        entities = self.scorer.num_entities
        count = len(self.rows)
        padding = torch.arange(batch, device=self.row.device).clamp_(max=count - 1)
        score = _bind(self.scorer, self.rows[padding])
        blocks = list(_ranges(entities, block))
        target_score = None
        if len(blocks) > 1:
            target_score = self._scores_of_targets(score, block)
        better, equal = torch.zeros_like(self.target), torch.zeros_like(self.target)
        unsteady = torch.zeros_like(self.target, dtype=torch.bool)
        finite = torch.ones((), dtype=torch.bool, device=self.row.device)
        cells = self._known_cells(blocks)
        for (low, start, stop), known_cells in zip(blocks, cells, strict=True):
            scores = score(range(low, stop))[:count, start - low :]  # [U, n]; the overlap was counted before
            own = scores[self.row, (self.target - start).clamp(0, stop - start - 1)]  # [P]
            if target_score is None:
                target_score = own
            inside = (self.target >= start) & (self.target < stop)
            unsteady |= inside & (own != target_score)
            finite &= _all_finite(scores)
            scores[known_cells] = torch.nan
            better += _count(torch.gt, scores, self.row, target_score)
            equal += _count(torch.eq, scores, self.row, target_score)
        nonfinite = torch.zeros_like(self.target)
        # A target outside the filter tied with itself.
        equal -= (~self.known_target).long()
        if not bool(finite) or bool(unsteady.any()):
            chosen = torch.ones_like(unsteady) if not bool(finite) else unsteady
            better, equal, nonfinite = self._rank_whole_rows(score, blocks, chosen, better, equal, nonfinite)
        known_count = torch.bincount(self.known_row, minlength=count)[self.row]
        candidates = entities - known_count + self.known_target.long()
        return better, equal, candidates, nonfinite

    def _known_cells(self, blocks: list[tuple[int, int, int]]) -> list[tuple[Tensor, Tensor]]:
        """For each block the (row, column) of its known answers."""
        if len(blocks) == 1:
            return [(self.known_row, self.known_entity)]
        starts = torch.tensor([start for _, start, _ in blocks], device=self.row.device)
        block_of = torch.searchsorted(starts, self.known_entity, right=True) - 1
        order = torch.argsort(block_of, stable=True)
        sizes = torch.bincount(block_of, minlength=len(blocks)).tolist()
        rows, columns = self.known_row[order], (self.known_entity - starts[block_of])[order]
        return list(zip(rows.split(sizes), columns.split(sizes), strict=True))

    def _scores_of_targets(self, score: Callable[[Tensor | range], Tensor], block: int) -> Tensor:
        """[P] scores read from blocks of the same shape whose columns are the targets."""
        found = []
        for columns in self.target.split(block):
            padded = columns[torch.arange(block, device=columns.device).clamp_(max=len(columns) - 1)]
            first = sum(map(len, found))
            rows = self.row[first : first + len(columns)]
            found.append(score(padded)[rows, torch.arange(len(columns), device=columns.device)])
        return torch.cat(found)

    def _rank_whole_rows(
        self,
        score: Callable[[Tensor | range], Tensor],
        blocks: list[tuple[int, int, int]],
        chosen: Tensor,
        better: Tensor,
        equal: Tensor,
        nonfinite: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ranks the chosen queries again from whole rows of scores, non-finite scores set aside."""
        entities = self.scorer.num_entities
        at_once = max(1, sum(stop - start for _, start, stop in blocks[:1]) * 512 // entities)
        for rows in self.row[chosen].unique().split(at_once):
            whole = torch.cat([score(range(low, stop))[rows, start - low :] for low, start, stop in blocks], dim=1)
            place = torch.full((len(self.rows),), -1, device=rows.device).scatter_(
                0, rows, torch.arange(len(rows), device=rows.device)
            )
            mine = (place[self.row] >= 0).nonzero().squeeze(-1)
            here, target = place[self.row[mine]], self.target[mine]
            own = whole[here, target]
            cells = place[self.known_row] >= 0
            whole[place[self.known_row[cells]], self.known_entity[cells]] = 0.0  # a filtered score is nobody's rival
            odd = ~whole.isfinite()
            nonfinite[mine] = odd.sum(1)[here] + (self.known_target[mine] & ~own.isfinite()).long()
            whole[odd] = torch.nan
            whole[place[self.known_row[cells]], self.known_entity[cells]] = torch.nan
            better[mine] = _count(torch.gt, whole, here, own)
            equal[mine] = _count(torch.eq, whole, here, own) - (~self.known_target[mine]).long()
            kinds = torch.where(own.isnan(), -2, torch.where(own > 0, -3, -4))
            better[mine] = torch.where(own.isfinite(), better[mine], kinds)
        return better, equal, nonfinite


def _bind(scorer: Scorer, queries: Queries) -> Callable[[Tensor | range], Tensor]:
    """A function from candidates to scores for fixed queries; query vectors are computed once where there are any."""
    if hasattr(scorer, "query_vectors"):
        vectors = scorer.query_vectors(queries)
        return lambda candidates: scorer.similarity.ranking_key(vectors, scorer.candidate_vectors(candidates))
    return lambda candidates: scorer.score(queries, candidates).clone()


def _ranges(entities: int, block: int) -> Iterator[tuple[int, int, int]]:
    """(first entity scored, first entity counted, end) of blocks of one width; the last overlaps the one before."""
    for start in range(0, entities, block):
        stop = min(start + block, entities)
        yield max(0, stop - block), start, stop


def _all_finite(scores: Tensor) -> Tensor:
    low, high = torch.aminmax(scores)
    return torch.isfinite(low) & torch.isfinite(high)


def _count(compare: Callable[..., Tensor], scores: Tensor, row: Tensor, threshold: Tensor) -> Tensor:
    """[P] numbers of cells in `scores[row]` for which `compare(cell, threshold)` holds.

    Queries that share a row are taken one after another, so that rows are compared where they lie; a comparison writes
    into fp32 because torch sums that many times faster than bool. Counts up to 2^24 cells a block are exact.
    """
    counts = torch.empty_like(row)
    if not len(row):
        return counts
    turn = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)  # 0, 1, … within a row
    turns = int(turn.max()) + 1
    order = torch.argsort(turn, stable=True)
    buffer = scores.new_empty(scores.shape)
    for queries in order.split(torch.bincount(turn, minlength=turns).tolist()):
        rows = scores if len(queries) == len(scores) else scores[row[queries]]
        hits = compare(rows, threshold[queries].unsqueeze(-1), out=buffer[: len(rows)])
        counts[queries] = hits.sum(-1).long()
    return counts


def _out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text or "not enough memory" in text


@contextlib.contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Autocast and TF32 off: ranks are computed in full fp32."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
