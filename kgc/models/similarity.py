"""How a query vector is compared with candidate vectors. Higher is more similar; all results are logits.

Every similarity answers two layouts of candidates with one formula: [N, D] shared by all queries (one matrix product or
distance matrix) and [B, K, D] each query's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Elements of the [b, N, D] temporary an elementwise similarity may hold: 2^22 floats are 16 MiB.
_TEMPORARY = 1 << 22


class Similarity:
    """Interface: `similarity(query, candidate)` with query [B, D] and candidate [N, D] or [B, K, D]."""

    def __call__(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns [B, N] for shared candidates, [B, K] for own ones."""
        if candidate.dim() == 2:
            return self.shared(query, candidate)
        return self.own(query, candidate)

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, D] against [N, D] gives [B, N]."""
        raise NotImplementedError

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, D] against [B, K, D] gives [B, K]."""
        raise NotImplementedError

    def ranking_key(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, N] any strictly increasing function (one a query) of `shared`, where that is cheaper or rounds less."""
        return self.shared(query, candidate)


class Dot(Similarity):
    """Inner product ⟨q, c⟩."""

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        return query @ candidate.T

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return torch.bmm(candidate, query.unsqueeze(-1)).squeeze(-1)


class Euclidean(Similarity):
    """Negative Euclidean distance −‖q − c‖₂."""

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -torch.cdist(query, candidate)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -torch.linalg.vector_norm(query.unsqueeze(1) - candidate, dim=-1)

    def ranking_key(self, query: Tensor, candidate: Tensor) -> Tensor:
        """q·c − ½‖c‖²: orders like −‖q − c‖ because ‖q − c‖² = ‖q‖² − 2 (q·c − ½‖c‖²); no root, no clamp at 0."""
        return query @ candidate.T - candidate.square().sum(-1).div_(2)


class Elementwise(Similarity):
    """A similarity that is a negative sum of one term a coordinate; shared candidates go through bounded chunks."""

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        rows = max(1, _TEMPORARY // max(1, candidate.numel()))
        # Rows of queries are independent, so the chunk changes no bit of the result.
        return torch.cat([self.own(part, candidate.unsqueeze(0)) for part in query.split(rows)])


class Manhattan(Elementwise):
    """Negative L1 distance −‖q − c‖₁."""

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -torch.cdist(query, candidate, p=1.0)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -(query.unsqueeze(1) - candidate).abs().sum(-1)


class ComplexModulus(Elementwise):
    """Negative sum of complex moduli −Σᵢ |qᵢ − cᵢ|, vectors stored [real half | imaginary half] (RotatE, eq. 3)."""

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        half = query.shape[-1] // 2
        squared = (query[:, None, :half] - candidate[..., :half]).square()
        squared = squared + (query[:, None, half:] - candidate[..., half:]).square()
        # The root has no gradient at 0; from the smallest normal number on it has, and its value there is 1e-19.
        return -squared.clamp_min(torch.finfo(squared.dtype).tiny).sqrt().sum(-1)
