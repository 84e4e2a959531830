"""Penalties on the rows a batch touched, in fp32.

A row that occurs in more triples is penalised more often, in proportion to its sampled frequency, as in kbc; a penalty
on whole tables would shrink rare entities as fast as frequent ones.
"""

from __future__ import annotations

from torch import Tensor


class Lp:
    """λ/B · Σ over rows of ‖x‖ₚᵖ: L2 with p = 2, the nuclear 3-norm N3 with p = 3 (Lacroix et al. 2018, eq. 4).

    Args:
        weight: λ.
        p: exponent of the absolute value (the modulus, for complex models).
    """

    def __init__(self, weight: float, p: int):
        self.weight = weight
        self.p = p

    def __call__(self, factors: list[Tensor]) -> Tensor:
        """[B, d] absolute values of the anchors, relations and answers of a batch, to a scalar in nats."""
        return self.weight * sum(x.float().pow(self.p).sum() for x in factors) / len(factors[0])
