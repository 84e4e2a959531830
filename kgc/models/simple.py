"""SimplE: the mean of CP's score of (h, r, t) and of (t, r⁻¹, h) (Kazemi & Poole 2018)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.base import KGEModel, require_even
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Side


class SimplE(KGEModel):
    """An entity stores [as head | as tail], a relation [r | r⁻¹], each half dim/2 numbers."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        require_even("SimplE", dim, "numbers as head and as many as tail")
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        swapped = anchor.roll(self.dim // 2, dims=-1)  # [as tail | as head]
        if side is Side.TAIL:
            relation = relation.roll(self.dim // 2, dims=-1)
        return swapped * relation / 2

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return anchor * answer.roll(self.dim // 2, dims=-1) / 2
