"""A function of triples and a matrix of scores, ranked like anything else: against the brute force."""

from __future__ import annotations

import random

import oracle
import pytest
import torch
from torch import Tensor, nn

from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.ranking import RankingOptions, rank_queries
from kgc.scorers import MatrixScorer, TripleScorer
from kgc.types import Queries, RankCounts, Scorer, Side, Triples

E, R = 11, 3
OPTIONS = [None, RankingOptions(batch=1, block=1), RankingOptions(batch=4, block=3), RankingOptions(batch=50, block=11)]


def table(device: torch.device | str = "cpu") -> Tensor:
    """Scores [h, r, t] with many ties."""
    return torch.randint(0, 4, (E, R, E), generator=torch.Generator().manual_seed(0)).float().to(device)


def split(number: int, seed: int) -> list[oracle.Triple]:
    draw = random.Random(seed)
    return [(draw.randrange(E), draw.randrange(R), draw.randrange(E)) for _ in range(number)]


def asked(triples: list[oracle.Triple], device: torch.device | str = "cpu") -> tuple[Queries, Tensor, KnownAnswers]:
    """Head queries, then tail queries: the order of `oracle.ranks`."""
    ids = Triples(*torch.tensor(triples, device=device).T.contiguous())
    side = torch.tensor([oracle.HEAD, oracle.TAIL], device=device).repeat_interleave(len(ids))
    queries = Queries(torch.cat([ids.tail, ids.head]), ids.relation.repeat(2), side)
    return queries, torch.cat([ids.head, ids.tail]), KnownAnswers(ids, E, R)


def rows(counts: RankCounts) -> list[oracle.Rank]:
    fields = (counts.better, counts.equal, counts.candidates, counts.nonfinite)
    return [oracle.Rank(*row) for row in zip(*(field.tolist() for field in fields), strict=True)]


# Functions of triples.


class LookUp(nn.Module):
    """A module that scores triples, and notes how many it was asked for at once."""

    def __init__(self, scores: Tensor):
        super().__init__()
        self.register_buffer("table", scores)
        self.sizes: list[int] = []

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        self.sizes.append(len(head))
        return self.table[head, relation, tail]


@pytest.mark.parametrize("at_once", [1, 7, 100, 1 << 17])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_function_of_triples_is_ranked_as_by_brute_force(options, at_once, device):
    module = LookUp(table(device))
    triples = split(20, seed=1)
    queries, targets, known = asked(triples, device)
    counts = rank_queries(TripleScorer(module, E, at_once), queries, targets, known, options)
    values = module.table.tolist()
    assert rows(counts) == oracle.ranks(lambda h, r, t: values[h][r][t], triples, [triples], E)
    assert max(module.sizes) <= at_once


def test_a_function_sees_calls_of_one_size():
    module = LookUp(table())
    queries, _, _ = asked(split(10, seed=2))
    scores = TripleScorer(module, E, triples_at_once=50).score(queries)
    assert module.sizes == [50] * 5  # 20 queries x 11 entities = 220 triples
    anchor, relation, side = queries.anchor, queries.relation, queries.side
    for i in range(20):
        line = module.table[:, relation[i], anchor[i]] if side[i] == Side.HEAD else module.table[anchor[i], relation[i]]
        assert torch.equal(scores[i], line)


def test_every_layout_of_candidates_is_scored_alike():
    scorer = TripleScorer(LookUp(table()), E, triples_at_once=13)
    assert isinstance(scorer, Scorer)
    queries, _, _ = asked(split(6, seed=3))
    everything = scorer.score(queries)
    own = torch.randint(E, (12, 4), generator=torch.Generator().manual_seed(0))
    shared = torch.tensor([10, 0, 0, 4])
    assert torch.equal(scorer.score(queries, range(3, 8)), everything[:, 3:8])
    assert torch.equal(scorer.score(queries, shared), everything[:, shared])
    assert torch.equal(scorer.score(queries, own), everything.gather(1, own))
    one_side = Queries(queries.anchor[:6], queries.relation[:6], Side.HEAD)
    assert torch.equal(scorer.score(one_side), everything[:6])
    assert scorer.score(queries[:0]).shape == (0, E)
    assert scorer.score(queries, range(0)).shape == (12, 0)


