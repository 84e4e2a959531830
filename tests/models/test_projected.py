"""Projected candidates: lenses named by a number in evaluation, and kernels that compare without projecting."""

from __future__ import annotations

import pickle

import pytest
import torch
from test_contract import CASES, DIM, Case, E, mixed_queries, spread

from kgc.engine import compiled
from kgc.engine.compiled import can_compile, compiled_key
from kgc.models import base
from kgc.models.base import KGEModel
from kgc.models.init import Normal
from kgc.models.projected import Projected
from kgc.models.similarity import Manhattan
from kgc.types import Queries, Side

PROJECTING = [case for case in CASES if isinstance(case.build().similarity, Projected)]
# One model of each kind of kernel that has a form of its own; those of plain differences are in test_ranking_paths.py.
FUSED = [case for case in CASES if case.path.stem in ("protate", "boxe", "pairre", "hake", "mure", "ermlp", "atth")]
FUSED = list({case.path.stem: case for case in FUSED}.values())


@pytest.mark.parametrize("case", PROJECTING, ids=str)
def test_a_lens_named_by_its_number_is_the_lens(case: Case):
    model = spread(case.build()).eval()
    queries = mixed_queries(30)
    every = [queries, *(Queries(queries.anchor, queries.relation, side) for side in Side)]
    own = torch.arange(E).expand(30, -1)
    for asked in every:
        copied = model.query_vectors(asked)
        assert copied.shape[1] == model.query_dim + model.lens_dim
        whole = model.similarity(copied, model.candidate_vectors())
        with torch.no_grad():
            named = model.query_vectors(asked)
            assert named.shape[1] == model.query_dim + 1
            torch.testing.assert_close(model.similarity(named, model.candidate_vectors()), whole)
            torch.testing.assert_close(model.similarity(named, model.candidate_vectors(own)), whole)
            for a, b in zip(model.similarity.split(named), model.similarity.split(copied), strict=True):
                assert torch.equal(a, b)


def test_relations_as_large_as_matrices_are_looked_up_in_parts(monkeypatch):
    model = spread(next(case for case in PROJECTING if case.path.stem == "transr").build()).eval()
    queries = mixed_queries(30)
    with torch.no_grad():
        whole = model.query_vectors(queries)
        seen = []
        look_up = model.relation_vectors
        monkeypatch.setattr(model, "relation_vectors", lambda rows: seen.append(len(rows)) or look_up(rows))
        monkeypatch.setattr(base, "_NUMBERS", 7 * model.relation.embedding_dim)
        torch.testing.assert_close(model.query_vectors(queries), whole)
    assert seen == [7, 7, 7, 7, 2]


def test_numbers_beyond_the_digits_of_the_type_name_no_lens():
    case = next(case for case in PROJECTING if case.path.stem == "transh")
    model = case.build(relations=300).eval().to(torch.bfloat16)  # whole numbers up to 256
    with torch.no_grad():
        assert model.query_vectors(mixed_queries(5)).shape[1] == model.query_dim + model.lens_dim


def test_a_width_that_was_not_announced_is_an_error():
    class Half(KGEModel):
        projects = True

        def query(self, anchor, relation, side):
            return anchor[..., :2]

        def project(self, vectors, lens):
            return vectors[..., :2]

    model = Half(4, 2, 4, similarity=Manhattan(), entity_init=Normal(1.0), relation_init=Normal(1.0))
    queries = Queries(torch.tensor([0]), torch.tensor([1]), Side.TAIL)
    with pytest.raises(ValueError, match=r"Half\.query makes 2 numbers: set query_dim"):
        model.score(queries)


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, on its first use
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_compiled_keys_order_candidates_as_scores_do(case: Case, monkeypatch):
    """Odd numbers of queries and candidates, which the kernel takes in several parts."""
    monkeypatch.setattr(compiled, "_CACHED", 7 * 3 * DIM)
    model = spread(case.build(entities=41)).eval()
    with torch.no_grad():
        model.entity.weight[[17, 40]] = model.entity.weight[0].clone()
    queries = mixed_queries(13)
    with torch.no_grad():
        query, candidates = model.query_vectors(queries), model.candidate_vectors()
        keys = compiled_key(model.similarity)(query, candidates)
        scores = model.double().score(queries)
    assert keys.shape == (13, 41)
    assert torch.equal(keys[:, [17, 40]], keys[:, [0, 0]])  # equal entities tie
    constant = (scores - keys).mean(1, keepdim=True)  # MuRE's bias of the query
    torch.testing.assert_close(keys.double() + constant, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler")
def test_a_kernel_is_made_once_and_travels_with_no_copy():
    similarity = Manhattan()
    key = compiled_key(similarity)
    assert compiled_key(similarity) is key
    copied = pickle.loads(pickle.dumps(similarity))
    assert copied.compiled is None
    query, candidates = torch.zeros(1, 3), torch.ones(2, 3)
    assert torch.equal(copied(query, candidates), similarity(query, candidates))
