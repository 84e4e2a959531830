"""Ranks of every model of `conf/model/`: those of its formula in plain Python, and independent of the batch."""

from __future__ import annotations

import random

import oracle
import pytest
import torch
from test_contract import CASES, DECODERS, Case, E, R, every_model, mixed_queries, scorer, spread, within_reach
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.models.base import KGEModel
from kgc.ranking import RankingOptions, is_certified, rank_queries
from kgc.types import Queries, RankCounts, Triples

PROJECTING = {"transh", "pairre", "transr", "transd", "hake", "mure"}  # candidates depend on the relation
BLOCK_PATH = PROJECTING | {"roth", "refh", "atth", "ermlp"}  # there is no bound on what fp32 loses
certified_models = pytest.mark.parametrize("case", [c for c in CASES if c.path.stem not in BLOCK_PATH], ids=str)


def rows(counts: RankCounts) -> list[oracle.Rank]:
    fields = (counts.better, counts.equal, counts.candidates, counts.nonfinite)
    return [oracle.Rank(*row) for row in zip(*(field.tolist() for field in fields), strict=True)]


def both_sides(device: torch.device | str = "cpu") -> tuple[Queries, Tensor, Triples]:
    draw = random.Random(4)
    columns = [[draw.randrange(n) for _ in range(40)] for n in (E, R, E)]
    triples = Triples(*(torch.tensor(column, device=device) for column in columns))
    sides = torch.tensor([oracle.HEAD, oracle.TAIL], device=device).repeat_interleave(40)
    anchors, targets = torch.cat([triples.tail, triples.head]), torch.cat([triples.head, triples.tail])
    return Queries(anchors, triples.relation.repeat(2), sides), targets, triples


def brute_force(case: Case, model: KGEModel, queries: Queries, targets: Tensor, triples: Triples) -> list[oracle.Rank]:
    """Ranks by the oracle's formula on the stored fp32 numbers."""
    known = set(zip(*(column.tolist() for column in (triples.head, triples.relation, triples.tail)), strict=True))
    columns = (queries.anchor, queries.relation, queries.side, targets)
    expected, formula = [], scorer(case, model)
    for anchor, relation, side, target in zip(*(column.tolist() for column in columns), strict=True):
        triple = (target, relation, anchor) if side == oracle.HEAD else (anchor, relation, target)

        def score(h: int, r: int, t: int, side: int = side) -> float:
            return formula(*((t, r, side, h) if side == oracle.HEAD else (h, r, side, t)))

        expected.append(oracle.rank(score, triple, side, known, E))
    return expected


@every_model
def test_ranks_are_those_of_the_formula(case, device):
    model = within_reach(case, spread(case.build(dim=4)))
    queries, targets, triples = both_sides()
    expected = brute_force(case, model, queries, targets, triples)
    queries, targets, triples = both_sides(device)
    known = KnownAnswers(triples, E, R)
    for batch, block in ((None, None), (7, 11)):
        options = RankingOptions(batch=batch, block=block)
        assert rows(rank_queries(model.to(device), queries, targets, known, options)) == expected


@every_model
def test_entities_that_are_all_alike_score_as_chance(case, device):
    model = spread(case.build(dim=12))
    around = torch.arange(E).repeat(R)  # a graph in which all entities stand alike
    model.use_facts(Triples(around, torch.arange(R).repeat_interleave(E), (around + 1) % E))
    with torch.no_grad():
        model.entity.weight.copy_(model.entity.weight[:1].clone().expand_as(model.entity.weight))
    queries, targets, triples = both_sides(device)
    known = KnownAnswers(triples, E, R)
    for precision in ("certified", "block"):
        for batch, block in ((None, None), (1, 7), (9, 30)):
            options = RankingOptions(batch=batch, block=block, precision=precision)
            counts = rank_queries(model.to(device), queries, targets, known, options)
            assert counts.better.max() == 0
            assert torch.equal(counts.equal + 1, counts.candidates)


@every_model
def test_models_have_an_error_bound_unless_listed(case):
    assert is_certified(case.build(), RankingOptions()) is (case.path.stem not in BLOCK_PATH)


@certified_models
def test_exact_query_vectors_do_not_depend_on_the_batch(case, device):
    model = spread(case.build(dim=20)).to(device)
    queries = mixed_queries(33, device)
    with torch.no_grad():
        whole = model.exact_query_vectors(queries)
        assert whole.dtype == torch.float64
        single = torch.cat([model.exact_query_vectors(queries[i : i + 1]) for i in range(33)])
    assert torch.equal(whole, single)


@certified_models
def test_exact_query_vectors_and_candidates_give_the_score(case):
    model = spread(case.build())
    queries = mixed_queries(33)
    with torch.no_grad():
        exact = model.similarity(model.exact_query_vectors(queries), model.candidate_vectors().double())
        bound = 1e-4 if case.path.stem in DECODERS else 1e-6  # what an encoder makes is rounded to fp32
        torch.testing.assert_close(exact, model.double().score(queries), rtol=bound, atol=bound)
