"""Hyperbolic space of curvature −c, for models whose relations have a curvature of their own (Chami et al. 2020).

A point is named by its tangent vector at the origin, which the exponential map takes into the Poincaré ball:

    exp₀(v) = tanh(√c‖v‖) v / (√c‖v‖),    at distance 2‖v‖ from 0    (Ganea et al. 2018, lemma 2)

The functions below work on tangent vectors throughout. In the ball, fp32 tells no points apart that are farther than
about 17/√c from 0, and implementations push them back from the boundary; a tangent vector never comes near one.

With radii a = 2√c‖x‖, b = 2√c‖y‖ and the angle θ between the vectors, the distance d obeys

    sinh²(√c d / 2) = sinh²((a − b) / 2) + sinh(a) sinh(b) sin²(θ / 2),

the hyperbolic law of cosines without a difference of large numbers. It is taken in logarithms: nothing overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from kgc.models.init import Constant, Init
from kgc.models.isometric import Isometric
from kgc.models.similarity import Similarity
from kgc.types import Side

# The least curvature: far below it space is flat, and d is 2‖x − y‖.
_FLATTEST = 1e-6
# Logarithms of numbers from which on asinh(x) is log(2x) in float64 too.
_LARGE = 60.0
_SMALL = 1e-30


def curvature(raw: Tensor) -> Tensor:
    """c > 0 from a free parameter: its softplus, at least 1e-6."""
    return F.softplus(raw).clamp_min(_FLATTEST)


def polar(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """[*, D] to unit vectors [*, D] and lengths [*, 1]; a vector shorter than 1e-12 has a shorter unit vector."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp_min(1e-12), length


def log_sinh(x: Tensor) -> Tensor:
    """log sinh x of x ≥ 0, from 1e-30 on."""
    x = x.clamp_min(_SMALL)
    return x + (-torch.expm1(-2 * x)).log() - math.log(2)


def distance(a: Tensor, b: Tensor, chord: Tensor) -> Tensor:
    """√c·d of points at radii a and b, in units of 1/√c, whose unit vectors are `chord` = 2 sin(θ/2) apart."""
    radial = 2 * log_sinh((a - b).abs() / 2)
    across = log_sinh(a) + log_sinh(b) + 2 * (chord / 2).clamp_min(_SMALL).log()
    log = torch.logaddexp(radial, across)
    return 2 * (log.clamp_max(_LARGE) / 2).exp().asinh() + (log - _LARGE).clamp_min(0)


def mobius_add(x: Tensor, y: Tensor, root: Tensor) -> Tensor:
    """Tangent vectors [*, D] of exp₀(x) ⊕ exp₀(y), for `root` = √c [*, 1] (Ganea et al. 2018, eq. 4).

    x ⊕ y is y moved by the translation that takes 0 to x: as far from 0 as y is from −x, and in the direction of the
    boosted point of the hyperboloid, [cosh b + tanh(a/2) sinh b cos θ] sinh a · x̂ + sinh b · ŷ, here scaled by
    e^{−a−b}.
    """
    u, n = polar(x)
    v, m = polar(y)
    a, b = 2 * root * n, 2 * root * m
    radius = distance(a, b, torch.linalg.vector_norm(u + v, dim=-1, keepdim=True))
    sinh_a, sinh_b = -torch.expm1(-2 * a) / 2, -torch.expm1(-2 * b) / 2
    cosine = (u * v).sum(-1, keepdim=True)
    along = (1 - sinh_b + (a / 2).tanh() * sinh_b * cosine) * sinh_a
    direction, _ = polar(along * u + (-a).exp() * sinh_b * v)
    return radius / (2 * root) * direction


class SquaredHyperbolic(Similarity):
    """−d(q, c)² + b_q + b_c of query rows [q | √c | b_q], D + 2 wide, and candidate rows [c | b_c], D + 1 wide.

    q and c are tangent vectors, d the distance of their points in the query's own curvature. There is no bound on what
    fp32 loses, so ranks are those of the fp32 scores.
    """

    fuses = True

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        u, n, root, bias = self._parts(query)
        v, m = polar(candidate[..., :-1])
        chord = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")
        return self._score(n, m.mT, chord, root, bias + candidate[..., -1:].mT)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        u, n, root, bias = self._parts(query)
        v, m = polar(candidate[..., :-1])
        chord = torch.linalg.vector_norm(u.unsqueeze(1) - v, dim=-1)
        return self._score(n, m.squeeze(-1), chord, root, bias + candidate[..., -1])

    def query_form(self, query: Tensor) -> Tensor:
        """[..., D + 2] to [..., D + 3] [unit vector | 2√c times its length | √c | b_q]."""
        unit, length, root, bias = self._parts(query)
        return torch.cat([unit, 2 * root * length, root, bias], dim=-1)

    def key_form(self, candidate: Tensor) -> Tensor:
        """[..., D + 1] to [..., D + 2] [unit vector | its length | b_c]."""
        return torch.cat([*polar(candidate[..., :-1]), candidate[..., -1:]], dim=-1)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        chord = (query[..., :-3] - candidate[..., :-2]).square().sum(-1).sqrt()
        radius, root, bias = query[..., -3], query[..., -2], query[..., -1]
        squared = (distance(radius, 2 * root * candidate[..., -2], chord) / root).square()
        return squared - candidate[..., -1] - bias

    def _parts(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return *polar(query[..., :-2]), query[..., -2:-1], query[..., -1:]

    def _score(self, n: Tensor, m: Tensor, chord: Tensor, root: Tensor, bias: Tensor) -> Tensor:
        return bias - (distance(2 * root * n, 2 * root * m, chord) / root).square()


class Hyperbolic(Isometric):
    """−d(turned anchor ⊕ translation, t)² + b_h + b_t, in the relation's curvature.

    Entities, and translations, are tangent vectors at 0. A relation stores [translation | own | raw curvature], the
    last a number whose softplus is c. Turning keeps 0 where it is, so that it may as well be done on tangent vectors.
    x ⊕ r has no inverse in x of this form: head queries need reciprocal relations, as in the paper.
    """

    reciprocal_only = True

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, turns: list[tuple[int, Init]], **options):
        turns = [*turns, (1, Constant(1.0))]
        super().__init__(num_entities, num_relations, dim, turns=turns, similarity=SquaredHyperbolic(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        vector, bias = anchor[..., : self.dim], anchor[..., self.dim :]
        translation, own, raw = relation[..., : self.dim], relation[..., self.dim : -1], relation[..., -1:]
        root = curvature(raw).sqrt()
        return torch.cat([mobius_add(self.turn(vector, own), translation, root), root, bias], dim=-1)
