"""Edges of a graph in compressed rows, and walks over them: sparse products that remember where they passed.

A relation read backwards is a relation too: with R relations, `r + R` holds between t and h where r holds between h and
t. Loops (e, r, e) are no edges here. Walks never meet an entity twice ("object identity" in AnyBURL), so that an edge
between two entities is never part of a longer walk between them: no triple explains itself.
"""

from __future__ import annotations

import numpy as np

from kgc.errors import UserError
from kgc.types import Triples

# Steps made at once: 2^22 walks of three int64 columns are 100 MB.
WALKS_AT_ONCE = 1 << 22


class Edges:
    """The distinct edges of a list of triples, in both directions.

    Args:
        triples: usually the train split.
        num_entities: E.
        num_relations: R.

    Raises:
        UserError: ids of pairs of entities and a relation do not fit 63 bits.
    """

    def __init__(self, triples: Triples, num_entities: int, num_relations: int):
        if 2 * num_relations * num_entities**2 >= 2**63:
            raise UserError(f"model=rules: {num_entities} entities and {num_relations} relations are too many for it")
        self.num_entities, self.num_relations = num_entities, num_relations
        head, relation, tail = (x.cpu().numpy() for x in (triples.head, triples.relation, triples.tail))
        source, kind = np.concatenate([head, tail]), np.concatenate([relation, relation + num_relations])
        target = np.concatenate([tail, head])
        key = np.unique((self.row(kind, source) * num_entities + target)[source != target])
        self.rows, self.target = key // max(1, num_entities), key % max(1, num_entities)  # [M] by relation, source
        self.kind, self.source = self.rows // max(1, num_entities), self.rows % max(1, num_entities)
        first = np.r_[True, self.rows[1:] != self.rows[:-1]] if len(self.rows) else np.zeros(0, dtype=bool)
        self.first_kind, self.first_source = self.kind[first], self.source[first]  # distinct (relation, source)
        by_source = np.argsort(self.source, kind="stable")  # by source, relation, target
        self.start = np.searchsorted(self.source[by_source], np.arange(num_entities + 1))  # [E + 1]
        self.kind_from, self.target_from = self.kind[by_source], self.target[by_source]

    def row(self, kind: np.ndarray | int, source: np.ndarray) -> np.ndarray:
        """The number of (relation, source)."""
        return source + np.int64(self.num_entities) * kind

    def inverse(self, kind: np.ndarray) -> np.ndarray:
        """The same relations read from the other end."""
        return (kind + self.num_relations) % max(1, 2 * self.num_relations)

    def of(self, kind: int) -> tuple[np.ndarray, np.ndarray]:
        """Sources, ascending, and targets of all edges of a relation."""
        low, high = np.searchsorted(self.kind, [kind, kind + 1])
        return self.source[low:high], self.target[low:high]

    def step(self, source: np.ndarray, kind: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """All edges of a relation from each of n sources: [m] which source, ascending, and [m] targets."""
        row = self.row(kind, source)
        which, place = ragged(np.searchsorted(self.rows, row), np.searchsorted(self.rows, row, side="right"))
        return which, self.target[place]

    def step_anywhere(self, source: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All edges from each of n sources: [m] which source, ascending, [m] relations, [m] targets."""
        which, place = ragged(self.start[source], self.start[source + 1])
        return which, self.kind_from[place], self.target_from[place]

    def sources(self, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entities that each of n relations leaves: [m] which relation, ascending, and [m] entities."""
        which, place = ragged(np.searchsorted(self.first_kind, kind), np.searchsorted(self.first_kind, kind, "right"))
        return which, self.first_source[place]

    def degree(self, source: np.ndarray) -> np.ndarray:
        """How many edges leave each source."""
        return self.start[source + 1] - self.start[source]


def ragged(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All places of n ranges [start, stop): [m] the range of each, ascending, and [m] the places."""
    count = stop - start
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(len(which)) + np.repeat(start - (np.cumsum(count) - count), count)


def extend(edges: Edges, walks: list[np.ndarray], kind: int, labels: int = 1) -> list[np.ndarray]:
    """Walks one step longer, over a relation.

    Args:
        edges: where they walk.
        walks: columns of n walks: labels that stay with them, then the entities passed.
        kind: the relation.
        labels: how many columns are labels.
    """
    which, target = edges.step(walks[-1], kind)
    return unlike([column[which] for column in walks], target, labels)


def unlike(walks: list[np.ndarray], target: np.ndarray, labels: int = 1) -> list[np.ndarray]:
    """Walks that end at `target`, without those that have been there; the first `labels` columns are no entities."""
    new = np.ones(len(target), dtype=bool)
    for column in walks[labels:]:
        new &= column != target
    return [column[new] for column in walks] + [target[new]]


def distinct(keys: np.ndarray) -> np.ndarray:
    """Ascending, each once."""
    keys = np.sort(keys)
    return keys[np.r_[True, keys[1:] != keys[:-1]]] if len(keys) else keys
