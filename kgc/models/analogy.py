"""ANALOGY: half of the numbers as in DistMult, half as in ComplEx (Liu et al. 2017, in the form of their section 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import complex_product, modulus
from kgc.models.base import KGEModel, require_quarters
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Side


class Analogy(KGEModel):
    """dim/2 real and dim/4 complex numbers per entity and relation, stored [real numbers | real parts | imaginary]."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        require_quarters("ANALOGY", dim, "complex and dim/2 real numbers")
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        (a, x), (b, y) = anchor.chunk(2, dim=-1), relation.chunk(2, dim=-1)
        return torch.cat([a * b, complex_product(x, y, conjugate=side is Side.HEAD)], dim=-1)

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return self.query(answer, anchor, Side.HEAD)  # Re(a r c̄) is the real inner product of r with c ā

    def magnitude(self, vectors: Tensor) -> Tensor:
        real, numbers = vectors.chunk(2, dim=-1)
        return torch.cat([real.abs(), modulus(numbers)], dim=-1)
