"""Relation-projected models: one projection for each relation, the papers' scores, exact ties, gradients in bounded
memory."""

from __future__ import annotations

import random

import oracle
import pytest
import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.models.base import KGEModel
from kgc.models.hake import HAKE
from kgc.models.init import Normal
from kgc.models.projected import Projected
from kgc.models.similarity import Dot, Euclidean
from kgc.models.transh import TransH
from kgc.models.transr import TransR
from kgc.ranking import RankingOptions, is_certified, rank_queries
from kgc.types import Queries, Side, Triples

E, R = 40, 3


def on_axes(entities: int = E, relations: int = R, dim: int = 4, seed: int = 0) -> TransH:
    """Integers, and normals along one axis each: projections and scores² are exact in fp32, and ties abound."""
    generator = torch.Generator().manual_seed(seed)
    model = TransH(entities, relations, dim)
    with torch.no_grad():
        model.entity.weight.copy_(torch.randint(-2, 3, (entities, dim), generator=generator))
        translation = torch.randint(-2, 3, (relations, dim), generator=generator)
        normal = torch.eye(dim)[torch.arange(relations) % dim] * torch.tensor([[2.0], [-1.0], [0.5]])
        model.relation.weight.copy_(torch.cat([translation, normal], dim=1))
    return model


def questions(number: int, device: torch.device | str = "cpu", seed: int = 0) -> tuple[Queries, Tensor, Triples]:
    """Both queries of random triples, shuffled, their targets, and the triples."""
    draw = random.Random(seed)
    columns = [[draw.randrange(n) for _ in range(number)] for n in (E, R, E)]
    triples = Triples(*(torch.tensor(column, device=device) for column in columns))
    order = torch.tensor(draw.sample(range(2 * number), 2 * number), device=device)
    sides = torch.tensor(list(Side), device=device).repeat_interleave(number)
    anchors, targets = torch.cat([triples.tail, triples.head]), torch.cat([triples.head, triples.tail])
    return Queries(anchors, triples.relation.repeat(2), sides)[order], targets[order], triples


def brute_force(model: TransH, queries: Queries, targets: Tensor, triples: Triples) -> list[oracle.Rank]:
    entity, relation = model.entity.weight.tolist(), model.relation.weight.tolist()
    known = set(zip(*(column.tolist() for column in (triples.head, triples.relation, triples.tail)), strict=True))

    def score(h: int, r: int, t: int) -> float:
        return round(oracle.transh(entity[h], relation[r], entity[t]), 9)  # roots of integers

    expected = []
    columns = (queries.anchor, queries.relation, queries.side, targets)
    for anchor, r, side, target in zip(*(column.tolist() for column in columns), strict=True):
        triple = (target, r, anchor) if side == Side.HEAD else (anchor, r, target)
        expected.append(oracle.rank(score, triple, side, known, E))
    return expected


@pytest.mark.parametrize(("batch", "block"), [(None, None), (1, 1), (7, 9), (64, 40), (5, 100)])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_ranks_equal_the_brute_force(batch, block, compiled, device):
    model = on_axes()
    queries, targets, triples = questions(30, device)
    expected = brute_force(model, queries, targets, triples)
    assert sum(rank.equal > 0 for rank in expected) > len(expected) // 2
    options = RankingOptions(batch=batch, block=block, compile=compiled)
    counts = rank_queries(model.to(device), queries, targets, KnownAnswers(triples, E, R), options)
    fields = (counts.better, counts.equal, counts.candidates, counts.nonfinite)
    assert [oracle.Rank(*row) for row in zip(*(field.tolist() for field in fields), strict=True)] == expected


