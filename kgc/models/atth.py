"""AttH: attention between rotation and reflection, then translation, in hyperbolic space (Chami et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.hyperbolic import Hyperbolic
from kgc.models.isometric import attention_columns, rotation_or_reflection


class AttH(Hyperbolic):
    """−d(Att(Rot(h), Ref(h)) ⊕ r, t)² + b_h + b_t, the mean being taken in the tangent space at 0.

    Relations store [translation | rotation's phases | reflection's phases | attention vector | raw curvature],
    3·dim + 1 numbers.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        super().__init__(num_entities, num_relations, dim, turns=attention_columns(dim), **options)

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        return rotation_or_reflection(vectors, own)
