"""The index of known answers: which entities answer a query, as sorted arrays.

Queries of both sides share one index. A query's key is ((side · R) + relation) · E + anchor; the answers of a key lie
together, sorted. Building sorts 2T cells once, O(T log T); looking up is a binary search, O(log T) a query; nothing is
as wide as E. Keys need 2·R·E < 2⁶³ and cells (number of keys) · E < 2⁶³: both hold for Freebase (86 M entities, 15 k
relations).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.types import Queries, Side, Triples, rows_of_pools

_LARGEST = 2**63  # int64 ends there


class KnownAnswers:
    """Known answers of every (anchor, relation, side) of a list of triples.

    Args:
        triples: T triples; repeated ones count once.
        num_entities: E.
        num_relations: R.

    The index lives on the device of `triples`; `to(device)` moves it.
    """

    def __init__(self, triples: Triples, num_entities: int, num_relations: int):
        self.num_entities = num_entities
        self.num_relations = num_relations
        keys = torch.cat([self._key(triples.queries(side)) for side in Side])
        answers = torch.cat([triples.target(side) for side in Side])
        # [P] sorted keys of the queries with an answer; [M] sorted (query row, answer) pairs; [P] answers of each row.
        if 2 * num_relations * num_entities**2 < _LARGEST:
            pairs = torch.unique(keys.mul_(num_entities).add_(answers))  # one sort of (key, answer)
            keys = pairs // max(1, num_entities)
            answers = pairs.sub_(keys * num_entities)
            self.keys, rows, counts = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
            self.cells = rows.mul_(num_entities).add_(answers)
        else:
            self.keys, rows = torch.unique(keys, return_inverse=True)
            self.cells = torch.unique(rows * num_entities + answers)
            counts = torch.bincount(self.cells // max(1, num_entities), minlength=len(self.keys))
        self.offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # [P + 1]

    def to(self, device: torch.device | str) -> KnownAnswers:
        if self.keys.device == torch.device(device):
            return self
        moved = object.__new__(KnownAnswers)
        moved.num_entities, moved.num_relations = self.num_entities, self.num_relations
        moved.keys, moved.cells, moved.offsets = (x.to(device) for x in (self.keys, self.cells, self.offsets))
        return moved

    def rows(self, queries: Queries) -> Tensor:
        """[B] the row of each query in the index, -1 for a query without known answers."""
        if not len(self.keys):
            return torch.full_like(queries.anchor, -1)
        key = self._key(queries)
        row = torch.searchsorted(self.keys, key).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[row] == key, row, -1)

    def answers(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """All known answers of B queries.

        Returns:
            [M] the query each answer belongs to (0 … B−1, ascending), and [M] the answers (ascending within a query).
        """
        row = self.rows(queries)
        if not len(self.cells):
            return row[:0], row[:0]
        safe = row.clamp(min=0)
        start = self.offsets[safe]
        count = torch.where(row < 0, 0, self.offsets[safe + 1] - start)
        query = torch.repeat_interleave(torch.arange(len(row), device=row.device), count)
        first = count.cumsum(0) - count
        cell = torch.arange(len(query), device=row.device) - first[query] + start[query]
        return query, self.cells[cell] % max(1, self.num_entities)

    def contains(self, queries: Queries, candidates: Tensor) -> Tensor:
        """Whether candidates are known answers: [B, K] own, [N] shared or [G, N] pools' ids (see
        `kgc.types.Negatives`) give [B, K] or [B, N] bool.

        A binary search for each cell of the result; on a CPU, where candidates are shared and the queries have fewer
        known answers than the result has cells, one for each known answer in the sorted pools instead.
        """
        number, width = len(queries), candidates.shape[-1]
        if not len(self.cells):
            return torch.zeros(number, width, dtype=torch.bool, device=candidates.device)
        row = self.rows(queries)
        pools = candidates if candidates.dim() == 2 else candidates.unsqueeze(0)  # [G, N]
        if len(pools) < number and row.device.type == "cpu":
            safe = row.clamp(min=0)
            answers = torch.where(row < 0, 0, self.offsets[safe + 1] - self.offsets[safe]).sum()
            if answers < number * width:
                return self._contained_in_pools(queries, pools)
        own = rows_of_pools(candidates, number)
        cell = (row.unsqueeze(-1) * self.num_entities + own).contiguous()  # negative without a row: never found
        position = torch.searchsorted(self.cells, cell).clamp_(max=len(self.cells) - 1)
        return self.cells[position] == cell

    def _contained_in_pools(self, queries: Queries, pools: Tensor) -> Tensor:
        """[B, N] bool for [G, N] pools, in O(M log GN) for the M known answers of the queries."""
        number, (groups, width) = len(queries), pools.shape
        query, answer = self.answers(queries)
        step = torch.arange(groups, device=pools.device) * self.num_entities
        ordered, order = (pools + step.unsqueeze(1)).flatten().sort()
        # An entity that a pool holds several times is marked at one place, which stands for all.
        place = torch.empty_like(order)
        place[order] = order[torch.searchsorted(ordered, ordered)]
        wanted = query // -(-number // groups) * self.num_entities + answer
        position = torch.searchsorted(ordered, wanted).clamp_(max=len(ordered) - 1)
        found = ordered[position] == wanted
        marked = torch.zeros(number, width, dtype=torch.bool, device=pools.device)
        marked[query[found], order[position[found]] % width] = True
        return marked.gather(1, rows_of_pools((place % width).view(groups, width), number))

    def _key(self, queries: Queries) -> Tensor:
        return (queries.side * self.num_relations + queries.relation) * self.num_entities + queries.anchor
