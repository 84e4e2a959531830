"""Projected candidates: lenses named by a number in evaluation, and kernels that compare without projecting."""

from __future__ import annotations

import pickle

import pytest
import torch
from test_contract import CASES, DIM, Case, E, mixed_queries, spread

from kgc.engine import compiled
from kgc.engine.compiled import can_compile, compiled_key
from kgc.errors import UserError
from kgc.models import base
from kgc.models.base import KGEModel
from kgc.models.init import Normal
from kgc.models.projected import Projected
from kgc.models.similarity import Manhattan
from kgc.ranking import NonFiniteScore, RankingOptions, rank_queries
from kgc.types import Queries, Side

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(not can_compile(CPU), reason="needs a C++ compiler")
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
    model.query_dim = 2  # too late
    with pytest.raises(ValueError, match=r"before super\(\).__init__"):
        model.score(queries)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=needs_compiler)])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["mure", "atth", "rote"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_bias_that_is_no_number_is_seen_in_every_key(name, number, compile):
    """The bias of the anchor is one for all candidates and changes no rank, but its score is no number."""
    model = spread(next(case for case in CASES if case.path.stem == name).build()).eval()
    with torch.no_grad():
        model.entity.weight[3, -model.extra :] = number
    queries = Queries(torch.tensor([3]), torch.tensor([1]), Side.TAIL)
    with pytest.raises(NonFiniteScore, match="1 right answer"):
        rank_queries(model, queries, torch.tensor([5]), None, RankingOptions(compile=compile))


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_more_kinds_of_kernels_than_torch_keeps_versions_of_one_function():
    """A kernel that is not compiled would need memory for every pair's terms."""
    query, candidates = torch.randn(5, 4), torch.randn(9, 4)
    interpreted = []

    class Kind(Manhattan):
        def key_distance(self, query, candidate):
            if not torch.compiler.is_compiling():
                interpreted.append(type(self))
            return super().key_distance(query, candidate)

    for number in range(12):
        similarity = type(f"Kind{number}", (Kind,), {})()
        with torch.no_grad():
            torch.testing.assert_close(compiled_key(similarity)(query, candidates), similarity(query, candidates))
    assert interpreted == []


def test_a_compiler_that_does_not_work_is_told_once_and_done_without(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("Python.h: no such file\nand more")

    monkeypatch.setattr(compiled.shutil, "which", lambda name: name)
    monkeypatch.setattr(torch, "compile", broken)
    compiled._fault_of.cache_clear()
    try:
        with pytest.warns(match="Python.h: no such file"):
            assert not can_compile(CPU)
        assert not compiled.worth_compiling(Manhattan(), 10**6, 10**6, 100, CPU)
        model = spread(next(case for case in CASES if case.path.stem == "transe").build()).eval()
        with pytest.raises(UserError, match=r"ranking.compile=true: torch.compile fails \(Python.h"):
            rank_queries(model, mixed_queries(3), torch.tensor([0, 1, 2]), None, RankingOptions(compile=True))
        monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
        compiled._fault_of.cache_clear()
        assert compiled.compiler_fault(CPU) == "torch.compile needs a C++ compiler, and there is none"
    finally:
        compiled._fault_of.cache_clear()


@needs_compiler
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


@needs_compiler
def test_a_kernel_is_made_once_and_travels_with_no_copy():
    similarity = Manhattan()
    key = compiled_key(similarity)
    assert compiled_key(similarity) is key
    copied = pickle.loads(pickle.dumps(similarity))
    assert copied.compiled is None
    query, candidates = torch.zeros(1, 3), torch.ones(2, 3)
    assert torch.equal(copied(query, candidates), similarity(query, candidates))
