"""Drawn candidates: who may be drawn, how evenly, and that nothing but the seed and the triple decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgc.data.candidates import Draw, Types
from kgc.data.known import KnownAnswers
from kgc.types import Queries, Side, Triples

E, R = 40, 3


def graph(number: int = 200) -> Triples:
    generator = torch.Generator().manual_seed(1)
    columns = (torch.randint(size, (number,), generator=generator) for size in (E, R, E))
    return Triples(*columns)


def asked(triples: Triples) -> tuple[Queries, torch.Tensor]:
    side = torch.tensor(list(Side)).repeat_interleave(len(triples))
    anchor = torch.cat([triples.tail, triples.head])
    return Queries(anchor, triples.relation.repeat(2), side), torch.cat([triples.head, triples.tail])


def rivals(triples: Triples, filtered: Triples) -> list[set[int]]:
    """Who competes with the right answer of each query, by plain sets."""
    rows = list(zip(*(c.tolist() for c in (filtered.head, filtered.relation, filtered.tail)), strict=True))
    found = []
    for h, r, t in zip(*(c.tolist() for c in (triples.head, triples.relation, triples.tail)), strict=True):
        found.append(set(range(E)) - {a for a, b, c in rows if (b, c) == (r, t)} - {h})
    for h, r, t in zip(*(c.tolist() for c in (triples.head, triples.relation, triples.tail)), strict=True):
        found.append(set(range(E)) - {c for a, b, c in rows if (a, b) == (h, r)} - {t})
    return found


@pytest.mark.parametrize("number", [1, 5, 9, 30, 39, 100])
def test_distinct_rivals_and_all_of_them_where_they_are_few(number):
    triples = graph()
    queries, targets = asked(triples)
    drawn, left = Draw(number, KnownAnswers(triples, E, R), seed=3)(queries, targets)
    assert drawn.shape == (len(targets), number)
    for row, count, wanted in zip(drawn.tolist(), left.tolist(), rivals(triples, triples), strict=True):
        ids = [i for i in row if i >= 0]
        assert count == len(wanted)
        assert len(ids) == len(set(ids)) == min(number, len(wanted))
        assert set(ids) <= wanted


def test_a_draw_depends_on_its_triple_and_the_seed_alone():
    triples = graph()
    queries, targets = asked(triples)
    draw = Draw(6, KnownAnswers(triples, E, R), seed=3)
    whole = draw(queries, targets)[0]
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    pieces = [draw(queries[some], targets[some])[0] for some in order.split(7)]
    assert torch.equal(torch.cat(pieces), whole[order])
    assert not torch.equal(Draw(6, KnownAnswers(triples, E, R), seed=4)(queries, targets)[0], whole)


@pytest.mark.parametrize("number", [3, 12])  # drawn anew where twice, and by order
def test_every_rival_is_as_likely(number):
    """χ² over 4,000 seeds of one query with 37 rivals: 36 degrees of freedom, 99.9 % below 68."""
    known = KnownAnswers(Triples(*torch.tensor([[0, 0], [0, 0], [5, 9]])), E, R)
    query, target = Queries(torch.tensor([0]), torch.tensor([0]), Side.TAIL), torch.tensor([20])
    count = np.zeros(E)
    for seed in range(4000):
        count[Draw(number, known, seed)(query, target)[0][0].numpy()] += 1
    assert count[[5, 9, 20]].tolist() == [0, 0, 0]
    others = np.delete(count, [5, 9, 20])
    expected = 4000 * number / 37
    # Without replacement a rival's count varies less, by the share that is not drawn.
    assert ((others - expected) ** 2 / expected).sum() / (1 - number / 37) < 68


def test_typed_rivals_are_those_of_the_relation_in_train():
    train = Triples(*torch.tensor([[0, 1, 2, 3, 7, 8], [0, 0, 0, 0, 1, 1], [4, 5, 6, 6, 9, 9]]))
    types = Types(Triples(train.head.int(), train.relation.int(), train.tail.int()), E, R)
    test = Triples(*torch.tensor([[0, 9], [0, 1], [6, 8]]))
    queries, targets = asked(test)
    drawn, left = Draw(8, KnownAnswers(Triples.cat([train, test]), E, R), 0, types)(queries, targets)
    rows = [{i for i in row if i >= 0} for row in drawn.tolist()]
    # (?, 0, 6): heads of 0 are 0, 1, 2, 3; 2 and 3 are known, 0 is asked for.
    assert (rows[0], left[0]) == ({1}, 1)
    # (?, 1, 8): heads of 1 are 7 and 8, neither known nor asked for.
    assert (rows[1], left[1]) == ({7, 8}, 2)
    # (0, 0, ?): tails of 0 are 4, 5, 6; 4 is known, 6 asked for.
    assert (rows[2], left[2]) == ({5}, 1)
    # (9, 1, ?): the tail of 1 in train is 9 alone.
    assert (rows[3], left[3]) == ({9}, 1)


def test_a_type_without_rivals_leaves_all_entities():
    train = Triples(*torch.tensor([[0], [0], [1]]))
    types = Types(train, E, R)
    queries, targets = asked(train)
    drawn, left = Draw(50, KnownAnswers(train, E, R), 0, types)(queries, targets)
    assert left.tolist() == [E - 1, E - 1]
    assert sorted(drawn[0].tolist())[11:] == [i for i in range(E) if i != 0]