def test_scores_of_a_function_keep_their_type_and_their_gradient():
    weight = torch.ones(E, dtype=torch.float64, requires_grad=True)
    scorer = TripleScorer(lambda h, r, t: weight[h] * 2 + weight[t], E, triples_at_once=5)
    scores = scorer.score(Queries(torch.tensor([0, 1]), torch.tensor([0, 0]), Side.TAIL), range(3))
    assert scores.dtype == torch.float64
    scores.sum().backward()
    # Heads 0 and 1 stand in 3 triples each with weight 2; tails 0, 1, 2 in 2 triples each.
    assert weight.grad[:4].tolist() == [8.0, 8.0, 2.0, 0.0]


@pytest.mark.parametrize("answer", [lambda h: torch.zeros(len(h), 1), lambda h: torch.zeros(())])
def test_a_function_with_the_wrong_shape_is_named(answer):
    scorer = TripleScorer(lambda h, r, t: answer(h), E)
    with pytest.raises(UserError, match=r"one score a triple, shape \[22\]"):
        scorer.score(Queries(torch.tensor([0, 1]), torch.tensor([0, 0]), Side.TAIL))
    with pytest.raises(UserError, match="triples_at_once=0"):
        TripleScorer(lambda h, r, t: h, E, triples_at_once=0)


# Matrices of scores.


def matrix(scores: Tensor, queries: Queries) -> Tensor:
    """[Q, E] one row a question."""
    is_head = (queries.side == Side.HEAD).unsqueeze(1)
    return torch.where(is_head, scores[:, queries.relation, queries.anchor].T, scores[queries.anchor, queries.relation])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("order", range(3))
def test_a_matrix_is_ranked_as_by_brute_force_in_any_order_of_rows(options, order, device):
    scores = table(device)
    triples = split(20, seed=4)  # some questions are asked more than once
    queries, targets, known = asked(triples, device)
    assert len({*zip(queries.anchor.tolist(), queries.relation.tolist(), queries.side.tolist(), strict=True)}) < 40
    place = torch.tensor(random.Random(order).sample(range(40), 40), device=device)
    scorer = MatrixScorer(matrix(scores, queries[place]), queries[place])
    assert isinstance(scorer, Scorer)
    values = scores.tolist()
    expected = oracle.ranks(lambda h, r, t: values[h][r][t], triples, [triples], E)
    assert rows(rank_queries(scorer, queries, targets, known, options)) == expected
    some = [3, 17, 30]
    part = rank_queries(scorer, queries[torch.tensor(some)], targets[torch.tensor(some)], known, options)
    assert rows(part) == [expected[i] for i in some]


def test_every_layout_of_candidates_is_read_from_a_matrix():
    queries, _, _ = asked(split(6, seed=5))
    scores = matrix(table(), queries)
    scorer = MatrixScorer(scores, queries)
    own = torch.randint(E, (12, 4), generator=torch.Generator().manual_seed(0))
    shared = torch.tensor([10, 0, 0, 4])
    assert torch.equal(scorer.score(queries), scores)
    assert torch.equal(scorer.score(queries, range(3, 8)), scores[:, 3:8])
    assert torch.equal(scorer.score(queries, shared), scores[:, shared])
    assert torch.equal(scorer.score(queries, own), scores.gather(1, own))
    assert scorer.score(queries[:0]).shape == (0, E)


def test_two_rows_of_one_question_must_agree():
    queries = Queries(torch.tensor([1, 2, 1]), torch.tensor([0, 0, 0]), Side.TAIL)
    scores = torch.tensor([[1.0, float("nan")], [2.0, 2.0], [1.0, float("nan")]])
    assert MatrixScorer(scores, queries).score(queries)[2, 0] == 1.0
    scores[2, 0] = 3.0
    with pytest.raises(UserError, match=r"rows 0 and 2 .* same question"):
        MatrixScorer(scores, queries)


def test_mistakes_with_a_matrix_are_named():
    queries = Queries(torch.tensor([1, 2]), torch.tensor([0, 1]), Side.TAIL)
    with pytest.raises(UserError, match=r"2 questions need scores of shape \[2, E\], not \[3, 5\]"):
        MatrixScorer(torch.zeros(3, 5), queries)
    scorer = MatrixScorer(torch.zeros(2, 5), queries)
    # (1, 1), (4, 0) and the other side have no row, though their keys may fall on one that has.
    for anchor, relation, side in ((1, 1, Side.TAIL), (4, 0, Side.TAIL), (2, 2, Side.TAIL), (1, 0, Side.HEAD)):
        with pytest.raises(UserError, match=f"for the {side.label} of anchor {anchor}, relation {relation}"):
            scorer.score(Queries(torch.tensor([anchor]), torch.tensor([relation]), side))
    with pytest.raises(UserError, match="no row"):
        MatrixScorer(torch.zeros(0, 5), queries[:0]).score(queries)
