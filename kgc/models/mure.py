"""MuRE: −‖R h − (t + r)‖₂² + b_h + b_t with a diagonal R (Balažević et al. 2019, Multi-relational Poincaré, eq. 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.distances import SquaredEuclidean
from kgc.models.init import Columns, Constant, Normal
from kgc.types import Side


class MuRE(KGEModel):
    """An entity stores [vector | bias as head | bias as tail], dim − 2 numbers and two.

    A relation stores [diagonal of R | translation r], 2·(dim − 2) numbers. A head query compares with R h, a tail query
    with t.
    """

    projects = True

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        if dim < 3:
            raise UserError(f"model.dim={dim}: MuRE stores two biases per entity behind its vector; take at least 3")
        self.width = dim - 2
        self.lens_dim = self.width + 2
        entity = Columns((self.width, Normal(1e-3)), (2, Constant(0.0)))
        relation = Columns((self.width, Constant(1.0)), (self.width, Normal(1e-3)))
        options = {"entity_init": entity, "relation_init": relation} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=2 * self.width,
            similarity=SquaredEuclidean(),
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        seen = self.project(anchor, self.lens(relation, Side(1 - side)))
        translation = relation.chunk(2, dim=-1)[1]
        vector = seen[..., :-1] - translation if side is Side.TAIL else seen[..., :-1] + translation
        return torch.cat([vector, seen[..., -1:]], dim=-1)

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        """[*, dim]: what vectors are multiplied by, and which of the two biases counts."""
        scale = relation.chunk(2, dim=-1)[0]
        chosen = scale.new_zeros(*scale.shape[:-1], 2)
        chosen[..., side] = 1.0
        return torch.cat([scale if side is Side.HEAD else torch.ones_like(scale), chosen], dim=-1)

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        vector, biases = (vectors * lens).split([self.width, 2], dim=-1)
        return torch.cat([vector, biases.sum(-1, keepdim=True)], dim=-1)
