"""TransD: translation after a projection made of two vectors, −‖h⊥ + r − t⊥‖₂ (Ji et al. 2015, eq. 15).

The paper squares the distance, which changes no rank; unsquared it is a logit like TransE's.
"""

from __future__ import annotations

from torch import Tensor

from kgc.models.base import KGEModel, require_even
from kgc.models.init import MarginRange
from kgc.models.similarity import Euclidean
from kgc.types import Side


class TransD(KGEModel):
    """An entity stores [e | eₚ] and a relation [r | rₚ], dim/2 numbers each; e⊥ = (rₚ eₚᵀ + I) e = e + (eₚ·e) rₚ.

    The paper's constraints (vectors and their projections no longer than 1) are left out; `regularizer=l2` keeps
    vectors short.
    """

    projects = True
    lens_has_sides = False

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, margin: float = 0.0, **options):
        require_even("TransD", dim, "numbers as vector and as many for its projection")
        self.query_dim = self.lens_dim = dim // 2
        init = MarginRange(margin, dim // 2)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(num_entities, num_relations, dim, similarity=Euclidean(), margin=margin, **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        translation, lens = relation.chunk(2, dim=-1)
        anchor = self.project(anchor, lens)
        return anchor + translation if side is Side.TAIL else anchor - translation

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        return relation.chunk(2, dim=-1)[1]

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        vector, projection = vectors.chunk(2, dim=-1)
        return vector + (projection * vector).sum(-1, keepdim=True) * lens
