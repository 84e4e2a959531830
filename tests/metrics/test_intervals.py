"""Intervals of sampled metrics: by hand, and how often they hold the value of the whole."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch

from kgc.metrics.intervals import mean_interval, sample_intervals
from kgc.types import RankCounts

Z = statistics.NormalDist().inv_cdf(0.975)


def counts(head: list[int], tail: list[int]) -> RankCounts:
    """Ranks without ties."""
    better = torch.tensor(head + tail) - 1
    zero = torch.zeros_like(better)
    return RankCounts(better, zero, zero + 10**6, zero)


def test_an_interval_by_hand():
    values = [0.0, 0.5, 0.5, 1.0]
    half = Z * math.sqrt(statistics.variance(values) / 4 * (1 - 4 / 20))
    assert mean_interval(torch.tensor(values), 20) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-14)
    assert mean_interval(torch.tensor(values), 4) == (0.5, 0.5)  # nothing is left to guess


def test_intervals_stay_within_what_a_metric_can_be():
    low, high = mean_interval(torch.tensor([0.0, 0.0, 1.0]), 1000)
    assert (low, 0.5 < high <= 1.0) == (0.0, True)
    low, high = mean_interval(torch.tensor([1.0, 1.0, 0.0]), 1000)
    assert (high, 0.0 <= low < 0.5) == (1.0, True)


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_equal_values_are_no_certainty(value):
    """At most 3 in 30 of the others differ (with 95 % confidence), each by as much as it can."""
    expected = (value - 0.1 * value, value + 0.1 * (1 - value))
    assert mean_interval(torch.full((30,), value), 1000) == pytest.approx(expected, rel=1e-12)
    assert mean_interval(torch.tensor([value]), 1000) == (0.0, 1.0)


def test_the_two_queries_of_a_triple_count_as_one():
    head, tail = [1, 2, 4, 1], [2, 2, 1, 10]
    got = sample_intervals(counts(head, tail), population=16, hits=(1, 3))
    means = {
        "mrr": [(1 / h + 1 / t) / 2 for h, t in zip(head, tail, strict=True)],
        "hits@1": [0.5, 0.0, 0.5, 0.5],
        "hits@3": [1.0, 1.0, 0.5, 0.5],
    }
    assert len(got) == 6
    for name, values in means.items():
        half = Z * math.sqrt(statistics.variance(values) / 4 * (1 - 4 / 16))
        centre = statistics.fmean(values)
        assert got[f"{name}_low"] == pytest.approx(max(0, centre - half), rel=1e-12)
        assert got[f"{name}_high"] == pytest.approx(min(1, centre + half), rel=1e-12)


def test_a_tie_is_its_mean_rank():
    tied = RankCounts(*(torch.tensor(x) for x in ([0, 4, 0, 0], [2, 0, 0, 0], [9] * 4, [0] * 4)))
    values = [(1 / 2 + 1) / 2, (1 / 5 + 1) / 2]
    half = Z * math.sqrt(statistics.variance(values) / 2 / 2)
    assert sample_intervals(tied, 4)["mrr_low"] == pytest.approx(statistics.fmean(values) - half, rel=1e-12)


def split_of(triples: int, seed: int) -> tuple[list[int], list[int]]:
    """Ranks as models have them: from 1 to thousands, and the two of a triple much alike."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(triples):
        easy = draw.gauss(2.0, 1.8)
        pairs.append([1 + int(math.exp(max(0.0, easy + draw.gauss(0, 0.4)))) for _ in range(2)])
    head, tail = zip(*pairs, strict=True)
    return [h - 1 for h in head], [t - 1 for t in tail]


@pytest.mark.parametrize("size", [200, 1000])
def test_intervals_hold_the_value_of_the_whole_split_in_95_of_100_samples(size):
    """Treating the two queries of a triple as independent would hold it in 83 of 100; without the finite-population
    correction, half of the split would hold it in more than 99."""
    number, samples = 2000, 600
    head, tail = split_of(number, seed=1)
    assert min(head + tail) >= 1
    whole = {
        "mrr": statistics.fmean(1 / rank for rank in head + tail),
        "hits@1": statistics.fmean(rank <= 1 for rank in head + tail),
        "hits@10": statistics.fmean(rank <= 10 for rank in head + tail),
    }
    held = dict.fromkeys(whole, 0)
    for seed in range(samples):
        drawn = random.Random(seed).sample(range(number), size)
        part = counts([head[i] for i in drawn], [tail[i] for i in drawn])
        intervals = sample_intervals(part, number, hits=(1, 10))
        for name, value in whole.items():
            held[name] += intervals[f"{name}_low"] <= value <= intervals[f"{name}_high"]
    # 600 samples of a probability of .95 have a standard deviation of .009.
    for name, number_held in held.items():
        assert 0.92 <= number_held / samples <= 0.98, (name, held)
