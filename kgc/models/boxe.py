"""BoxE: entities bumped by each other into boxes of the relation (Abboud et al. 2020), with the norm L1.

−(dist(e_h + b_t, box_head) + dist(e_t + b_h, box_tail)), see `kgc.models.distances.Box`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.base import KGEModel, require_even
from kgc.models.distances import Box
from kgc.models.init import MarginRange
from kgc.types import Side


class BoxE(KGEModel):
    """An entity stores [base e | bump b], dim/2 numbers each.

    A relation stores [centre of the head's box | of the tail's | width of the head's box | of the tail's], 2·dim
    numbers; a width is the absolute value of what is stored. A point bumped by the anchor lies in a box as the point
    lies in the box moved back: candidates are the stored vectors, queries boxes.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, margin: float = 0.0, **options):
        require_even("BoxE", dim, "numbers as base and as many as bump")
        init = MarginRange(margin, dim)
        options = {"entity_init": init, "relation_init": init} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=2 * dim,
            similarity=Box(),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        centre, width = relation.chunk(2, dim=-1)  # [head | tail]
        if side is Side.TAIL:
            centre, width = centre.roll(self.dim // 2, dims=-1), width.roll(self.dim // 2, dims=-1)
        bump_and_base = anchor.roll(self.dim // 2, dims=-1)
        return torch.cat([centre - bump_and_base, width.abs()], dim=-1)
