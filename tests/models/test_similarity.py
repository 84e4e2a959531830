"""Similarities: both layouts, and keys that order like scores."""

from __future__ import annotations

import math

import pytest
import torch

from kgc.models import distances
from kgc.models.distances import Box, HalfSine, ModulusAndPhase, SquaredEuclidean, Torus
from kgc.models.similarity import ComplexModulus, Dot, Euclidean, Manhattan, Similarity

Q = [3.0, -1.0, 0.5, 2.0]
C = [1.0, 1.0, -0.5, 2.5]
# 3 − 1 − 0.25 + 5; the differences are 2, −2, 1, −0.5; as complex numbers 2 + i and −2 − i/2. The last
# numbers, taken for biases, add up to 4.5.
BY_HAND = {
    "dot": (Dot(), 6.75),
    "manhattan": (Manhattan(), -5.5),
    "euclidean": (Euclidean(), -math.sqrt(9.25)),
    "torus": (Torus(), -0.5),
    "half sine": (HalfSine(2.0), -2 * (2 * math.sin(1) + math.sin(0.5) + math.sin(0.25))),
    "modulus and phase": (ModulusAndPhase(3.0, 2.0), -3 * math.sqrt(8) - 2 * (math.sin(0.5) + math.sin(0.25))),
    "complex modulus": (ComplexModulus(), -(math.sqrt(5) + math.sqrt(4.25))),
    "squared euclidean": (SquaredEuclidean(), 4.5 - 9),
}
ALL = [pytest.param(similarity, id=name) for name, (similarity, _) in BY_HAND.items()]


def vectors(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("name", BY_HAND)
def test_values_by_hand_in_both_layouts(name):
    similarity, expected = BY_HAND[name]
    query, candidate = torch.tensor([Q], dtype=torch.float64), torch.tensor([C], dtype=torch.float64)
    assert similarity(query, candidate).item() == pytest.approx(expected, rel=1e-14)
    assert similarity(query, candidate.unsqueeze(0)).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("similarity", ALL)
@pytest.mark.parametrize(("number", "candidates"), [(1, 1), (4, 7), (30, 40)])
def test_shared_and_own_candidates_agree(similarity, number, candidates):
    query, candidate = vectors(number, 6), vectors(candidates, 6, seed=1)
    shared, own = similarity(query, candidate), similarity(query, candidate.expand(number, -1, -1))
    assert shared.shape == own.shape == (number, candidates)
    torch.testing.assert_close(shared, own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("similarity", ALL)
def test_no_queries_or_no_candidates_give_empty_scores(similarity):
    assert similarity(vectors(0, 4), vectors(3, 4)).shape == (0, 3)
    assert similarity(vectors(2, 4), vectors(2, 0, 4)).shape == (2, 0)


@pytest.mark.parametrize("similarity", ALL)
def test_ranking_keys_order_candidates_like_scores(similarity):
    query, candidate = vectors(20, 6), vectors(50, 6, seed=1)
    key, score = similarity.ranking_key(query, candidate), similarity.own(query, candidate.expand(20, -1, -1))
    assert torch.equal(key.argsort(-1), score.argsort(-1))


@pytest.mark.parametrize("similarity", ALL)
def test_ranking_keys_tie_where_integer_scores_tie(similarity):
    # Integer coordinates within ±1: a distance has few values, and keys are exact.
    generator = torch.Generator().manual_seed(2)
    query, candidate = (torch.randint(-1, 2, (n, 4), generator=generator).float() for n in (8, 30))
    key, score = similarity.ranking_key(query, candidate), similarity.own(query, candidate.expand(8, -1, -1))
    if isinstance(similarity, ComplexModulus | HalfSine | ModulusAndPhase):
        # 1 + √2 = √2 + 1 in fp32, whatever the order of the sum.
        score = (score * 1e4).round()
        key = (key * 1e4).round()
    assert torch.equal(key.unsqueeze(1) == key.unsqueeze(2), score.unsqueeze(1) == score.unsqueeze(2))
    assert torch.equal(key.unsqueeze(1) > key.unsqueeze(2), score.unsqueeze(1) > score.unsqueeze(2))


def test_chunks_of_an_elementwise_similarity_change_nothing():
    # More numbers than one chunk holds: shared candidates are taken in parts, own ones at once.
    query, candidate = vectors(3, 64, dtype=torch.float32), vectors(70_000, 64, seed=1, dtype=torch.float32)
    whole = ComplexModulus().own(query, candidate.unsqueeze(0))
    assert torch.equal(ComplexModulus().shared(query, candidate), whole)


@pytest.mark.parametrize("similarity", ALL)
def test_the_best_candidate_of_a_distance_is_the_query_itself(similarity):
    if isinstance(similarity, Dot | SquaredEuclidean):
        pytest.skip("not a distance")
    query = vectors(5, 6, dtype=torch.float32)
    for candidate in (query, query.expand(5, -1, -1)):
        scores = similarity(query, candidate)
        assert torch.equal(scores.argmax(-1), torch.arange(5))
        assert scores.amax(-1).abs().max() < 1e-6


# A box of centre 1 and width 2 spans 0 to 2. Inside, 0.5 away from the centre: 0.5/3. At its side: 1/3. Outside, 2 away
# from the centre: 1/3 + 3. A box of width 0 is a point.
@pytest.mark.parametrize(
    ("point", "box", "distance"),
    [(1.5, (1.0, 2.0), 1 / 6), (2.0, (1.0, 2.0), 1 / 3), (-1.0, (1.0, 2.0), 10 / 3), (-1.0, (1.0, 0.0), 2.0)],
)
def test_distances_to_boxes_by_hand(point, box, distance):
    query = torch.tensor([[0.0, box[0], 0.0, box[1]]], dtype=torch.float64)
    candidate = torch.tensor([[0.0, point]], dtype=torch.float64)
    for layout in (candidate, candidate.unsqueeze(0)):
        assert Box()(query, layout).item() == pytest.approx(-distance, rel=1e-14)


def test_chunks_of_boxes_change_no_score_and_no_gradient(monkeypatch):
    query, candidate = vectors(5, 8).requires_grad_(), vectors(7, 4, seed=1).requires_grad_()
    upstream = vectors(5, 7, seed=2)
    results = []
    for elements in (1, 60, 10**6):
        monkeypatch.setitem(distances._TEMPORARY, "cpu", elements)
        scores = Box()(query, candidate)
        results.append((scores, *torch.autograd.grad((scores * upstream).sum(), (query, candidate))))
        assert torch.equal(scores.detach(), Box()(query.detach(), candidate.detach()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-12, atol=1e-12)


def test_an_unfinished_similarity_says_so():
    with pytest.raises(NotImplementedError):
        Similarity()(vectors(1, 2), vectors(1, 2))
