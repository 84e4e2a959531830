"""RESCAL: the full bilinear form hᵀ M t (Nickel et al. 2011)."""

from __future__ import annotations

from torch import Tensor

from kgc.models.algebra import vector_matrix, without_denormals
from kgc.models.base import KGEModel
from kgc.models.exact import bilinear_queries
from kgc.models.init import Xavier
from kgc.models.similarity import Dot
from kgc.types import Queries, Side


class RESCAL(KGEModel):
    """A relation is a dim × dim matrix M, stored row by row: a tail query is Mᵀh, a head query M t."""

    def __init__(self, num_entities: int, num_relations: int, dim: int, **options):
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, relation_dim=dim * dim, similarity=Dot(), **options)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        matrix = relation.unflatten(-1, (self.dim, self.dim))
        return vector_matrix(anchor, matrix if side is Side.TAIL else matrix.mT)

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        rows, place = self.relation_rows(queries).unique(return_inverse=True)  # few: a matrix is read once for each
        anchor = without_denormals(entities[queries.anchor]).double()

        def matrix(i: int) -> Tensor:
            return without_denormals(relations[rows[i : i + 1]]).double().view(self.dim, self.dim)

        return bilinear_queries(anchor, matrix, place, self.asks_head(queries))

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor:
        return (anchor.unsqueeze(-1) * answer.unsqueeze(-2)).flatten(-2)  # hᵀ M t = ⟨h tᵀ, M⟩
