"""How a query vector is compared with candidate vectors. Higher is more similar; all results are logits.

Every similarity answers two layouts of candidates with one formula: [N, D] shared by all queries (one matrix product or
distance matrix; with queries [G, S, D] and candidates [G, N, D], one for each of G pools at once) and [B, K, D] each
query's own.

For certified ranks a similarity also has an exact order, in float64 with one fixed order of additions, a fast key in
fp32, and a proof of how far the key may be off (`band`). In the proofs u = 2⁻²⁴ is fp32's unit round-off; a sum of n
products or of n terms, added in any order, is off by at most γₙ = n·u / (1 − n·u) times the sum of the absolute terms
(Higham 2002, eq. 3.5), which holds for fused multiply-adds too; γₙ < (n + 1)·u for n < 2¹¹·100. Float64 and the
denormals that are flushed to 0 are covered by the slack in the constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kgc.models.pairs import Kernels, compiled_kernels, pair_scores

_U = 2.0**-24
_CACHED = 1 << 17  # numbers of a result that stay in a core's second-level cache beside what they are made of


@dataclass(frozen=True)
class Extent:
    """What a proof needs to know of all candidates, in float64.

    Args:
        norm: the largest Euclidean norm of a candidate vector.
        width: D.
    """

    norm: float
    width: int


class Similarity:
    """Interface: `similarity(query, candidate)` with query [B, D] and candidate [N, D] or [B, K, D], or pools."""

    certified = False  # has `order` and `band`
    fuses = False  # has `query_form`, `key_form` and `key_distance`: a distance of every pair in one compiled kernel
    compiled: Callable[[Tensor, Tensor], Tensor] | None = None  # that kernel, of [U, D] and [n, D]
    abreast = 2  # queries whose terms one pass over a candidate computes on a CPU, which loads it once for them

    def __getstate__(self) -> dict:
        """What is kept for the process alone is not copied."""
        return {name: value for name, value in vars(self).items() if name not in ("compiled", "kernels", "last")}

    def __call__(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns [B, N] for shared candidates, [B, K] for own ones, [G, S, N] for pools."""
        if candidate.dim() == 2 or query.dim() == 3:
            return self.shared(query, candidate)
        return self.own(query, candidate)

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, D] against [N, D] gives [B, N]; [G, S, D] against [G, N, D] gives [G, S, N]."""
        raise NotImplementedError

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, D] against [B, K, D] gives [B, K]."""
        raise NotImplementedError

    def write(self, query: Tensor, candidate: Tensor, out: Tensor) -> None:
        """Writes `shared` of [B, D] and [N, D], without gradients, into [B, N] memory, which may have another dtype."""
        out.copy_(self.shared(query, candidate))

    def pull_back(self, query: Tensor, candidate: Tensor, gradient: Tensor, of_candidate: Tensor) -> Tensor:
        """Takes [B, N] gradients of `shared` back: returns the queries' [B, D], adds the candidates' to [N, D]."""
        with torch.enable_grad():
            q, c = query.detach().requires_grad_(), candidate.detach().requires_grad_()
            scores = self.shared(q, c)
        of_query, part = torch.autograd.grad(scores, (q, c), gradient.to(scores.dtype))
        of_candidate += part
        return of_query

    def key_terms(self, candidate: Tensor) -> Tensor | None:
        """[N] what `ranking_key` needs of each of [N, D] candidates besides the vector, made once; None if nothing."""
        return None

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """[B, N] any strictly increasing function (one a query) of `shared`, where that is cheaper or rounds less.

        Args:
            query, candidate: [B, D] and [N, D].
            terms: `key_terms` of the candidates; None makes them.
            out: [B, N] memory that the result may lie in.
        """
        return self.shared(query, candidate)

    def key_form(self, candidate: Tensor) -> Tensor:
        """[..., D] candidates as `key_distance` takes them, made once for many pairs. For `fuses`."""
        return candidate

    def query_form(self, query: Tensor) -> Tensor:
        """The same of queries. For `fuses`."""
        return self.key_form(query)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[...] distances as ranking takes them, of forms broadcast against each other; cheap in every pair.

        Minus the distance is a strictly increasing function of the score of one query. For `fuses`.
        """
        raise NotImplementedError

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[..., D] and [..., D] float64, broadcast against each other, to [...] values that order like the score.

        Every addition is an operation of its own, in an order that depends on D alone, so that equal vectors get equal
        values wherever and among whatever others they are computed.
        """
        raise NotImplementedError

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        """Thresholds on `ranking_key` that decide against a candidate of `order` value `value`.

        Args:
            query: [P, D] float64 query vectors.
            value: [P] float64 `order` of the targets.
            extent: of the candidates.

        Returns:
            low, high [P] float64: a candidate whose fp32 key (of the query rounded to fp32) exceeds `high` has a higher
            order; one whose key is below `low` has a lower one.
        """
        raise NotImplementedError


