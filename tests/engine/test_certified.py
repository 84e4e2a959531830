"""Certified ranks against scores in Python floats, one addition at a time, where fp32 has no idea.

Truth is the formula in float64 on the stored parameters, its additions made half to half: written anew below.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgc.models.boxe import BoxE
from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.protate import PRotatE
from kgc.models.rotate import RotatE
from kgc.models.rote import RotE
from kgc.models.toruse import TorusE
from kgc.models.transe import TransE
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Queries, Side

E, DIM = 23, 6


def folded(terms: list[float]) -> float:
    """Halves are added to halves until one number is left; an odd last one waits."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half : 2 * half], strict=True)] + terms[2 * half :]
    return terms[0]


def dot(query: list[float], candidate: list[float]) -> float:
    return folded([a * b for a, b in zip(query, candidate, strict=True)])


def squared(query: list[float], candidate: list[float]) -> float:
    return -folded([(a - b) * (a - b) for a, b in zip(query, candidate, strict=True)])


def manhattan(query: list[float], candidate: list[float]) -> float:
    return -folded([abs(a - b) for a, b in zip(query, candidate, strict=True)])


def biased(query: list[float], candidate: list[float]) -> float:
    return candidate[-1] + squared(query[:-1], candidate[:-1])


def torus(query: list[float], candidate: list[float]) -> float:
    differences = [a - b for a, b in zip(query, candidate, strict=True)]
    return -folded([abs(d - round(d)) for d in differences])


def half_sine(query: list[float], candidate: list[float]) -> float:
    half = torch.tensor([(a - b) / 2 for a, b in zip(query, candidate, strict=True)], dtype=torch.float64)
    sines = half.sin().tolist()  # torch's: libraries round the last bit as they do
    return -folded([abs(sine) * 0.1 for sine in sines])


def box(query: list[float], candidate: list[float]) -> float:
    terms = []
    for centre, width, x in zip(query[:DIM], query[DIM:], candidate, strict=True):
        away, half, stretch = abs(centre - x), width / 2, width + 1
        terms.append(min(away, half) / stretch + max(away - half, 0.0) * stretch)
    return -folded(terms)


MODELS = {
    "toruse": (lambda: TorusE(E, 1, DIM), torus),
    "protate": (lambda: PRotatE(E, 1, DIM), half_sine),
    "boxe": (lambda: BoxE(E, 1, DIM), box),
    "distmult": (lambda: DistMult(E, 1, DIM), dot),
    "complex": (lambda: ComplEx(E, 1, DIM), dot),
    "transe_l1": (lambda: TransE(E, 1, DIM, norm=1), manhattan),
    "transe_l2": (lambda: TransE(E, 1, DIM, norm=2), squared),
    "rote": (lambda: RotE(E, 1, DIM), biased),
}


def check(name: str, entities: torch.Tensor, relation: torch.Tensor, **options) -> None:
    """All entities as anchors, each with its right answer: counts equal those of Python's floats."""
    make, formula = MODELS[name]
    model = make()
    with torch.no_grad():
        model.entity.weight.copy_(torch.cat([entities, entities[:, : model.extra]], dim=1))  # biases of the same kind
        model.relation.weight.copy_(relation[:, : model.relation.embedding_dim])
    anchor = torch.arange(E)
    queries, targets = Queries(anchor, torch.zeros_like(anchor), Side.TAIL), anchor.roll(7)
    vectors = model.exact_query_vectors(queries).tolist()
    counts = rank_queries(model, queries, targets, options=RankingOptions(**options))
    assert counts.equal.min() >= 0
    table = [[x if abs(x) >= 2.0**-126 else 0.0 for x in row] for row in model.candidate_vectors().double().tolist()]
    for i, target in enumerate(targets.tolist()):
        scores = [formula(vectors[i], c) for c in table]
        assert counts.better[i].item() == sum(s > scores[target] for s in scores)
        assert counts.equal[i].item() == sum(s == scores[target] for s in scores) - 1


