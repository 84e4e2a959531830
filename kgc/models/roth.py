"""RotH: rotation and translation in hyperbolic space (Chami et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.algebra import complex_product, unit
from kgc.models.hyperbolic import Hyperbolic
from kgc.models.isometric import phases


class RotH(Hyperbolic):
    """−d(Rot(h) ⊕ r, t)² + b_h + b_t; relations store [translation | dim/2 phases | raw curvature].

    As in the paper; its repository translates once more before rotating.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        super().__init__(num_entities, num_relations, dim, turns=phases(dim), **options)

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        return complex_product(vectors, unit(own))
