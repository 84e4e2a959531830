"""RefE: reflection and translation, −‖Ref(h) + r − t‖² + b_h + b_t (Chami et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.algebra import reflect
from kgc.models.isometric import Isometric, phases


class RefE(Isometric):
    """Pairs of coordinates [first half | second half] are reflected, each in a line of its own (Givens reflections).

    Relations store [translation | dim/2 phases]. A reflection is its own inverse, so a head query takes the translation
    off and reflects again.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        super().__init__(num_entities, num_relations, dim, turns=phases(dim), **options)

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        return reflect(vectors, own)

    def turn_back(self, vectors: Tensor, own: Tensor) -> Tensor:
        return reflect(vectors, own)
