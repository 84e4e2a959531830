"""The index of known answers: which entities answer a query, as sorted arrays.

Queries of both sides share one index. A query's key is ((side · R) + relation) · E + anchor; a known answer is the
number key · E + answer, and the index is the list of these numbers, sorted: 8 bytes for each distinct (query, answer).
Building sorts 2T numbers once, O(T log T); looking up is a binary search, O(log T); nothing is as wide as E. Where
2·R·E² is 2⁶³ or more, queries are numbered first, and the number of a query takes its key's place; keys need
2·R·E < 2⁶³ and (number of keys) · E < 2⁶³: both hold for Freebase (86 M entities, 15 k relations).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from kgc.data.arrays import PART, drop_repeated
from kgc.types import Queries, Side, Triples, rows_of_pools

_LARGEST = 2**63  # int64 ends there
_FEW = 4  # known answers of a query for each candidate of its pool, up to which these are looked for there


class KnownAnswers:
    """Known answers of every (anchor, relation, side) of a list of triples.

    Args:
        triples: T triples, with int32 or int64 ids; repeated ones count once.
        num_entities: E.
        num_relations: R.

    The index lives on the device of `triples`; `to(device)` moves it.
    """

    def __init__(self, triples: Triples, num_entities: int, num_relations: int):
        self.num_entities = num_entities
        self.num_relations = num_relations
        self._numbered: Tensor | None = None  # [P] sorted keys, where their places stand for them
        width = max(1, num_entities)
        if 2 * num_relations * num_entities**2 >= _LARGEST:
            keys = torch.cat([self._key(triples.queries(side)) for side in Side])
            self._numbered, codes = torch.unique(keys, return_inverse=True)
            del keys
            self.pairs = codes.mul_(width).add_(torch.cat([triples.target(side) for side in Side]))
        else:
            self.pairs = triples.head.new_empty(2 * len(triples), dtype=torch.int64)
            for start in range(0, len(triples), PART):
                part = triples[start : start + PART].long()
                for side in Side:
                    place = side * len(triples) + start
                    numbers = self._key(part.queries(side)).mul_(width).add_(part.target(side))
                    self.pairs[place : place + len(part)] = numbers
        # [M] sorted numbers of (query, answer).
        if self.pairs.device.type == "cpu":  # in the same memory
            array = self.pairs.numpy()
            array.sort()
            self.pairs = torch.from_numpy(drop_repeated(array))
        else:
            self.pairs = torch.unique(self.pairs)

    def to(self, device: torch.device | str) -> KnownAnswers:
        if self.pairs.device == torch.device(device):
            return self
        moved = object.__new__(KnownAnswers)
        moved.num_entities, moved.num_relations = self.num_entities, self.num_relations
        moved.pairs = self.pairs.to(device)
        moved._numbered = None if self._numbered is None else self._numbered.to(device)
        return moved

    @cached_property
    def keys(self) -> Tensor:
        """[P] the keys of the queries with an answer, sorted."""
        if self._numbered is not None:
            return self._numbered
        return torch.unique_consecutive(self.pairs // max(1, self.num_entities))

    def rows(self, queries: Queries) -> Tensor:
        """[B] the place in `keys` of each query, -1 for a query without known answers."""
        return _places(self.keys, self._key(queries))

    def _codes(self, queries: Queries) -> Tensor:
        """[B] what stands for each query in `pairs`; -1 for one that has no number."""
        key = self._key(queries)
        return key if self._numbered is None else _places(self._numbered, key)

    def _spans(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """[B] where the answers of each query begin in `pairs`, and [B] how many they are."""
        first = self._codes(queries) * max(1, self.num_entities)
        start, stop = (torch.searchsorted(self.pairs, bound) for bound in (first, first + max(1, self.num_entities)))
        return start, stop - start

    def number(self, queries: Queries) -> Tensor:
        """[B] how many known answers each query has."""
        return self._spans(queries)[1]

    def answers(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """All known answers of B queries.

        Returns:
            [M] the query each answer belongs to (0 … B−1, ascending), and [M] the answers (ascending within a query).
        """
        start, count = self._spans(queries)
        query = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        first = count.cumsum(0) - count
        place = torch.arange(len(query), device=query.device) - first[query] + start[query]
        return query, self.pairs[place] % max(1, self.num_entities)

    def contains(self, queries: Queries, candidates: Tensor) -> Tensor:
        """Whether candidates are known answers: [B, K] own, [N] shared or [G, N] pools' ids (see
        `kgc.types.Negatives`) give [B, K] or [B, N] bool.

        A binary search for each cell of the result; on a CPU, where candidates are shared, one for each known answer in
        the sorted pools instead, for the queries that have few: hubs in a large graph have very many.
        """
        number, width = len(queries), candidates.shape[-1]
        if not len(self.pairs):
            return torch.zeros(number, width, dtype=torch.bool, device=candidates.device)
        pools = candidates if candidates.dim() == 2 else candidates.unsqueeze(0)  # [G, N]
        if len(pools) < number and candidates.device.type == "cpu":
            few = self.number(queries) <= _FEW * width
            found = self._contained_in_pools(queries, pools, few.nonzero().squeeze(-1))
            many = (~few).nonzero().squeeze(-1)
            if len(many):
                found[many] = self._contains(queries[many], rows_of_pools(candidates, number)[many])
            return found
        return self._contains(queries, rows_of_pools(candidates, number))

    def _contains(self, queries: Queries, own: Tensor) -> Tensor:
        """[B, K] bool for [B, K] candidates."""
        # Of a query without a number the sum is negative, and never found.
        pair = (self._codes(queries).unsqueeze(-1) * self.num_entities + own).contiguous()
        position = torch.searchsorted(self.pairs, pair).clamp_(max=len(self.pairs) - 1)
        return self.pairs[position] == pair

    def _contained_in_pools(self, queries: Queries, pools: Tensor, some: Tensor) -> Tensor:
        """[B, N] bool for [G, N] pools, in O(M log GN) for the M known answers of `some` of the queries; False for the
        others."""
        number, (groups, width) = len(queries), pools.shape
        query, answer = self.answers(queries[some])
        query = some[query]
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
        return _key(queries, self.num_entities, self.num_relations)


def relevant(parts: Sequence[Triples], asked: Triples, num_entities: int, num_relations: int) -> Triples:
    """The triples of all parts that answer a query of a list: what an index needs to know for these queries.

    Args:
        parts: of any number of triples, which are looked at in pieces; int32 or int64 ids on the CPU.
        asked: triples, whose two queries each are asked.
        num_entities, num_relations: E and R.
    """
    found = [Triples.empty()]
    asked = asked.to("cpu")
    keys = {side: torch.unique(_key(asked.queries(side), num_entities, num_relations)) for side in Side}
    for part in parts:
        for start in range(0, len(part), PART):
            piece = part[start : start + PART].long()
            wanted = torch.zeros(len(piece), dtype=torch.bool)
            for side in Side:
                wanted |= _places(keys[side], _key(piece.queries(side), num_entities, num_relations)) >= 0
            found.append(piece[wanted])
    return Triples.cat(found)


def _places(keys: Tensor, wanted: Tensor) -> Tensor:
    """[B] the places of numbers in [P] ascending ones, -1 of those that are not there."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, place, -1)


def _key(queries: Queries, num_entities: int, num_relations: int) -> Tensor:
    """[B] int64 keys of queries."""
    side = queries.side if isinstance(queries.side, Side) else queries.side.long()
    return (side * num_relations + queries.relation.long()).mul_(num_entities).add_(queries.anchor)
