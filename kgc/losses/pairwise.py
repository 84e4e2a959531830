"""Losses of a right answer against its negatives, in nats per query, always in fp32.

Each takes positive [B] and negative [B, K] logits, the weights [B, K] of the negatives, which sum to 1 a query and are
0 for masked ones, and which negatives are masked, [B, K] or None for none, and returns [B]. A weight of 0 alone masks
nothing: a self-adversarial weight may have become 0 by rounding. In the formulas s⁺ is the positive's logit, s⁻ₖ the
logits of the negatives that are not masked, n their number, wₖ their weights.

Equal weights make the sums means over the negatives. Self-adversarial training (Sun et al. 2019, eq. 4) is no loss of
its own: the sampler makes wₖ = softmaxₖ(α s⁻ₖ), a constant for the gradient, and any loss that uses weights takes them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kgc.errors import UserError


class PairwiseLoss:
    """Interface."""

    weighted = True  # uses the weights

    def __call__(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        return self.loss(positive.float(), negative.float(), weights.float(), masked)

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        raise NotImplementedError


class Logistic(PairwiseLoss):
    """½ [softplus(−s⁺) + Σₖ wₖ softplus(s⁻ₖ)] (Sun et al. 2019, eq. 5 and 6, with s = γ − distance).

    With equal weights this is the logistic loss of Trouillon et al. 2016; with self-adversarial ones, RotatE's.
    """

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        return (F.softplus(-positive) + (weights * F.softplus(negative)).sum(-1)) / 2


class Margin(PairwiseLoss):
    """Margin ranking, Σₖ wₖ max(0, m + s⁻ₖ − s⁺) (Bordes et al. 2013, eq. 1), in the unit of the score, not in nats.

    Args:
        margin: m, in the unit of the score.
    """

    def __init__(self, margin: float = 1.0):
        self.margin = margin

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        return (weights * F.relu(self.margin + negative - positive.unsqueeze(-1))).sum(-1)


class BinaryCrossEntropy(PairwiseLoss):
    """Mean binary cross-entropy of one positive and n negatives, [softplus(−s⁺) + n Σₖ wₖ softplus(s⁻ₖ)] / (1 + n).

    With equal weights every score counts alike (Dettmers et al. 2018, eq. 2, on a sample).
    """

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        number = negative.shape[-1] if masked is None else (~masked).sum(-1)
        return (F.softplus(-positive) + number * (weights * F.softplus(negative)).sum(-1)) / (1 + number)


class SampledCrossEntropy(PairwiseLoss):
    """log(exp s⁺ + Σₖ exp s⁻ₖ) − s⁺: −log softmax of the positive among itself and its negatives.

    1-vs-all's loss (Lacroix et al. 2018) on a sample. Weights are not used.
    """

    weighted = False

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        rivals = negative if masked is None else negative.masked_fill(masked, -torch.inf)
        logits = torch.cat([positive.unsqueeze(-1), rivals], dim=-1)
        return F.cross_entropy(
            logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device), reduction="none"
        )


class InfoNCE(SampledCrossEntropy):
    """−log softmax of (s⁺ − m)/τ among itself and the s⁻ₖ/τ (van den Oord et al. 2018, eq. 4).

    With the additive margin m it is SimKGC's loss (Wang et al. 2022, there on cosines, with τ learnt from 0.05 on and
    m = 0.02). Weights are not used.

    Args:
        temperature: τ, in the unit of the score; small values train on the hardest negatives.
        margin: m, in the unit of the score.
    """

    def __init__(self, temperature: float = 1.0, margin: float = 0.0):
        if temperature <= 0:
            raise UserError(f"loss.temperature={temperature}: must be more than 0")
        self.temperature = temperature
        self.margin = margin

    def loss(self, positive: Tensor, negative: Tensor, weights: Tensor, masked: Tensor | None = None) -> Tensor:
        return super().loss((positive - self.margin) / self.temperature, negative / self.temperature, weights, masked)
