"""Entities with a vector and a bias, turned and translated by relations (Chami et al. 2020).

The score is −d(Q, t)² + b_anchor + b_candidate, where Q is the anchor turned (rotated, reflected, or a mean of both)
and translated. Here d is Euclidean; in `kgc.models.hyperbolic` it is hyperbolic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import complex_product, reflect, unit
from kgc.models.base import KGEModel, require_even
from kgc.models.distances import SquaredEuclidean
from kgc.models.init import Columns, Constant, Init, Normal, Phases
from kgc.models.similarity import Similarity, fixed_sum
from kgc.types import Side


class Isometric(KGEModel):
    """A model whose relations turn vectors and translate them; its file says how they are turned.

    An entity stores dim numbers and one bias, together dim + 1. A relation stores [translation | own], where `own` are
    the columns of `turns`.
    """

    extra = 1

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        turns: list[tuple[int, Init]],
        similarity: Similarity | None = None,
        **options,
    ):
        require_even(type(self).__name__, dim)
        groups = [(dim, Normal(1e-3)), *turns]
        defaults = {
            "entity_init": Columns((dim, Normal(1e-3)), (1, Constant(0.0))),
            "relation_init": Columns(*groups),
            "relation_dim": sum(width for width, _ in groups),
        }
        similarity = similarity or SquaredEuclidean()
        super().__init__(num_entities, num_relations, dim, similarity=similarity, **(defaults | options))

    def turn(self, vectors: Tensor, own: Tensor) -> Tensor:
        """[*, dim] vectors turned by the relations' `own` columns [*, do]; lengths stay or, for a mean, shrink."""
        raise NotImplementedError

    def turn_back(self, vectors: Tensor, own: Tensor) -> Tensor:
        """The inverse of `turn`; for models that answer head queries without reciprocal relations."""
        raise NotImplementedError

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        vector, bias = anchor[..., : self.dim], anchor[..., self.dim :]
        translation, own = relation[..., : self.dim], relation[..., self.dim :]
        tail = side is Side.TAIL
        moved = self.turn(vector, own) + translation if tail else self.turn_back(vector - translation, own)
        return torch.cat([moved, bias], dim=-1)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return vectors[..., : self.dim].abs()  # of an entity without its bias, of a relation the translation


def rotation_or_reflection(vectors: Tensor, own: Tensor) -> Tensor:
    """Mean of a rotation and a reflection of [*, dim] vectors, weighed by attention (Chami et al. 2020, AttE).

    The columns `own` are [rotation's phases | reflection's phases | attention vector a]; the weights are the softmax of
    a·(rotated vector) and a·(reflected vector).
    """
    dim = vectors.shape[-1]
    turn, mirror, attention = own.split([dim // 2, dim // 2, dim], dim=-1)
    rotated, reflected = complex_product(vectors, unit(turn)), reflect(vectors, mirror)
    # Of certified ranks: one order of additions, and no sigmoid, which rounds by its place in memory.
    lead = fixed_sum((rotated - reflected) * attention).unsqueeze(-1)
    share = ((lead / 2).tanh() + 1) / 2
    return share * rotated + (1 - share) * reflected


def phases(dim: int) -> list[tuple[int, Init]]:
    """The columns of one angle in radians for each pair of coordinates."""
    return [(dim // 2, Phases())]


def attention_columns(dim: int) -> list[tuple[int, Init]]:
    """The columns of `rotation_or_reflection`."""
    return [*phases(dim), *phases(dim), (dim, Normal(1e-3))]
