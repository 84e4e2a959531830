"""The interface of trainable models that score all entities at once, by walking over a graph from the anchor."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.messages import MessageGraph, OverFacts
from kgc.types import Queries, Side, Triples

# Numbers that the messages of one block of queries hold, for one layer, and the most queries of a block.
_BLOCK = {"cpu": 1 << 22, "cuda": 1 << 27}
_QUERIES = 128


class PathModel(OverFacts, nn.Module):
    """A `Scorer` without a vector for each entity, so that it ranks entities that it was not trained on.

    It answers (h, r, ?) by relation r and (?, r, t) as (t, r + R, ?). Scores of queries are computed in blocks of one
    size, filled up, so that their number changes no product's shape; each distinct query is scored once a call.

    Args:
        num_entities: E, of the graph that `use_facts` gives.
        num_relations: R.
    """

    inductive = True  # ranks entities that it was not trained on
    whole_rows = True  # one query costs what all entities cost: rank in blocks as wide as the graph
    width = 1  # numbers of a message

    def __init__(self, num_entities: int, num_relations: int):
        super().__init__()
        self.num_entities = num_entities
        self.num_relations = num_relations

    def forward(self, anchor: Tensor, relation: Tensor, graph: MessageGraph) -> Tensor:
        """[B] entities and [B] relations in 0 … 2R − 1 to [B, E] scores."""
        raise NotImplementedError

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, len(range)], [B, N] or [B, K] scores; see `kgc.types.Scorer`."""
        scores = self._rows(queries, self.graph, self._block())
        if isinstance(candidates, Tensor):
            return scores.gather(1, candidates) if candidates.dim() == 2 else scores[:, candidates]
        return scores if candidates is None else scores[:, candidates.start : candidates.stop]

    def score_without(self, queries: Queries, triples: Triples) -> Tensor:
        """[B, E] scores over the graph without the edges of some triples: what a step of training asks for."""
        return self._rows(queries, self.hidden(triples), None)

    def hidden(self, triples: Triples) -> MessageGraph:
        """The graph on which these triples are to be found again."""
        return self.graph.without(triples)

    def logits(self, scores: Tensor) -> Tensor:
        """Scores are logits."""
        return scores

    def one_pass(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is shared between the calls of a step."""
        return contextlib.nullcontext()

    def use_sparse_gradients(self) -> None:
        raise UserError(f"optimizer.sparse=true: {type(self).__name__} has no tables of entities; leave it out")

    def _block(self) -> int:
        device = next(self.parameters()).device
        numbers = max(len(self.graph.source), self.num_entities, 1) * self.width
        return max(1, min(_QUERIES, _BLOCK.get(device.type, _BLOCK["cpu"]) // numbers))

    def _rows(self, queries: Queries, graph: MessageGraph, block: int | None) -> Tensor:
        """[B, E] scores in blocks of `block` queries; None takes all at once."""
        asks_head = torch.as_tensor(queries.side, device=queries.anchor.device) == Side.HEAD
        relation = queries.relation + self.num_relations * asks_head
        key, row = torch.unique(relation * self.num_entities + queries.anchor, return_inverse=True)
        if not len(key):
            return next(self.parameters()).new_zeros(0, self.num_entities)
        size = block or len(key)
        key = torch.cat([key, key[-1:].expand(-len(key) % size)])
        parts = [self(part % self.num_entities, part // self.num_entities, graph) for part in key.split(size)]
        return torch.cat(parts)[row]
