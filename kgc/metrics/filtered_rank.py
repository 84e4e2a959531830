"""Ranks collected over batches and processes: `FilteredRank` of a split, `AnswerRanks` of queries with many answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from kgc.metrics.answers import Answers, answer_metrics
from kgc.metrics.ranks import mean, rank_metrics
from kgc.types import RankCounts


class CollectedRanks(Metric):
    """Rank counts under fixed places.

    The state is four int64 vectors of fixed length, -1 where nothing has been ranked. Processes are reduced with
    `max` after an all-gather: what two processes ranked (padded shards) counts once, and the result is the same
    for any batch size and any number of processes.

    Args:
        number: how many ranks there will be.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    better: Tensor
    equal: Tensor
    candidates: Tensor
    nonfinite: Tensor

    def __init__(self, number: int):
        super().__init__()
        for name in ("better", "equal", "candidates", "nonfinite"):
            self.add_state(name, torch.full((number,), -1, dtype=torch.int64), dist_reduce_fx="max")

    def update(self, index: Tensor, counts: RankCounts) -> None:
        """Files the counts of B queries under their [B] places in the list of all queries."""
        self.better[index] = counts.better
        self.equal[index] = counts.equal
        self.candidates[index] = counts.candidates
        self.nonfinite[index] = counts.nonfinite

    def ranks(self) -> RankCounts:
        """The counts of all queries, over all processes, on the CPU; rows of -1 were not ranked."""
        with self.sync_context(should_unsync=True, should_sync=self._to_sync):
            states = (self.better, self.equal, self.candidates, self.nonfinite)
            return RankCounts(*(state.cpu().clone() for state in states))

    def complete(self) -> RankCounts:
        """The counts of all queries, on the CPU.

        Raises:
            ValueError: some query was never ranked; leaving it out would change the mean silently.
        """
        counts = RankCounts(*(x.cpu() for x in (self.better, self.equal, self.candidates, self.nonfinite)))
        missing = int((counts.better < 0).sum())
        if missing:
            raise ValueError(f"{missing} of {len(counts)} queries were never ranked")
        return counts


class FilteredRank(CollectedRanks):
    """The metrics of a split: one right answer a query.

    Args:
        side: [Q] values of `Side`, the end each query asks for.
        hits: the cut-offs K of Hits@K.
    """

    def __init__(self, side: Tensor, hits: Sequence[int] = (1, 3, 10)):
        super().__init__(len(side))
        self.side = side.cpu()
        self.hits = tuple(hits)

    def compute(self) -> dict[str, float]:
        """The metrics of `kgc.metrics.ranks.rank_metrics`.

        Raises:
            ValueError: some query was never ranked.
        """
        return rank_metrics(self.complete(), self.side, self.hits)


class AnswerRanks(CollectedRanks):
    """The metrics of queries with many right answers: means over the queries.

    Args:
        query: [M] the query, 0 … Q − 1, that each answer belongs to.
        grade: [M] relevance of each answer.
        num_queries: Q; a query without answers counts as 0.
        cutoffs, ties, gain: see `kgc.metrics.answers.answer_metrics`.
    """

    def __init__(
        self,
        query: Tensor,
        grade: Tensor,
        num_queries: int,
        cutoffs: Sequence[int] = (1, 3, 10),
        ties: str = "expected",
        gain: str = "linear",
    ):
        super().__init__(len(query))
        self.query, self.grade, self.num_queries = query.cpu(), grade.cpu(), num_queries
        self.options = {"cutoffs": tuple(cutoffs), "ties": ties, "gain": gain}

    def per_query(self) -> dict[str, Tensor]:
        """[Q] of each metric.

        Raises:
            ValueError: some answer was never ranked.
        """
        counts = self.complete()
        answers = Answers(self.query, self.grade, counts.better, counts.equal, self.num_queries)
        return answer_metrics(answers, **self.options)

    def compute(self) -> dict[str, float]:
        """The mean of each metric over the queries; none without queries."""
        return {name: mean(values) for name, values in self.per_query().items() if len(values)}
