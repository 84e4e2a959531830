"""Candidates that depend on the relation: projected once for each relation, never once for each query.

A model such as TransH compares the query with `project(candidate, relation)`. The query vectors of such a model carry
what the projection needs of their relation behind them, [q | r] of width Dq + Dr, or in evaluation a number that names
it, [q | number], so that queries can be grouped by relation wherever they come from; all candidates shared by a batch
are projected once for each of its relations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kgc.models.similarity import Similarity

# Products for ranking keys have so many rows, and columns in multiples: those of few rows or columns round differently
# from column to column, and equal candidates would not tie.
_ROWS, _COLUMNS = 32, 16
# Numbers of a relation that decide where its queries stand.
_SORTED_BY = 512

Project = Callable[[Tensor, Tensor], Tensor]


class Projected(Similarity):
    """A similarity of query vectors and projected candidates.

    Args:
        similarity: compares [*, Dq] queries with [*, Dq] projected candidates.
        project: [*, D] entity vectors and [*, Dr] vectors of relations, broadcast against each other, to [*, Dq].
        lens_of: [*] numbers of lenses to the [*, Dr] that the projection needs of a relation (the model's `lens`).
        query_dim, relation_dim: Dq and Dr.
    """

    last: tuple[weakref.ref[Tensor], int, tuple[Tensor, list[int]]] | None = None  # queries and their groups

    def __init__(
        self,
        similarity: Similarity,
        project: Project,
        lens_of: Callable[[Tensor], Tensor],
        query_dim: int,
        relation_dim: int,
    ):
        self.similarity = similarity
        self.project = project
        self.lens_of = lens_of
        self.query_dim = query_dim
        self.relation_dim = relation_dim

    def split(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """[B, Dq + Dr] or [B, Dq + 1] to [B, Dq] query vectors and [B, Dr] relation vectors."""
        vectors, named = query[..., : self.query_dim], query[..., self.query_dim :]
        return vectors, self.lens_of(named.squeeze(-1)) if self._is_numbered(query) else named

    def _is_numbered(self, query: Tensor) -> bool:
        return query.shape[-1] == self.query_dim + 1 and self.relation_dim != 1

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        if query.dim() == 3:
            return torch.stack([self.shared(*pool) for pool in zip(query, candidate, strict=True)])
        return self._by_relation(self._score, query, candidate)

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        vectors, relation = self.split(query)
        return self.similarity.own(vectors, self.project(candidate, relation.unsqueeze(1)))

    def ranking_key(
        self, query: Tensor, candidate: Tensor, terms: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return self._by_relation(self._key, query, candidate)

    def _by_relation(self, compare: Callable[..., Tensor], query: Tensor, candidate: Tensor) -> Tensor:
        """[B, N] from [b, Dq] queries of one relation, [N, D] candidates and the [Dr] relation, group by group."""
        if not len(query):
            return query.new_empty(0, len(candidate))
        vectors, named = query[..., : self.query_dim], query[..., self.query_dim :]
        order, sizes = self._groups(query, named)
        parts = []
        for rows in order.split(sizes):
            lens = named[rows[0]]
            parts.append(compare(vectors[rows], candidate, self.lens_of(lens[0]) if self._is_numbered(query) else lens))
        return torch.cat(parts)[order.argsort()]

    def _groups(self, query: Tensor, relation: Tensor) -> tuple[Tensor, list[int]]:
        """`_equal_rows` of the relations, or of their numbers, kept while the same queries meet block after block."""
        if torch.is_grad_enabled():
            return _equal_rows(relation.detach())
        version = 0 if query.is_inference() else query._version
        if self.last is None or self.last[0]() is not query or self.last[1] != version:
            self.last = weakref.ref(query), version, _equal_rows(relation)
        return self.last[2]

    def _score(self, query: Tensor, candidate: Tensor, relation: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self._compare(query, candidate, relation)
        # Projected again in the backward pass: kept, they would be as many as relations times candidates.
        return checkpoint(self._compare, query, candidate, relation, use_reentrant=False, preserve_rng_state=False)

    def _compare(self, query: Tensor, candidate: Tensor, relation: Tensor) -> Tensor:
        return self.similarity.shared(query, self.project(candidate, relation))

    def _key(self, query: Tensor, candidate: Tensor, relation: Tensor) -> Tensor:
        projected = self.project(candidate, relation)
        width = len(projected)
        projected = F.pad(projected, (0, 0, 0, -width % _COLUMNS))
        terms = self.similarity.key_terms(projected)
        place = torch.arange(_ROWS, device=query.device)
        keys = []
        for rows in query.split(_ROWS):
            filled = rows[place.clamp(max=len(rows) - 1)]
            keys.append(self.similarity.ranking_key(filled, projected, terms)[: len(rows), :width])
        return torch.cat(keys)


class Stretched(Projected):
    """Projections that multiply candidates by the lens, number by number: no relation needs a table of its own.

    Args:
        similarity: has `stretched_distance` of its forms.
    """

    fuses = True

    def query_form(self, query: Tensor) -> Tensor:
        vectors, lens = self.split(query)
        return torch.cat([self.similarity.query_form(vectors), lens], dim=-1)

    def key_form(self, candidate: Tensor) -> Tensor:
        return self.similarity.key_form(candidate)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        vectors, lens = query[..., : -self.relation_dim], query[..., -self.relation_dim :]
        return self.similarity.stretched_distance(vectors, candidate, lens)


def _equal_rows(table: Tensor) -> tuple[Tensor, list[int]]:
    """[B] order that puts equal rows of [B, d], B > 0, side by side, and the sizes of their groups.

    Rows are sorted by a weighted sum of some of their numbers and then compared; two unlike rows of one sum would only
    cut a group in pieces.
    """
    some = table[:, :: -(-table.shape[1] // _SORTED_BY)]
    weights = torch.arange(1, some.shape[1] + 1, device=table.device, dtype=torch.float64).cos()
    order = (some.double() * weights).sum(-1).argsort(stable=True)
    ordered = table[order]
    changes = (ordered[1:] != ordered[:-1]).any(-1).long()
    group = torch.cat([changes.new_zeros(1), changes.cumsum(0)])
    return order, torch.bincount(group).tolist()