def neighbours(vector: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """[E, DIM] copies of a vector: some equal, some one unit in the last place away in some coordinates."""
    copies = vector.expand(E, -1).clone()
    away = torch.randint(-1, 2, copies.shape, generator=generator)
    step = torch.where(away > 0, copies.nextafter(torch.tensor(torch.inf)), copies.nextafter(torch.tensor(-torch.inf)))
    return torch.where((away == 0) | (torch.arange(E) % 3 == 0).unsqueeze(-1), copies, step)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch about itself
def test_vectors_one_unit_in_the_last_place_apart(name, compile):
    generator = torch.Generator().manual_seed(1)
    for seed in range(5):
        vector = torch.randn(DIM, generator=torch.Generator().manual_seed(seed))
        check(
            name, neighbours(vector, generator), torch.randn(1, 2 * DIM, generator=generator), compile=compile, block=16
        )


@pytest.mark.parametrize("name", ["transe_l1", "transe_l2", "toruse", "protate", "boxe"])
def test_candidates_beside_the_query_where_rounding_it_decides(name):
    """Distances of some units in the last place, from queries that lie between the numbers of fp32."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        vector, relation = torch.randn(DIM, generator=generator), 1e-8 * torch.randn(1, 2 * DIM, generator=generator)
        if name == "boxe":
            base, bump = vector.chunk(2)
            bump.mul_(1e-3)
            centre = base + bump  # beside the boxes' centres
            relation = torch.cat([centre, centre, torch.rand(DIM, generator=generator)]).unsqueeze(0)
        check(name, neighbours(vector, generator), relation)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flush", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    exponent=st.integers(-145, 126),
    spread=st.integers(0, 40),
    of_relation=st.integers(-145, 20),
)
@example(seed=1, exponent=50, spread=0, of_relation=-145)
@example(seed=1, exponent=-60, spread=120, of_relation=-70)
def test_huge_tiny_and_denormal_numbers(name, flush, seed, exponent, spread, of_relation):
    """Vectors of all magnitudes fp32 has, mixed in one table, duplicates among them; queries that fp32 cannot hold."""
    generator = torch.Generator().manual_seed(seed)
    powers = exponent + torch.randint(-spread, spread + 1, (E, 1), generator=generator)
    entities = torch.randn(E, DIM, generator=generator, dtype=torch.float64) * 2.0 ** powers.clamp(-149, 126)
    entities = entities.clamp(-3e38, 3e38).float()
    entities[E // 2 :] = entities[torch.randint(E // 2, (E - E // 2,), generator=generator)]
    relation = torch.randn(1, 2 * DIM, generator=generator, dtype=torch.float64) * 2.0**of_relation
    torch.set_flush_denormal(flush)
    try:
        check(name, entities, relation.float())
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_of_nothing_but_zeros_and_denormals(name):
    entities = torch.randint(-3, 4, (E, DIM), generator=torch.Generator().manual_seed(0)).double() * 2.0**-149
    check(name, entities.float(), torch.zeros(1, 2 * DIM))
    check(name, torch.zeros(E, DIM), torch.zeros(1, 2 * DIM))


@pytest.mark.parametrize("exponent", [-100, -30, 0, 30, 55])
def test_complex_moduli_of_all_sizes(exponent):
    """The modulus has a root, which libraries round alike; ranks equal those of math.sqrt in the same order."""
    generator = torch.Generator().manual_seed(exponent + 200)
    model = RotatE(E, 1, DIM)
    with torch.no_grad():
        model.entity.weight.copy_(torch.randn(E, DIM, generator=generator) * 2.0**exponent)
        model.entity.weight[E // 2 :] = model.entity.weight[torch.randint(E // 2, (E - E // 2,), generator=generator)]
    anchor = torch.arange(E)
    queries, targets = Queries(anchor, torch.zeros_like(anchor), Side.TAIL), anchor.roll(5)
    vectors = model.exact_query_vectors(queries).tolist()
    table = model.entity.weight.double().tolist()
    counts = rank_queries(model, queries, targets)
    half = DIM // 2
    for i, target in enumerate(targets.tolist()):
        scores = []
        for c in table:
            d = [a - b for a, b in zip(vectors[i], c, strict=True)]
            scores.append(-folded([math.sqrt(d[j] * d[j] + d[j + half] * d[j + half]) for j in range(half)]))
        assert counts.better[i].item() == sum(s > scores[target] for s in scores)
        assert counts.equal[i].item() == sum(s == scores[target] for s in scores) - 1


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch about itself
def test_tables_of_many_equal_vectors_are_ranked_in_bounded_lists(compile, monkeypatch):
    """Open cells are decided when they are many, and rows with more of them than a block's eighth by whole rows."""
    monkeypatch.setattr("kgc.engine.certified._WAITING", 100)
    generator = torch.Generator().manual_seed(3)
    for share in (0.05, 0.3, 1.0):
        entities = torch.randint(-3, 4, (700, 4), generator=generator).float()
        entities[torch.rand(700, generator=generator) < share] = 1.0
        model = DistMult(700, 1, 4)
        with torch.no_grad():
            model.entity.weight.copy_(entities)
            model.relation.weight.fill_(1.0)
        anchor = torch.arange(300)
        queries, targets = Queries(anchor, torch.zeros_like(anchor), Side.TAIL), anchor + 350
        counts = rank_queries(model, queries, targets, options=RankingOptions(block=256, batch=128, compile=compile))
        scores = entities[:300] @ entities.T
        own = scores.gather(1, targets.unsqueeze(1))
        assert torch.equal(counts.better, (scores > own).sum(1))
        assert torch.equal(counts.equal, (scores == own).sum(1) - 1)


@pytest.mark.parametrize("precision", ["certified", "block"])
def test_one_question_with_very_many_right_answers(precision):
    """Its queries are dealt to parts of bounded size, not looked at one by one."""
    entities, asked = 1500, 20_000
    generator = torch.Generator().manual_seed(4)
    model = DistMult(entities, 1, 2)
    with torch.no_grad():
        model.entity.weight.copy_(torch.randint(-9, 10, (entities, 2), generator=generator))
        model.relation.weight.fill_(1.0)
    anchor = torch.randint(2, (asked,), generator=generator)
    targets = torch.randint(entities, (asked,), generator=generator)
    queries = Queries(anchor, torch.zeros_like(anchor), Side.TAIL)
    counts = rank_queries(model, queries, targets, options=RankingOptions(precision=precision, batch=64))
    scores = model.entity.weight[:2].detach() @ model.entity.weight.detach().T
    own = scores[anchor, targets]
    table = torch.stack([(scores > x).sum(1) for x in own.unique()])  # [values, 2]
    assert torch.equal(counts.better, table[torch.searchsorted(own.unique(), own), anchor])
