"""The certified path: ranks are a property of the vectors, not of the machine.

Truth is the order of the scores in float64 on the stored fp32 parameters (`Similarity.order`), those below 2⁻¹²⁶ taken
for 0, since processors differ in whether they see them. A block of fp32 keys,
from any kernel, in any shape, decides all cells that lie outside a proven band around the target's score
(`Similarity.band`); the cells inside the band are scored again in float64. So batch, block, threads, device and number
of processes change no rank.

Rows that the fp32 keys cannot serve (numbers so large that fp32 overflows, NaN, so many ties that most cells stay open)
are scored in float64 altogether, in bounded memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kgc.engine.counting import BlockCounter, Count, Counter, Key, RowLayout, count_eager
from kgc.engine.part import Part, Room, ranges
from kgc.models.algebra import without_denormals
from kgc.models.similarity import Extent, Similarity
from kgc.types import Queries

# Cells scored again at once: their float64 temporaries stay in a CPU's cache.
_CELLS = 1024
# Open cells that are kept for float64 at most, but for those of one block.
_WAITING = 1 << 20
# Numbers of query vectors that are made at once.
_AHEAD = 1 << 21
# fp32 keys and thresholds up to here cannot overflow on the way.
SAFE = 2.0**120


class Candidates:
    """The candidate vectors of a model and what the proofs need of them, taken once.

    Args:
        model: a `KGEModel` with a certified similarity whose candidates are rows of its table.
        room: where blocks of keys lie; a block is gone when the next is asked for.
        counter: how cells of a block of keys are counted.
        key: a faster form of the similarity's ranking key, or None.

    Attributes:
        vectors: [E, D] fp32; of a sharded table those that this process holds.
        terms: [E] fp32 terms of the ranking key, or None.
        extent: sizes for `Similarity.band`, the norm from above; an infinite norm if a vector is not finite.
    """

    def __init__(self, model: Any, room: Room, counter: Counter = count_eager, key: Key | None = None):
        self.similarity = model.similarity
        self.counter = counter
        self.fast_key = key
        self.room = room
        self.vectors = model.candidate_vectors()
        self.terms, norm = _survey(self.vectors, self.similarity)
        self.extent = Extent(norm, self.vectors.shape[-1])

    def exact(self, entities: Tensor) -> Tensor:
        """[n, D] float64 vectors of n candidates, as the order of scores is defined: numbers below 2⁻¹²⁶ are 0."""
        return without_denormals(self.vectors[entities]).double()

    def key(self, query: Tensor, start: int, stop: int) -> Tensor:
        """[U, stop − start] fp32 keys of [U, D] fp32 queries."""
        if self.fast_key is not None:
            return self.fast_key(query, self.vectors[start:stop])
        terms = None if self.terms is None else self.terms[start:stop]
        out = self.room.take(query, len(query), stop - start)
        return self.similarity.ranking_key(query, self.vectors[start:stop], terms, out)

    def counting(self, query: Tensor, layout: RowLayout, low: Tensor, high: Tensor) -> BlockCounter:
        """A function that counts blocks for [U, D] fp32 queries in the order of `layout` and [P] fp32 thresholds."""

        def count(span: tuple[int, int, int], known: tuple[Tensor, Tensor], listed: int) -> Count:
            first, start, stop = span
            keys = self.key(query, first, stop)
            if start > first:
                keys[:, : start - first] = torch.nan  # counted in the block before
            keys[layout.rank_of_row[known[0]], known[1] + (start - first)] = torch.nan
            return self.counter(keys, layout, low, high, listed)

        return count


class ExactQueries:
    """Float64 vectors of questions, made for many batches at a time: some models read all their parameters for them.

    Args:
        scorer: whose vectors they are.
        rows: all questions.
        width: D.
    """

    def __init__(self, scorer: Any, rows: Queries, width: int):
        self.scorer = scorer
        self.rows = rows
        self.at_once = _AHEAD // max(1, width)
        self._start, self._vectors = 0, torch.empty(0, 0)

    def of(self, start: int, stop: int) -> Tensor:
        """[stop − start, D] vectors of a range of the questions, most cheaply of ranges that follow each other."""
        if start < self._start or stop > self._start + len(self._vectors):
            self._vectors = torch.empty(0, 0)  # not both at once
            end = max(stop, start + self.at_once)
            self._start, self._vectors = start, self.scorer.exact_query_vectors(self.rows[start:end])
        return self._vectors[start - self._start : stop - self._start]


class CertifiedPart(Part):
    """Ranks one batch of rows by bounds."""

    def rank(self, table: Candidates, block: int, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[P] better, equal, candidates and non-finite scores, from [U, D] float64 query vectors."""
        value = self.shared(self._order(table, query, self.row, self.target))  # [P]
        counts = self.locally(lambda size: self._count(table, query, value, size), block)
        return self.judged(value, *self.total(*counts))

    def _count(self, table: Candidates, query: Tensor, value: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """[P] better, equal and non-finite scores among the cells outside the filter, the target's among them."""
        low, high = table.similarity.band(query[self.row], value, table.extent)
        reach = torch.maximum(low.abs(), high.abs())
        whole = torch.zeros(len(self.rows), dtype=torch.bool, device=self.row.device)  # rows for float64 altogether
        whole[self.row[~(reach < SAFE)]] = True
        whole |= ~(query.norm(dim=-1) * table.extent.norm < SAFE) | (table.extent.norm >= 2.0**60)
        # Outward to fp32, so that a comparison of fp32 numbers decides no more than one of float64 numbers would.
        low, high = _down(low), _up(high)
        better, equal, nonfinite = (torch.zeros_like(self.target) for _ in range(3))
        layout = RowLayout(self.row, len(self.rows))
        count_block = table.counting(query.float()[layout.order], layout, low, high)
        found: list[tuple[Tensor, Tensor]] = []
        waiting = 0

        def decide() -> None:
            at, entity = (torch.cat(columns) for columns in zip(*found, strict=True))
            kept = ~whole[self.row[at]]
            at, entity = at[kept], entity[kept]
            again = self._order(table, query, self.row[at], entity)
            better.index_add_(0, at, (again > value[at]).long())
            equal.index_add_(0, at, (again == value[at]).long())
            found.clear()

        blocks = list(ranges(len(table.vectors), min(block, len(table.vectors))))
        for (first, start, stop), known in zip(blocks, self.known_cells(blocks), strict=True):
            listed = max(16, (stop - start) // 8)
            count = count_block((first, start, stop), known, listed)
            better += count.above
            whole[self.row[count.inside > listed]] = True  # more float64 scores than the whole row has distinct vectors
            if len(count.query):
                found.append((count.query, count.column + first))
                waiting += len(count.query)
            if waiting > _WAITING:
                decide()
                waiting = 0
        if found:
            decide()
        if bool(whole.any()):
            self._count_in_float64(table, query, value, whole, better, equal, nonfinite)
        return better, equal, nonfinite

    def _order(self, table: Candidates, query: Tensor, row: Tensor, entity: Tensor) -> Tensor:
        """[M] float64 order of cells (row, entity)."""
        values = query.new_empty(len(row))
        for begin in range(0, len(row), _CELLS):
            part = slice(begin, begin + _CELLS)
            values[part] = table.similarity.order(query[row[part]], table.exact(entity[part]))
        return values

    def _count_in_float64(
        self,
        table: Candidates,
        query: Tensor,
        value: Tensor,
        whole: Tensor,
        better: Tensor,
        equal: Tensor,
        nonfinite: Tensor,
    ) -> None:
        """Counts for the queries of the marked rows by float64 scores of all candidates; equal ones are scored once."""
        distinct, copies = _distinct_rows(table.vectors)
        entities = len(table.vectors)
        place = torch.full((len(self.rows),), -1, dtype=torch.int64, device=self.row.device)
        at_once = max(1, (1 << 22) // entities)
        for rows in whole.nonzero().squeeze(-1).split(at_once):
            scores = query.new_empty(len(rows), len(distinct))
            width = max(1, _CELLS // len(rows))
            for begin in range(0, len(distinct), width):
                part = distinct[begin : begin + width]
                scores[:, begin : begin + width] = table.similarity.order(
                    query[rows].unsqueeze(1), table.exact(part).unsqueeze(0)
                )
            scores = scores[:, copies]  # [u, E]
            place.fill_(-1)[rows] = torch.arange(len(rows), device=rows.device)
            cells = place[self.known_row] >= 0
            known = place[self.known_row[cells]], self.known_entity[cells]
            scores[known] = 0.0
            odd = ~scores.isfinite()
            scores[odd] = torch.nan
            scores[known] = torch.nan
            for at in (place[self.row] >= 0).nonzero().squeeze(-1).split(at_once):
                here, own = place[self.row[at]], value[at]
                nonfinite[at] = odd.sum(1)[here]
                better[at] = (scores[here] > own.unsqueeze(-1)).sum(1)
                equal[at] = (scores[here] == own.unsqueeze(-1)).sum(1)


def _survey(vectors: Tensor, similarity: Similarity) -> tuple[Tensor | None, float]:
    """The key terms [E] of [E, D] vectors, and the largest of their norms from above; the table is read once, in parts
    that stay in a CPU's cache and are enough work for a GPU."""
    width = vectors.shape[-1]
    norms, terms = [], []
    for chunk in vectors.split(max(1, (1 << 17 if vectors.device.type == "cpu" else 1 << 24) // width)):
        norms.append(torch.linalg.vector_norm(chunk, dim=-1).amax(0) if len(chunk) else chunk.new_zeros(()))
        terms.append(similarity.key_terms(chunk))
    # Additions in fp32 are off by at most `width` units in the last place; squares below 2⁻¹²⁶ are lost.
    largest = float(torch.stack(norms).max()) * (1 + (width + 4) * 2.0**-23) + width**0.5 * 2.0**-62
    return None if terms[0] is None else torch.cat(terms), largest if largest == largest else float("inf")


def _distinct_rows(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [V] that represent all rows of [E, D] fp32, and [E] the representative's place of each.

    Rows are hashed by their bits; a row that differs from its group's first one stands for itself.
    """
    bits = vectors.contiguous().view(torch.int32)
    weights = torch.randint(1, 1 << 62, (vectors.shape[1],), generator=torch.Generator().manual_seed(0)) | 1
    weights = weights.to(vectors.device)
    hashes = torch.cat([(chunk.long() * weights).sum(-1) for chunk in bits.split(1 << 14)])
    _, group = torch.unique(hashes, return_inverse=True)
    own = torch.arange(len(vectors), device=vectors.device)
    first = torch.full_like(own, len(vectors)).scatter_reduce_(0, group, own, "amin")[group]
    same = torch.cat([(bits[i] == bits[first[i]]).all(-1) for i in own.split(1 << 14)])
    return torch.unique(torch.where(same, first, own), return_inverse=True)


def _up(values: Tensor) -> Tensor:
    rounded = values.float()
    return torch.where(rounded.double() < values, rounded.nextafter(rounded.new_tensor(torch.inf)), rounded)


def _down(values: Tensor) -> Tensor:
    rounded = values.float()
    return torch.where(rounded.double() > values, rounded.nextafter(rounded.new_tensor(-torch.inf)), rounded)
