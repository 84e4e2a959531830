"""Losses of a positive against negatives: formulas in Python floats, gradients by finite differences, extremes."""

from __future__ import annotations

import math
from pathlib import Path

import hydra
import oracle
import pytest
import torch
from omegaconf import OmegaConf

from kgc.errors import UserError
from kgc.losses.pairwise import BinaryCrossEntropy, InfoNCE, Logistic, Margin, PairwiseLoss, SampledCrossEntropy

CONF = Path(__file__).parents[2] / "conf" / "loss"


def margin(positive: float, negatives: list[float], weights: list[float]) -> float:
    """Bordes et al. 2013, eq. 1, with distances as negative scores and margin 2."""
    return sum(w * max(0.0, 2 + n - positive) for w, n in zip(weights, negatives, strict=True))


def binary_cross_entropy(positive: float, negatives: list[float], weights: list[float]) -> float:
    """The sum over all pairs, negatives sharing their number by weight, divided by the number of pairs."""
    number = sum(w > 0 for w in weights)
    total = oracle.softplus(-positive)
    total += sum(number * w * oracle.softplus(n) for w, n in zip(weights, negatives, strict=True))
    return total / (1 + number)


def sampled_cross_entropy(positive: float, negatives: list[float], weights: list[float]) -> float:
    rivals = [n for w, n in zip(weights, negatives, strict=True) if w > 0]
    return oracle.log_sum_exp([positive, *rivals]) - positive


def info_nce(positive: float, negatives: list[float], weights: list[float]) -> float:
    """SimKGC's: −log of e to the (s⁺ − m)/τ over its sum with those of the negatives; τ = 0.5, m = 0.25."""
    own = (positive - 0.25) / 0.5
    return oracle.log_sum_exp([own, *(n / 0.5 for w, n in zip(weights, negatives, strict=True) if w > 0)]) - own


LOSSES = {
    "logistic": (Logistic(), oracle.logistic),
    "margin": (Margin(2.0), margin),
    "bce": (BinaryCrossEntropy(), binary_cross_entropy),
    "cross_entropy": (SampledCrossEntropy(), sampled_cross_entropy),
    "info_nce": (InfoNCE(0.5, 0.25), info_nce),
}
every_loss = pytest.mark.parametrize(("loss", "formula"), LOSSES.values(), ids=LOSSES)

