"""Means over groups of queries, and the mean of these: what a frequent relation or a hub does to a metric."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kgc.metrics.ranks import hits_at, mean, mean_reciprocal_rank
from kgc.types import RankCounts

# Degrees from which on a bucket counts, and its name.
DEGREES = {0: "0", 1: "1-9", 10: "10-99", 100: "100-999", 1000: "1000+"}


def macro(values: Tensor, group: Tensor) -> float:
    """Mean over the groups that occur of the mean of [B] values in each: every group weighs the same."""
    return mean(torch.tensor([mean(values[group == g]) for g in torch.unique(group).tolist()], dtype=torch.float64))


def degree_buckets(degree: Tensor) -> Tensor:
    """[B] degrees to [B] places in `DEGREES`."""
    bounds = torch.tensor(list(DEGREES), device=degree.device)
    return torch.searchsorted(bounds, degree, right=True) - 1


def grouped_metrics(
    counts: RankCounts, group: Tensor, names: Sequence[str], hits: Sequence[int] = (1, 3, 10)
) -> dict[str, float]:
    """`NAME/mrr`, `NAME/mr`, `NAME/hits@K`, `NAME/num_queries` of each group that occurs, realistic ties.

    Args:
        counts: Q ranked queries.
        group: [Q] places in `names`.
        names: of the groups.
        hits: the cut-offs K.
    """
    ranks, values = counts.realistic, {}
    for g in torch.unique(group).tolist():
        mine = ranks[group == g]
        values |= {f"{names[g]}/mrr": mean_reciprocal_rank(mine), f"{names[g]}/mr": mean(mine)}
        values |= {f"{names[g]}/hits@{k}": hits_at(mine, k) for k in hits}
        values[f"{names[g]}/num_queries"] = len(mine)
    return values
