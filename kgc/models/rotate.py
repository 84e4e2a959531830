"""RotatE: rotation in the complex plane, −Σᵢ |hᵢ rᵢ − tᵢ| with |rᵢ| = 1 (Sun et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from kgc.errors import UserError
from kgc.models.algebra import complex_product, modulus, unit
from kgc.models.base import KGEModel, require_even
from kgc.models.init import MarginRange, Phases
from kgc.models.similarity import ComplexModulus, Euclidean
from kgc.types import Side


class RotatE(KGEModel):
    """Entities are dim/2 complex numbers [real half | imaginary half], relations dim/2 phases in radians.

    |h r − t| = |h − t r̄| because |r| = 1: a head query rotates back. The distance is the sum of the moduli (`norm=1`)
    or the root of the sum of their squares (`norm=2`, PyKEEN's choice).
    """

    def __init__(
        self, num_entities: int, num_relations: int, dim: int, *, norm: int = 1, margin: float = 0.0, **options
    ):
        require_even("RotatE", dim)
        if norm not in (1, 2):
            raise UserError(f"model.norm={norm}: RotatE adds up moduli (norm=1) or their squares (norm=2)")
        options = {"entity_init": MarginRange(margin, dim // 2), "relation_init": Phases()} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=dim // 2,
            similarity=ComplexModulus() if norm == 1 else Euclidean(),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return complex_product(anchor, unit(relation), conjugate=side is Side.HEAD)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return modulus(vectors)

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return vectors.abs()
