"""The index of known answers against a dictionary of sets."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgc.data.known import KnownAnswers, relevant
from kgc.types import Queries, Side, Triples


def columns(triples) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def dictionary(triples) -> dict[tuple[int, int, int], set[int]]:
    """(side, relation, anchor) to the set of answers."""
    answers = defaultdict(set)
    for head, relation, tail in triples:
        answers[0, relation, tail].add(head)
        answers[1, relation, head].add(tail)
    return answers


def queries(asked, side: Side | None = None) -> Queries:
    table = torch.tensor(asked, dtype=torch.int64).reshape(-1, 3)
    return Queries(table[:, 2], table[:, 1], table[:, 0] if side is None else side)


@st.composite
def cases(draw):
    entities, relations = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    entity, relation = st.integers(0, entities - 1), st.integers(0, relations - 1)
    triples = draw(st.lists(st.tuples(entity, relation, entity), max_size=25))
    asked = draw(st.lists(st.tuples(st.integers(0, 1), relation, entity), max_size=12))
    return entities, relations, triples, asked


@given(cases())
def test_answers_equal_a_dictionary_of_sets(case):
    entities, relations, triples, asked = case
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    query, answer = index.answers(queries(asked))
    wanted = [(i, a) for i, key in enumerate(asked) for a in sorted(expected.get(key, ()))]
    assert list(zip(query.tolist(), answer.tolist(), strict=True)) == wanted
    assert query.dtype == answer.dtype == torch.int64


@given(cases())
def test_contains_equals_a_dictionary_of_sets_for_shared_and_own_candidates(case):
    entities, relations, triples, asked = case
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    wanted = [[e in expected.get(key, ()) for e in range(entities)] for key in asked]
    shared = index.contains(queries(asked), torch.arange(entities))
    assert shared.shape == (len(asked), entities)
    assert shared.tolist() == wanted
    # Own candidates in another order for each query.
    shift = (torch.arange(entities) + torch.arange(len(asked)).unsqueeze(1)) % entities
    own = index.contains(queries(asked), shift)
    assert own.tolist() == [[row[e] for e in order] for row, order in zip(wanted, shift.tolist(), strict=True)]


@given(cases(), st.integers(1, 5), st.integers(0, 9), st.integers(0, 99))
def test_contains_equals_a_dictionary_of_sets_for_pools(case, size, width, seed):
    """Pools with repetitions, narrow and wide, for queries with few known answers and with many."""
    entities, relations, triples, asked = case
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    generator = torch.Generator().manual_seed(seed)
    pools = torch.randint(entities, (-(-len(asked) // size), width), generator=generator)
    size = -(-len(asked) // max(1, len(pools)))  # 5 queries in 3 pools: 2, 2 and 1
    got = index.contains(queries(asked), pools)
    assert got.shape == (len(asked), width)
    assert got.dtype == torch.bool
    wanted = [[e in expected.get(key, ()) for e in pools[i // size].tolist()] for i, key in enumerate(asked)]
    assert got.tolist() == wanted
    shared = torch.randint(entities, (width,), generator=generator)
    got = index.contains(queries(asked), shared)
    assert got.tolist() == [[e in expected.get(key, ()) for e in shared.tolist()] for key in asked]


@pytest.mark.parametrize(("entities", "width", "few"), [(3, 2, 0), (3000, 50, 4)])
def test_both_ways_through_a_pool_agree(entities, width, few, monkeypatch):
    """By the pool for each answer, where answers are few, and by the answers for each candidate of the pool."""
    generator = torch.Generator().manual_seed(0)
    train = Triples(*(torch.randint(high, (500,), generator=generator) for high in (entities, 2, entities)))
    index, asked = KnownAnswers(train, entities, 2), train[:40].queries(Side.HEAD)
    pools = torch.randint(entities, (10, width), generator=generator)
    pools[:, 1] = train.head[:40:4]  # an answer of the first of the four queries that share the pool
    taken = []
    original = KnownAnswers._contained_in_pools
    monkeypatch.setattr("kgc.data.known._FEW", few)
    monkeypatch.setattr(KnownAnswers, "_contained_in_pools", lambda *a: taken.append(len(a[3])) or original(*a))
    got = index.contains(asked, pools)
    assert taken == [40 if few else 0]
    assert torch.equal(got, index.contains(asked, pools.repeat_interleave(4, dim=0)))
    assert torch.equal(got, original(index, asked, pools, torch.arange(40)))
    assert got.any()


@given(cases())
def test_rows_number_the_distinct_queries_that_have_answers(case):
    entities, relations, triples, asked = case
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    row = index.rows(queries(asked)).tolist()
    assert [r >= 0 for r in row] == [key in expected for key in asked]
    assert all((row[i] == row[j]) == (a == b) for i, a in enumerate(asked) for j, b in enumerate(asked) if row[i] >= 0)
    assert max(row, default=-1) < len(expected)
    assert min(row, default=-1) >= -1


def test_one_side_for_all_equals_a_side_per_query():
    triples = [(0, 0, 1), (2, 0, 1), (0, 1, 2), (0, 0, 3)]
    index = KnownAnswers(columns(triples), 4, 2)
    tails = index.answers(queries([(1, 0, 0), (1, 1, 0), (1, 0, 3)], Side.TAIL))
    heads = index.answers(queries([(0, 0, 1), (0, 1, 2), (0, 0, 0)], Side.HEAD))
    assert [x.tolist() for x in tails] == [[0, 0, 1], [1, 3, 2]]
    assert [x.tolist() for x in heads] == [[0, 0, 1], [0, 2, 0]]


def test_repeated_triples_count_once():
    index = KnownAnswers(columns([(0, 0, 1)] * 3), 2, 1)
    assert [x.tolist() for x in index.answers(queries([(1, 0, 0)]))] == [[0], [1]]


def test_first_and_last_ids_are_known_like_others():
    index = KnownAnswers(columns([(0, 0, 4), (4, 1, 0)]), 5, 2)
    query, answer = index.answers(queries([(1, 0, 0), (0, 0, 4), (1, 1, 4), (0, 1, 0), (1, 0, 4), (0, 0, 0)]))
    assert (query.tolist(), answer.tolist()) == ([0, 1, 2, 3], [4, 0, 0, 4])


def test_a_negative_answer_of_an_unknown_query_is_not_taken_for_an_answer():
    # Row -1 times E plus a candidate is the cell of nobody, also for the last candidate.
    index = KnownAnswers(columns([(0, 0, 0), (0, 0, 3)]), 4, 1)
    assert not index.contains(queries([(1, 0, 1), (1, 0, 2)]), torch.arange(4)).any()


@pytest.mark.parametrize("asked", [[], [(0, 0, 0), (1, 1, 2)]])
def test_an_index_of_nothing_knows_nothing(asked):
    index = KnownAnswers(Triples.empty(), 3, 2)
    assert [x.tolist() for x in index.answers(queries(asked))] == [[], []]
    assert index.rows(queries(asked)).tolist() == [-1] * len(asked)
    for candidates in (torch.arange(3), torch.zeros(len(asked), 3, dtype=torch.int64)):
        known = index.contains(queries(asked), candidates)
        assert known.shape == (len(asked), 3)
        assert not known.any()


def test_ids_of_the_largest_public_graphs_do_not_overflow():
    # Freebase: 86 million entities, 15 thousand relations; keys reach 2.6e12 and must not be cut to 32 bits.
    entities, relations = 86_000_000, 15_000
    last, rel = entities - 1, relations - 1
    triples = [(last, rel, last), (last, rel, 0), (0, rel, last), (0, 0, 0), (last, 0, 1), (2**31 % entities, 7, 2**26)]
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    asked = [*expected, (1, rel, last - 1), (0, rel - 1, last), (1, 1, 0)]
    query, answer = index.answers(queries(asked))
    wanted = [(i, a) for i, key in enumerate(asked) for a in sorted(expected.get(key, ()))]
    assert list(zip(query.tolist(), answer.tolist(), strict=True)) == wanted
    candidates = torch.tensor([0, 1, last - 1, last])
    known = index.contains(queries(asked), candidates).tolist()
    assert known == [[e in expected.get(key, ()) for e in candidates.tolist()] for key in asked]


def test_columns_cut_from_a_table_are_as_good_as_contiguous_ones():
    # torch warns of slow strided look-ups, and warnings are errors here.
    table = torch.tensor([[0, 0, 1], [1, 0, 2], [2, 0, 0]])
    index = KnownAnswers(Triples(table[:, 0], table[:, 1], table[:, 2]), 3, 1)
    asked = Queries(table[:, 0], table[:, 1], Side.TAIL)
    assert [x.tolist() for x in index.answers(asked)] == [[0, 1, 2], [1, 2, 0]]
    own = torch.tensor([[1, 0, 0], [0, 2, 2]]).T
    assert index.contains(asked, own).tolist() == [[True, False], [False, True], [True, False]]


@pytest.mark.gpu
def test_an_index_moved_to_a_device_answers_there():
    triples = [(0, 0, 1), (2, 0, 1), (0, 0, 3)]
    index = KnownAnswers(columns(triples), 4, 1).to("cuda")
    asked = queries([(1, 0, 0), (0, 0, 1), (1, 0, 1)]).to("cuda")
    query, answer = index.answers(asked)
    assert query.device.type == answer.device.type == "cuda"
    assert (query.tolist(), answer.tolist()) == ([0, 0, 1, 1], [1, 3, 0, 2])
    assert index.contains(asked, torch.arange(4, device="cuda")).tolist() == [
        [False, True, False, True],
        [True, False, True, False],
        [False] * 4,
    ]


@given(cases())
def test_an_index_whose_pairs_do_not_fit_one_number_is_the_same(case):
    """Large graphs sort queries and answers apart; small ones in one sort."""
    entities, relations, triples, _ = case
    small = KnownAnswers(columns(triples), entities, relations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgc.data.known._LARGEST", 0)
        large = KnownAnswers(columns(triples), entities, relations)
    assert torch.equal(small.keys, large.keys)
    asked = queries([(side, relation, e) for side in (0, 1) for relation in range(relations) for e in range(entities)])
    assert torch.equal(small.rows(asked), large.rows(asked))
    for mine, other in zip(small.answers(asked), large.answers(asked), strict=True):
        assert torch.equal(mine, other)
    everyone = torch.arange(entities)
    assert torch.equal(small.contains(asked, everyone), large.contains(asked, everyone))


@given(cases(), st.data())
def test_what_is_relevant_answers_the_queries_asked_as_all_triples_do(case, data):
    entities, relations, triples, _ = case
    asked = columns(data.draw(st.lists(st.sampled_from(triples), max_size=5)) if triples else [])
    everything = columns(triples)
    parts = [Triples(*(c.int() for c in (t.head, t.relation, t.tail))) for t in (everything[:3], everything[3:])]
    few = KnownAnswers(relevant(parts, asked, entities, relations), entities, relations)
    whole = KnownAnswers(everything, entities, relations)
    for side in Side:
        for mine, other in zip(few.answers(asked.queries(side)), whole.answers(asked.queries(side)), strict=True):
            assert torch.equal(mine, other)


def test_an_index_of_int32_ids_beyond_their_products():
    """Ids that fit into int32 while products of them do not."""
    size = 2_000_000_000
    triples = Triples(*(torch.tensor(c, dtype=torch.int32) for c in ([size - 1, 5], [1, 0], [size - 2, 5])))
    index = KnownAnswers(triples, size, 2)
    asked = Triples(triples.head.long(), triples.relation.long(), triples.tail.long())
    assert index.answers(asked.queries(Side.TAIL))[1].tolist() == [size - 2, 5]
    assert index.answers(asked.queries(Side.HEAD))[1].tolist() == [size - 1, 5]


@pytest.mark.parametrize("few", [0, 0.25, 4])
@given(cases(), st.data())
def test_hubs_are_looked_up_in_another_way_with_the_same_result(few, case, data):
    """Queries of many known answers, of few, and of both in one batch."""
    entities, relations, triples, asked = case
    index, expected = KnownAnswers(columns(triples), entities, relations), dictionary(triples)
    pools = data.draw(st.lists(st.lists(st.integers(0, entities - 1), min_size=4, max_size=4), min_size=1, max_size=3))
    wanted = queries(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgc.data.known._FEW", few)
        groups = pools[: max(1, len(asked))]
        found = index.contains(wanted, torch.tensor(groups)).tolist()
    share = -(-len(asked) // len(groups))
    for i, (side, relation, anchor) in enumerate(asked):
        pool = groups[i // share]
        assert found[i] == [e in expected[side, relation, anchor] for e in pool]
