"""ComplEx: the Hermitian product Re⟨h, r, t̄⟩ (Trouillon et al. 2016)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.algebra import complex_product, modulus
from kgc.models.base import KGEModel, require_even
from kgc.models.init import Normal
from kgc.models.similarity import Dot
from kgc.types import Side


class ComplEx(KGEModel):
    """dim/2 complex numbers per entity and relation, stored [real half | imaginary half].

    Re(h r t̄) is the real inner product of h r with t, and of t r̄ with h: a head query conjugates the relation.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        require_even("ComplEx", dim)
        options = {"entity_init": Normal(1e-3), "relation_init": Normal(1e-3)} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return complex_product(anchor, relation, conjugate=side is Side.HEAD)

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return complex_product(answer, anchor, conjugate=True)  # Re(a r c̄) is the real inner product of r with c ā

    def magnitude(self, vectors: Tensor) -> Tensor:
        return modulus(vectors)
