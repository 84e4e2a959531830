"""Metrics of rank counts: by hand, against exact fractions, and for counts that strain floating point."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgc.metrics.ranks import (
    adjusted_mean_rank,
    adjusted_mean_rank_index,
    expected_hits_at,
    expected_reciprocal_rank,
    hits_at,
    mean,
    mean_reciprocal_rank,
    rank_metrics,
)
from kgc.types import RankCounts


def counts_of(results: list[oracle.Rank]) -> RankCounts:
    names = ("better", "equal", "candidates", "nonfinite")
    return RankCounts(*(torch.tensor([getattr(r, name) for r in results], dtype=torch.int64) for name in names))


def test_metrics_by_hand():
    ranks = torch.tensor([1.0, 2.0, 4.0, 2.5])
    assert mean_reciprocal_rank(ranks) == (1 + 0.5 + 0.25 + 0.4) / 4
    assert mean(ranks) == 9.5 / 4
    assert [hits_at(ranks, k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_hits_at_k_takes_k_in_and_the_half_rank_above_it_out():
    assert hits_at(torch.tensor([10.0, 10.5, 9.5, 11.0]), 10) == 0.5


def test_adjusted_ranks_by_hand():
    # Ranks 1 and 5 among 3 and 9: chance expects 2 and 5; rivals ahead 0 and 4 where chance expects 1 and 4.
    ranks, candidates = torch.tensor([1.0, 5.0]), torch.tensor([3, 9])
    assert adjusted_mean_rank(ranks, candidates) == pytest.approx(6 / 7)
    assert adjusted_mean_rank_index(ranks, candidates) == pytest.approx(1 - 4 / 5)


def test_adjusted_ranks_of_chance_perfection_and_the_worst():
    candidates = torch.tensor([3, 9, 100])
    chance, perfect, worst = (candidates + 1) / 2, torch.ones(3), candidates.double()
    assert adjusted_mean_rank(chance, candidates) == pytest.approx(1)
    assert adjusted_mean_rank_index(chance, candidates) == pytest.approx(0)
    assert adjusted_mean_rank_index(perfect, candidates) == 1
    assert adjusted_mean_rank_index(worst, candidates) == pytest.approx(-1)
    assert math.isnan(adjusted_mean_rank_index(torch.ones(2), torch.ones(2)))


def test_the_oracle_breaks_ties_as_every_order_of_the_tied_does():
    # One answer tied with two rivals behind one better: all 3! orders, counted.
    places = [1 + order.index("answer") + 1 for order in itertools.permutations(["answer", "x", "y"])]
    enumerated = oracle.average(Fraction(1, place) for place in places)
    rank = oracle.Rank(better=1, equal=2, candidates=4)
    assert oracle.mean_reciprocal_rank(rank.places()) == enumerated == Fraction(13, 36)
    assert oracle.average(rank.places()) == rank.under("realistic") == 3


@pytest.mark.parametrize("better", [0, 1, 2, 9, 10, 11, 50])
@pytest.mark.parametrize("equal", [0, 1, 2, 7, 30])
def test_expectations_over_random_ties_equal_the_enumeration_of_places(better, equal):
    rank = oracle.Rank(better, equal, 100)
    counts = counts_of([rank])
    wanted = float(oracle.mean_reciprocal_rank(rank.places()))
    assert expected_reciprocal_rank(counts).item() == pytest.approx(wanted, rel=1e-12)
    for k in (1, 3, 10):
        assert expected_hits_at(counts, k).item() == pytest.approx(float(oracle.hits_at(rank.places(), k)), rel=1e-15)


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 20), st.booleans(), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    )
)
def test_all_metrics_equal_exact_fractions(rows):
    results = [oracle.Rank(b, e, b + e + 1 + worse, odd) for b, e, worse, _, odd in rows]
    sides = [int(side) for *_, side, _ in rows]
    got = rank_metrics(counts_of(results), torch.tensor(sides), (1, 2, 3, 10))
    wanted = oracle.metrics(results, sides, (1, 2, 3, 10))
    assert got == pytest.approx(wanted, rel=1e-12, abs=1e-14)


def test_names_are_those_of_the_metrics_file():
    one = oracle.Rank(0, 1, 3)
    names = set(rank_metrics(counts_of([one, one]), torch.tensor([0, 1])))
    basic = {"mrr", "mr", "hits@1", "hits@3", "hits@10"}
    prefixes = ("", "head/", "tail/", "optimistic/", "pessimistic/")
    assert names == {prefix + name for prefix in prefixes for name in basic} | {
        *("expected/" + name for name in basic - {"mr"}),
        *("amr", "amri", "num_queries", "num_tied", "num_nonfinite"),
        *("mrr@1", "mrr@3", "mrr@10", "median_rank", "geometric_mean_rank"),
        *("adjusted_mrr", "adjusted_hits@1", "z_mr", "z_mrr", "z_hits@1"),  # all 3 candidates are hits@3 and @10
    }


@pytest.mark.parametrize("side", [0, 1])
def test_a_side_without_queries_has_no_metrics_and_all_numbers_are_finite(side):
    metrics = rank_metrics(counts_of([oracle.Rank(1, 0, 3)]), torch.tensor([side]))
    present, absent = ("head/", "tail/") if side == 0 else ("tail/", "head/")
    assert any(name.startswith(present) for name in metrics)
    assert not any(name.startswith(absent) for name in metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_no_queries_have_no_metrics_but_counts():
    metrics = rank_metrics(counts_of([]), torch.empty(0, dtype=torch.int64))
    assert metrics == {"num_queries": 0, "num_tied": 0, "num_nonfinite": 0}


def test_means_do_not_depend_on_the_order_of_queries():
    ranks = 1 + torch.randint(0, 10**6, (5000,), generator=torch.Generator().manual_seed(0)).double()
    exact = float(oracle.mean_reciprocal_rank([Fraction(1) / Fraction(1 / r) for r in ranks.tolist()]))
    values = set()
    for seed in range(5):
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
        values.add(mean_reciprocal_rank(ranks[order]))
    assert len(values) == 1
    assert values.pop() == pytest.approx(exact, rel=1e-15)


def test_sums_beyond_fp32_and_counts_of_ten_millions_stay_exact():
    # fp32 sums stick at 2^24; half ranks of 1e7 need 25 bits.
    number = 10_000_000
    results = [oracle.Rank(number, 1, 3 * number), oracle.Rank(number, 0, 3 * number), oracle.Rank(0, 0, 3 * number)]
    counts = counts_of(results)
    metrics = rank_metrics(counts, torch.tensor([0, 1, 1]))
    assert metrics["mr"] == (number + 1.5 + number + 1 + 1) / 3
    assert metrics["mrr"] == pytest.approx((1 + 1 / (number + 1) + 1 / (number + 1.5)) / 3, rel=1e-15)
    chance = (3 * number + 1) / 2
    assert metrics["amr"] == pytest.approx(metrics["mr"] / chance, rel=1e-15)
    assert mean(torch.full((3,), 2**24 + 1)) == 2**24 + 1


@pytest.mark.parametrize(("better", "equal"), [(10**7, 0), (10**7, 1), (10**7, 10**7), (0, 10**7), (5, 10**6)])
def test_expectations_for_ten_millions_of_rivals(better, equal):
    counts = counts_of([oracle.Rank(better, equal, 10**9)])
    if equal <= 10:
        wanted = sum(1 / (better + 1 + i) for i in range(equal + 1)) / (equal + 1)
    else:
        # Too many terms to add up. Euler–Maclaurin: H(n) = ln n + γ + 1/2n − 1/12n² + …; γ cancels.
        def harmonic(n: int) -> float:
            if n < 100:
                return sum(1 / i for i in range(1, n + 1)) - 0.5772156649015329
            return math.log(n) + 1 / (2 * n) - 1 / (12 * n * n)

        wanted = (harmonic(better + equal + 1) - harmonic(better)) / (equal + 1)
    assert expected_reciprocal_rank(counts).item() == pytest.approx(wanted, rel=1e-6)
    assert abs(expected_reciprocal_rank(counts).item() - wanted) < 1e-14
    if better == 0:
        assert expected_hits_at(counts, 10).item() == 10 / (equal + 1)


ADJUSTED = {  # ours: PyKEEN's, and +1 or -1
    "mr": "ArithmeticMeanRank",
    "mrr": "InverseHarmonicMeanRank",
    "median_rank": "MedianRank",
    "geometric_mean_rank": "GeometricMeanRank",
    "amr": "AdjustedArithmeticMeanRank",
    "amri": "AdjustedArithmeticMeanRankIndex",
    "adjusted_mrr": "AdjustedInverseHarmonicMeanRank",
    "z_mr": "ZArithmeticMeanRank",
    "z_mrr": "ZInverseHarmonicMeanRank",
}


@pytest.mark.parametrize("tied", [0, 4])
def test_adjusted_metrics_are_those_of_pykeen(tied):
    ranking = pytest.importorskip("pykeen.metrics.ranking", reason="PyKEEN is not installed")
    generator = torch.Generator().manual_seed(tied)
    candidates = torch.randint(2, 3000, (400,), generator=generator)
    better = (torch.rand(400, generator=generator) ** 4 * (candidates - 1)).long()
    equal = torch.minimum(torch.randint(0, tied + 1, (400,), generator=generator), candidates - 1 - better)
    counts = RankCounts(better, equal, candidates, torch.zeros_like(better))
    metrics = rank_metrics(counts, torch.ones(400), (1, 3, 10))
    ranks, n = counts.realistic.numpy(), candidates.numpy()
    for ours, theirs in ADJUSTED.items():
        assert metrics[ours] == pytest.approx(getattr(ranking, theirs)()(ranks, n), rel=1e-9), ours
    for k in (1, 3, 10):
        for ours, theirs in (("hits", "HitsAtK"), ("adjusted_hits", "AdjustedHitsAtK"), ("z_hits", "ZHitsAtK")):
            value = getattr(ranking, theirs)(k=k)(ranks, n)
            assert metrics[f"{ours}@{k}"] == pytest.approx(value, rel=1e-9, abs=1e-12), (ours, k)
