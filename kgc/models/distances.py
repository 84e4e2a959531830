"""Distances that one or two models have to themselves; see `kgc.models.similarity` for the interface and u."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kgc.models.similarity import Elementwise, Euclidean, Extent, Similarity, fixed_sum, underflow

_U = 2.0**-24
# Elements of the [b, N, D] temporary of boxes.
_TEMPORARY = {"cpu": 1 << 18, "cuda": 1 << 26}


class Torus(Elementwise):
    """Negative L1 distance on the torus, −Σᵢ |δᵢ − round(δᵢ)| with δ = q − c, both in [−½, ½].

    Proof of the band: as for `Elementwise`, and δᵢ is off by u·|δᵢ| ≤ u(1 + |qᵢ|) whatever the size of its term;
    subtracting a whole number is exact, and terms change no faster than δ.
    """

    def terms(self, difference: Tensor) -> Tensor:
        return (difference - difference.round()).abs()

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        return ((difference - difference.round()).sign(),)

    def magnitudes(self, query: Tensor) -> Tensor:
        return query.abs() + 1


class HalfSine(Elementwise):
    """−s·Σᵢ |sin((qᵢ − cᵢ) / 2)|: half the chords between points of angles q and c on circles of radius s.

    Keys are made of sines and cosines of the angles, |sin(q/2) cos(c/2) − cos(q/2) sin(c/2)|: no sine in every pair.

    Proof of the band: rounding q moves qᵢ − cᵢ by u|qᵢ| and the subtraction by u(|qᵢ| + |cᵢ|), sines no faster, and
    Σ|cᵢ| ≤ √D·‖c‖. A sine or cosine is good to 4 units in the last place, at most 8u; so a product of two is off by
    17u, and the difference of products by 36u.

    Args:
        scale: s.
    """

    def __init__(self, scale: float):
        self.scale = scale

    def terms(self, difference: Tensor) -> Tensor:
        return (difference / 2).sin().abs() * self.scale

    def key_form(self, vectors: Tensor) -> Tensor:
        return torch.cat([(vectors / 2).sin(), (vectors / 2).cos()], dim=-1)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        (a, b), (x, y) = query.chunk(2, dim=-1), candidate.chunk(2, dim=-1)
        return (a * y - b * x).abs().sum(-1) * self.scale

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        query, candidate = self.key_form(query), self.key_form(candidate)
        rows = _TEMPORARY.get(query.device.type, _TEMPORARY["cpu"]) // max(1, candidate.numel())
        return torch.cat([-self.key_distance(part.unsqueeze(1), candidate) for part in query.split(max(1, rows))])

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        half = difference / 2
        return (half.cos() * half.sin().sign() * (self.scale / 2),)

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        relative = (extent.width + 16) * _U
        sizes = query.abs().sum(-1) + extent.width**0.5 * extent.norm
        absolute = self.scale * _U * (2 * sizes + 40 * extent.width)
        return value * (1 + relative) - absolute, value * (1 - relative) + absolute


class Box(Similarity):
    """Negative L1 norm of BoxE's distances between candidates and boxes (Abboud et al. 2020, section 4).

    Queries [*, 2D] are boxes [centre | width], widths w ≥ 0. A coordinate at a = |x − centre| has distance a / (w + 1)
    inside the box, a ≤ w/2, and (a − w/2)(w + 1) + (w/2) / (w + 1) outside of it.

    Proof of the band: a is off by u(2|centre| + |x|) and a little, w by u·w; the distance changes at most w + 1 times
    as fast as a, and a + w + 1 times as fast as w. Summed up with a ≤ |centre| + |x| the distance is off by
    u·Σ(w + 1)(3|centre| + 2|x| + 3w), in which Σ(w + 1)|x| ≤ ‖w + 1‖‖x‖, and relatively as for `Elementwise`: each of
    the two non-negative summands of `key_distance` is good to 8u.
    """

    certified = True
    fuses = True
    abreast = 1

    def terms(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[..., 2D] boxes and [..., D] points, broadcast, to [..., D] distances."""
        centre, width = query.chunk(2, dim=-1)
        away, half, stretch = (centre - candidate).abs(), width / 2, width + 1
        return torch.minimum(away, half) / stretch + (away - half).clamp_min(0) * stretch

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        if query.dim() == 3:
            return torch.stack([self.shared(*pool) for pool in zip(query, candidate, strict=True)])
        elements = _TEMPORARY.get(query.device.type, _TEMPORARY["cpu"])
        parts = query.split(max(1, elements // max(1, candidate.numel())))
        if not torch.is_grad_enabled():
            return torch.cat([self.own(part, candidate.unsqueeze(0)) for part in parts])
        # The terms are made again in the backward pass.
        options = {"use_reentrant": False, "preserve_rng_state": False}
        return torch.cat([checkpoint(self.own, part, candidate.unsqueeze(0), **options) for part in parts])

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -self.terms(query.unsqueeze(1), candidate).sum(-1)

    def query_form(self, query: Tensor) -> Tensor:
        """[*, 2D] boxes as `key_distance` takes them, [centre | w/2 | 1 / (w + 1) | (w + 1 − 1 / (w + 1)) / 2]."""
        centre, width = query.chunk(2, dim=-1)
        inside = 1 / (width + 1)
        return torch.cat([centre, width / 2, inside, width * (width + 2) * inside / 2], dim=-1)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        """a / (w + 1) everywhere, and outside the box what is more: x + |x| is 2x or 0."""
        centre, half, inside, outside = query.chunk(4, dim=-1)
        away = (centre - candidate).abs()
        beyond = away - half
        return (away * inside + (beyond + beyond.abs()) * outside).sum(-1)

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -fixed_sum(self.terms(query, candidate))

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        centre, width = query.chunk(2, dim=-1)
        stretch = width + 1
        relative = (extent.width + 16) * _U
        absolute = 4 * _U * ((stretch * (centre.abs() + width)).sum(-1) + stretch.norm(dim=-1) * extent.norm)
        absolute = absolute + stretch.sum(-1) * 2.0**-60
        return value * (1 + relative) - absolute, value * (1 - relative) + absolute


class ModulusAndPhase(Similarity):
    """HAKE's distance of vectors [moduli | phases], −(μ‖Δ moduli‖₂ + λ Σ|sin(Δ phase / 2)|).

    Args:
        modulus_weight: μ.
        phase_weight: λ.
    """

    fuses = True

    def __init__(self, modulus_weight: float, phase_weight: float):
        self.moduli = Euclidean()
        self.modulus_weight = modulus_weight
        self.phases = HalfSine(phase_weight)

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        return self._sum(self.moduli.shared, self.phases.shared, query, candidate)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return self._sum(self.moduli.own, self.phases.own, query, candidate)

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return self._sum(self.moduli.shared, self.phases.ranking_key, query, candidate)

    def key_form(self, candidate: Tensor) -> Tensor:
        """[... 2h] [moduli | phases] to [... 3h] [moduli | sines | cosines]."""
        moduli, phases = candidate.chunk(2, dim=-1)
        return torch.cat([moduli, self.phases.key_form(phases)], dim=-1)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        return self.stretched_distance(query, candidate, None)

    def stretched_distance(self, query: Tensor, candidate: Tensor, stretch: Tensor | None) -> Tensor:
        """`key_distance` to candidates whose moduli are multiplied by [..., h] numbers."""
        half = candidate.shape[-1] // 3
        moduli = candidate[..., :half]
        away = query[..., :half] - (moduli if stretch is None else moduli * stretch)
        phases = self.phases.key_distance(query[..., half:], candidate[..., half:])
        return self.modulus_weight * away.square().sum(-1).sqrt() + phases

    def _sum(self, moduli, phases, query: Tensor, candidate: Tensor) -> Tensor:
        (m, p), (n, o) = query.chunk(2, dim=-1), candidate.chunk(2, dim=-1)
        return self.modulus_weight * moduli(m, n) + phases(p, o)


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
        vectors = query[:, :-1] + 0 * query[:, -1:]  # b_q is one for all candidates; a non-finite one shows
        return torch.addmm(half.neg(), vectors, candidate[:, :-1].T, out=out)

    def stretched_distance(self, query: Tensor, candidate: Tensor, stretch: Tensor) -> Tensor:
        """To candidates [c | biases] whose vector and biases are multiplied; the biases are added up."""
        width = query.shape[-1] - 1
        away = query[..., :width] - candidate[..., :width] * stretch[..., :width]
        distance = away.square().sum(-1) - query[..., width]
        for i in range(width, candidate.shape[-1]):
            distance = distance - candidate[..., i] * stretch[..., i]
        return distance

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        # The query's bias is one for all its candidates: times 0 it rounds nothing away, and a non-finite one shows.
        return candidate[..., -1] - fixed_sum((query[..., :-1] - candidate[..., :-1]).square()) + 0 * query[..., -1]

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        norm, largest = query[..., :-1].norm(dim=-1), extent.norm
        squares = largest**2 + largest
        bound = _U * ((extent.width + 10) * norm * largest + 2 * squares)
        bound = bound + (extent.width + 8) * 2.0**-50 * (norm.square() + squares) + 2 * underflow(extent, norm)
        key = (norm.square() + value) / 2
        return key - bound, key + bound
