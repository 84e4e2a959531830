"""HolE: holographic embeddings, ⟨r, h ⋆ t⟩ with ⋆ circular correlation (Nickel et al. 2016, eq. 2).

Their Fourier transforms make it ComplEx with real-valued vectors (Hayashi & Shimbo 2017).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.models.algebra import circular_convolution, circular_correlation, without_denormals
from kgc.models.base import KGEModel
from kgc.models.exact import bilinear_queries
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Queries, Side


class HolE(KGEModel):
    """⟨r, h ⋆ t⟩ = ⟨h ∗ r, t⟩ = ⟨r ⋆ t, h⟩: a tail query is a convolution, a head query a correlation."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        if side is Side.TAIL:
            return circular_convolution(anchor, relation)
        return circular_correlation(relation, anchor)

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        rows, place = self.relation_rows(queries).unique(return_inverse=True)
        anchor = without_denormals(entities[queries.anchor]).double()
        number = torch.arange(self.dim, device=rows.device)
        shift = (number - number.unsqueeze(-1)) % self.dim  # [D, D]: (h ∗ r)ₖ = Σᵢ hᵢ r₍ₖ₋ᵢ₎, and r ⋆ t its transpose

        def circulant(i: int) -> Tensor:
            return without_denormals(relations[rows[i : i + 1]]).double()[0][shift]

        return bilinear_queries(anchor, circulant, place, self.asks_head(queries))

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return circular_correlation(anchor, answer)
