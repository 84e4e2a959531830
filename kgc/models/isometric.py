"""Entities with a vector and a bias, turned and translated by relations (Chami et al. 2020).

The score is −d(Q, t)² + b_anchor + b_candidate, where Q is the anchor turned (rotated, reflected, or a mean of both)
and translated. This file holds the Euclidean distance; `kgc.models.hyperbolic` the hyperbolic one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import complex_product, reflect, unit
from kgc.models.base import KGEModel, require_even
from kgc.models.init import Columns, Constant, Init, Normal, Phases
from kgc.models.similarity import Extent, Similarity, fixed_sum
from kgc.types import Side

_U = 2.0**-24


class SquaredEuclidean(Similarity):
    """−‖q − c‖² + b_q + b_c of rows [q | b_q] and [c | b_c], each D + 1 wide.

    The key q·c − ½ (‖c‖² − b_c) orders like the score, because ‖q − c‖² − b_c = ‖q‖² − 2 key.

    Proof of the band, with n ≥ ‖c‖, |b_c| the largest norm of a candidate row: q·c is off by at most (D + 8)·u·‖q‖n as
    for `Dot`, ½ (‖c‖² − b_c) (rounded once from float64) by ½u (n² + n), their difference by u (‖q‖n + ½ (n² + n)).
    The order is b_c − ‖q − c‖² in float64, which becomes a key by ½ (‖q‖² + order), off by at most
    (D + 8)·2⁻⁵⁰ (‖q‖² + n² + n).
    """

    certified = True

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        q, c = query[..., :-1], candidate[..., :-1]
        # As for `Euclidean`: the form by matrix product cancels where a distance is small against the norms.
        distance = torch.cdist(q, c, compute_mode="donot_use_mm_for_euclid_dist")
        return query[..., -1:] + candidate[..., -1:].mT - distance.square()

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        difference = query.unsqueeze(1) - candidate
        return query[..., -1:] + candidate[..., -1] - difference[..., :-1].square().sum(-1)

    def key_terms(self, candidate: Tensor) -> Tensor | None:
        rows = candidate.double()
        return (rows[..., :-1].square().sum(-1) - rows[..., -1]).div_(2).to(candidate.dtype)

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        half = self.key_terms(candidate) if terms is None else terms
        return torch.addmm(half.neg(), query[:, :-1], candidate[:, :-1].T, out=out)

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        # The query's bias is one for all its candidates: times 0 it rounds nothing away, and a non-finite one shows.
        return candidate[..., -1] - fixed_sum((query[..., :-1] - candidate[..., :-1]).square()) + 0 * query[..., -1]

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        norm, largest = query[..., :-1].norm(dim=-1), extent.norm
        squares = largest**2 + largest
        bound = _U * ((extent.width + 10) * norm * largest + 2 * squares)
        bound = bound + (extent.width + 8) * 2.0**-50 * (norm.square() + squares) + extent.width * 2.0**-125
        key = (norm.square() + value) / 2
        return key - bound, key + bound


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
    share = ((rotated - reflected) * attention).sum(-1, keepdim=True).sigmoid()
    return share * rotated + (1 - share) * reflected


def phases(dim: int) -> list[tuple[int, Init]]:
    """The columns of one angle in radians for each pair of coordinates."""
    return [(dim // 2, Phases())]


def attention_columns(dim: int) -> list[tuple[int, Init]]:
    """The columns of `rotation_or_reflection`."""
    return [*phases(dim), *phases(dim), (dim, Normal(1e-3))]
