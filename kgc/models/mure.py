"""MuRE: −‖R h − (t + r)‖₂² + b_h + b_t with a diagonal R (Balažević et al. 2019, Multi-relational Poincaré, eq. 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.base import KGEModel
from kgc.models.distances import SquaredEuclidean
from kgc.models.init import Columns, Constant, Normal
from kgc.types import Side


class MuRE(KGEModel):
    """An entity stores [vector | bias as head | bias as tail], dim numbers and two.

    A relation stores [diagonal of R | translation r], 2·dim numbers. A head query compares with R h, a tail query with
    t.
    """

    projects = stretches = True
    extra = 2

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        self.query_dim, self.lens_dim = dim + 1, dim + self.extra
        entity = Columns((dim, Normal(1e-3)), (self.extra, Constant(0.0)))
        relation = Columns((dim, Constant(1.0)), (dim, Normal(1e-3)))
        options = {"entity_init": entity, "relation_init": relation} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=2 * dim,
            similarity=SquaredEuclidean(),
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        seen = self.project(anchor, self.lens(relation, Side(1 - side)))
        translation = relation.chunk(2, dim=-1)[1]
        vector = seen[..., :-1] - translation if side is Side.TAIL else seen[..., :-1] + translation
        return torch.cat([vector, seen[..., -1:]], dim=-1)

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        """[*, dim + 2]: what vectors are multiplied by, and which of the two biases counts."""
        scale = relation.chunk(2, dim=-1)[0]
        chosen = scale.new_zeros(*scale.shape[:-1], self.extra)
        chosen[..., side] = 1.0
        return torch.cat([scale if side is Side.HEAD else torch.ones_like(scale), chosen], dim=-1)

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        vector, biases = (vectors * lens).split([self.dim, self.extra], dim=-1)
        return torch.cat([vector, biases.sum(-1, keepdim=True)], dim=-1)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return vectors[..., : self.dim].abs()  # of an entity without its biases

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return vectors.abs()
