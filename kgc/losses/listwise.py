"""Losses over the scores of all entities, in nats per query, always in fp32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """[B, E] logits and [B] right answers to [B] values of −log softmax (1-vs-all; Lacroix et al. 2018)."""
    return F.cross_entropy(logits.float(), target, label_smoothing=label_smoothing, reduction="none")


def binary_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """[B, E] logits and [B, E] bool labels to [B] mean binary cross-entropies (K-vs-all; Dettmers et al. 2018).

    Smoothing ε turns label y into (1 − ε) y + 1/E, as ConvE does.
    """
    soft = labels.to(torch.float32)
    if label_smoothing:
        soft = (1 - label_smoothing) * soft + 1 / labels.shape[-1]
    return F.binary_cross_entropy_with_logits(logits.float(), soft, reduction="none").mean(-1)
