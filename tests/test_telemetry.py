"""What a training logs: norms by hand, rows in order, nothing on processes other than the first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kgc.models.distmult import DistMult
from kgc.optim import table_groups
from kgc.telemetry import Telemetry, memory, table_norms


class Rows:
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.saves = 0

    def log_metrics(self, row: dict[str, float], step: int) -> None:
        self.rows.append((step, row))

    def save(self) -> None:
        self.saves += 1


def module(**changes: object) -> SimpleNamespace:
    values = {
        "loss": torch.tensor(0.5),
        "history": [{"epoch": 1, "train/loss": 0.75}],
        "phases": {"train": 2.0, "valid": 0.5},
        "valid": None,
        "seconds": 9.0,
        "model": DistMult(3, 2, 2),
        "device": torch.device("cpu"),
        "current_epoch": 0,
    }
    return SimpleNamespace(**(values | changes))


def trainer(first: bool = True, step: int = 0) -> SimpleNamespace:
    return SimpleNamespace(is_global_zero=first, global_step=step)


def optimizer(model: DistMult) -> torch.optim.Optimizer:
    model.entity.weight.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    model.relation.weight.grad = torch.tensor([[1.0, 2.0], [0.0, 2.0]])
    return torch.optim.SGD(table_groups(model), 0.1)


def test_gradient_norms_of_every_nth_step() -> None:
    logger, m = Rows(), module()
    telemetry, sgd = Telemetry([logger], every=2), optimizer(m.model)
    telemetry.on_train_start(trainer(), m)
    for loss in (0.5, 0.25, 0.125, 0.0625):
        m.loss = torch.tensor(loss)
        telemetry.on_before_optimizer_step(trainer(), m, sgd)
    assert logger.rows == []  # nothing leaves the device before the epoch ends
    telemetry.on_train_epoch_end(trainer(step=4), m)
    norms = {"step/grad_norm/entity": 5.0, "step/grad_norm/relation": 3.0, "epoch": 1}
    assert logger.rows[:2] == [(2, {"step/loss": 0.25, **norms}), (4, {"step/loss": 0.0625, **norms})]
    step, row = logger.rows[2]
    assert (step, len(logger.rows), logger.saves) == (4, 3, 1)
    assert (row["epoch"], row["train/loss"], row["time/train"], row["time/elapsed"]) == (1, 0.75, 2.0, 9.0)


def test_rows_that_a_sparse_gradient_repeats_are_one_row() -> None:
    logger, m = Rows(), module()
    telemetry, sgd = Telemetry([logger], every=1), optimizer(m.model)
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    m.model.entity.weight.grad = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2]]), rows, (3, 2), check_invariants=True)
    telemetry.on_before_optimizer_step(trainer(), m, sgd)
    telemetry.on_train_epoch_end(trainer(step=1), m)
    assert logger.rows[0][1]["step/grad_norm/entity"] == 5.0  # of (3, 0) and (0, 4)


def test_a_resumed_run_goes_on_counting() -> None:
    logger, m = Rows(), module()
    telemetry, sgd = Telemetry([logger], every=3), optimizer(m.model)
    telemetry.on_train_start(trainer(step=4), m)
    for _ in range(3):
        telemetry.on_before_optimizer_step(trainer(), m, sgd)
    telemetry.on_train_epoch_end(trainer(step=7), m)
    assert [step for step, _ in logger.rows] == [6, 7]


def test_long_epochs_are_written_before_they_end() -> None:
    logger, m = Rows(), module()
    telemetry, sgd = Telemetry([logger], every=1), optimizer(m.model)
    for _ in range(101):
        telemetry.on_before_optimizer_step(trainer(), m, sgd)
    assert [step for step, _ in logger.rows] == list(range(1, 101))


def test_only_the_first_process_writes_and_only_where_there_is_a_logger() -> None:
    logger, m = Rows(), module()
    for telemetry, first in ((Telemetry([logger], every=1), False), (Telemetry([], every=1), True)):
        telemetry.on_before_optimizer_step(trainer(first), m, optimizer(m.model))
        telemetry.on_train_epoch_end(trainer(first), m)
        assert telemetry._points == []
        assert telemetry.seconds["train"] == 2.0
    assert logger.rows == []


def test_times_of_an_epoch_and_of_all() -> None:
    logger, saving = Rows(), SimpleNamespace(seconds=0.25)
    telemetry = Telemetry([logger], None, saving)
    telemetry.on_train_epoch_end(trainer(), module(valid={"mrr": 0.5, "num_queries": 100}))
    saving.seconds = 1.25
    telemetry.on_train_epoch_end(trainer(), module())
    first, second = (row for _, row in logger.rows)
    assert (first["time/checkpoint"], second["time/checkpoint"]) == (0.25, 1.0)
    assert (first["valid/mrr"], first["valid/queries_per_second"]) == (0.5, 200.0)
    assert "valid/mrr" not in second
    assert {k: telemetry.seconds[k] for k in ("train", "valid", "checkpoint")} == {
        "train": 4.0,
        "valid": 1.0,
        "checkpoint": 1.25,
    }


def test_table_norms_are_means_over_rows() -> None:
    model = DistMult(3, 2, 2)
    model.entity.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    model.relation.weight.data = torch.tensor([[6.0, 8.0], [0.0, 2.0]])
    assert table_norms(model) == {"norm/entity": 2.0, "norm/relation": 6.0}
    assert table_norms(torch.nn.Linear(2, 2)) == {}


def test_memory_is_that_of_this_process() -> None:
    resource = pytest.importorskip("resource")
    assert memory(torch.device("cpu"))["memory/host_mib"] == pytest.approx(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, rel=0.05
    )
