"""Scorers made of what a user has: a function of triples, a matrix of ready scores, or two tables of vectors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.algebra import without_denormals
from kgc.models.similarity import Similarity
from kgc.types import Queries, Side

# Triples that a function is asked for at once: with vectors of 256 floats 2^17 of them are 128 MiB a column.
TRIPLES_AT_ONCE = 1 << 17


def place_of(scorer: nn.Module) -> torch.device:
    """Where a model's numbers lie; of one without any, the CPU."""
    return next(chain(scorer.parameters(), scorer.buffers()), torch.empty(0)).device


class TripleScorer:
    """A scorer made of a function that only knows triples.

    B queries against N candidates are B · N triples, asked for in calls of one size, the last overlapping the one
    before, so that memory is bounded and no score depends on where a call happens to end. `rank_queries` fills a batch
    of queries up to `RankingOptions.batch`: for a slow function and few queries choose a small one.

    Args:
        function: (head [M], relation [M], tail [M]) int64 ids to [M] scores, higher for better triples; an `nn.Module`
            or any callable.
        num_entities: E.
        triples_at_once: the largest M.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor, Tensor], Tensor],
        num_entities: int,
        triples_at_once: int = TRIPLES_AT_ONCE,
    ):
        if triples_at_once < 1:
            raise UserError(f"triples_at_once={triples_at_once}: must be at least 1")
        self.function = function
        self.num_entities = num_entities
        self.triples_at_once = triples_at_once

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, len(range)], [B, N] or [B, K] scores; see `kgc.types.Scorer`.

        Raises:
            UserError: the function's answer does not have the shape [M].
        """
        device = queries.anchor.device
        if not isinstance(candidates, Tensor):
            ids = range(self.num_entities) if candidates is None else candidates
            candidates = torch.arange(ids.start, ids.stop, device=device)
        rows, columns = len(queries), candidates.shape[-1]
        cells = rows * columns
        asks_head = (torch.as_tensor(queries.side, device=device) == Side.HEAD).expand(rows)
        size = max(1, min(cells, self.triples_at_once))
        scores = torch.empty(0, device=device)
        for begin in range(0, cells, size):
            start = min(begin, cells - size)
            cell = torch.arange(start, start + size, device=device)
            row, column = cell // columns, cell % columns
            candidate = candidates[column] if candidates.dim() == 1 else candidates[row, column]
            anchor, is_head = queries.anchor[row], asks_head[row]
            head, tail = torch.where(is_head, candidate, anchor), torch.where(is_head, anchor, candidate)
            part = self.function(head, queries.relation[row], tail)
            if part.shape != (size,):
                raise UserError(
                    f"the function of a TripleScorer must give one score a triple, shape [{size}]; "
                    f"it gave shape {list(part.shape)}"
                )
            if not begin:
                scores = part.new_empty(cells)
            scores[start : start + size] = part
        return scores.view(rows, columns)


class MatrixScorer:
    """A scorer made of ready scores, one row a question.

    Args:
        scores: [Q, E] scores of all entities, of any float type.
        queries: the Q questions that the rows answer, on the device of the scores.

    Raises:
        UserError: there are not as many rows as questions, or two rows answer one question differently.
    """

    def __init__(self, scores: Tensor, queries: Queries):
        if scores.dim() != 2 or len(scores) != len(queries):
            raise UserError(
                f"{len(queries)} questions need scores of shape [{len(queries)}, E], not {list(scores.shape)}"
            )
        self.num_entities = scores.shape[1]
        self.scores = scores
        self._relations = int(queries.relation.max()) + 1 if len(queries) else 0
        self._anchors = int(queries.anchor.max()) + 1 if len(queries) else 0
        self._keys, question = torch.unique(self._key(queries), return_inverse=True)  # [U], [Q]
        place = torch.arange(len(queries), device=question.device)
        self._row = place.new_full((len(self._keys),), len(queries)).scatter_reduce_(0, question, place, "amin")
        for again in place[place != self._row[question]].split(1024):
            first = self._row[question[again]]
            one, other = scores[first], scores[again]
            differ = ((one != other) & ~(one.isnan() & other.isnan())).any(-1).nonzero().squeeze(-1)
            if len(differ):
                i = int(differ[0])
                raise UserError(
                    f"rows {int(first[i])} and {int(again[i])} of the scores answer the same question (anchor, "
                    "relation, side) differently; keep one row a question"
                )

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, len(range)], [B, N] or [B, K] scores; see `kgc.types.Scorer`.

        Raises:
            UserError: no row answers one of the questions.
        """
        rows = self._rows(queries)
        if isinstance(candidates, Tensor):
            return self.scores[rows.unsqueeze(-1), candidates]
        ids = range(self.num_entities) if candidates is None else candidates
        return self.scores[:, ids.start : ids.stop][rows]

    def _key(self, queries: Queries) -> Tensor:
        return (queries.side * self._relations + queries.relation) * self._anchors + queries.anchor

    def _rows(self, queries: Queries) -> Tensor:
        """[B] the row of each question."""
        if not len(queries):
            return queries.anchor
        key = self._key(queries)
        place = torch.searchsorted(self._keys, key).clamp_(max=max(0, len(self._keys) - 1))
        known = (queries.anchor < self._anchors) & (queries.relation < self._relations)
        known &= self._keys[place] == key if len(self._keys) else False
        if not bool(known.all()):
            i = int((~known).nonzero()[0])
            side = queries.side if isinstance(queries.side, Side) else Side(int(queries.side[i]))
            raise UserError(
                f"no row of the scores answers the question for the {side.label} of anchor {int(queries.anchor[i])}, "
                f"relation {int(queries.relation[i])}"
            )
        return self._row[place]


class VectorScorer:
    """A scorer made of query vectors and candidate vectors; question i is `VectorScorer.queries(i)`.

    Args:
        queries: [Q, D] float32.
        candidates: [N, D] float32 on the same device; not copied.
        similarity: compares them.

    Raises:
        UserError: the widths differ.
    """

    def __init__(self, queries: Tensor, candidates: Tensor, similarity: Similarity):
        if queries.shape[-1] != candidates.shape[-1]:
            raise UserError(f"queries have {queries.shape[-1]} numbers, candidates {candidates.shape[-1]}")
        self.num_entities, self.dim = candidates.shape
        self.vectors = queries
        self.table = candidates
        self.similarity = similarity

    @staticmethod
    def queries(index: Tensor) -> Queries:
        """The questions of [B] rows of the query table: what tells them apart is the relation."""
        return Queries(torch.zeros_like(index), index, Side.TAIL)

    def query_vectors(self, queries: Queries) -> Tensor:
        """[B, D]."""
        return self.vectors[queries.relation]

    def exact_query_vectors(self, queries: Queries) -> Tensor:
        """[B, D] float64, denormals as 0."""
        return without_denormals(self.query_vectors(queries)).double()

    def candidate_vectors(self, candidates: Tensor | range | None = None) -> Tensor:
        """[N, D], [n, D] or [B, K, D]."""
        if isinstance(candidates, range):
            return self.table[candidates.start : candidates.stop]
        return self.table if candidates is None else self.table[candidates]

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, N], [B, len(range)] or [B, K] scores; see `kgc.types.Scorer`."""
        return self.similarity(self.query_vectors(queries), self.candidate_vectors(candidates))
