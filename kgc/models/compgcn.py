"""CompGCN: a graph convolution that composes entity and relation vectors, and a decoder (Vashishth et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.encoded import EncodedModel
from kgc.models.messages import MessageGraph, sum_messages


def subtraction(entity: Tensor, relation: Tensor) -> Tensor:
    """φ(u, r) = u − r (as in TransE)."""
    return entity - relation


def multiplication(entity: Tensor, relation: Tensor) -> Tensor:
    """φ(u, r) = u ∘ r (as in DistMult)."""
    return entity * relation


def correlation(entity: Tensor, relation: Tensor) -> Tensor:
    """φ(u, r) = u ⋆ r, circular correlation (as in HolE)."""
    return torch.fft.irfft(torch.fft.rfft(entity).conj() * torch.fft.rfft(relation), n=entity.shape[-1])


class CompGCN(EncodedModel):
    """Layers h′ᵥ = tanh(BN((Σ_in W_in φ(hᵤ, zᵣ)/c + Σ_out W_out φ(hᵤ, zᵣ)/c + W_loop φ(hᵥ, z_loop)) / 3 + b)) and
    z′ᵣ = W_rel zᵣ (eq. 2 to 4, and the authors' code for the mean of three, the normalisation and tanh).

    Edges are facts (out) and their inverses (in), with c = √(dᵤ dᵥ) of the edges of that direction that leave u and
    reach v. Relations have a vector for each direction, and the decoder asks for heads by that of the inverse, so that
    the model is reciprocal only.

    A pass costs P·dim compositions (correlation: P·dim·log dim) and 3·E·dim² multiplications a layer, and keeps about
    3·P·dim numbers a layer for the backward pass, for P distinct (source, relation) pairs.

    Args:
        decoder: see `EncodedModel`; its relation vectors are dim wide.
        composition: φ, of [*, dim] and [*, dim].
        layers: how many.
        dropout: probability that a coordinate of the sum over one direction is zeroed in training.
        hidden_dropout: of the vectors that a layer makes.
        options: of `EncodedModel`.
    """

    reciprocal_only = True

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        decoder: Callable[..., KGEModel],
        composition: Callable[[Tensor, Tensor], Tensor] = correlation,
        layers: int = 1,
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
        **options,
    ):
        encoder = _Layers(max(1, dim), composition, layers, dropout, hidden_dropout)
        super().__init__(num_entities, num_relations, dim, decoder=decoder, encoder=encoder, **options)
        if self.relation.embedding_dim != dim:
            raise UserError(
                f"model.decoder: CompGCN needs one whose relations are as wide as entities, model.dim={dim}; "
                f"{type(self.decoder).__name__}'s have {self.relation.embedding_dim} numbers"
            )


class _Layers(nn.Module):
    def __init__(self, dim: int, composition: Callable, layers: int, dropout: float, hidden_dropout: float):
        super().__init__()
        self.hidden_dropout = hidden_dropout
        self.layers = nn.ModuleList(CompGCNLayer(dim, composition, dropout) for _ in range(layers))

    def forward(self, entity: Tensor, relation: Tensor, graph: MessageGraph) -> tuple[Tensor, Tensor]:
        weight = symmetric_shares(graph).to(entity.dtype)
        for layer in self.layers:
            entity, relation = layer(entity, relation, graph, weight)
            entity = F.dropout(entity, self.hidden_dropout, self.training)
        return entity, relation


def symmetric_shares(graph: MessageGraph) -> Tensor:
    """[2, M] float64 1/√(dᵤ dᵥ) of the edges that are facts, 0 elsewhere, and of those that are inverses."""
    source, inverse = graph.source[graph.pair], (graph.relation >= graph.num_relations)[graph.pair]
    place = inverse * graph.num_entities
    size = 2 * graph.num_entities
    leaving, reaching = (torch.bincount(place + ends, minlength=size) for ends in (source, graph.target))
    share = (leaving[place + source] * reaching[place + graph.target]).double().rsqrt()
    return torch.stack([share * ~inverse, share * inverse])


class CompGCNLayer(nn.Module):
    """One layer.

    Args:
        dim: width of vectors.
        composition: φ.
        dropout: of the sum over each direction.
    """

    def __init__(self, dim: int, composition: Callable[[Tensor, Tensor], Tensor], dropout: float):
        super().__init__()
        self.composition = composition
        self.dropout = dropout
        made = [nn.init.xavier_normal_(torch.empty(dim, dim)) for _ in range(4)]
        self.forward_weight, self.inverse_weight, self.loop_weight, self.relation_weight = map(nn.Parameter, made)
        self.loop = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, dim)))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, entity: Tensor, relation: Tensor, graph: MessageGraph, weight: Tensor) -> tuple[Tensor, Tensor]:
        """[E, dim] and [2R, dim] vectors, and `symmetric_shares`, to vectors of the same sizes."""
        messages = self.composition(graph.sources(entity), F.embedding(graph.relation, relation))  # [P, dim]
        total = self.composition(entity, self.loop) @ self.loop_weight
        for share, matrix in zip(weight, (self.forward_weight, self.inverse_weight), strict=True):
            part = sum_messages(messages, graph, share) @ matrix
            total = total + F.dropout(part, self.dropout, self.training)
        return self.norm(total / 3 + self.bias).tanh(), relation @ self.relation_weight
