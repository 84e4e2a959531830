"""HAKE: hierarchies by moduli, likeness by phases (Zhang et al. 2020).

−(μ‖hₘ ∘ (|rₘ| + b) − tₘ ∘ (1 − b)‖₂ + λ Σ|sin((hₚ + rₚ − tₚ) / 2)|), their section 3 with the mixture bias of eq. 3, as
their code scores it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.base import KGEModel, require_even
from kgc.models.distances import ModulusAndPhase
from kgc.models.init import Columns, Constant, MarginRange, Phases
from kgc.types import Side


class HAKE(KGEModel):
    """An entity stores [moduli | phases], a relation [moduli | phases | bias], dim/2 numbers each, phases in radians.

    The bias b is used between −|rₘ| and 1.

    Args:
        modulus_weight: μ.
        phase_weight: λ.
    """

    projects = stretches = True

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        modulus_weight: float = 1.0,
        phase_weight: float = 0.1,
        margin: float = 0.0,
        **options,
    ):
        require_even("HAKE", dim, "moduli and as many phases")
        self.half = self.lens_dim = dim // 2
        entity = Columns((self.half, MarginRange(margin, self.half)), (self.half, Phases()))
        relation = Columns((self.half, Constant(1.0)), (self.half, Phases()), (self.half, Constant(0.0)))
        options = {"entity_init": entity, "relation_init": relation} | options
        super().__init__(
            num_entities,
            num_relations,
            dim,
            relation_dim=3 * self.half,
            similarity=ModulusAndPhase(modulus_weight, phase_weight),
            margin=margin,
            **options,
        )

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        moduli, phases = self.project(anchor, self.lens(relation, Side(1 - side))).chunk(2, dim=-1)
        turn = relation[..., self.half : 2 * self.half]
        return torch.cat([moduli, phases + turn if side is Side.TAIL else phases - turn], dim=-1)

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        modulus, _, bias = relation.chunk(3, dim=-1)
        modulus = modulus.abs()
        bias = torch.maximum(bias.clamp(max=1), -modulus)
        return modulus + bias if side is Side.HEAD else 1 - bias

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        moduli, phases = vectors.chunk(2, dim=-1)
        moduli = moduli * lens
        return torch.cat([moduli, phases.expand_as(moduli)], dim=-1)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return vectors.chunk(2, dim=-1)[0].abs()  # the size of a phase has no meaning

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return vectors.chunk(3, dim=-1)[0].abs()
