"""Scores of all relations between two entities: one triple at a time, whatever the model and the chunk."""

from __future__ import annotations

import oracle
import pytest
import torch

from kgc import relation_prediction
from kgc.models.base import KGEModel
from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.rotate import RotatE
from kgc.models.transe import TransE
from kgc.relation_prediction import relation_cross_entropy, relation_logits
from kgc.types import Queries, Side, Triples

E, R, DIM = 6, 5, 4
TRIPLES = Triples(torch.tensor([0, 3, 5, 0]), torch.tensor([4, 0, 2, 2]), torch.tensor([1, 3, 0, 5]))
MODELS = {
    "distmult": (DistMult, {}),
    "complex": (ComplEx, {}),
    "transe": (TransE, {"norm": 2, "margin": 2.0}),
    "rotate": (RotatE, {"margin": 2.0}),
}
every_model = pytest.mark.parametrize("name", MODELS)
reciprocal_or_not = pytest.mark.parametrize("reciprocal", [False, True])


def made(name: str, reciprocal: bool) -> KGEModel:
    kind, options = MODELS[name]
    torch.manual_seed(3)
    model = kind(E, R, DIM, reciprocal=reciprocal, **options).double()
    for table in model.parameters():
        torch.nn.init.normal_(table)
    return model


@every_model
@reciprocal_or_not
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("elements", [1 << 20, 2 * len(TRIPLES) * DIM, 1])
def test_logits_are_those_of_single_triples(name, reciprocal, side, elements, monkeypatch):
    """All relations in one chunk, in three, and each in one of its own."""
    monkeypatch.setitem(relation_prediction._TEMPORARY, "cpu", elements)
    model = made(name, reciprocal)
    got = relation_logits(model, TRIPLES, side)
    assert got.shape == (4, R)
    anchors, answers = TRIPLES.queries(side).anchor, TRIPLES.target(side)
    for i in range(len(TRIPLES)):
        for relation in range(R):
            query = Queries(anchors[i : i + 1], torch.tensor([relation]), side)
            wanted = model.logits(model.score(query, answers[i : i + 1])).item()
            assert got[i, relation].item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["distmult", "complex"])
@reciprocal_or_not
def test_the_matrix_product_has_the_gradients_of_the_chunks(name, reciprocal, monkeypatch):
    gradients = []
    for direct in (True, False):
        model = made(name, reciprocal)
        if not direct:
            monkeypatch.setattr(type(model), "relation_query", KGEModel.relation_query)
        relation_cross_entropy(model, TRIPLES).backward()
        gradients.append([table.grad for table in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


@every_model
@pytest.mark.parametrize("elements", [1 << 20, 1])
def test_gradients_are_those_of_finite_differences(name, elements, monkeypatch):
    monkeypatch.setitem(relation_prediction._TEMPORARY, "cpu", elements)
    model = made(name, True)
    relation_logits(model, TRIPLES, Side.HEAD).square().sum().backward()
    got = [x for table in model.parameters() for x in table.grad.flatten().tolist()]
    point = [x for table in model.parameters() for x in table.flatten().tolist()]

    def slow(values: list[float]) -> float:
        rest = torch.tensor(values, dtype=torch.float64)
        with torch.no_grad():
            for table in model.parameters():
                table.copy_(rest[: table.numel()].view_as(table))
                rest = rest[table.numel() :]
            return relation_logits(model, TRIPLES, Side.HEAD).square().sum().item()

    assert got == pytest.approx(oracle.gradient(slow, point), rel=1e-5, abs=1e-6)


def test_a_model_that_knows_nothing_loses_the_logarithm_of_the_relations():
    model = made("distmult", True)
    torch.nn.init.zeros_(model.relation.weight)
    assert relation_cross_entropy(model, TRIPLES).item() == pytest.approx(torch.tensor(float(R)).log().item())


def test_memory_in_training_is_that_of_a_chunk(monkeypatch):
    """What the backward pass needs of a chunk is its inputs, not its query vectors."""
    monkeypatch.setitem(relation_prediction._TEMPORARY, "cpu", 1)
    model = made("transe", False)
    kept = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept = max(kept, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        relation_logits(model, TRIPLES, Side.TAIL)
    assert kept <= E * DIM  # all relations at once would keep 4 · 5 · DIM
