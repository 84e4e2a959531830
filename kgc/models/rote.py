"""RotE: rotation and translation, −‖Rot(h) + r − t‖² + b_h + b_t (Chami et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.algebra import complex_product, unit
from kgc.models.isometric import Isometric, phases


class RotE(Isometric):
    """Pairs of coordinates [first half | second half] are rotated by an angle each (Givens rotations, eq. 3).

    Relations store [translation | dim/2 phases]. A head query takes the translation off and rotates back.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        super().__init__(num_entities, num_relations, dim, turns=phases(dim), **options)

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        return complex_product(vectors, unit(own))

    def turn_back(self, vectors: Tensor, own: Tensor) -> Tensor:
        return complex_product(vectors, unit(own), conjugate=True)
