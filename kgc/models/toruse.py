"""TorusE: translation on a torus, −Σᵢ |hᵢ + rᵢ − tᵢ| modulo 1 (Ebisu & Ichise 2018, with d_L1).

The paper's score function is twice this distance.
"""

from __future__ import annotations

from torch import Tensor

from kgc.models.base import KGEModel
from kgc.models.distances import Torus
from kgc.models.init import MarginRange
from kgc.types import Side


class TorusE(KGEModel):
    """Stored numbers stand for their fraction: entities and queries are brought to [−½, ½] when they are compared."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, margin: float = 0.0, **options):
        init = MarginRange(margin, dim)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(num_entities, num_relations, dim, similarity=Torus(), margin=margin, **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return on_torus(on_torus(anchor) + relation if side is Side.TAIL else on_torus(anchor) - relation)

    def candidate_vectors(self, candidates: Tensor | range | None = None) -> Tensor:
        return on_torus(self.entity_vectors(candidates))


def on_torus(vectors: Tensor) -> Tensor:
    """[*, D] minus the nearest whole numbers, which is exact: [*, D] in [−½, ½]."""
    return vectors - vectors.round()
