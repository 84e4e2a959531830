"""QuatE: the quaternion inner product (h ⊗ r/|r|) · t (Zhang et al. 2019, eq. 9)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import modulus, quaternion_product
from kgc.models.base import KGEModel, require_quarters
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Side


class QuatE(KGEModel):
    """dim/4 quaternions w + xi + yj + zk per entity and relation, stored [w | x | y | z].

    Relations are brought to modulus 1 when they are used. (h ⊗ r) · t = h · (t ⊗ r̄): a head query conjugates.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        require_quarters("QuatE", dim, "quaternions")
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        turn = relation / torch.cat([modulus(relation, parts=4)] * 4, dim=-1)
        return quaternion_product(anchor, turn, conjugate=side is Side.HEAD)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return modulus(vectors, parts=4)