@pytest.mark.parametrize("batch", [3, 8, 64])
@pytest.mark.parametrize("block", [7, 16, 40])
def test_a_projection_is_made_once_for_each_relation_and_block(batch, block, monkeypatch):
    model = on_axes()
    queries, targets, _ = questions(60)
    made: list[int] = []
    project = model.project

    def counted(vectors: Tensor, relation: Tensor) -> Tensor:
        made.append(len(vectors))
        return project(vectors, relation)

    monkeypatch.setattr(model.similarity, "project", counted)
    rank_queries(model, queries, targets, None, RankingOptions(batch=batch, block=block))
    keys = zip(queries.relation.tolist(), queries.side.tolist(), queries.anchor.tolist(), strict=True)
    asked = list(keys)
    rows = sorted(set(asked))
    calls = 0
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        relations = {relation for relation, _, _ in part}
        blocks = -(-E // block)
        targets_here = sum(key in part for key in asked)
        # Where entities take several blocks the targets make further ones.
        calls += len(relations) * (blocks + (-(-targets_here // block) if blocks > 1 else 0))
    assert len(made) == calls
    assert set(made) == {max(block, 16)}  # every product has the same width, of a register at least


def test_every_product_of_a_ranking_key_has_one_shape(monkeypatch):
    shapes = set()

    class Seen(Euclidean):
        def ranking_key(self, query: Tensor, candidate: Tensor, terms: Tensor | None = None) -> Tensor:
            shapes.add((tuple(query.shape), tuple(candidate.shape)))
            return super().ranking_key(query, candidate, terms)

    model = on_axes()
    monkeypatch.setattr(model.similarity, "similarity", Seen())
    queries, targets, _ = questions(60)
    rank_queries(model, queries, targets, None, RankingOptions(batch=50, block=9))
    assert len(shapes) == 1
    ((rows, width), (columns, _)) = shapes.pop()
    # MKL rounds products of fewer than 4 rows, and of 5 to 11 columns, differently from column to column.
    assert width == 4
    assert rows >= 4
    assert columns >= 12


@pytest.mark.parametrize("make", [TransH, TransR, HAKE])
@pytest.mark.parametrize(("entities", "dim", "block"), [(7, 4, 3), (33, 10, 32), (130, 34, 12), (600, 34, 600)])
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_equal_entity_vectors_tie_exactly(make, entities, dim, block, batch, device):
    model = make(entities, 2, dim)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for table in (model.entity.weight, model.relation.weight):
            table.copy_(torch.randn(table.shape, generator=generator))
        twins = model.entity.weight[1::2]
        twins.copy_(model.entity.weight[0::2][: len(twins)].clone())
    anchor, relation, target = (
        torch.randint(n, (40,), generator=generator).to(device) for n in (entities, 2, entities)
    )
    queries = Queries(anchor, relation, torch.arange(40, device=device) % 2)
    counts = rank_queries(model.to(device), queries, target, None, RankingOptions(batch=batch, block=block))
    has_twin = target != (entities - 1 if entities % 2 else -1)
    assert torch.equal(counts.equal, has_twin.long())


@pytest.mark.parametrize("block", [1, 7, 9, 11, 40])
@pytest.mark.parametrize("batch", [1, 7, 200])
@pytest.mark.parametrize("dim", [6, 34])
def test_a_constant_model_scores_as_chance(dim, batch, block, device):
    model = TransH(E, R, dim, entity_init=Normal(1.0), relation_init=Normal(1.0))
    with torch.no_grad():
        model.entity.weight.copy_(model.entity.weight[:1].clone().expand_as(model.entity.weight))
    queries, targets, triples = questions(30, device)
    options = RankingOptions(batch=batch, block=block)
    counts = rank_queries(model.to(device), queries, targets, KnownAnswers(triples, E, R), options)
    assert counts.better.max() == 0
    assert torch.equal(counts.equal + 1, counts.candidates)


def test_a_projected_model_claims_no_proof_of_its_ranks():
    assert not is_certified(on_axes(), RankingOptions(precision="certified"))


def test_the_length_of_a_normal_changes_no_score():
    model = on_axes()
    queries, _, _ = questions(10)
    before = model.score(queries)
    with torch.no_grad():
        model.relation.weight[:, 4:] *= 8
    assert torch.equal(model.score(queries), before)


def test_an_entity_on_the_normal_is_projected_to_the_origin_by_hand():
    model = on_axes(dim=2)
    with torch.no_grad():
        model.entity.weight[:2] = torch.tensor([[5.0, 0.0], [0.0, 4.0]])
        model.relation.weight[0] = torch.tensor([3.0, 0.0, 1.0, 0.0])
    # h⊥ = (0, 0), d = (3, 0), t⊥ = (0, 4): a distance of 5.
    query = Queries(torch.tensor([0]), torch.tensor([0]), Side.TAIL)
    assert model.score(query, torch.tensor([1])).item() == -5.0


def test_dropped_relation_coordinates_project_the_candidates_too():
    """In training each query has a relation vector of its own; shared and own candidates must see the same one."""
    model = TransH(E, R, 4, entity_init=Normal(1.0), relation_init=Normal(1.0), relation_dropout=0.5)
    queries, _, _ = questions(20)
    query = model.query_vectors(queries)
    vectors, relation = model.similarity.split(query)
    assert (relation == 0).any()
    assert vectors.shape == (40, 4)
    shared = model.similarity(query, model.candidate_vectors())
    own = model.similarity(query, model.candidate_vectors(torch.arange(E).expand(40, -1)))
    torch.testing.assert_close(shared, own, rtol=1e-5, atol=1e-5)


def test_projections_are_not_kept_for_the_backward_pass():
    """Kept, they would be relations x candidates x width numbers."""
    kept: list[int] = []
    model = TransH(E, R, 16, entity_init=Normal(1.0), relation_init=Normal(1.0))
    queries, _, _ = questions(60)
    query, candidates = model.query_vectors(queries), model.candidate_vectors()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model.similarity(query, candidates)
    tables = {query.data_ptr(), candidates.data_ptr(), scores.data_ptr()}
    assert sum(pointer not in tables for pointer in kept) <= 4 * R + 2  # index vectors, nothing of [N, D]
    scores.sum().backward()
    assert model.entity.weight.grad.abs().max() > 0


class Bilinear(KGEModel):
    """⟨h, M_r t⟩ as a projection of the candidate by a matrix: the shapes of TransR."""

    projects = True

    def __init__(self, entities: int, relations: int, dim: int, width: int):
        init = Normal(1.0)
        self.query_dim = width
        super().__init__(
            entities,
            relations,
            dim,
            relation_dim=width * dim,
            similarity=Dot(),
            entity_init=init,
            relation_init=init,
        )
        self.width = width

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return self.project(anchor, relation)

    def project(self, vectors: Tensor, relation: Tensor) -> Tensor:
        matrix = relation.unflatten(-1, (self.width, self.dim))
        return (matrix @ vectors.unsqueeze(-1)).squeeze(-1)


def test_projections_to_another_width_reach_every_route():
    model = Bilinear(E, R, dim=6, width=4).double()
    assert isinstance(model.similarity, Projected)
    queries, _, _ = questions(15)
    entity, matrix = model.entity.weight, model.relation.weight.view(R, 4, 6)
    projected = torch.einsum("rwd,ed->rew", matrix, entity)
    wanted = torch.einsum("bw,bew->be", projected[queries.relation, queries.anchor], projected[queries.relation])
    torch.testing.assert_close(model.score(queries), wanted)
    own = torch.arange(E).expand(30, -1)[:, 5:11]
    torch.testing.assert_close(model.score(queries, own), wanted[:, 5:11])
    torch.testing.assert_close(model.score(queries, range(3, 9)), wanted[:, 3:9])
    torch.testing.assert_close(model.similarity.ranking_key(model.query_vectors(queries), entity), wanted)


def test_groups_of_queries_are_kept_for_the_same_queries_only():
    model = on_axes()
    queries, _, _ = questions(20)
    vectors, other = model.query_vectors(queries), model.query_vectors(queries[:7])
    entities = model.entity_vectors()
    with torch.no_grad():
        for asked in (vectors, vectors, other, vectors.flip(0)):
            wanted = model.similarity.own(asked, entities.expand(len(asked), -1, -1))
            torch.testing.assert_close(model.similarity.shared(asked, entities), wanted)
        vectors.copy_(vectors.flip(0))  # in place
        wanted = model.similarity.own(vectors, entities.expand(len(vectors), -1, -1))
        torch.testing.assert_close(model.similarity.shared(vectors, entities), wanted)
    with torch.inference_mode():
        vectors = model.query_vectors(queries)
        torch.testing.assert_close(model.similarity.shared(vectors, entities), model.score(queries))
