"""Ranking metrics as pure functions of rank counts; finished in float64 with exact sums.

`math.fsum` rounds once, so a mean does not depend on the order of queries, threads or processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kgc.types import RankCounts, Side


def mean(values: Tensor) -> float:
    """Exactly rounded mean of a [B] tensor; NaN when empty."""
    values = values.double().cpu()
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def mean_reciprocal_rank(ranks: Tensor) -> float:
    """MRR: mean of 1 / rank, in (0, 1]."""
    return mean(1 / ranks.double())


def hits_at(ranks: Tensor, k: int) -> float:
    """Hits@k: the share of ranks ≤ k."""
    return mean(ranks <= k)


def adjusted_mean_rank(ranks: Tensor, candidates: Tensor) -> float:
    """AMR: mean rank over its expectation for random scores, Σr / Σ(n + 1)/2; 1 is chance, lower is better.

    Source: Berrendorf et al. 2020, eq. 8.
    """
    return mean(ranks) / mean((candidates.double() + 1) / 2)


def adjusted_mean_rank_index(ranks: Tensor, candidates: Tensor) -> float:
    """AMRI: 1 − Σ(r − 1) / Σ(n − 1)/2; 1 is perfect, 0 chance, negative worse (Berrendorf et al. 2020, eq. 11).

    NaN when no query has a rival.
    """
    expected = mean((candidates.double() - 1) / 2)
    return 1 - mean(ranks.double() - 1) / expected if expected else math.nan


def expected_reciprocal_rank(counts: RankCounts) -> Tensor:
    """[B] E[1 / rank] when ties break at random: (H(b + e + 1) − H(b)) / (e + 1), H the harmonic numbers."""
    better, equal = counts.better.double().cpu(), counts.equal.double().cpu()
    harmonic = torch.digamma(better + equal + 2) - torch.digamma(better + 1)
    # digamma loses digits by subtraction; without ties the value is known.
    return torch.where(equal == 0, 1 / (better + 1), harmonic / (equal + 1))


def expected_hits_at(counts: RankCounts, k: int) -> Tensor:
    """[B] P(rank ≤ k) when ties break at random: the share of the places b + 1 … b + e + 1 that are ≤ k."""
    places = (k - counts.better).clamp(min=0).double()
    return torch.minimum(places / (counts.equal.double() + 1), torch.ones_like(places))


def rank_metrics(counts: RankCounts, side: Tensor, hits: Sequence[int] = (1, 3, 10)) -> dict[str, float]:
    """All metrics of one split, with the key names of `metrics.json` less the split.

    Args:
        counts: Q ranked queries.
        side: [Q] values of `Side`.
        hits: the cut-offs K.

    Returns:
        `mrr`, `mr`, `hits@K` (realistic ties), the same under `head/`, `tail/`, `optimistic/`, `pessimistic/`,
        `expected/` (mean over random tie-breaks, without `mr`), `amr`, `amri`, `num_queries`, `num_tied`,
        `num_nonfinite`. What has no value (an empty side) is left out, so that all numbers are finite.
    """

    def basic(prefix: str, ranks: Tensor) -> dict[str, float]:
        values = {f"{prefix}mrr": mean_reciprocal_rank(ranks), f"{prefix}mr": mean(ranks)}
        return values | {f"{prefix}hits@{k}": hits_at(ranks, k) for k in hits}

    realistic = counts.realistic
    values = basic("", realistic)
    for s in Side:
        values |= basic(f"{s.label}/", realistic[side == s])
    values |= basic("optimistic/", counts.optimistic) | basic("pessimistic/", counts.pessimistic)
    values["expected/mrr"] = mean(expected_reciprocal_rank(counts))
    values |= {f"expected/hits@{k}": mean(expected_hits_at(counts, k)) for k in hits}
    values["amr"] = adjusted_mean_rank(realistic, counts.candidates)
    values["amri"] = adjusted_mean_rank_index(realistic, counts.candidates)
    values["num_queries"] = len(counts)
    values["num_tied"] = int((counts.equal > 0).sum())
    values["num_nonfinite"] = int((counts.nonfinite > 0).sum())
    return {name: value for name, value in values.items() if math.isfinite(value)}
