"""TransH: translation on the relation's hyperplane, −‖h⊥ + d − t⊥‖₂ (Wang et al. 2014).

The paper squares the distance, which changes no rank; unsquared it is a logit like TransE's.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from kgc.models.base import KGEModel
from kgc.models.init import MarginRange
from kgc.models.similarity import Euclidean
from kgc.types import Side


class TransH(KGEModel):
    """An entity e is seen by a relation as e⊥ = e − (w·e) w, w the unit normal of the relation's hyperplane.

    A relation stores [translation d | normal w], 2·dim numbers; w is brought to length 1 whenever it is used. A tail
    query is h⊥ + d, a head query t⊥ − d. The paper's soft constraints (‖e‖ ≤ 1, d on the hyperplane) are penalties of
    its training, not of the score, and are left out; `regularizer=l2` keeps vectors short.
    """

    projects = True
    lens_has_sides = False

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, margin: float = 0.0, **options):
        init = MarginRange(margin, dim)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=2 * dim,
            similarity=Euclidean(),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        translation, _ = relation.chunk(2, dim=-1)
        anchor = self.project(anchor, relation)
        return anchor + translation if side is Side.TAIL else anchor - translation

    def project(self, vectors: Tensor, relation: Tensor) -> Tensor:
        normal = F.normalize(relation.chunk(2, dim=-1)[1], dim=-1)
        return vectors - (vectors * normal).sum(-1, keepdim=True) * normal

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return vectors.chunk(2, dim=-1)[0].abs()  # the length of a normal has no meaning
