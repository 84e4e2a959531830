"""TransR: translation in a space of the relation's own, −‖M h + r − M t‖₂ (Lin et al. 2015, eq. 8).

The paper squares the distance, which changes no rank; unsquared it is a logit like TransE's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import row_by_row
from kgc.models.base import KGEModel
from kgc.models.init import Columns, Identity, MarginRange
from kgc.models.similarity import Euclidean
from kgc.types import Side


class TransR(KGEModel):
    """A relation stores [translation r | matrix M row by row], k and k·dim numbers; M begins as the identity.

    The paper's constraints (vectors and their projections no longer than 1) are left out; `regularizer=l2` keeps
    vectors short.

    Args:
        relation_dim: k, the width of the relations' spaces; `dim` when None.
    """

    projects = True
    lens_has_sides = False

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        relation_dim: int | None = None,
        margin: float = 0.0,
        **options,
    ):
        self.space = dim if relation_dim is None else relation_dim
        self.query_dim, self.lens_dim = self.space, self.space * dim
        init = MarginRange(margin, dim)
        groups = Columns((self.space, init), (self.lens_dim, Identity(self.space, dim)))
        options = {"entity_init": init, "relation_init": groups} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=self.space + self.lens_dim,
            similarity=Euclidean(),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        anchor, translation = self.project(anchor, self.lens(relation, side)), relation[..., : self.space]
        return anchor + translation if side is Side.TAIL else anchor - translation

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        return relation[..., self.space :]

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        matrix = lens.unflatten(-1, (self.space, self.dim))
        if matrix.dim() > 2 or torch.is_grad_enabled():
            return torch.einsum("...kd,...d->...k", matrix, vectors)
        return row_by_row(vectors, matrix.mT, 256)  # in ranking equal entities tie

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return vectors[..., : self.space].abs()  # M tends to the identity, not to 0
