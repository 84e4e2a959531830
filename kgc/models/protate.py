"""pRotatE: RotatE with all moduli equal, −2C Σᵢ |sin((hᵢ + rᵢ − tᵢ) / 2)| of phases (Sun et al. 2019, section 4.3)."""

from __future__ import annotations

from torch import Tensor

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.distances import HalfSine
from kgc.models.init import Phases
from kgc.types import Side


class PRotatE(KGEModel):
    """Entities and relations are phases in radians.

    Args:
        modulus: C, of all entities' complex numbers.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        modulus: float = 0.05,
        margin: float = 0.0,
        **options,
    ):
        if not modulus > 0:
            raise UserError(f"model.modulus={modulus}: the modulus of pRotatE's entities must be more than 0")
        options = {"entity_init": Phases(), "relation_init": Phases()} | options
        similarity = HalfSine(2 * modulus)
        super().__init__(num_entities, num_relations, dim, similarity=similarity, margin=margin, **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return anchor + relation if side is Side.TAIL else anchor - relation
