"""The sampler: queries of the sides drawn, a mask that sees train only, and weights."""

from __future__ import annotations

from pathlib import Path

import hydra
import oracle
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kgc.data.annotations import Annotations
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.distmult import DistMult
from kgc.sampling.proposals import Asked, Proposal, Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Both, Sides
from kgc.types import Negatives, Side, Triples

CPU = torch.device("cpu")
CONF = Path(__file__).parents[2] / "conf" / "sampler"
E = 5
TRAIN = [(0, 0, 1), (0, 0, 2), (3, 0, 1), (4, 1, 4)]
VALID = [(0, 0, 3)]
TEST = [(0, 0, 4), (2, 0, 1)]


def columns(triples) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


GRAPH = KnowledgeGraph(
    "tiny",
    Vocabulary([f"e{i}" for i in range(E)]),
    Vocabulary(["r0", "r1"]),
    columns(TRAIN),
    columns(VALID),
    columns(TEST),
)


class Everything(Proposal):
    """Proposes all entities: one list, or one a query."""

    def __init__(self, shared: bool):
        super().__init__()
        self.shared = shared

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.all = torch.arange(graph.num_entities)

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        return Negatives(self.all if self.shared else self.all.expand(len(asked.queries), -1))


class Mixed(Sides):
    """Head, tail, head, tail, …"""

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list:
        return [torch.arange(len(triples)) % 2]


def sampler(sides: Sides, proposal: Proposal, **options) -> NegativeSampler:
    made = NegativeSampler(3, sides, proposal, **options)
    made.setup(GRAPH, CPU)
    return made


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("sides", [Both(), Mixed()])
def test_the_mask_holds_the_answers_of_train_and_no_others(shared, sides):
    made = sampler(sides, Everything(shared), mask_known=True)
    asked = 0
    for queries, target, negatives in made.draw(columns(TRAIN + TEST), 0, torch.Generator()):
        side = torch.as_tensor(queries.side).expand(len(queries))
        for i in range(len(queries)):
            anchor, relation, answer = (int(x[i]) for x in (queries.anchor, queries.relation, target))
            triple = (answer, relation, anchor) if side[i] == Side.HEAD else (anchor, relation, answer)
            assert triple == (TRAIN + TEST)[i]
            wanted = [oracle.replaced(triple, int(side[i]), e) in TRAIN for e in range(E)]
            assert negatives.known[i].tolist() == wanted
            asked += 1
    assert asked == 6 * (2 if isinstance(sides, Both) else 1)


def test_nothing_is_masked_unless_wanted():
    for _, _, negatives in sampler(Both(), Everything(True)).draw(columns(TRAIN), 0, torch.Generator()):
        assert negatives.known is None


def test_the_wanted_number_of_candidates_is_drawn():
    own = next(iter(sampler(Both(), Uniform()).draw(columns(TRAIN), 0, torch.Generator().manual_seed(0))))
    pool = next(iter(sampler(Both(), Uniform(share=None)).draw(columns(TRAIN), 0, torch.Generator().manual_seed(0))))
    assert own[2].candidates.shape == (4, 3)
    assert pool[2].candidates.shape == (3,)


def test_the_two_sides_draw_different_candidates():
    made = NegativeSampler(50, Both(), Uniform())
    made.setup(GRAPH, CPU)
    heads, tails = (n.candidates for _, _, n in made.draw(columns(TRAIN), 0, torch.Generator().manual_seed(0)))
    assert not torch.equal(heads, tails)


# Weights.


def test_equal_weights_without_a_temperature():
    made = NegativeSampler(4, Both(), Uniform())
    logits = torch.tensor([[1.0, 100.0, -5.0, 0.0]])
    assert made.weights(logits, None).tolist() == [[0.25] * 4]
    known = torch.tensor([[False, True, False, True]])
    assert made.weights(logits, known).tolist() == [[0.5, 0, 0.5, 0]]


def test_self_adversarial_weights_by_hand():
    # softmax of α · logit: with α = 1/2 and logits 0, 2 log 2, 2 log 5 the shares are 1 : 2 : 5.
    made = NegativeSampler(3, Both(), Uniform(), temperature=0.5)
    logits = 2 * torch.tensor([[1.0, 2.0, 5.0]]).log()
    torch.testing.assert_close(made.weights(logits, None), torch.tensor([[1.0, 2.0, 5.0]]) / 8)
    known = torch.tensor([[False, True, False]])
    torch.testing.assert_close(made.weights(logits, known), torch.tensor([[1.0, 0.0, 5.0]]) / 6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_query_with_nothing_but_known_answers_weighs_nothing(temperature):
    made = NegativeSampler(3, Both(), Uniform(), temperature=temperature)
    known = torch.tensor([[True, True, True], [True, False, True]])
    assert made.weights(torch.randn(2, 3), known).tolist() == [[0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_have_no_gradient(temperature):
    made = NegativeSampler(3, Both(), Uniform(), temperature=temperature)
    logits = torch.randn(2, 3, requires_grad=True)
    assert not made.weights(logits, None).requires_grad
    assert not made.weights(logits, torch.zeros(2, 3, dtype=torch.bool)).requires_grad


@given(
    st.lists(st.tuples(st.floats(-20, 20, width=32), st.booleans()), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_weights_equal_the_definition(pairs, temperature):
    logits, known = [logit for logit, _ in pairs], [is_known for _, is_known in pairs]
    made = NegativeSampler(1, Both(), Uniform(), temperature=temperature)
    got = made.weights(torch.tensor([logits]), torch.tensor([known]))[0].tolist()
    assert got == pytest.approx(oracle.negative_weights(logits, known, temperature), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_sum_to_one_for_logits_of_any_type_and_size(dtype, temperature):
    made = NegativeSampler(3, Both(), Uniform(), temperature=temperature)
    logits = (torch.randn(6, 3, generator=torch.Generator().manual_seed(0)) * 1e4).to(dtype)
    for known in (None, torch.tensor([False, True, False]).expand(6, 3)):
        weights = made.weights(logits, known).double()
        assert weights.isfinite().all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(6, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "key"), [({"num_negatives": 0}, "num_negatives=0"), ({"temperature": -1.0}, "temperature=-1.0")]
)
def test_settings_that_make_no_sense_are_refused_by_name(options, key):
    with pytest.raises(UserError, match=rf"sampler\.{key}"):
        NegativeSampler(**{"num_negatives": 1, "sides": Both(), "proposal": Uniform()} | options)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sampler_of_the_configuration_draws(path):
    made = hydra.utils.instantiate(OmegaConf.load(path), num_negatives=3)
    types = pl.DataFrame({"entity": [0, 1, 2], "type": ["a", "b", "a"]})
    made.setup(GRAPH.annotated(Annotations(types=types)), CPU)
    model = DistMult(E, 2, 4)
    for queries, target, negatives in made.draw(columns(TRAIN), 0, torch.Generator().manual_seed(0), model):
        assert len(queries) == len(target) == 4
        assert negatives.candidates.shape[-1] == 3
        assert negatives.known.shape == (4, 3)
        assert 0 <= int(negatives.candidates.min()) <= int(negatives.candidates.max()) < E