def fixed_sum(terms: Tensor) -> Tensor:
    """[..., D] to [...], adding halves to halves: one order of additions whatever the layout, device or threads."""
    while (width := terms.shape[-1]) > 1:
        half = width // 2
        folded = terms[..., :half] + terms[..., half : 2 * half]
        if width % 2:
            folded = torch.cat([folded, terms[..., -1:]], dim=-1)
        terms = folded
    return terms.squeeze(-1)


class Dot(Similarity):
    """Inner product ⟨q, c⟩.

    Proof of the band: rounding q moves ⟨q, c⟩ by at most u‖q‖‖c‖, the products and additions move it by at most
    γ_D ‖q‖‖c‖ (1 + u) (Cauchy-Schwarz). Numbers that underflow are off by at most 2⁻¹²⁶: D products by D·2⁻¹²⁶ in all,
    coordinates of q by √D·2⁻¹²⁶‖c‖, and those of c, which count as 0 but may stand in the table, by √D·2⁻¹²⁶‖q‖. So
    |key − ⟨q, c⟩| ≤ (D + 8)·u·‖q‖·max‖c‖ + D·2⁻¹²⁵ + √D·2⁻¹²⁵·(‖q‖ + max‖c‖).
    """

    certified = True

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        return query @ candidate.mT

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return torch.bmm(candidate, query.unsqueeze(-1)).squeeze(-1)

    def write(self, query: Tensor, candidate: Tensor, out: Tensor) -> None:
        if out.device.type != "cpu" or out.dtype != query.dtype or torch.is_autocast_enabled("cpu"):
            out.copy_(query @ candidate.T)
            return
        # A CPU's products lose a third of their speed where the result is larger than the second-level cache.
        width = max(16, _CACHED // max(1, len(query)) // 16 * 16)
        for columns, part in zip(candidate.split(width), out.split(width, dim=1), strict=True):
            torch.mm(query, columns.T, out=part)

    def pull_back(self, query: Tensor, candidate: Tensor, gradient: Tensor, of_candidate: Tensor) -> Tensor:
        of_candidate.addmm_(gradient.T, query)
        return gradient @ candidate

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return torch.mm(query, candidate.T, out=out)

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        return fixed_sum(query * candidate)

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        norm = query.norm(dim=-1)
        bound = (extent.width + 8) * _U * extent.norm * norm + underflow(extent, norm)
        return value - bound, value + bound


def underflow(extent: Extent, norm: Tensor) -> Tensor:
    """How far products of fp32 vectors are off, at most, because numbers below 2⁻¹²⁶ are lost; see `Dot`.

    Args:
        extent: of the candidates.
        norm: [P] float64 of the queries.
    """
    return (extent.width + extent.width**0.5 * (extent.norm + norm)) * 2.0**-125


class OfDifferences(Similarity):
    """Minus a distance that is a function of q − c; the interface is `kgc.models.pairs.Distance`."""

    kernels: Kernels | None = None  # what training compares with, once compiled

    def distance(self, difference: Tensor) -> Tensor:
        raise NotImplementedError

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def rates(self, gradient: Tensor, scores: Tensor) -> Tensor:
        return gradient

    def compile(self) -> None:
        """From now on whatever needs gradients is compared by compiled kernels."""
        self.kernels = compiled_kernels(self)

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        if self._trains():
            return self._pairs(query, candidate, self.kernels)
        return self.shared_eager(query, candidate)

    def shared_eager(self, query: Tensor, candidate: Tensor) -> Tensor:
        """`shared` without compiled kernels."""
        return self._pairs(query, candidate, None)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        if self._trains():
            return pair_scores(self, query.unsqueeze(1), candidate, self.kernels).squeeze(1)
        return -self.distance(query.unsqueeze(1) - candidate)

    def _trains(self) -> bool:
        return self.kernels is not None and torch.is_grad_enabled()

    def _pairs(self, query: Tensor, candidate: Tensor, kernels: Kernels | None) -> Tensor:
        if query.dim() == 3:
            return pair_scores(self, query, candidate, kernels)
        return pair_scores(self, query.unsqueeze(0), candidate.unsqueeze(0), kernels).squeeze(0)


class Euclidean(OfDifferences):
    """Negative Euclidean distance −‖q − c‖₂.

    The key q·c − ½‖c‖² orders like −‖q − c‖ because ‖q − c‖² = ‖q‖² − 2 (q·c − ½‖c‖²): no root, no clamp at 0.

    Proof of the band: q·c is off by at most (D + 8)·u·‖q‖‖c‖ as for `Dot`, ½‖c‖² (rounded once from float64) by
    ½u‖c‖², their difference by u (‖q‖‖c‖ + ½‖c‖²). The order is −‖q − c‖² in float64, which becomes a key by
    ½ (‖q‖² + order), off by at most (D + 8)·2⁻⁵⁰ (‖q‖² + ‖c‖²).
    """

    certified = True

    def distance(self, difference: Tensor) -> Tensor:
        return torch.linalg.vector_norm(difference, dim=-1)

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        return (difference,)

    def rates(self, gradient: Tensor, scores: Tensor) -> Tensor:
        return torch.where(scores < 0, gradient / -scores, 0)

    def shared_eager(self, query: Tensor, candidate: Tensor) -> Tensor:
        # The form by matrix product cancels where a distance is small against the norms, and so do its gradients.
        return -torch.cdist(query, candidate, compute_mode="donot_use_mm_for_euclid_dist")

    def key_terms(self, candidate: Tensor) -> Tensor | None:
        return candidate.double().square().sum(-1).div_(2).to(candidate.dtype)

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        half = self.key_terms(candidate) if terms is None else terms
        return torch.addmm(half.neg(), query, candidate.T, out=out)

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -fixed_sum((query - candidate).square())

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        norm, largest = query.norm(dim=-1), extent.norm
        bound = _U * ((extent.width + 10) * norm * largest + 2 * largest**2)
        bound = bound + (extent.width + 8) * 2.0**-50 * (norm.square() + largest**2) + 2 * underflow(extent, norm)
        key = (norm.square() + value) / 2
        return key - bound, key + bound


class Elementwise(OfDifferences):
    """A similarity that is minus a sum of one non-negative term a coordinate.

    Proof of the band: rounding q moves the distance by at most u·Σ|qᵢ|; each term is off by a few u of itself, and the
    sum of n non-negative terms by γₙ of itself. So with g = (n + 16)·u and e = 2u·Σ|qᵢ| + D·2⁻⁶⁰ (for squares that
    underflow) the fp32 distance lies between d (1 − g) − e and d (1 + g) + e: a candidate is nearer than a target at
    distance d if its fp32 distance is below d (1 − g) − e, and farther if it is above d (1 + g) + e.
    """

    certified = True
    fuses = True

    def terms(self, difference: Tensor) -> Tensor:
        """[..., D] differences q − c to [..., n] non-negative terms."""
        raise NotImplementedError

    def distance(self, difference: Tensor) -> Tensor:
        return self.terms(difference).sum(-1)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        return self.distance(query - candidate)

    def magnitudes(self, query: Tensor) -> Tensor:
        """[..., D] to [..., n] sizes |qᵢ| of what one term sees of the query."""
        return self.terms(query)

    def order(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -fixed_sum(self.terms(query - candidate))

    def band(self, query: Tensor, value: Tensor, extent: Extent) -> tuple[Tensor, Tensor]:
        sizes = self.magnitudes(query)
        relative = (sizes.shape[-1] + 16) * _U
        absolute = 2 * _U * sizes.sum(-1) + extent.width * 2.0**-60
        return value * (1 + relative) - absolute, value * (1 - relative) + absolute


class Manhattan(Elementwise):
    """Negative L1 distance −‖q − c‖₁."""

    def shared_eager(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -torch.cdist(query, candidate, p=1.0)

    def terms(self, difference: Tensor) -> Tensor:
        return difference.abs()

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        return (difference.sign(),)

    def stretched_distance(self, query: Tensor, candidate: Tensor, stretch: Tensor) -> Tensor:
        return self.distance(query - candidate * stretch)


class ComplexModulus(Elementwise):
    """Negative sum of complex moduli −Σᵢ |qᵢ − cᵢ|, vectors stored [real half | imaginary half] (RotatE, eq. 3)."""

    def terms(self, difference: Tensor) -> Tensor:
        real, imaginary = difference.chunk(2, dim=-1)
        squared = real.square() + imaginary.square()
        # The root has no gradient at 0; from the smallest normal number on it has, and is 1e-19 there.
        return squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt()

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        real, imaginary = difference.chunk(2, dim=-1)
        inverse = (real.square() + imaginary.square()).clamp_min(torch.finfo(difference.dtype).tiny).rsqrt()
        return real * inverse, imaginary * inverse
