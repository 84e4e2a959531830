"""Ranking metrics as pure functions of rank counts; finished in float64 with exact sums.

`math.fsum` rounds once, so a mean does not depend on the order of queries, threads or processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgc.metrics.harmonic import harmonic, harmonic_of_squares
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


def reciprocal_rank_at(ranks: Tensor, k: int) -> float:
    """MRR@k: mean of 1 / rank, 0 for ranks beyond k."""
    return mean(torch.where(ranks <= k, 1 / ranks.double(), 0.0))


def median_rank(ranks: Tensor) -> float:
    """The middle rank, the mean of the two middle ones of an even number; NaN when empty."""
    ordered = ranks.double().cpu().sort().values
    return float(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]].mean()) if len(ordered) else math.nan


def geometric_mean_rank(ranks: Tensor) -> float:
    """exp of the mean logarithm of ranks; NaN when empty."""
    return math.exp(mean(ranks.double().log()))


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


@dataclass(frozen=True)
class Chance:
    """What a mean metric is worth when every rank 1 … n is as likely as any other.

    Args:
        expectation: of the mean over all queries.
        variance: of that mean, queries being independent.
    """

    expectation: float
    variance: float

    def adjusted(self, value: float, best: float = 1.0) -> float:
        """(value − E) / (best − E): 1 is perfect, 0 chance; NaN where chance is perfect (Hoyt et al. 2022)."""
        return (value - self.expectation) / (best - self.expectation) if best != self.expectation else math.nan

    def z_score(self, value: float) -> float:
        """(value − E) / √V; NaN where nothing can vary."""
        return (value - self.expectation) / math.sqrt(self.variance) if self.variance else math.nan


def _chance(expectations: Tensor, variances: Tensor) -> Chance:
    return Chance(mean(expectations), mean(variances) / len(variances) if len(variances) else math.nan)


def chance_of_mean_rank(candidates: Tensor) -> Chance:
    """E = (n + 1)/2 and V = (n² − 1)/12 of [B] n candidates (Berrendorf et al. 2020, section 4)."""
    n = candidates.double().cpu()
    return _chance((n + 1) / 2, (n * n - 1) / 12)


def chance_of_reciprocal_rank(candidates: Tensor) -> Chance:
    """E = H(n)/n and V = H₂(n)/n − E², H and H₂ the harmonic numbers of order 1 and 2 (Hoyt et al. 2022)."""
    n = candidates.double().cpu()
    first, second = harmonic(n) / n, harmonic_of_squares(n) / n
    return _chance(first, torch.where(n == 1, 0.0, second - first**2))


def chance_of_hits(candidates: Tensor, k: int) -> Chance:
    """E = p and V = p(1 − p) with p = min(k, n)/n (Hoyt et al. 2022)."""
    n = candidates.double().cpu()
    p = n.clamp(max=k) / n
    return _chance(p, p * (1 - p))


def adjusted_metrics(ranks: Tensor, candidates: Tensor, hits: Sequence[int] = (1, 3, 10)) -> dict[str, float]:
    """Metrics in relation to chance: `adjusted_mrr`, `adjusted_hits@K` (1 is perfect, 0 chance) and `z_mr`, `z_mrr`,
    `z_hits@K` (standard deviations above chance; positive is better, for the mean rank too).

    Source: Hoyt et al. 2022, "A unified framework for rank-based evaluation metrics".

    Args:
        ranks, candidates: [B].
        hits: the cut-offs K.
    """
    reciprocal = chance_of_reciprocal_rank(candidates)
    mrr = mean_reciprocal_rank(ranks)
    values = {"adjusted_mrr": reciprocal.adjusted(mrr)}
    values["z_mr"] = -chance_of_mean_rank(candidates).z_score(mean(ranks))
    values["z_mrr"] = reciprocal.z_score(mrr)
    for k in hits:
        chance, value = chance_of_hits(candidates, k), hits_at(ranks, k)
        values |= {f"adjusted_hits@{k}": chance.adjusted(value), f"z_hits@{k}": chance.z_score(value)}
    return values


def expected_reciprocal_rank(counts: RankCounts) -> Tensor:
    """[B] E[1 / rank] when ties break at random: (H(b + e + 1) − H(b)) / (e + 1), H the harmonic numbers."""
    better, equal = counts.better.double().cpu(), counts.equal.double().cpu()
    # A difference loses digits; without ties the value is known.
    tied = (harmonic(better + equal + 1) - harmonic(better)) / (equal + 1)
    return torch.where(equal == 0, 1 / (better + 1), tied)


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
        `expected/` (mean over random tie-breaks, without `mr`), `mrr@K`, `median_rank`, `geometric_mean_rank`, `amr`,
        `amri`, those of `adjusted_metrics`, `num_queries`, `num_tied`, `num_nonfinite`. What has no value (an empty
        side) is left out, so that all numbers are finite.
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
    values |= {f"mrr@{k}": reciprocal_rank_at(realistic, k) for k in hits}
    values["median_rank"] = median_rank(realistic)
    values["geometric_mean_rank"] = geometric_mean_rank(realistic)
    values["amr"] = adjusted_mean_rank(realistic, counts.candidates)
    values["amri"] = adjusted_mean_rank_index(realistic, counts.candidates)
    values |= adjusted_metrics(realistic, counts.candidates, hits)
    values["num_queries"] = len(counts)
    values["num_tied"] = int((counts.equal > 0).sum())
    values["num_nonfinite"] = int((counts.nonfinite > 0).sum())
    return {name: value for name, value in values.items() if math.isfinite(value)}
