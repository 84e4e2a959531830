"""TransE: translation, −‖h + r − t‖ₚ (Bordes et al. 2013)."""

from __future__ import annotations

from torch import Tensor

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.init import MarginRange
from kgc.models.similarity import Euclidean, Manhattan
from kgc.types import Side


class TransE(KGEModel):
    """Relations are translations: a tail query is h + r, a head query t − r; the distance is L1 or L2 (`norm`)."""

    def __init__(
        self, num_entities: int, num_relations: int, dim: int, *, norm: int = 1, margin: float = 0.0, **options
    ):
        if norm not in (1, 2):
            raise UserError(f"model.norm={norm}: TransE measures distance in L1 (norm=1) or L2 (norm=2)")
        similarity = Manhattan() if norm == 1 else Euclidean()
        init = MarginRange(margin, dim)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(num_entities, num_relations, dim, similarity=similarity, margin=margin, **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return anchor + relation if side is Side.TAIL else anchor - relation