# Equal, unequal and masked weights, all masked, one negative only in the end.
WEIGHTS = torch.tensor(
    [[1 / 3, 1 / 3, 1 / 3], [0.5, 0.3, 0.2], [0.25, 0.0, 0.75], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64
)
MASKED = WEIGHTS == 0


def logits(scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    draw = [torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for shape in ((5,), (5, 3))]
    return draw[0], draw[1]


def test_values_by_hand():
    positive, negative = torch.tensor([0.0]), torch.tensor([[0.0, math.log(3)]])
    weights = torch.tensor([[0.5, 0.5]])
    log2, log4 = math.log(2), math.log(4)
    assert Logistic()(positive, negative, weights).item() == pytest.approx((log2 + (log2 + log4) / 2) / 2)
    assert Margin(1.0)(positive, negative, weights).item() == pytest.approx((1 + 1 + math.log(3)) / 2)
    assert BinaryCrossEntropy()(positive, negative, weights).item() == pytest.approx((log2 + log2 + log4) / 3)
    assert SampledCrossEntropy()(positive, negative, weights).item() == pytest.approx(math.log(1 + 1 + 3))
    # (0 − log 2)/½ is log ¼, log(3)/½ is log 9.
    assert InfoNCE(0.5, log2)(positive, negative, weights).item() == pytest.approx(math.log((1 / 4 + 1 + 9) * 4))


@every_loss
def test_values_equal_the_formula(loss, formula):
    positive, negative = logits()
    wanted = [formula(*row) for row in zip(positive.tolist(), negative.tolist(), WEIGHTS.tolist(), strict=True)]
    got = loss(positive, negative, WEIGHTS, MASKED)
    assert got.shape == (5,)
    assert got.tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert loss.loss(positive, negative, WEIGHTS, MASKED).tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@every_loss
def test_gradients_are_those_of_finite_differences(loss, formula):
    positive, negative = (x.requires_grad_() for x in logits())
    # fp32 is left out: `loss` is what `__call__` computes after its conversion.
    assert torch.autograd.gradcheck(lambda p, n: loss.loss(p, n, WEIGHTS, MASKED), (positive, negative))


@every_loss
def test_a_masked_negative_has_no_value_and_no_gradient(loss, formula):
    positive, negative = logits()
    negative[MASKED] = 50.0
    negative.requires_grad_()
    values = loss(positive, negative, WEIGHTS, MASKED)
    values.sum().backward()
    assert (negative.grad[MASKED] == 0).all()
    other = negative.detach().masked_fill(MASKED, -7.0)
    assert torch.equal(loss(positive, other, WEIGHTS, MASKED), values)


@every_loss
def test_a_weight_of_0_alone_is_no_mask(loss, formula):
    """Self-adversarial weights of low scores are rounded to 0; what counts negatives counts these."""
    positive, negative = torch.tensor([0.5]), torch.tensor([[200.0, 1.0, 0.0]])
    weights = negative.softmax(-1)
    assert weights.tolist() == [[1.0, 0.0, 0.0]]
    almost = [1 - 2e-30, 1e-30, 1e-30]
    wanted = formula(0.5, negative[0].tolist(), almost)
    assert loss(positive, negative, weights).tolist() == pytest.approx([wanted], rel=1e-6)
    assert torch.equal(
        loss(positive, negative, weights, torch.zeros(1, 3, dtype=torch.bool)), loss(positive, negative, weights)
    )


@every_loss
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_logits_have_finite_values_and_gradients(loss, formula, sign):
    positive = torch.tensor([1e4, -1e4, 0.0, 1e4, -1e4]).mul(sign).requires_grad_()
    negative = torch.tensor([[1e4, -1e4, 0.0]]).expand(5, 3).mul(sign).clone().requires_grad_()
    values = loss(positive, negative, WEIGHTS, MASKED)
    wanted = [formula(*row) for row in zip(positive.tolist(), negative.tolist(), WEIGHTS.tolist(), strict=True)]
    assert values.tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    values.sum().backward()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_lifted_to_fp32_first(loss, formula, dtype):
    positive, negative = (x.to(dtype) for x in logits())
    got = loss(positive, negative, WEIGHTS, MASKED)
    assert got.dtype == torch.float32
    wanted = [formula(*row) for row in zip(positive.tolist(), negative.tolist(), WEIGHTS.tolist(), strict=True)]
    assert got.tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_autocast_does_not_reach_a_loss():
    positive, negative = (x.float() for x in logits())
    for loss, _ in LOSSES.values():
        expected = loss(positive, negative, WEIGHTS, MASKED)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(loss(positive, negative, WEIGHTS, MASKED), expected)


def test_better_separated_logits_have_a_smaller_loss():
    positive, negative = logits()
    for loss, _ in LOSSES.values():
        worse, better = loss(positive, negative, WEIGHTS, MASKED), loss(positive + 1, negative - 1, WEIGHTS, MASKED)
        assert (better <= worse).all()
        assert (better < worse).any()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused_by_name(temperature):
    with pytest.raises(UserError, match=rf"loss\.temperature={temperature}"):
        InfoNCE(temperature)


def test_an_unfinished_loss_says_so():
    with pytest.raises(NotImplementedError):
        PairwiseLoss()(*(x.float() for x in logits()), WEIGHTS)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_loss_of_the_configuration_is_tested_here(path):
    made = hydra.utils.instantiate(OmegaConf.load(path))
    assert type(made) in {type(loss) for loss, _ in LOSSES.values()}
    assert made(*logits(), WEIGHTS).shape == (5,)
