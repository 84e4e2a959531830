"""The records passed between layers, against values written out by hand."""

from __future__ import annotations

import pytest
import torch

from kgc.types import Queries, RankCounts, Side, Triples, rows_of_pools

TRIPLES = Triples(torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]), torch.tensor([3, 4, 0]))


def test_sides_have_fixed_numbers_and_names():
    # Numbers are stored in states and files; names are keys of metrics.
    assert (Side.HEAD, Side.TAIL) == (0, 1)
    assert [side.label for side in Side] == ["head", "tail"]


def test_a_head_query_knows_the_tail_and_wants_the_head():
    queries = TRIPLES.queries(Side.HEAD)
    assert queries.anchor.tolist() == [3, 4, 0]
    assert queries.relation.tolist() == [5, 6, 7]
    assert queries.side is Side.HEAD
    assert TRIPLES.target(Side.HEAD).tolist() == [0, 1, 2]


def test_a_tail_query_knows_the_head_and_wants_the_tail():
    queries = TRIPLES.queries(Side.TAIL)
    assert queries.anchor.tolist() == [0, 1, 2]
    assert queries.relation.tolist() == [5, 6, 7]
    assert queries.side is Side.TAIL
    assert TRIPLES.target(Side.TAIL).tolist() == [3, 4, 0]


@pytest.mark.parametrize(
    ("index", "kept"),
    [(slice(1, None), [1, 2]), (torch.tensor([2, 0, 2]), [2, 0, 2]), (torch.tensor([], dtype=int), [])],
)
def test_indexing_keeps_columns_together(index, kept):
    part = TRIPLES[index]
    assert len(part) == len(kept)
    assert part.head.tolist() == [[0, 1, 2][i] for i in kept]
    assert part.relation.tolist() == [[5, 6, 7][i] for i in kept]
    assert part.tail.tolist() == [[3, 4, 0][i] for i in kept]


def test_queries_keep_their_sides_when_indexed():
    mixed = Queries(torch.tensor([7, 8, 9]), torch.tensor([1, 2, 3]), torch.tensor([0, 1, 1]))
    part = mixed[torch.tensor([2, 0])]
    assert (part.anchor.tolist(), part.relation.tolist(), part.side.tolist()) == ([9, 7], [3, 1], [1, 0])
    assert Queries(mixed.anchor, mixed.relation, Side.TAIL)[:1].side is Side.TAIL
    assert len(mixed) == 3


def test_concatenation_keeps_order_and_int64():
    joined = Triples.cat([TRIPLES, Triples.empty(), TRIPLES[:1]])
    assert joined.head.tolist() == [0, 1, 2, 0]
    assert joined.relation.tolist() == [5, 6, 7, 5]
    assert joined.tail.tolist() == [3, 4, 0, 3]
    assert joined.head.dtype == torch.int64
    assert len(Triples.empty()) == 0


def test_tie_rules_of_two_counts():
    # 2 rivals ahead and 3 tied: places 3 … 6, whose mean is 4.5.
    counts = RankCounts(*(torch.tensor(x) for x in ([2, 0], [3, 0], [10, 1], [0, 0])))
    assert counts.optimistic.tolist() == [3, 1]
    assert counts.pessimistic.tolist() == [6, 1]
    assert counts.realistic.tolist() == [4.5, 1.0]
    assert counts.realistic.dtype == torch.float64
    assert counts[torch.tensor([1])].candidates.tolist() == [1]
    assert len(counts) == 2


def test_half_ranks_of_billions_do_not_round():
    # 2^31 + 1/2 needs 33 bits: more than fp32 or int32 have. So does half of 2^31 + 1.
    counts = RankCounts(*(torch.tensor(x) for x in ([2**31 - 1, 0], [1, 2**31 + 1], [2**32] * 2, [0, 0])))
    assert counts.realistic.tolist() == [2**31 + 0.5, 2**30 + 1.5]


@pytest.mark.gpu
def test_records_move_to_a_device_whole():
    assert {x.device.type for x in (TRIPLES.to("cuda").head, TRIPLES.to("cuda").relation, TRIPLES.to("cuda").tail)} == {
        "cuda"
    }
    mixed = Queries(torch.tensor([7]), torch.tensor([1]), torch.tensor([0])).to("cuda")
    assert mixed.side.device.type == "cuda"


@pytest.mark.parametrize(
    ("pools", "number", "rows"),
    [
        ([7, 8], 3, [[7, 8]] * 3),
        ([[7, 8]], 3, [[7, 8]] * 3),
        ([[1], [2], [3]], 3, [[1], [2], [3]]),
        ([[1], [2], [3]], 8, [[1], [1], [1], [2], [2], [2], [3], [3]]),
        ([[1], [2], [3]], 7, [[1], [1], [1], [2], [2], [2], [3]]),
        ([[1], [2]], 4, [[1], [1], [2], [2]]),
    ],
)
def test_consecutive_queries_share_a_pool(pools, number, rows):
    assert rows_of_pools(torch.tensor(pools), number).tolist() == rows
