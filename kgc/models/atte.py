"""AttE: attention between rotation and reflection, then translation (Chami et al. 2020)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.isometric import Isometric, attention_columns, rotation_or_reflection


class AttE(Isometric):
    """−‖Att(Rot(h), Ref(h)) + r − t‖² + b_h + b_t.

    Relations store [translation | rotation's phases | reflection's phases | attention vector], 3·dim numbers. The
    weights depend on the anchor, so that a mean cannot be undone: head queries need reciprocal relations, as in the
    paper.
    """

    reciprocal_only = True

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        super().__init__(num_entities, num_relations, dim, turns=attention_columns(dim), **options)

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        return rotation_or_reflection(vectors, own)
