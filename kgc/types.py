"""The records that every layer passes to the next, and the shape alphabet used in all docstrings.

Shapes: B queries, N candidates shared by all queries, K candidates of each query's own, E entities, R relations,
D stored width of an entity. Ids are int64 tensors, but in a graph, which keeps them as int32; `side` names the end of
the triple that is asked for.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class Side(enum.IntEnum):
    """The end of a triple that a query asks for: `HEAD` is (?, r, t), `TAIL` is (h, r, ?)."""

    HEAD = 0
    TAIL = 1

    @property
    def label(self) -> str:
        """The name in files and metric keys: `head` or `tail`."""
        return self.name.lower()


@dataclass(frozen=True)
class Triples:
    """A list of triples as three id columns.

    Args:
        head: [B] entity ids.
        relation: [B] relation ids.
        tail: [B] entity ids.
    """

    head: Tensor
    relation: Tensor
    tail: Tensor

    def __len__(self) -> int:
        return self.head.numel()

    def __getitem__(self, index: Tensor | slice) -> Triples:
        return Triples(self.head[index], self.relation[index], self.tail[index])

    def to(self, device: torch.device | str) -> Triples:
        return Triples(self.head.to(device), self.relation.to(device), self.tail.to(device))

    def long(self) -> Triples:
        """The triples with int64 ids, as computing takes them; themselves if they have."""
        if self.head.dtype == torch.int64:
            return self
        return Triples(self.head.long(), self.relation.long(), self.tail.long())

    def queries(self, side: Side) -> Queries:
        """The questions that ask for the `side` end of each triple."""
        return Queries(self.tail if side is Side.HEAD else self.head, self.relation, side)

    def target(self, side: Side) -> Tensor:
        """[B] the entity at the `side` end: the right answer to `queries(side)`."""
        return self.head if side is Side.HEAD else self.tail

    @staticmethod
    def cat(parts: list[Triples]) -> Triples:
        return Triples(*(torch.cat([getattr(p, c) for p in parts]) for c in ("head", "relation", "tail")))

    @staticmethod
    def empty() -> Triples:
        none = torch.empty(0, dtype=torch.int64)
        return Triples(none, none, none)


@dataclass(frozen=True)
class Queries:
    """Questions (?, r, t) or (h, r, ?).

    Args:
        anchor: [B] ids of the known entity.
        relation: [B] relation ids.
        side: the end asked for: one `Side` for all, or a [B] int64 tensor of `Side` values.
    """

    anchor: Tensor
    relation: Tensor
    side: Side | Tensor

    def __len__(self) -> int:
        return self.anchor.numel()

    def __getitem__(self, index: Tensor | slice) -> Queries:
        side = self.side if isinstance(self.side, Side) else self.side[index]
        return Queries(self.anchor[index], self.relation[index], side)

    def to(self, device: torch.device | str) -> Queries:
        side = self.side if isinstance(self.side, Side) else self.side.to(device)
        return Queries(self.anchor.to(device), self.relation.to(device), side)


@dataclass(frozen=True)
class Negatives:
    """Corrupted answers for a batch of queries.

    Args:
        candidates: [B, K] each query's own entity ids, [N] ids shared by all queries, or [G, N] ids of G < B pools that
            ⌈B/G⌉ consecutive queries share (the last pool may serve fewer).
        known: [B, K] or [B, N] bool, True where the candidate is a true answer in train and must not count as
            negative; None when false negatives are not masked.
        log_q: [E] log-probability of each entity as a candidate, which the loss subtracts from logits; None for no
            correction.
        log_probability: [B, K] log-probability of each candidate, with gradient, under a proposal that learns.
    """

    candidates: Tensor
    known: Tensor | None = None
    log_q: Tensor | None = None
    log_probability: Tensor | None = None


def rows_of_pools(candidates: Tensor, number: int) -> Tensor:
    """[B, N] ids of each of B = `number` queries, from ids in any layout of `Negatives.candidates`."""
    if candidates.dim() == 1 or len(candidates) == 1:
        return candidates.expand(number, -1)
    if len(candidates) == number:
        return candidates
    return candidates.repeat_interleave(-(-number // len(candidates)), dim=0)[:number]


@dataclass(frozen=True)
class RankCounts:
    """A rank as two integers that add over blocks of entities and over devices.

    Args:
        better: [B] int64, unfiltered rivals scored strictly higher than the target; -1 marks a query not ranked yet.
        equal: [B] int64, unfiltered rivals with exactly the target's score.
        candidates: [B] int64, how many entities competed, the target included (E minus the filtered ones).
        nonfinite: [B] int64, how many of these had a score of NaN or ±inf; such rivals never count.
    """

    better: Tensor
    equal: Tensor
    candidates: Tensor
    nonfinite: Tensor

    def __len__(self) -> int:
        return self.better.numel()

    def __getitem__(self, index: Tensor | slice) -> RankCounts:
        return RankCounts(self.better[index], self.equal[index], self.candidates[index], self.nonfinite[index])

    @property
    def optimistic(self) -> Tensor:
        """[B] int64 ranks when the target wins every tie."""
        return self.better + 1

    @property
    def pessimistic(self) -> Tensor:
        """[B] int64 ranks when the target loses every tie."""
        return self.better + self.equal + 1

    @property
    def realistic(self) -> Tensor:
        """[B] float64 ranks: the mean of the optimistic and the pessimistic one."""
        return self.better.double() + self.equal.double() / 2 + 1


@runtime_checkable
class Scorer(Protocol):
    """Anything that can be ranked: higher scores are better answers."""

    num_entities: int

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """Scores of candidates.

        Args:
            queries: B questions.
            candidates: None for all entities, a `range` of entity ids, [N] shared ids, or [B, K] own ids. Models of kgc
                also take [G, N] ids of pools, see `Negatives`.

        Returns:
            [B, E], [B, len(range)], [B, N] or [B, K].
        """
        ...
