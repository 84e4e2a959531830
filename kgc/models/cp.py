"""CP: ⟨h, r, t⟩ with one vector of an entity as head and another as tail (Hitchcock 1927; Lacroix et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.base import KGEModel, require_even
from kgc.models.init import Normal
from kgc.models.similarity import Dot
from kgc.types import Side


class CP(KGEModel):
    """An entity stores [as head | as tail], dim/2 numbers each; a relation dim/2 numbers.

    A query is 0 where candidates play the other role.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        require_even("CP", dim, "numbers as head and as many as tail")
        options = {"entity_init": Normal(1e-3), "relation_init": Normal(1e-3)} | options
        super().__init__(num_entities, num_relations, dim, relation_dim=dim // 2, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        head, tail = anchor.chunk(2, dim=-1)
        if side is Side.TAIL:
            return torch.cat([torch.zeros_like(head), head * relation], dim=-1)
        return torch.cat([tail * relation, torch.zeros_like(tail)], dim=-1)

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return anchor.chunk(2, dim=-1)[0] * answer.chunk(2, dim=-1)[1]
