"""PairRE: −‖h/‖h‖ ∘ rᴴ − t/‖t‖ ∘ rᵀ‖₁ (Chao et al. 2021, eq. 2)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from kgc.models.base import KGEModel
from kgc.models.init import MarginRange
from kgc.models.similarity import Manhattan
from kgc.types import Side


class PairRE(KGEModel):
    """A relation stores [rᴴ | rᵀ], which stretch heads and tails, 2·dim numbers.

    Entities are brought to length 1 when they are used.
    """

    projects = stretches = True

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, margin: float = 0.0, **options):
        self.lens_dim = dim
        init = MarginRange(margin, dim)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=2 * dim,
            similarity=Manhattan(),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return self.project(self.candidate(anchor), self.lens(relation, Side(1 - side)))

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        return relation.chunk(2, dim=-1)[side]

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        return vectors * lens

    def candidate(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1)
