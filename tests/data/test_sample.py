"""Samples of triples: uniform, without replacement, the same for any order of lines."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kgc.data.sample import sample_triples
from kgc.types import Triples


def triples(number: int) -> Triples:
    generator = torch.Generator().manual_seed(0)
    return Triples(*(torch.randint(n, (number,), generator=generator) for n in (50, 7, 50)))


def rows(sample: Triples) -> list[tuple[int, int, int]]:
    return list(zip(sample.head.tolist(), sample.relation.tolist(), sample.tail.tolist(), strict=True))


@pytest.mark.parametrize("number", [1, 37, 99])
def test_so_many_distinct_places_in_their_order(number):
    # Heads are numbered, so that a row names its place.
    numbered = Triples(torch.arange(100), torch.zeros(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64))
    drawn = sample_triples(numbered, number, seed=3).head.tolist()
    assert len(drawn) == number
    assert drawn == sorted(set(drawn))


@pytest.mark.parametrize("number", [100, 101, 10**9])
def test_no_fewer_than_all_is_the_whole_split(number):
    whole = triples(100)
    assert rows(sample_triples(whole, number, seed=0)) == rows(whole)


def test_the_order_of_lines_does_not_matter_and_the_seed_does():
    whole = triples(200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    drawn = rows(sample_triples(whole, 40, seed=0))
    assert sorted(rows(sample_triples(whole[order], 40, seed=0))) == sorted(drawn)
    assert rows(sample_triples(whole, 40, seed=0)) == drawn
    assert rows(sample_triples(whole, 40, seed=1)) != drawn


def test_repeated_triples_are_drawn_as_often_as_they_are_there():
    one = torch.zeros(10, dtype=torch.int64)
    assert len(sample_triples(Triples(one, one, one), 4, seed=0)) == 4


def test_every_triple_is_as_likely_as_any_other():
    """400 draws of 5 out of 20: each is expected 100 times, with a standard deviation of 8.7."""
    numbered = Triples(torch.arange(20), torch.zeros(20, dtype=torch.int64), torch.arange(20).flip(0))
    times = Counter(i for seed in range(400) for i in sample_triples(numbered, 5, seed).head.tolist())
    assert set(times) == set(range(20))
    # Chi-square with 19 degrees of freedom exceeds 43.8 once in a thousand (printed tables).
    assert sum((n - 100) ** 2 / 100 for n in times.values()) < 43.8
