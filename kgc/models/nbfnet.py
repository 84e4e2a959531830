"""NBFNet: a generalised Bellman-Ford iteration over paths from the anchor, learned (Zhu et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kgc.errors import UserError
from kgc.models.algebra import complex_product
from kgc.models.base import require_even
from kgc.models.messages import MessageGraph, max_messages, sum_messages
from kgc.models.path_model import PathModel
from kgc.types import Triples

# Messages of more numbers than this are made again in the backward pass.
_KEPT = {"cpu": 1 << 25, "cuda": 1 << 28}

Operation = Callable[[Tensor, Tensor], Tensor]


def multiplication(state: Tensor, relation: Tensor) -> Tensor:
    """h ∘ w (as in DistMult)."""
    return state * relation


def translation(state: Tensor, relation: Tensor) -> Tensor:
    """h + w (as in TransE)."""
    return state + relation


def rotation(state: Tensor, relation: Tensor) -> Tensor:
    """h · w as complex numbers, stored [real half | imaginary half] (as in RotatE, without its unit moduli)."""
    require_even("NBFNet with rotation", state.shape[-1])
    return complex_product(state, relation)


class NBFNet(PathModel):
    """h⁰ᵥ = [v = anchor] q, hᵗᵥ = σ(LN(W [hᵗ⁻¹ᵥ; ⊕ of ψ(hᵗ⁻¹ᵤ, wᵣ) over the edges (u, r, v), and of h⁰ᵥ])) + hᵗ⁻¹ᵥ,
    and the score of v is an MLP of [hᵀᵥ; q] (eq. 5 to 8, and the authors' code for LN and the short cut).

    q is the vector of the query's relation. In training the edges of the batch's own triples are taken out of the
    graph, in both directions. With the sum as ⊕, multiplication as ψ and nothing else, h is the sum over paths of
    products of relation vectors.

    B queries cost about B·dim·(3·P + M + E·dim) operations a layer, for P distinct (source, relation) pairs and M
    edges, and hold B·P·dim numbers of messages at once; a step of training keeps 2·B·P·dim a layer, or B·E·dim where
    messages are made anew in the backward pass.

    Args:
        dim: d, numbers of a state and of a relation.
        layers: T.
        message: ψ, of [..., d] states and [..., d] relations.
        aggregation: ⊕, `Sum` or `PNA`.
        dependent: wᵣ of a layer is a linear function of q; false makes it a vector of the layer's own.
        one_hop: false also takes all other edges between the two ends of a triple out of the graph in training.
        layer_norm, short_cut: LN, and + hᵗ⁻¹.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        layers: int = 6,
        message: Operation = multiplication,
        aggregation: nn.Module | None = None,
        dependent: bool = True,
        one_hop: bool = True,
        layer_norm: bool = True,
        short_cut: bool = True,
    ):
        super().__init__(num_entities, num_relations)
        if dim < 1:
            raise UserError(f"model.dim={dim}: the width of a state must be at least 1")
        message(torch.empty(0, dim), torch.empty(0, dim))  # says at once if it cannot have this width
        self.dim = self.width = dim
        self.one_hop = one_hop
        self.short_cut = short_cut
        self.message = message
        self.aggregation = aggregation or Sum()
        self.relation = nn.Embedding(2 * num_relations, dim)
        width = (1 + self.aggregation.parts) * dim
        self.layers = nn.ModuleList(_Layer(2 * num_relations, dim, width, dependent, layer_norm) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, 1))

    def hidden(self, triples: Triples) -> MessageGraph:
        return self.graph.without(triples) if self.one_hop else self.graph.without_ends(triples)

    def forward(self, anchor: Tensor, relation: Tensor, graph: MessageGraph) -> Tensor:
        query = self.relation(relation)  # [B, d]
        state = self.states(query, anchor, graph)  # [E, B, d]
        return self.head(torch.cat([state, query.expand_as(state)], dim=-1)).squeeze(-1).T

    def states(self, query: Tensor, anchor: Tensor, graph: MessageGraph) -> Tensor:
        """[B, d] queries from [B] anchors to the [E, B, d] states after the last layer."""
        start = query.new_zeros(graph.num_entities, *query.shape)
        start = start.index_put((anchor, torch.arange(len(anchor), device=anchor.device)), query)
        state = start
        for layer in self.layers:
            around = self._aggregated(state, start, layer.relations(query), graph)
            new = layer.update(torch.cat([state, around], dim=-1))
            state = new + state if self.short_cut else new
        return state

    def _aggregated(self, state: Tensor, start: Tensor, relation: Tensor, graph: MessageGraph) -> Tensor:
        """[E, B, d] states and starts, [2R, B, d] relations, to [E, B, parts · d]."""

        def aggregate(state: Tensor, start: Tensor, relation: Tensor) -> Tensor:
            wide = F.embedding(graph.relation, relation.flatten(1)).unflatten(-1, relation.shape[1:])
            return self.aggregation(self.message(graph.sources(state), wide), start, graph)

        numbers = len(graph.source) * start[0].numel()
        if torch.is_grad_enabled() and numbers > _KEPT.get(state.device.type, _KEPT["cpu"]):
            return checkpoint(aggregate, state, start, relation, use_reentrant=False, preserve_rng_state=False)
        return aggregate(state, start, relation)


