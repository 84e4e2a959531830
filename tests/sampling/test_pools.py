"""Candidates that queries share: the scores, losses and gradients of the same triples scored one by one."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import torch
from draws import generator, graph_of
from omegaconf import OmegaConf
from small import SMALL, WITHOUT_VECTORS

from kgc.losses.pairwise import Logistic
from kgc.models import pairs, similarity
from kgc.models.base import KGEModel
from kgc.objectives import NegativeSampling
from kgc.sampling.proposals import Asked, Degree, Proposal, Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Bernoulli, Both
from kgc.types import Negatives, Queries, Side, Triples, rows_of_pools

E, R, DIM, B = 40, 3, 8, 11
CONF = Path(__file__).parents[2] / "conf" / "model"
MODELS = [path for path in sorted(CONF.glob("*.yaml")) if path.stem not in WITHOUT_VECTORS]
every_model = pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
TRAIN = [((7 * i) % E, i % R, (11 * i + i // 5) % E) for i in range(120)]
GRAPH = graph_of(TRAIN, E, R)


def built(path: Path, device: torch.device | str = "cpu", **options) -> KGEModel:
    torch.manual_seed(0)
    options |= SMALL.get(path.stem, {}) | {"num_entities": E, "num_relations": R, "dim": DIM}
    model = hydra.utils.instantiate(OmegaConf.load(path), **options).eval()
    with torch.no_grad():
        for table in model.parameters():
            table.normal_(generator=generator(1))
    model = model.double().to(device)
    model.use_facts(GRAPH.train)
    return model


def mixed(number: int, device: torch.device | str = "cpu") -> Queries:
    drawn = (torch.randint(high, (number,), generator=generator(high)).to(device) for high in (E, R, 2))
    return Queries(*drawn)


def gradients(model: KGEModel, value: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


@every_model
@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("pools", [1, 2, 3, 4, 6, 11])
def test_scores_of_pools_are_those_of_single_triples(path, reciprocal, pools, device):
    """Batches of 11 in pools of 11, 6, 4, 3, 2 and 1: the last one serves 11, 5, 3, 2, 1 and 1."""
    if not reciprocal and OmegaConf.load(path).reciprocal:
        pytest.skip("answers tail queries only")
    model, queries = built(path, device, reciprocal=reciprocal), mixed(B, device)
    candidates = torch.randint(E, (pools, 9), generator=generator(5)).to(device)
    size = -(-B // pools)
    got = model.score(queries, candidates)
    one_by_one = [
        [model.score(queries[i : i + 1], candidates[i // size, j].reshape(1, 1)).squeeze() for j in range(9)]
        for i in range(B)
    ]
    wanted = torch.stack([torch.stack(row) for row in one_by_one])
    assert got.shape == (B, 9)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    upstream = torch.randn(B, 9, generator=generator(6), dtype=torch.float64).to(device)
    for a, b in zip(gradients(model, (got * upstream).sum()), gradients(model, (wanted * upstream).sum()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 100, 300, 700, 10**6])
def test_chunks_of_any_size_change_no_score(budget, monkeypatch):
    """A chunk of one query, some queries of a pool, one pool, several, and all of them."""
    monkeypatch.setitem(pairs._TEMPORARY, "cpu", budget)
    modulus = similarity.ComplexModulus()
    query = torch.randn(5, 4, 6, generator=generator(0), dtype=torch.float64, requires_grad=True)
    candidate = torch.randn(5, 7, 6, generator=generator(1), dtype=torch.float64, requires_grad=True)
    got = modulus(query, candidate)
    wanted = torch.stack([modulus.own(q, c.expand(4, -1, -1)) for q, c in zip(query, candidate, strict=True)])
    torch.testing.assert_close(got, wanted, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(modulus(query[0], candidate[0]), wanted[0], rtol=1e-14, atol=1e-14)
    upstream = torch.randn(got.shape, generator=generator(2), dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad(x, (query, candidate), upstream) for x in (got, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Given(Proposal):
    """The pools of another proposal, written out as each query's own candidates."""

    def __init__(self, other: Proposal):
        super().__init__()
        self.other = other

    def setup(self, graph, device) -> None:
        self.other.setup(graph, device)

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        pools = self.other.draw(asked, number, generator).candidates
        return Negatives(rows_of_pools(pools, len(asked.queries)).clone())


@every_model
@pytest.mark.parametrize("make", [Uniform, Degree])
@pytest.mark.parametrize("share", [None, 4])
@pytest.mark.parametrize("sides", [Both(), Bernoulli()], ids=["both", "bernoulli"])
def test_losses_of_shared_negatives_are_those_of_each_querys_own(path, make, share, sides):
    """13 candidates are less than half of the entities, so that own ones are gathered and compared one by one."""
    model = built(path)
    results = []
    for proposal in (make(share=share), Given(make(share=share))):
        sampler = NegativeSampler(13, sides, proposal, mask_known=True, temperature=1.0)
        objective = NegativeSampling(sampler, Logistic())
        objective.setup(GRAPH, torch.device("cpu"))
        loss = objective.loss(model, torch.arange(B), 0, generator(3))
        results.append([loss, *gradients(model, loss)])
    for shared, own in zip(*results, strict=True):
        torch.testing.assert_close(shared, own, rtol=1e-6, atol=1e-8)


class TailsOnly(Both):
    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side]:
        return [Side.TAIL]


@pytest.mark.parametrize("share", [1, 4, None])
def test_masked_candidates_have_no_gradient(share):
    """Whatever is not an anchor, a right answer, or an unmasked candidate stays where it is."""
    model = built(next(path for path in MODELS if path.stem == "distmult"))
    train = [(0, 0, t) for t in range(1, 30)]
    sampler = NegativeSampler(15, TailsOnly(), Uniform(share), mask_known=True)
    objective = NegativeSampling(sampler, Logistic())
    objective.setup(graph_of(train, E, R), torch.device("cpu"))
    index = torch.tensor([0, 1, 2, 3, 4])  # tails 1 to 5
    ((_, _, negatives),) = sampler.draw(objective.triples[index], 0, generator(3))
    drawn = set(negatives.candidates.flatten().tolist())
    (gradient,) = torch.autograd.grad(objective.loss(model, index, 0, generator(3)), [model.entity.weight])
    touched = set(gradient.abs().sum(1).nonzero().flatten().tolist())
    assert touched == {0, 1, 2, 3, 4, 5} | (drawn - set(range(1, 30)))
    assert drawn & set(range(6, 30))
