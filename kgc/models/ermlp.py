"""ER-MLP: one hidden layer over the whole triple, w·tanh(A [h; r; t] + b) (Dong et al. 2014, eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kgc.models.base import KGEModel
from kgc.models.init import Xavier
from kgc.models.similarity import Similarity
from kgc.types import Side

# Hidden units of one chunk of triples.
_TEMPORARY = {"cpu": 1 << 18, "cuda": 1 << 26}


class HiddenLayer(Similarity):
    """w·tanh(q + c) of query rows [q | w], 2H wide, and candidate rows c, H wide.

    Queries are taken in chunks, made again in the backward pass. There is no bound on what fp32 loses.
    """

    fuses = True

    def shared(self, query: Tensor, candidate: Tensor) -> Tensor:
        if query.dim() == 3:
            return torch.stack([self.shared(*pool) for pool in zip(query, candidate, strict=True)])
        size = max(1, _TEMPORARY.get(query.device.type, _TEMPORARY["cpu"]) // max(1, candidate.numel()))
        return torch.cat([self._chunk(part, candidate.unsqueeze(0)) for part in query.split(size)])

    def own(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -self.key_distance(query.unsqueeze(1), candidate)

    def key_distance(self, query: Tensor, candidate: Tensor) -> Tensor:
        hidden, weight = query.chunk(2, dim=-1)
        return -((hidden + candidate).tanh() * weight).sum(-1)

    def _chunk(self, query: Tensor, candidate: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.own(query, candidate)
        return checkpoint(self.own, query, candidate, use_reentrant=False, preserve_rng_state=False)


class ERMLP(KGEModel):
    """The hidden layer is linear in each part of the triple: A [h; r; t] = A_h h + A_r r + A_t t.

    So a query is A_h h + A_r r + b, a candidate A_t t, or A_r r + A_t t + b and A_h h for head queries; candidates are
    kept as [A_h e | A_t e], and a query gives the half that it does not ask weights of 0. With reciprocal relations
    only A_t is needed. w travels with the queries, so that losses over all entities train it too.

    Args:
        hidden: H, hidden units.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, hidden: int = 128, **options):
        options = {"entity_init": Xavier(), "relation_init": Xavier()} | options
        super().__init__(num_entities, num_relations, dim, similarity=HiddenLayer(), **options)
        self.hidden = nn.Linear(3 * dim, hidden)
        weights = nn.init.xavier_uniform_(torch.empty(1, hidden), gain=nn.init.calculate_gain("tanh"))
        self.output = nn.Parameter(weights.squeeze(0))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        of_head, of_relation, of_tail = self.hidden.weight.split(self.dim, dim=1)
        hidden = F.linear(anchor, of_head if side is Side.TAIL else of_tail)
        hidden = hidden + F.linear(relation, of_relation, self.hidden.bias)
        parts = [hidden, self.output.expand_as(hidden)]
        if not self.reciprocal:
            zero = torch.zeros_like(hidden)
            parts = [part for pair in parts for part in ((zero, pair) if side is Side.TAIL else (pair, zero))]
        return torch.cat(parts, dim=-1)

    def candidate(self, vectors: Tensor) -> Tensor:
        of_head, _, of_tail = self.hidden.weight.split(self.dim, dim=1)
        return F.linear(vectors, of_tail if self.reciprocal else torch.cat([of_head, of_tail]))
