"""Means over groups and bootstrap intervals, against hand computation and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgc.metrics.breakdown import DEGREES, degree_buckets, grouped_metrics, macro
from kgc.metrics.intervals import bootstrap_interval, bootstrap_means
from kgc.types import RankCounts


def test_a_macro_average_weighs_groups_not_queries():
    values, group = torch.tensor([1.0, 0.0, 0.5, 0.25]), torch.tensor([7, 7, 7, 2])
    assert macro(values, group) == (0.5 + 0.25) / 2


def test_groups_have_the_metrics_of_their_own_queries():
    better, zero = torch.tensor([0, 3, 1, 0]), torch.zeros(4, dtype=torch.int64)
    got = grouped_metrics(
        RankCounts(better, zero, better + 10, zero), torch.tensor([1, 0, 1, 3]), ["a", "b", "c", "d"], (1, 3)
    )
    assert got == {
        **{"a/mrr": 0.25, "a/mr": 4.0, "a/hits@1": 0.0, "a/hits@3": 0.0, "a/num_queries": 1},
        **{"b/mrr": 0.75, "b/mr": 1.5, "b/hits@1": 0.5, "b/hits@3": 1.0, "b/num_queries": 2},
        **{"d/mrr": 1.0, "d/mr": 1.0, "d/hits@1": 1.0, "d/hits@3": 1.0, "d/num_queries": 1},
    }


def test_buckets_of_degrees():
    got = [list(DEGREES.values())[i] for i in degree_buckets(torch.tensor([0, 1, 9, 10, 99, 100, 1000, 10**6]))]
    assert got == ["0", "1-9", "1-9", "10-99", "10-99", "100-999", "1000+", "1000+"]


def test_bootstrap_intervals_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    values = torch.tensor(np.random.default_rng(0).beta(0.5, 1, 400))
    peer = stats.bootstrap((values.numpy(),), np.mean, n_resamples=4000, method="percentile", rng=1)
    got = bootstrap_interval(values, 4000, seed=0)
    assert got == pytest.approx(tuple(peer.confidence_interval), abs=0.004)
    assert bootstrap_interval(values, 200, seed=3) == bootstrap_interval(values, 200, seed=3)


def test_clusters_are_drawn_whole():
    # The two queries of a triple agree: 100 triples are 100 observations, not 200.
    one = torch.tensor(np.random.default_rng(1).random(100))
    paired = bootstrap_means(torch.stack([one, one], dim=1), 2000).std()
    assert float(paired) == pytest.approx(float(one.std(correction=0)) / 10, rel=0.06)
    opposed = bootstrap_means(torch.stack([one, 1 - one], dim=1), 200)
    torch.testing.assert_close(opposed, torch.full_like(opposed, 0.5))
