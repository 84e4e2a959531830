"""DistMult: the diagonal bilinear form ⟨h, r, t⟩ (Yang et al. 2015)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.base import KGEModel
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Side


class DistMult(KGEModel):
    """Symmetric: both sides ask with anchor ∘ r."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return anchor * relation

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return anchor * answer
