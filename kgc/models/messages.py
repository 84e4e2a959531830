"""Message passing over a knowledge graph: facts and their inverses as edges, and sums of messages at their targets.

The message of an edge (u, r, v) depends on u and r alone in all models here. So messages are made once for each of P
distinct (source, relation) pairs, [P, C] numbers, P ≤ edges, and summed at the targets without a copy for each edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.types import Triples


@dataclass(frozen=True)
class MessageGraph:
    """Distinct facts (h, r, t) as edges from h to t, and (t, r + R, h) as edges from t to h.

    Args:
        num_entities, num_relations: E and R.
        source, relation: [P] the distinct pairs of a source and a relation in 0 … 2R − 1, by relation, then source.
        pair, target: [M] the pair and the target of each edge, by target, then pair.
        order: [M] the places of edges by pair, then target.
    """

    num_entities: int
    num_relations: int
    source: Tensor
    relation: Tensor
    pair: Tensor
    target: Tensor
    order: Tensor

    @staticmethod
    def of(facts: Triples, num_entities: int, num_relations: int) -> MessageGraph:
        """The graph of some facts; one that is there twice counts once."""
        source = torch.cat([facts.head, facts.tail])
        target = torch.cat([facts.tail, facts.head])
        relation = torch.cat([facts.relation, facts.relation + num_relations])
        key, pair = torch.unique(relation * num_entities + source, return_inverse=True)
        edge = torch.unique(target * max(1, len(key)) + pair)
        pair, target = edge % max(1, len(key)), edge // max(1, len(key))
        order = torch.argsort(pair, stable=True)
        return MessageGraph(num_entities, num_relations, key % num_entities, key // num_entities, pair, target, order)

    @cached_property
    def offsets(self) -> Tensor:
        """[E + 1] where the edges into each entity begin and end."""
        return torch.searchsorted(self.target, torch.arange(self.num_entities + 1, device=self.target.device))

    @cached_property
    def pair_offsets(self) -> Tensor:
        """[P + 1] where the edges of each pair begin and end in `order`."""
        pairs = torch.arange(len(self.source) + 1, device=self.pair.device)
        return torch.searchsorted(self.pair[self.order], pairs)

    @cached_property
    def in_degree(self) -> Tensor:
        """[E] edges into each entity."""
        return self.offsets.diff()

    @cached_property
    def sizes(self) -> list[int]:
        """[2R] how many pairs each relation has."""
        return torch.bincount(self.relation, minlength=2 * self.num_relations).tolist()

    def to(self, device: torch.device) -> MessageGraph:
        if self.pair.device == device:
            return self
        columns = (self.source, self.relation, self.pair, self.target, self.order)
        return MessageGraph(self.num_entities, self.num_relations, *(column.to(device) for column in columns))

    def kept(self, keep: Tensor) -> MessageGraph:
        """The graph of those edges that [M] bool `keep` marks; pairs stay, even without an edge."""
        order = (keep.cumsum(0) - 1)[self.order[keep[self.order]]]
        numbers = (self.num_entities, self.num_relations, self.source, self.relation)
        return MessageGraph(*numbers, self.pair[keep], self.target[keep], order)

    def without(self, triples: Triples) -> MessageGraph:
        """The graph without the edges of some facts, in both directions."""
        key = (self.relation * self.num_entities + self.source)[self.pair] * self.num_entities + self.target
        inverse = triples.relation + self.num_relations
        hidden = torch.cat(
            [
                (triples.relation * self.num_entities + triples.head) * self.num_entities + triples.tail,
                (inverse * self.num_entities + triples.tail) * self.num_entities + triples.head,
            ]
        )
        return self.kept(~torch.isin(key, hidden))

    def without_ends(self, triples: Triples) -> MessageGraph:
        """The graph without any edge between the two ends of one of the triples, whatever its relation."""
        key = self.source[self.pair] * self.num_entities + self.target
        ends = [triples.head * self.num_entities + triples.tail, triples.tail * self.num_entities + triples.head]
        return self.kept(~torch.isin(key, torch.cat(ends)))

    def dropped(self, share: float) -> MessageGraph:
        """The graph without a random share of its facts, by torch's generator; an edge goes with its inverse."""
        inverse = self.relation[self.pair] >= self.num_relations
        source, relation = self.source[self.pair], self.relation[self.pair] % max(1, self.num_relations)
        head, tail = torch.where(inverse, self.target, source), torch.where(inverse, source, self.target)
        _, fact = torch.unique((relation * self.num_entities + head) * self.num_entities + tail, return_inverse=True)
        number = int(fact.max()) + 1 if len(fact) else 0
        return self.kept((torch.rand(number, device=fact.device) >= share)[fact])

    def sources(self, vectors: Tensor) -> Tensor:
        """[E, …] of entities to [P, …] of the sources of the pairs."""
        return F.embedding(self.source, vectors.flatten(1)).unflatten(-1, vectors.shape[1:])

    def facts(self) -> Iterator[tuple[int, int, int]]:
        """All edges (source, relation, target)."""
        yield from zip(
            self.source[self.pair].tolist(), self.relation[self.pair].tolist(), self.target.tolist(), strict=True
        )


