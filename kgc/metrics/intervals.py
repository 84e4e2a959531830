"""How far a metric of a sample of triples may lie from that of the whole split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kgc.metrics.ranks import mean
from kgc.types import RankCounts, Side

_Z = 1.959963984540054  # 97.5 % of a normal distribution lie below
_DRAWN = 1 << 20  # numbers drawn at once


def mean_interval(values: Tensor, population: float) -> tuple[float, float]:
    """95 % confidence interval of the mean of N numbers in [0, 1], from [n] of them drawn without replacement; N may be
    infinite.

    ȳ ± z √((1 − n/N) s²/n): the normal approximation with the finite-population correction (Cochran 1977, sections 2.6
    to 2.8). Where all n are equal, s says nothing, and the interval is what the rule of three leaves: at most 3/n of
    the N differ (Hanley and Lippman-Hand 1983). Cut off at 0 and 1.
    """
    size, centre = len(values), mean(values)
    if size == population:
        return centre, centre
    deviations = mean((values.double() - centre) ** 2) * size
    if size == 1 or not deviations:
        return max(0.0, centre * (1 - 3 / size)), min(1.0, centre + 3 / size * (1 - centre))
    half = _Z * math.sqrt((1 - size / population) * deviations / (size - 1) / size)
    return max(0.0, centre - half), min(1.0, centre + half)


def sample_intervals(counts: RankCounts, population: float, hits: Sequence[int] = (1, 3, 10)) -> dict[str, float]:
    """Intervals of MRR and Hits@K, realistic ties, both sides.

    A drawn triple is a cluster of two queries, whose ranks go together: what is independent, and enters the variance,
    is the mean over a triple's two queries (single-stage cluster sampling, Cochran 1977, chapter 9).

    Args:
        counts: the ranks of n triples, first their n head queries, then their n tail queries in the same order.
        population: N, the triples of the split that they were drawn from; infinity for a split that is itself what was
            drawn, of all triples of its kind.
        hits: the cut-offs K.

    Returns:
        `mrr_low`, `mrr_high`, `hits@K_low`, `hits@K_high`.
    """
    ranks = counts.realistic.view(len(Side), -1)  # [2, n]
    values = {"mrr": 1 / ranks} | {f"hits@{k}": (ranks <= k).double() for k in hits}
    intervals = {}
    for name, value in values.items():
        intervals[f"{name}_low"], intervals[f"{name}_high"] = mean_interval(value.mean(0), population)
    return intervals


def standard_errors(counts: RankCounts, hits: Sequence[int] = (1, 3, 10)) -> dict[str, float]:
    """Standard errors of MRR, mean rank and Hits@K, realistic ties, both sides: of the triples and of what was drawn.

    The mean over a triple's two queries is what is independent (see `sample_intervals`): s/√n of n triples, for which
    other triples and other candidates might have been drawn.

    Args:
        counts: the ranks of n triples, first their n head queries, then their n tail queries in the same order.
        hits: the cut-offs K.

    Returns:
        `mrr_se`, `mr_se`, `hits@K_se`; nothing for a single triple.
    """
    ranks = counts.realistic.view(len(Side), -1)  # [2, n]
    number = ranks.shape[1]
    if number < 2:
        return {}
    values = {"mrr": 1 / ranks, "mr": ranks} | {f"hits@{k}": (ranks <= k).double() for k in hits}
    errors = {}
    for name, value in values.items():
        of_triple = value.mean(0)
        variance = mean((of_triple - mean(of_triple)) ** 2) * number / (number - 1)
        errors[f"{name}_se"] = math.sqrt(variance / number)
    return errors


def mean_rank_estimate(counts: RankCounts, rivals: Tensor) -> dict[str, float]:
    """The mean rank among all rivals, estimated from some that were drawn evenly and without replacement.

    With k of a query's M rivals drawn, of which x score higher (a tie counts as half), 1 + M x/k has its rank among all
    as expectation. Its variance is M² (1 − k/M) s²/k, s² that of a rival's part in x (Cochran 1977, theorem 2.2). MRR
    and Hits@K have no such estimate: a rank near 1 cannot be told from few rivals (Krichene and Rendle 2020).

    Args:
        counts: [Q], of which `candidates` less one were drawn.
        rivals: [Q] M.

    Returns:
        `mr_estimate` and `mr_estimate_se`, the standard error that drawing candidates makes, for these queries; the
        error only if two were drawn for every query that has more.
    """
    drawn, total = counts.candidates.double() - 1, rivals.double()
    part = counts.better.double() + counts.equal.double() / 2
    share = torch.where(drawn > 0, part / drawn.clamp(min=1), 0.0)
    found = {"mr_estimate": mean(1 + total * share)}
    squares = counts.better.double() + counts.equal.double() / 4
    spread = (squares - drawn * share**2).clamp(min=0) / (drawn - 1).clamp(min=1)
    variance = torch.where(
        drawn < total, total**2 * (1 - drawn / total.clamp(min=1)) * spread / drawn.clamp(min=1), 0.0
    )
    if bool(((drawn < 2) & (drawn < total)).any()):
        return found
    return found | {"mr_estimate_se": math.sqrt(mean(variance) / len(variance))}


def bootstrap_means(values: Tensor, resamples: int = 1000, seed: int = 0) -> Tensor:
    """[resamples] means of clusters drawn with replacement (Efron and Tibshirani 1993, chapter 6).

    Args:
        values: [n] of independent queries, or [n, m] of n clusters of m queries whose values go together (the two
            queries of a triple), which are drawn whole.
        resamples: how many.
        seed: of the draws.
    """
    means = values.double().cpu().reshape(len(values), -1).mean(-1)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _DRAWN // len(means))  # resamples drawn at once
    parts = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), len(means))
        parts.append(means[torch.randint(len(means), shape, generator=generator)].mean(-1))
    return torch.cat(parts)


def bootstrap_interval(
    values: Tensor, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean of [n] queries or [n, m] clusters; see `bootstrap_means`."""
    tail = (1 - level) / 2
    means = bootstrap_means(values, resamples, seed)
    low, high = torch.quantile(means, means.new_tensor([tail, 1 - tail])).tolist()
    return low, high
