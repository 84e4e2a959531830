"""Which end is corrupted, against rates counted by hand."""

from __future__ import annotations

import math

import pytest
import torch

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.sampling.sides import Alternate, Bernoulli, Both, Sides
from kgc.types import Side, Triples

CPU = torch.device("cpu")


def columns(triples) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def graph_of(train, valid=(), test=(), entities: int = 6, relations: int = 5) -> KnowledgeGraph:
    return KnowledgeGraph(
        "tiny",
        Vocabulary([f"e{i}" for i in range(entities)]),
        Vocabulary([f"r{i}" for i in range(relations)]),
        *(columns(split) for split in (train, valid, test)),
    )


def test_both_asks_each_triple_from_both_ends():
    triples = columns([(0, 0, 1), (2, 0, 3)])
    for step in (0, 1):
        assert Both().draw(triples, step, torch.Generator()) == [Side.HEAD, Side.TAIL]


def test_alternate_asks_heads_in_even_steps_and_tails_in_odd_ones():
    triples = columns([(0, 0, 1)])
    drawn = [Alternate().draw(triples, step, torch.Generator()) for step in range(4)]
    assert drawn == [[Side.HEAD], [Side.TAIL], [Side.HEAD], [Side.TAIL]]


# tph / (tph + hpt) by hand:
#   0: head 0 has tails 1 2 3, each with one head: tph 3, hpt 1, so heads with 3/4
#   1: the mirror image: 1/4
#   2: head 0 has tails 1 2 3, head 4 has tail 1: tph 4/2, hpt 4/3, so heads with 2 / (2 + 4/3) = 3/5
#   3: one to one: 1/2
#   4: never in train: 1/2
TRAIN = [
    *[(0, 0, t) for t in (1, 2, 3)],
    *[(h, 1, 0) for h in (1, 2, 3)],
    *[(0, 2, t) for t in (1, 2, 3)],
    (4, 2, 1),
    (0, 3, 1),
    (2, 3, 3),
]
RATES = [3 / 4, 1 / 4, 3 / 5, 1 / 2, 1 / 2]


def bernoulli(graph: KnowledgeGraph) -> Bernoulli:
    sides = Bernoulli()
    sides.setup(graph, CPU)
    return sides


def test_heads_are_corrupted_with_the_rate_of_their_relation():
    sides = bernoulli(graph_of(TRAIN))
    number = 4000
    triples = columns([(0, relation, 1) for relation in range(5)] * number)
    (drawn,) = sides.draw(triples, 0, torch.Generator().manual_seed(1))
    assert drawn.shape == (5 * number,)
    assert set(drawn.tolist()) == {Side.HEAD, Side.TAIL}
    heads = (drawn.reshape(number, 5) == Side.HEAD).sum(0).tolist()
    for count, rate in zip(heads, RATES, strict=True):
        # Four standard deviations of a binomial; 3/5 and 1/2 are twelve apart.
        assert abs(count - number * rate) < 4 * math.sqrt(number * rate * (1 - rate))


def test_rates_are_counted_in_train_over_distinct_triples():
    # Repetitions, and a relation that is 1-to-N only in valid and test, change nothing.
    more = graph_of(
        TRAIN * 2 + [(0, 0, 1)] * 5, valid=[(5, 3, t) for t in range(5)], test=[(5, 4, t) for t in range(5)]
    )
    assert bernoulli(more).head_probability.tolist() == pytest.approx(RATES)


def test_draws_are_decided_by_the_generator():
    sides, triples = bernoulli(graph_of(TRAIN)), columns([(0, 0, 1)] * 50)
    first, again, other = (sides.draw(triples, 0, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unfinished_sides_say_so():
    with pytest.raises(NotImplementedError):
        Sides().draw(columns([(0, 0, 1)]), 0, torch.Generator())