class OverFacts:
    """What a module with `num_entities`, `num_relations` and parameters needs to pass messages over a graph.

    The graph is none of the module's state: it is made of the data wherever the module is built.
    """

    _graph: MessageGraph | None = None

    def use_facts(self, facts: Triples) -> None:
        self._graph = MessageGraph.of(facts, self.num_entities, self.num_relations)

    @property
    def graph(self) -> MessageGraph:
        """The edges, on the device of the parameters.

        Raises:
            UserError: no facts were given.
        """
        if self._graph is None:
            raise UserError(f"{type(self).__name__} has no graph to pass messages over: give it by use_facts(triples)")
        self._graph = self._graph.to(next(self.parameters()).device)
        return self._graph


def sum_messages(messages: Tensor, graph: MessageGraph, weight: Tensor | None = None) -> Tensor:
    """[P, C] messages of the pairs, summed over the edges into each entity, to [E, C].

    Args:
        messages: of the graph's pairs.
        graph: of M edges.
        weight: [M] factors of the edges, without a gradient; None for 1.
    """
    return _Sum.apply(messages, graph, weight)


def max_messages(messages: Tensor, graph: MessageGraph) -> Tensor:
    """[P, C] messages of the pairs, their largest over the edges into each entity, to [E, C]; −∞ without an edge."""
    return _Max.apply(messages, graph)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, messages: Tensor, graph: MessageGraph, weight: Tensor | None) -> Tensor:
        ctx.graph, ctx.weight = graph, weight
        return _bags(messages, graph.pair, graph.offsets, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        graph, weight = ctx.graph, ctx.weight
        weight = None if weight is None else weight[graph.order]
        return _bags(gradient.contiguous(), graph.target[graph.order], graph.pair_offsets, weight), None, None


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx, messages: Tensor, graph: MessageGraph) -> Tensor:
        found, _, _, best = torch.embedding_bag(messages, graph.pair, graph.offsets, mode=2, include_last_offset=True)
        empty = (graph.in_degree == 0).unsqueeze(-1)
        ctx.pairs = len(messages)
        ctx.save_for_backward(best, empty)
        return found.masked_fill(empty, -torch.inf)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        best, empty = ctx.saved_tensors
        gradient = gradient.masked_fill(empty, 0.0)
        of_messages = gradient.new_zeros(ctx.pairs, gradient.shape[1])
        return of_messages.scatter_add_(0, best.clamp_min(0), gradient), None


def _bags(rows: Tensor, index: Tensor, offsets: Tensor, weight: Tensor | None) -> Tensor:
    """[n, C] sums of the rows that each of n bags lists."""
    if not len(rows) or not len(index):
        return rows.new_zeros(len(offsets) - 1, rows.shape[1])
    weight = None if weight is None else weight.to(rows.dtype)
    bags = torch.embedding_bag(rows, index, offsets, mode=0, per_sample_weights=weight, include_last_offset=True)
    return bags[0]
