"""Learning rates against their formulas."""

from __future__ import annotations

import math
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from kgc.schedules import Curve, constant, cosine

CONF = Path(__file__).parents[1] / "conf" / "scheduler"


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in rates], lr=1.0)


def rates(curve: Curve, epochs: int, steps: int) -> list[float]:
    """The first group's rate in every step."""
    found = []
    for epoch in range(epochs):
        for step in range(steps):
            curve.set(epoch, step, steps)
            found.append(curve.optimizer.param_groups[0]["lr"])
    return found


def test_constant_without_warm_up_is_the_rate_itself():
    assert rates(constant(optimizer(0.3)), 2, 3) == [0.3] * 6


def test_warm_up_rises_in_every_step_and_then_is_over():
    # 1.5 epochs of 4 steps: 6 steps.
    got = rates(constant(optimizer(0.6), 1.5), 3, 4)
    assert got == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, *[0.6] * 6])


def test_warm_up_of_less_than_a_step_is_none():
    assert rates(constant(optimizer(0.6), 0.01), 2, 4) == [0.6] * 8


def test_cosine_falls_by_the_epoch():
    got = rates(cosine(optimizer(0.5), 4, final=0.1), 4, 2)
    wanted = [0.05 + 0.45 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    assert got == pytest.approx([rate for rate in wanted for _ in range(2)])


def test_cosine_after_its_last_epoch_stays_at_its_end():
    curve = cosine(optimizer(0.5), 4, final=0.1)
    curve.set(9, 0, 2)
    assert curve.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_cosine_with_warm_up_is_the_product():
    plain, warm = (rates(cosine(optimizer(0.5), 3, warmup=w), 3, 2) for w in (0.0, 2.0))
    assert warm == pytest.approx([x * min(1, (step + 1) / 4) for step, x in enumerate(plain)])


def test_every_group_keeps_its_share():
    curve = cosine(optimizer(0.5, 2.0), 2, warmup=1.0)
    curve.set(1, 0, 3)
    assert [group["lr"] for group in curve.optimizer.param_groups] == pytest.approx([0.25, 1.0])


def test_a_step_depends_on_nothing_before_it():
    curve = cosine(optimizer(0.5), 5, warmup=1.3)
    straight = rates(curve, 5, 3)
    other = cosine(optimizer(0.5), 5, warmup=1.3)
    other.set(3, 1, 3)
    assert other.optimizer.param_groups[0]["lr"] == straight[3 * 3 + 1]


@pytest.mark.parametrize(("name", "warmup"), [("cosine", 0), ("warmup", 1)])
def test_configurations(name, warmup):
    node = OmegaConf.create({"scheduler": OmegaConf.load(CONF / f"{name}.yaml"), "trainer": {"max_epochs": 7}})
    assert hydra.utils.instantiate(node.scheduler)(optimizer(0.1)).warmup == warmup
