"""Penalties against numbers by hand."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from kgc.losses.regularizers import DURA, Lp

CONF = Path(__file__).parents[2] / "conf" / "regularizer"
# Two anchors, two relations (of another width), two answers.
FACTORS = [
    torch.tensor([[1.0, 2.0], [0.0, 3.0]]),
    torch.tensor([[1.0], [2.0]]),
    torch.tensor([[0.5, 0.0], [1.0, 1.0]]),
]


def test_sums_of_powers_by_hand():
    # sums: 1 + 2 + 3, 1 + 2, 0.5 + 2; squares: 1 + 4 + 9, 1 + 4, 0.25 + 2; cubes: 1 + 8 + 27, 1 + 8, 0.125 + 2; two
    # examples.
    assert Lp(0.1, 1)(FACTORS).item() == pytest.approx(0.1 * (6 + 3 + 2.5) / 2)
    assert Lp(0.1, 2)(FACTORS).item() == pytest.approx(0.1 * (14 + 5 + 2.25) / 2)
    assert Lp(0.1, 3)(FACTORS).item() == pytest.approx(0.1 * (36 + 9 + 2.125) / 2)


def test_a_row_touched_twice_counts_twice_and_the_mean_is_over_examples():
    twice = [torch.cat([x, x]) for x in FACTORS]
    assert Lp(1.0, 3)(twice).item() == pytest.approx(Lp(1.0, 3)(FACTORS).item())
    assert Lp(1.0, 3)([FACTORS[0][:1], FACTORS[1][:1], FACTORS[2][:1]]).item() == pytest.approx(1 + 8 + 1 + 0.125)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_gradients_are_those_of_finite_differences_in_closed_form(p):
    factor = torch.tensor([[1.0, -2.0], [0.0, 3.0]], requires_grad=True)
    Lp(0.1, p)([factor.abs()]).backward()
    # d|x|ᵖ/dx = p |x|ᵖ⁻¹ sign x, and 0 at 0
    expected = 0.1 / 2 * p * factor.detach().abs() ** (p - 1) * factor.detach().sign()
    torch.testing.assert_close(factor.grad, expected)


def test_dura_sums_the_squares_of_vectors_of_any_sign():
    # 1 + 4 + 9, 1 + 4, 0.25 + 2; two examples.
    assert DURA(0.1)([-x for x in FACTORS]).item() == pytest.approx(0.1 * (14 + 5 + 2.25) / 2)


def test_half_precision_is_lifted_to_fp32_first():
    # 300³ = 2.7e7 is beyond fp16.
    penalty = Lp(1.0, 3)([torch.tensor([[300.0]], dtype=torch.float16)])
    assert (penalty.dtype, penalty.item()) == (torch.float32, 2.7e7)


def test_the_configuration_names_the_exponents_it_says():
    assert hydra.utils.instantiate(OmegaConf.load(CONF / "l1.yaml")).p == 1
    assert hydra.utils.instantiate(OmegaConf.load(CONF / "l2.yaml")).p == 2
    assert hydra.utils.instantiate(OmegaConf.load(CONF / "n3.yaml")).p == 3
