"""Penalties on the rows a batch touched, in fp32.

A row is penalised once for every example that it occurs in: over an epoch in proportion to its frequency in train (the
weighted norms of Lacroix et al. 2018, section 4.2). A penalty on whole tables, such as an optimizer's weight decay,
shrinks rare entities as fast as frequent ones.
"""

from __future__ import annotations

from torch import Tensor


class Lp:
    """λ/B · Σ over rows of ‖x‖ₚᵖ: L1 with p = 1, L2 with p = 2, the nuclear 3-norm N3 with p = 3.

    N3 is eq. 4 of Lacroix et al. 2018. The vectors are the anchors, relations and answers of a batch.

    Args:
        weight: λ.
        p: exponent of the absolute value (the modulus, for complex models).
    """

    of_queries = False  # takes the vectors of triples

    def __init__(self, weight: float, p: int):
        self.weight = weight
        self.p = p

    def __call__(self, factors: list[Tensor]) -> Tensor:
        """[B, d] absolute values of vectors, for each of their kinds, to a scalar in nats; B is the first kind's."""
        return self.weight * sum(x.float().abs().pow(self.p).sum() for x in factors) / len(factors[0])


class DURA(Lp):
    """λ/B · Σ (‖h‖² + ‖t‖² + ‖h∘r‖² + ‖t∘r̄‖²), the duality-induced regularizer (Zhang et al. 2020).

    For models that score by an inner product: the squared norms of both entities, of the query vector h∘r that is
    compared with t, and of the query vector t∘r̄ that asks back and is compared with h. Relation vectors are held down
    through them.

    Args:
        weight: λ.
    """

    of_queries = True  # takes the vectors of both entities and of both queries

    def __init__(self, weight: float):
        super().__init__(weight, p=2)
