"""Learning rates as functions of the epoch alone: a run resumed with more epochs follows the longer curve."""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def cosine(optimizer: Optimizer, epochs: int, final: float = 0.0) -> LambdaLR:
    """Half a cosine from the learning rate down to `final` times it over `epochs` (Loshchilov & Hutter 2017, eq. 5)."""

    def factor(epoch: int) -> float:
        return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, epoch / epochs))) / 2

    return LambdaLR(optimizer, factor)
