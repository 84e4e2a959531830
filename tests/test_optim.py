"""Steps of optimizers: by formulas in Python floats, sparse against dense, and with options of one table's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import runs
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.models.distmult import DistMult
from kgc.optim import (
    LazyAdam,
    RowwiseAdagrad,
    adagrad,
    adam,
    adamw,
    coalesce_gradients,
    own_options,
    rowwise_adagrad,
    sgd,
    table_groups,
    take_options,
)

ROWS, WIDTH, STEPS = 6, 3, 5
# Rows looked up in each step: some twice, some never, row 4 once and then never again.
LOOKED_UP = [[0, 2, 2, 4], [1, 1, 1], [0, 5], [2], [5, 0, 5]]
TABLE = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WEIGHTS = [
    torch.randn(len(rows), WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    for step, rows in enumerate(LOOKED_UP)
]


def loss(table: Tensor, step: int, sparse: bool) -> Tensor:
    """Some smooth function of the rows of a step."""
    rows = F.embedding(torch.tensor(LOOKED_UP[step]), table, sparse=sparse)
    return (rows.square() * WEIGHTS[step] + rows * WEIGHTS[step].exp()).sum()


def trained(make: Callable[[list[Any]], torch.optim.Optimizer], sparse: bool, steps: int = STEPS) -> Tensor:
    """The table after some steps."""
    table = nn.Parameter(TABLE.clone())
    optimizer = make([{"params": [table], "name": "entity"}])
    for step in range(steps):
        optimizer.zero_grad()
        loss(table, step, sparse).backward()
        assert table.grad.is_sparse == sparse
        optimizer.step()
    return table.detach()


def gradients(values: list[list[float]], step: int) -> dict[int, list[float]]:
    """Row to its gradient, by hand: 2 x w + e^w, summed over the times it was looked up."""
    found: dict[int, list[float]] = {}
    for row, weights in zip(LOOKED_UP[step], WEIGHTS[step].tolist(), strict=True):
        own = found.setdefault(row, [0.0] * WIDTH)
        for i, w in enumerate(weights):
            own[i] += 2 * values[row][i] * w + math.exp(w)
    return found


def test_rowwise_adagrad_by_its_formula():
    values, sums = TABLE.tolist(), [0.0] * ROWS
    for step in range(STEPS):
        for row, slope in gradients(values, step).items():
            sums[row] += sum(g * g for g in slope) / WIDTH
            for i, g in enumerate(slope):
                values[row][i] -= 0.3 * g / (math.sqrt(sums[row]) + 1e-10)
    for sparse in (False, True):
        got = trained(lambda params: rowwise_adagrad(params, 0.3), sparse)
        torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64))


def test_lazy_adam_by_its_formula():
    values = TABLE.tolist()
    first, second = ([[0.0] * WIDTH for _ in range(ROWS)] for _ in range(2))
    for step in range(STEPS):
        for row, slope in gradients(values, step).items():
            for i, g in enumerate(slope):
                first[row][i] = 0.8 * first[row][i] + 0.2 * g
                second[row][i] = 0.9 * second[row][i] + 0.1 * g * g
                mean = first[row][i] / (1 - 0.8 ** (step + 1))
                values[row][i] -= 0.3 * mean / (math.sqrt(second[row][i] / (1 - 0.9 ** (step + 1))) + 1e-6)
    got = trained(lambda params: adam(params, 0.3, sparse=True, betas=(0.8, 0.9), eps=1e-6), True)
    torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64))


def test_lazy_adam_is_sparse_adam_where_eps_does_not_count():
    got = trained(lambda params: adam(params, 0.3, sparse=True, eps=1e-30), True)
    wanted = trained(lambda params: torch.optim.SparseAdam(params, 0.3, eps=1e-30), True)
    torch.testing.assert_close(got, wanted)


def test_lazy_adam_is_adam_while_every_row_is_touched(monkeypatch):
    every = [[0, 1, 2, 3, 4, 5, 2]] * STEPS
    monkeypatch.setattr("test_optim.LOOKED_UP", every)
    monkeypatch.setattr("test_optim.WEIGHTS", [torch.full((7, WIDTH), 0.1 * (step - 2)) for step in range(STEPS)])
    lazy = trained(lambda params: adam(params, 0.3, sparse=True), True)
    torch.testing.assert_close(lazy, trained(lambda params: adam(params, 0.3), False))


def test_lazy_adam_leaves_rows_alone_that_adam_moves():
    lazy, full = (trained(lambda params, s=sparse: adam(params, 0.3, sparse=s), sparse, 2) for sparse in (True, False))
    assert lazy[3].equal(full[3])  # never touched
    one = trained(lambda params: adam(params, 0.3, sparse=True), True, 1)
    assert lazy[4].equal(one[4])  # touched in the first step only
    assert not full[4].equal(one[4])


SAME = {
    "sgd": lambda params, **o: sgd(params, 0.1, **o),
    "adagrad": lambda params, **o: adagrad(params, 0.3, **o),
    "rowwise_adagrad": lambda params, **o: rowwise_adagrad(params, 0.3, **o),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_sparse_steps_are_dense_steps(make):
    dense, sparse = trained(make, False), trained(lambda params: make(params, sparse=True), True)
    torch.testing.assert_close(sparse, dense, rtol=1e-12, atol=1e-12)
    assert dense[3].equal(TABLE[3])
    assert not dense[0].equal(TABLE[0])


EVERY = SAME | {"adam": lambda params, **o: adam(params, 0.3, **o)}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_saved_state_goes_on_bit_for_bit(make, sparse):
    straight = trained(lambda params: make(params, sparse=sparse), sparse)
    table = nn.Parameter(TABLE.clone())
    for step in range(STEPS):
        optimizer = make([{"params": [table], "name": "entity"}], sparse=sparse)
        if step:
            optimizer.load_state_dict(state)  # noqa: F821
        loss(table, step, sparse).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state_dict()  # noqa: F841
    runs.assert_same(table.detach(), straight)


def test_a_closure_is_evaluated_with_gradients():
    for kind in (RowwiseAdagrad, LazyAdam):
        table = nn.Parameter(TABLE.clone())
        optimizer = kind([table])

        def closure(table: nn.Parameter = table) -> Tensor:
            value = loss(table, 0, True)
            value.backward()
            return value

        assert optimizer.step(closure).item() == loss(TABLE, 0, False).item()
        assert not table[0].equal(TABLE[0])


def test_dense_parameters_of_lazy_adam_and_vectors_of_rowwise_adagrad():
    """A model may have more than its two tables."""
    vector = torch.tensor([1.0, -2.0])

    def after(kind: type[torch.optim.Optimizer]) -> Tensor:
        table, dense = nn.Parameter(TABLE.clone()), nn.Parameter(vector.clone())
        optimizer = kind([table, dense], lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            (loss(table, step, kind is not torch.optim.Adam) + dense.square().sum()).backward()
            optimizer.step()
        return dense.detach()

    assert after(LazyAdam).equal(after(torch.optim.Adam))
    # Each number is a row of its own: plain Adagrad's.
    values, sums = vector.tolist(), [0.0, 0.0]
    for _ in range(3):
        for i, x in enumerate(values):
            sums[i] += (2 * x) ** 2
            values[i] -= 0.1 * 2 * x / math.sqrt(sums[i])
    assert after(RowwiseAdagrad).tolist() == pytest.approx(values, rel=1e-6)


def test_the_state_of_rowwise_adagrad_is_one_number_a_row():
    table = nn.Parameter(TABLE.clone())
    optimizer = RowwiseAdagrad([table])
    loss(table, 0, True).backward()
    optimizer.step()
    assert [tuple(value.shape) for value in optimizer.state[table].values()] == [(ROWS,)]


def test_repeated_rows_are_summed(device):
    table = nn.Parameter(TABLE.to(device))
    F.embedding(torch.tensor([4, 1, 4, 4], device=device), table, sparse=True).sum().backward()
    assert not table.grad.is_coalesced()
    coalesce_gradients(torch.optim.SGD([table], lr=1.0))
    assert table.grad.indices().tolist() == [[1, 4]]
    assert table.grad.values().tolist() == [[1.0] * WIDTH, [3.0] * WIDTH]


# Groups.


class More(DistMult):
    """A model with more than tables."""

    def __init__(self) -> None:
        super().__init__(4, 2, 3)
        self.bias = nn.Parameter(torch.zeros(4))


def test_parameters_are_grouped_by_table():
    model = More()
    groups = {group["name"]: group["params"] for group in table_groups(model)}
    assert list(groups) == ["entity", "relation", "other"]
    assert groups["entity"] == [model.entity.weight]
    assert groups["relation"] == [model.relation.weight]
    assert groups["other"] == [model.bias]
    assert [group["name"] for group in table_groups(DistMult(4, 2, 3))] == ["entity", "relation"]


KINDS = {"sgd": sgd, "adam": adam, "adamw": adamw, "adagrad": adagrad, "rowwise_adagrad": rowwise_adagrad}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_table_has_its_own_options_and_else_those_of_all(kind):
    model = DistMult(4, 2, 3)
    optimizer = kind(table_groups(model), 0.1, groups={"relation": {"lr": 0.5, "weight_decay": None}, "entity": None})
    assert {group["name"]: group["lr"] for group in optimizer.param_groups} == {"entity": 0.1, "relation": 0.5}
    same = kind(table_groups(model), 0.1)
    assert [group["lr"] for group in same.param_groups] == [0.1, 0.1]
    assert same.defaults == optimizer.defaults


def test_a_rate_of_one_table_moves_only_that_table():
    model = DistMult(4, 2, 3)
    before = [table.detach().clone() for table in model.parameters()]
    optimizer = sgd(table_groups(model), 0.1, groups={"entity": {"lr": 0.0}, "relation": {"weight_decay": 0.5}})
    sum(table.sum() for table in model.parameters()).backward()
    optimizer.step()
    assert model.entity.weight.equal(before[0])
    torch.testing.assert_close(model.relation.weight.detach(), before[1] - 0.1 * (1 + 0.5 * before[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": {"entities": {"lr": 1.0}}}, r"optimizer\.groups\.entities.*entity, relation"),
        ({"groups": {"entity": {"rate": 1.0}}}, r"optimizer\.groups\.entity\.rate.*lr, momentum"),
        ({"nesterov": True}, r"optimizer: SGD refuses it: Nesterov"),
        ({"beta": 1}, r"optimizer\.beta: SGD has no such key; its keys are lr, momentum, .*"),
        ({"sparse": True, "momentum": 0.9}, r"optimizer\.momentum with optimizer\.sparse=true"),
        ({"sparse": True, "weight_decay": 0.1}, r"optimizer\.weight_decay with optimizer\.sparse=true"),
        ({"sparse": True, "groups": {"relation": {"weight_decay": 0.1}}}, r"optimizer\.weight_decay with"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        sgd(table_groups(DistMult(4, 2, 3)), 0.1, **options)


# Going on with a run.


def test_rates_are_where_they_had_come_to_and_options_are_the_config_s():
    model = DistMult(4, 2, 3)
    saved = sgd(table_groups(model), 0.4, momentum=0.5, groups={"relation": {"lr": 0.8}})
    rates = [own["lr"] for own in own_options(saved)]
    for group in saved.param_groups:
        group["lr"] /= 4  # by a schedule
    resumed = sgd(table_groups(model), 0.2, momentum=0.9, groups={"relation": {"lr": 0.8}})
    torch.optim.lr_scheduler.StepLR(resumed, 10)  # leaves the rate it starts from in the groups
    options = own_options(sgd(table_groups(model), 0.2, momentum=0.9, groups={"relation": {"lr": 0.8}}))
    resumed.load_state_dict(saved.state_dict())
    resumed.param_groups[0]["initial_lr"] = 0.4
    take_options(resumed, options, rates)
    # The entities' rate was halved by the new config and had been quartered; the relations' is as it was.
    assert [group["lr"] for group in resumed.param_groups] == [0.05, 0.2]
    assert [group["momentum"] for group in resumed.param_groups] == [0.9, 0.9]
    assert resumed.param_groups[0]["initial_lr"] == 0.2
