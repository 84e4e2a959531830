"""Power-law graphs: their sizes, their degrees against the law, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgc.data.catalogue import load_synthetic
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

SMALL = {"num_entities": 2000, "num_relations": 7, "num_triples": 9000, "num_valid": 200, "num_test": 300}


def rows(*splits: Triples) -> list[tuple[int, int, int]]:
    return [row for t in splits for row in zip(t.head.tolist(), t.relation.tolist(), t.tail.tolist(), strict=True)]


def test_a_graph_has_the_sizes_asked_for_and_no_triple_twice():
    graph = load_synthetic(**SMALL)
    assert (graph.num_entities, graph.num_relations) == (2000, 7)
    assert [len(graph.split(s)) for s in ("train", "valid", "test")] == [8500, 200, 300]
    everything = rows(graph.train, graph.valid, graph.test)
    assert len(set(everything)) == 9000
    for triples in (graph.train, graph.test):
        assert 0 <= int(triples.head.min()) <= int(triples.head.max()) < 2000
        assert 0 <= int(triples.tail.min()) <= int(triples.tail.max()) < 2000
        assert set(triples.relation.tolist()) == set(range(7))
    assert graph.entities[0] == "e0000"
    assert graph.entities[1999] == "e1999"
    assert graph.entities.series.is_sorted()


def test_the_seed_decides_and_nothing_else():
    first, again, other = (load_synthetic(**SMALL, seed=seed) for seed in (1, 1, 2))
    assert rows(first.train, first.valid, first.test) == rows(again.train, again.valid, again.test)
    assert first.digest == again.digest != other.digest


@pytest.mark.parametrize("exponent", [2.2, 3.0])
def test_degrees_follow_the_law(exponent):
    """Where degrees are d^−γ, the number of entities of degree at least d falls as d^(1 − γ)."""
    graph = load_synthetic(
        num_entities=100_000, num_relations=50, num_triples=400_000, exponent=exponent, num_valid=1, num_test=1
    )
    degree = np.bincount(torch.cat([graph.train.head, graph.train.tail]).numpy(), minlength=100_000)
    d = np.array([16, 32, 64, 128])
    number = np.array([(degree >= k).sum() for k in d])
    slope = np.polyfit(np.log(d), np.log(number), 1)[0]
    assert slope == pytest.approx(1 - exponent, abs=0.15)


def test_a_relation_leads_from_a_group_to_one_other():
    """Without ids the groups cannot be seen; but the tails that a head has by one relation are alike in others."""
    graph = load_synthetic(**SMALL | {"num_relations": 1, "num_triples": 4000})
    tails: dict[int, set[int]] = {}
    for head, _, tail in rows(graph.train):
        tails.setdefault(head, set()).add(tail)
    shared = disjoint = 0
    largest = sorted(tails.values(), key=len)[-60:]
    for i, one in enumerate(largest):
        for other in largest[:i]:
            if one & other:
                shared += 1
            else:
                disjoint += 1
    # 64 groups: were tails independent of heads, hubs would be in nearly all of these sets.
    assert 0 < shared < disjoint


def test_in_the_vocabularies_of_a_model():
    own = load_synthetic(**SMALL)
    turned = Vocabulary(own.entities.labels[::-1])
    graph = load_synthetic(**SMALL, entities=turned, relations=own.relations)
    assert graph.entities is turned
    assert torch.equal(graph.train.head, 1999 - own.train.head)
    assert graph.digest == own.digest
    with pytest.raises(
        UserError, match=r"^synthetic: triple \d+ of train: entity 'e\d+' is not among the model's 2 ent"
    ):
        load_synthetic(**SMALL, entities=Vocabulary(["e0000", "e0001"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_entities": 1}, "dataset.num_entities=1: must be at least 2"),
        ({"num_test": -1}, "dataset.num_test=-1: must be at least 0"),
        ({"exponent": 1.0}, "dataset.exponent=1.0: the exponent of a power law of degrees must be above 1"),
        ({"num_valid": 8700}, "dataset.num_valid=8700, dataset.num_test=300: none of 9,000 triples is left for train"),
        ({"num_entities": 10**9, "num_relations": 100}, "is no number of 63 bits; lower it"),
        ({"num_entities": 30, "num_relations": 1}, "gave "),
    ],
)
def test_what_cannot_be(options, said):
    with pytest.raises(UserError) as caught:
        load_synthetic(**SMALL | options)
    assert said in str(caught.value)
