"""Learning rates as functions of how far training is, and of nothing else.

There is no state to save: a resumed run has the rates of one that was not stopped, and a run resumed with more epochs
follows the longer curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer


class Curve:
    """Learning rates that follow a function of the epoch, after a linear rise over the first steps.

    Args:
        optimizer: whose groups' learning rates, as they are now, are multiplied.
        factor: epoch, from 0, to the factor of its steps.
        warmup: epochs of the rise, also a fraction of one; the rate of step s, from 1, of the W steps is s/W times what
            it would have been (Goyal et al. 2017, section 2.2). 0: no rise.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float], warmup: float = 0.0):
        self.optimizer = optimizer
        self.factor = factor
        self.warmup = warmup
        self.rates = [group["lr"] for group in optimizer.param_groups]

    def set(self, epoch: int, step: int, steps: int) -> None:
        """Sets the learning rates of a step, from 0, of an epoch, from 0, of so many steps."""
        factor = self.factor(epoch)
        if self.warmup:
            factor *= min(1.0, (epoch + (step + 1) / steps) / self.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor


def constant(optimizer: Optimizer, warmup: float = 0.0) -> Curve:
    """The learning rate itself, after `warmup` epochs."""
    return Curve(optimizer, lambda epoch: 1.0, warmup)


def cosine(optimizer: Optimizer, epochs: int, final: float = 0.0, warmup: float = 0.0) -> Curve:
    """Half a cosine from the learning rate down to `final` times it over `epochs` (Loshchilov & Hutter 2017, eq. 5).

    It falls once an epoch; `warmup` epochs at the start rise in every step.
    """

    def factor(epoch: int) -> float:
        return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, epoch / epochs))) / 2

    return Curve(optimizer, factor, warmup)
