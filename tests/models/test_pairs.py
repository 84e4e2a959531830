"""Differences of all pairs: kernels and chunks against autograd through the plain formula, in float64."""

from __future__ import annotations

import pytest
import torch

from kgc.engine import compiled
from kgc.engine.compiled import compile_training
from kgc.models import pairs
from kgc.models.distances import HalfSine, Torus
from kgc.models.similarity import ComplexModulus, Dot, Euclidean, Manhattan, OfDifferences

ALL = [
    pytest.param(s, id=type(s).__name__) for s in (Manhattan(), Euclidean(), ComplexModulus(), Torus(), HalfSine(2.0))
]
CPU = torch.device("cpu")


def vectors(*shape: int, seed: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.requires_grad_()


def with_gradients(scores: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return [scores.detach(), *torch.autograd.grad(scores, leaves, upstream.to(scores.dtype))]


def plain(similarity: OfDifferences, query: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """[G, S, D] and [G, N, D] to [G, S, N], differentiated by autograd."""
    return -similarity.distance(query.unsqueeze(2) - candidate.unsqueeze(1))


@pytest.mark.parametrize("similarity", ALL)
@pytest.mark.parametrize("sizes", [(1, 5, 7), (3, 2, 4), (4, 1, 6), (2, 3, 1)], ids=str)
def test_kernels_have_the_scores_and_gradients_of_the_formula(similarity, sizes, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    kernels = pairs.compiled_kernels(similarity)
    groups, queries, candidates = sizes
    query, candidate = vectors(groups, queries, 6, seed=0), vectors(groups, candidates, 6, seed=1)
    wanted = with_gradients(plain(similarity, query, candidate), query, candidate)
    for form in (None, kernels):
        got = with_gradients(pairs.pair_scores(similarity, query, candidate, form), query, candidate)
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("similarity", [Euclidean(), ComplexModulus()], ids=lambda s: type(s).__name__)
def test_equal_vectors_have_a_gradient_of_zero(similarity, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    point = torch.ones(1, 1, 4, dtype=torch.float64, requires_grad=True)
    for form in (None, pairs.compiled_kernels(similarity)):
        scores = pairs.pair_scores(similarity, point, point.detach().clone(), form)
        (gradient,) = torch.autograd.grad(scores.sum(), point)
        assert torch.equal(gradient, torch.zeros_like(point))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch about itself
@pytest.mark.skipif(not compiled.can_compile(CPU), reason="no C++ compiler here")
def test_a_compiled_similarity_trains_alike_in_every_layout_and_ranks_as_before():
    eager, fast = ComplexModulus(), ComplexModulus()
    assert compile_training(fast, float("inf"), 6, CPU)
    layouts = {
        "shared": (vectors(5, 6, seed=0), vectors(7, 6, seed=1)),
        "pools": (vectors(3, 4, 6, seed=0), vectors(3, 7, 6, seed=1)),
        "own": (vectors(5, 6, seed=0), vectors(5, 7, 6, seed=1)),
    }
    for query, candidate in layouts.values():
        got = with_gradients(fast(query, candidate), query, candidate)
        for a, b in zip(got, with_gradients(eager(query, candidate), query, candidate), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            assert torch.equal(fast(query, candidate), eager(query, candidate))


@pytest.mark.parametrize(("cells", "wanted"), [(1e9, False), (1e10, True)])
def test_only_large_work_is_compiled(cells, wanted, monkeypatch):
    monkeypatch.setattr(compiled, "can_compile", lambda device: True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    similarity = Manhattan()
    assert compile_training(similarity, cells, 10, CPU) is wanted
    assert (similarity.kernels is not None) is wanted


def test_products_are_not_compiled():
    assert not compile_training(Dot(), float("inf"), 10, CPU)


def test_a_compiler_that_fails_is_left_with_a_warning(monkeypatch):
    def broken(function, **_):
        def call(*args):
            raise RuntimeError("no such header: math.h")

        return call

    monkeypatch.setattr(compiled, "can_compile", lambda device: True)
    monkeypatch.setattr(torch, "compile", broken)
    similarity = Manhattan()
    with pytest.warns(UserWarning, match="torch.compile failed, training runs without it: no such header"):
        assert not compile_training(similarity, float("inf"), 10, CPU)
    query, candidate = vectors(2, 4, seed=0), vectors(3, 4, seed=1)
    assert torch.isfinite(similarity(query, candidate)).all()
