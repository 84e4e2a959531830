"""Networks as queries: ranks of the float64 network, batch normalisation, what they refuse."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.conve import ConvE
from kgc.models.ermlp import ERMLP
from kgc.models.hitter import HittER
from kgc.models.layers import BatchNorm
from kgc.objectives import KVsAll, OneVsAll
from kgc.optim import table_groups
from kgc.ranking import RankingOptions, describe, is_certified, rank_queries
from kgc.types import Queries, Side, Triples

E, R = 40, 3

NETWORKS = {
    "conve": lambda: ConvE(E, R, 8, height=2, channels=4, kernel=2, reciprocal=True),
    "hitter": lambda: HittER(E, R, 8, heads=2, width=12, reciprocal=True),
}
MODELS = NETWORKS | {"ermlp": lambda: ERMLP(E, R, 8, hidden=6)}
every_network = pytest.mark.parametrize("name", NETWORKS)
every_model = pytest.mark.parametrize("name", MODELS)


def build(name: str) -> KGEModel:
    torch.manual_seed(1)
    model = MODELS[name]()
    with torch.no_grad():
        for table in (model.entity.weight, model.relation.weight):
            table.normal_()
        for statistics in model.buffers():
            if statistics.is_floating_point():
                statistics.uniform_(0.5, 1.5)
    return model.eval()


def questions(number: int = 60) -> tuple[Queries, Tensor]:
    generator = torch.Generator().manual_seed(0)
    anchor, relation, side, target = (torch.randint(n, (number,), generator=generator) for n in (E, R, 2, E))
    return Queries(anchor, relation, side), target


@every_network
def test_ranks_are_those_of_the_network_in_float64_however_the_queries_are_cut(name, device):
    model = build(name)
    queries, targets = questions()
    scores = copy.deepcopy(model).double().score(queries).tolist()
    wanted = [
        (sum(x > row[target] for x in row), sum(x == row[target] for x in row) - 1)
        for row, target in zip(scores, targets.tolist(), strict=True)
    ]
    model = model.to(device)
    queries = queries.to(device)
    assert is_certified(model, RankingOptions())
    for options in (RankingOptions(), RankingOptions(batch=7, block=9), RankingOptions(batch=1)):
        counts = rank_queries(model, queries, targets.to(device), None, options)
        assert list(zip(counts.better.tolist(), counts.equal.tolist(), strict=True)) == wanted


@every_network
def test_exact_queries_are_float64_in_evaluation_mode_and_leave_the_model_as_it_is(name):
    model = build(name).train()
    before = copy.deepcopy(model.state_dict())
    queries, _ = questions(300)
    exact = model.exact_query_vectors(queries)
    assert exact.dtype == torch.float64
    assert model.training
    assert model.network.training
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    wanted = copy.deepcopy(model).double().eval().query_vectors(queries)
    torch.testing.assert_close(exact, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(model.exact_query_vectors(queries[5:6]), exact[5:6])
    assert model.exact_query_vectors(queries[:0]).shape == (0, exact.shape[1])


@every_model
@pytest.mark.parametrize("block", [None, 9])
def test_equal_entities_tie(name, block, device):
    model = build(name)
    with torch.no_grad():
        model.entity.weight[1::2] = model.entity.weight[0::2]
    queries, targets = questions()
    options = RankingOptions(batch=16, block=block)
    counts = rank_queries(model.to(device), queries.to(device), targets.to(device), None, options)
    assert counts.equal.tolist() == [1] * len(targets)


def test_er_mlp_claims_no_proof_of_its_ranks():
    model = build("ermlp")
    assert describe(model, questions()[0]).startswith("block (the scores decide: ERMLP has no error bound)")


def test_batch_normalisation_of_one_row_is_that_of_evaluation():
    ours, row = BatchNorm(3), torch.tensor([[1.0, -2.0, 0.5]])
    with torch.no_grad():
        ours.running_mean.copy_(torch.tensor([0.5, 0.0, 1.0]))
        ours.running_var.copy_(torch.tensor([4.0, 1.0, 9.0]))
    expected = (row - ours.running_mean) / (ours.running_var + ours.eps).sqrt()
    before = copy.deepcopy(ours.state_dict())
    torch.testing.assert_close(ours(row), expected)
    assert all(torch.equal(value, before[key]) for key, value in ours.state_dict().items())
    rows, theirs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), nn.BatchNorm1d(3)
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(ours(rows), theirs(rows))
    assert torch.equal(ours.running_var, theirs.running_var)


@every_model
@pytest.mark.parametrize("objective", [OneVsAll, KVsAll])
def test_all_weights_learn_from_losses_over_all_entities(name, objective):
    triples = Triples(*torch.randint(3, (3, 50), generator=torch.Generator().manual_seed(0)))
    graph = SimpleNamespace(stored=lambda _: triples, train=triples, num_entities=E, num_relations=R)
    model, objective = build(name).train(), objective()
    objective.setup(graph, torch.device("cpu"))
    objective.loss(model, torch.arange(9), 0, torch.Generator()).backward()
    for key, weight in model.named_parameters():
        assert weight.grad.isfinite().all()
        if key != "network.image.2.bias":  # what a filter adds everywhere, batch normalisation takes away
            assert weight.grad.abs().max() > 1e-6, key


@every_model
def test_weights_of_a_network_are_of_the_group_other(name):
    groups = {group["name"]: group["params"] for group in table_groups(build(name))}
    assert list(groups) == ["entity", "relation", "other"]
    assert len(groups["other"]) == len(list(build(name).parameters())) - 2


MISTAKES = [
    (lambda: ConvE(E, R, 100, height=8, reciprocal=True), r"model\.dim=100: .* multiple of 8; try 96"),
    (lambda: ConvE(E, R, 4, height=8, reciprocal=True), r"model\.dim=4: .* multiple of 8; try 8"),
    (lambda: ConvE(E, R, 16, height=8, reciprocal=True), r"model\.kernel=3: .* 2 x 8 rows and 2 columns"),
    (lambda: ConvE(E, R, 0, height=8, reciprocal=True), r"model\.dim=0"),
    (lambda: HittER(E, R, 30, heads=4, reciprocal=True), r"model\.heads=4 .* multiple of 4; try 32"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_sizes_that_do_not_fit_are_refused_with_the_cure(make, message):
    with pytest.raises(UserError, match=message):
        make()


@every_network
def test_what_needs_a_linear_model_is_refused(name):
    model = build(name)
    vectors = model.entity_vectors(torch.tensor([0]))
    with pytest.raises(UserError, match=r"regularizer=dura: .* choose regularizer=l2"):
        model.ask_back(Queries(torch.tensor([0]), torch.tensor([0]), Side.TAIL), vectors, vectors)
    with pytest.raises(UserError, match=r"objective\.relation_weight: .* set it to 0"):
        model.relation_query(vectors, vectors)
