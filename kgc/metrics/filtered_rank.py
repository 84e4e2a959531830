"""`FilteredRank`: the ranks of a split, collected over batches and processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from kgc.metrics.ranks import rank_metrics
from kgc.types import RankCounts


class FilteredRank(Metric):
    """Rank counts per query index, and the metrics that follow from them.

    The state is four int64 vectors of fixed length Q, -1 where a query has not been ranked. Processes are reduced with
    `max` after an all-gather: a query that two processes ranked (padded shards) counts once, and the result is the same
    for any batch size and any number of processes.

    Args:
        side: [Q] values of `Side`, the end each query asks for.
        hits: the cut-offs K of Hits@K.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    better: Tensor
    equal: Tensor
    candidates: Tensor
    nonfinite: Tensor

    def __init__(self, side: Tensor, hits: Sequence[int] = (1, 3, 10)):
        super().__init__()
        self.side = side.cpu()
        self.hits = tuple(hits)
        for name in ("better", "equal", "candidates", "nonfinite"):
            self.add_state(name, torch.full((len(side),), -1, dtype=torch.int64), dist_reduce_fx="max")

    def update(self, index: Tensor, counts: RankCounts) -> None:
        """Files the counts of B queries under their [B] places in the list of all queries."""
        self.better[index] = counts.better
        self.equal[index] = counts.equal
        self.candidates[index] = counts.candidates
        self.nonfinite[index] = counts.nonfinite

    def ranks(self) -> RankCounts:
        """The counts of all Q queries, over all processes, on the CPU; rows of -1 were not ranked."""
        with self.sync_context(should_unsync=True, should_sync=self._to_sync):
            states = (self.better, self.equal, self.candidates, self.nonfinite)
            return RankCounts(*(state.cpu().clone() for state in states))

    def compute(self) -> dict[str, float]:
        """The metrics of `kgc.metrics.ranks.rank_metrics`.

        Raises:
            ValueError: some query was never ranked; leaving it out would change the mean silently.
        """
        counts = RankCounts(*(x.cpu() for x in (self.better, self.equal, self.candidates, self.nonfinite)))
        missing = int((counts.better < 0).sum())
        if missing:
            raise ValueError(f"{missing} of {len(counts)} queries were never ranked")
        return rank_metrics(counts, self.side, self.hits)
