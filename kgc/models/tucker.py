"""TuckER: W ×₁ h ×₂ r ×₃ t, a core tensor W shared by all relations (Balažević et al. 2019, eq. 3)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from kgc.limits import require_memory
from kgc.models.algebra import row_by_row, vector_matrix, without_denormals
from kgc.models.base import KGEModel
from kgc.models.exact import bilinear_queries
from kgc.models.init import Init, Uniform, Xavier
from kgc.models.similarity import Dot
from kgc.types import Queries, Side

# Relations whose matrices are made at once, and columns of the core: their float64 copy stays in a CPU's cache.
_RELATIONS, _COLUMNS = 64, 4096


class TuckER(KGEModel):
    """A relation vector r makes the matrix W_r = Σₖ rₖ Wₖ; a tail query is W_rᵀ h, a head query W_r t.

    The paper's batch normalisation is left out; `entity_dropout` and `relation_dropout` are its dropouts of inputs.

    Args:
        relation_dim: numbers per relation; `dim` when None.
        core_init: fills the core [relation_dim, dim, dim], which is a parameter beside the two tables.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        relation_dim: int | None = None,
        core_init: Init | None = None,
        **options,
    ):
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, relation_dim=relation_dim, similarity=Dot(), **options)
        require_memory(4 * self.relation.embedding_dim * dim * dim, f"model.dim={dim}", "the core")
        self.core = nn.Parameter(torch.empty(self.relation.embedding_dim, dim, dim))
        with torch.no_grad():
            (core_init or Uniform(1.0))(self.core)

    def matrices(self, relation: Tensor) -> Tensor:
        """[*, Dr] to the [*, D, D] bilinear forms."""
        core = self.core.to(relation.dtype).flatten(1)
        return vector_matrix(relation, core).unflatten(-1, (self.dim, self.dim))

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        matrix = self.matrices(relation)
        return vector_matrix(anchor, matrix if side is Side.TAIL else matrix.mT)

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        rows, place = self.relation_rows(queries).unique(return_inverse=True)
        anchor = without_denormals(entities[queries.anchor]).double()

        @functools.lru_cache(maxsize=1)
        def matrices(group: int) -> Tensor:
            some = rows[group * _RELATIONS : (group + 1) * _RELATIONS]
            relation = without_denormals(relations[some]).double()
            columns = self.core.flatten(1).split(_COLUMNS, dim=1)
            made = [row_by_row(relation, part.double(), _RELATIONS) for part in columns]
            return torch.cat(made, dim=1).unflatten(-1, (self.dim, self.dim))

        def matrix(i: int) -> Tensor:
            return matrices(i // _RELATIONS)[i % _RELATIONS]

        return bilinear_queries(anchor, matrix, place, self.asks_head(queries))

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        pairs = (anchor.unsqueeze(-1) * answer.unsqueeze(-2)).flatten(-2)  # [*, D²]
        return pairs @ self.core.flatten(1).T