class _Layer(nn.Module):
    def __init__(self, relations: int, dim: int, width: int, dependent: bool, layer_norm: bool):
        super().__init__()
        self.relation = nn.Linear(dim, relations * dim) if dependent else nn.Embedding(relations, dim)
        self.linear = nn.Linear(width, dim)
        self.norm = nn.LayerNorm(dim) if layer_norm else nn.Identity()

    def relations(self, query: Tensor) -> Tensor:
        """[B, d] queries to the [2R, B, d] relations as each of them sees them."""
        if isinstance(self.relation, nn.Embedding):
            return self.relation.weight.unsqueeze(1).expand(-1, *query.shape)
        return self.relation(query).unflatten(-1, (-1, query.shape[-1])).transpose(0, 1)

    def update(self, joined: Tensor) -> Tensor:
        return self.norm(self.linear(joined)).relu()


class Sum(nn.Module):
    """⊕ as the sum."""

    parts = 1

    def forward(self, messages: Tensor, start: Tensor, graph: MessageGraph) -> Tensor:
        """[P, B, d] messages and [E, B, d] starts to [E, B, parts · d]."""
        return sum_messages(messages.flatten(1), graph).view_as(start) + start


class PNA(nn.Module):
    """⊕ as mean, maximum, minimum and standard deviation, each times 1, δ and 1/δ (Corso et al. 2020).

    δᵥ = log(dᵥ + 1) over its mean, for dᵥ edges into v and the start, which counts as one more message.
    """

    parts = 12

    def forward(self, messages: Tensor, start: Tensor, graph: MessageGraph) -> Tensor:
        """See `Sum`."""
        flat, own = messages.flatten(1), start.flatten(1)
        degree = (graph.in_degree + 1).to(start.dtype).view(-1, 1, 1)
        mean = ((sum_messages(flat, graph) + own).view_as(start)) / degree
        square = ((sum_messages(flat.square(), graph) + own.square()).view_as(start)) / degree
        largest = torch.maximum(max_messages(flat, graph), own).view_as(start)
        smallest = torch.minimum(-max_messages(-flat, graph), own).view_as(start)
        deviation = (square - mean.square()).clamp_min(1e-6).sqrt()
        scale = degree.log()
        scale = scale / scale.mean().clamp_min(1e-6)
        scales = (torch.ones_like(scale), scale, scale.clamp_min(1e-2).reciprocal())
        features = torch.cat([mean, largest, smallest, deviation], dim=-1)
        return torch.cat([features * factor for factor in scales], dim=-1)
