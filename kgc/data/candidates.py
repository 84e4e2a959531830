"""Candidates that the right answer of a query is ranked against where these are not all entities.

What is drawn for a query is a function of the seed and the query's triple, whatever batch, process or line of a file it
comes from. Rivals are drawn without replacement and evenly from those that the exact protocol would rank against: all
entities, or those of a type, less the known answers; as many as there are where fewer are left.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.types import Queries, Side, Triples

# Rivals a drawn one from which on drawing anew what came twice is quicker than ordering all rivals.
_DENSE = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Types:
    """The entities that each relation has at each end in train (local closed world, Krompaß et al. 2015).

    Args:
        train: triples with int32 or int64 ids.
        num_entities, num_relations: E and R.
    """

    def __init__(self, train: Triples, num_entities: int, num_relations: int):
        self.num_entities, self.num_relations = num_entities, num_relations
        groups = torch.cat([side * num_relations + train.relation.long() for side in Side])
        self.cells = torch.unique(groups.mul_(num_entities).add_(torch.cat([train.target(side) for side in Side])))
        bounds = torch.arange(2 * num_relations + 1) * num_entities
        self.offsets = torch.searchsorted(self.cells, bounds)

    def span(self, queries: Queries) -> tuple[Tensor, Tensor]:
        """[B] where the entities of each query's type begin in `cells`, and [B] how many they are."""
        group = queries.side * self.num_relations + queries.relation
        return self.offsets[group], self.offsets[group + 1] - self.offsets[group]


class Draw:
    """Draws rivals for queries.

    Args:
        number: K, how many for each query.
        known: answers that are no rivals.
        seed: of the draws.
        types: draw among the entities of the query's type, where it has any besides known answers; None: among all.
    """

    def __init__(self, number: int, known: KnownAnswers, seed: int, types: Types | None = None):
        self.number, self.known, self.seed, self.types = number, known, seed, types

    def __call__(self, queries: Queries, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[B, K] entity ids, −1 where there are no more rivals; and [B] how many rivals there are to draw from."""
        device = targets.device
        side = torch.as_tensor(queries.side, device=device).expand(len(queries))
        asked = Queries(queries.anchor, queries.relation, side)
        excluded = self._excluded(asked, targets)
        asked = asked.to("cpu")
        size = self.known.num_entities
        places, count, first = excluded % size, torch.full((len(asked),), size), torch.zeros(len(asked)).long()
        row, typed = excluded // size, torch.zeros(len(asked), dtype=torch.bool)
        if self.types is not None:
            first, count = self.types.span(asked)
            group = (asked.side * self.types.num_relations + asked.relation)[row]
            cell = group * size + places
            at = torch.searchsorted(self.types.cells, cell).clamp_(max=len(self.types.cells) - 1)
            member = self.types.cells[at] == cell
            typed = count - torch.bincount(row[member], minlength=len(asked)) > 0
            kept = torch.where(typed[row], member, True)
            places = torch.where(typed[row], at - first[row], places)[kept]
            row = row[kept]
            count = torch.where(typed, count, size)
        left = count - torch.bincount(row, minlength=len(asked))
        drawn = torch.from_numpy(_distinct(self._seeds(asked, targets.cpu()), left.numpy(), self.number))
        chosen = _among_others(drawn, row, places, size)
        if self.types is not None:
            cells = self.types.cells[(first.unsqueeze(1) + chosen).clamp(0, len(self.types.cells) - 1)] % size
            chosen = torch.where(typed.unsqueeze(1) & (drawn >= 0), cells, chosen)
        return torch.where(drawn < 0, -1, chosen).to(device), left.to(device)

    def _excluded(self, queries: Queries, targets: Tensor) -> Tensor:
        """[M] query · E + entity of what is no rival, sorted, on the CPU."""
        row, answer = self.known.answers(queries)
        own = torch.arange(len(targets), device=targets.device)
        rows, entities = torch.cat([row, own]), torch.cat([answer, targets])
        return torch.unique((rows * self.known.num_entities + entities).cpu())

    def _seeds(self, queries: Queries, targets: Tensor) -> np.ndarray:
        """[B] uint64, one a query."""
        state = np.full(len(targets), np.uint64(self.seed))
        for part in (queries.side, queries.relation, queries.anchor, targets):
            state = _mixed(state ^ part.numpy().astype(np.uint64))
        return state


def _among_others(drawn: Tensor, row: Tensor, excluded: Tensor, size: int) -> Tensor:
    """[B, K] numbers of places that are not excluded, counted from 0, to the places themselves.

    Args:
        drawn: [B, K].
        row: [M] ascending.
        excluded: [M] places, ascending within a row.
        size: more than any place.

    With excluded places x₀ < x₁ < …, place number j is j + #{i : xᵢ − i ≤ j}.
    """
    number = torch.bincount(row, minlength=len(drawn))
    first = number.cumsum(0) - number
    lowered = excluded - (torch.arange(len(row)) - first[row])
    keys = row * size + lowered
    wanted = torch.arange(len(drawn)).unsqueeze(1) * size + drawn.clamp(min=0)
    return drawn + torch.searchsorted(keys, wanted, right=True) - first.unsqueeze(1)


def _distinct(seeds: np.ndarray, sizes: np.ndarray, number: int) -> np.ndarray:
    """[B, K] distinct numbers from 0 to size − 1 of each row, evenly; −1 where the size is less than K."""
    drawn = np.full((len(seeds), number), -1, dtype=np.int64)
    dense = sizes <= _DENSE * number
    for start in range(0, int(dense.sum()), 1 << 10):
        rows = np.flatnonzero(dense)[start : start + (1 << 10)]
        width = int(sizes[rows].max(initial=0))
        order = _hashes(seeds[rows], np.arange(width, dtype=np.uint64), 0)
        order |= np.uint64(1)
        order[np.arange(width) >= sizes[rows, None]] = np.iinfo(np.uint64).max
        best = np.argsort(order, axis=1, kind="stable")[:, :number]
        drawn[rows, : best.shape[1]] = np.where(best < sizes[rows, None], best, -1)
    rows = np.flatnonzero(~dense)
    if not len(rows):
        return drawn
    slots = np.arange(number, dtype=np.uint64)
    values = _scaled(_hashes(seeds[rows], slots, 0), sizes[rows, None])
    unsure, turn = np.arange(len(rows)), 0
    while len(unsure):
        turn += 1
        mine = values[unsure]
        order = np.argsort(mine, axis=1, kind="stable")
        ordered = np.take_along_axis(mine, order, 1)
        again = np.zeros_like(mine, dtype=bool)
        np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
        some = again.any(1)
        fresh = _scaled(_hashes(seeds[rows[unsure[some]]], slots, turn), sizes[rows[unsure[some]], None])
        values[unsure[some]] = np.where(again[some], fresh, mine[some])
        unsure = unsure[some]
    drawn[rows] = values
    return drawn


def _hashes(seeds: np.ndarray, slots: np.ndarray, turn: int) -> np.ndarray:
    """[B, K] uint64, each like a random number: SplitMix64 (Steele et al. 2014) of seed, slot and turn."""
    offset = np.uint64((turn * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF)
    return _mixed(seeds[:, None] + (slots + np.uint64(1)) * _GOLDEN + offset)


def _mixed(state: np.ndarray) -> np.ndarray:
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _scaled(hashes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Random 64 bits to 0 … size − 1; uneven by at most size · 2⁻⁵³."""
    return ((hashes >> np.uint64(11)) * 2.0**-53 * sizes).astype(np.int64)
