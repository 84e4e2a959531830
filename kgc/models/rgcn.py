"""R-GCN: a relational graph convolution makes the entity vectors that a decoder scores (Schlichtkrull et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.encoded import EncodedModel
from kgc.models.messages import MessageGraph, sum_messages


class RGCN(EncodedModel):
    """Layers h′ᵥ = σ(W₀ hᵥ + b + Σᵣ Σᵤ Wᵣ hᵤ / c) over the edges (u, r, v), inverse relations among them (eq. 2).

    c is the number of edges into v with relation r, or of all edges into v (`across_relations`, which the paper takes
    for link prediction). σ is relu between layers, and nothing after the last. Wᵣ is Σ_b a_rb V_b (`bases`, eq. 3) or
    block-diagonal (`blocks`, eq. 4). Input vectors are learned; the decoder's relation vectors do not pass through.

    A pass costs P·dim²/blocks multiplications a layer (bases: one block) for P distinct (source, relation) pairs and
    keeps about 2·P·dim numbers a layer for the backward pass, and the 2R matrices of bases.

    Args:
        decoder: see `EncodedModel`.
        layers: how many.
        bases: number of matrices V_b; null with `blocks`.
        blocks: number of blocks, which divides dim; null with `bases`.
        across_relations: see above.
        self_dropout: probability that a coordinate of W₀ hᵥ is zeroed in training.
        options: of `EncodedModel`.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        decoder: Callable[..., KGEModel],
        layers: int = 2,
        bases: int | None = None,
        blocks: int | None = None,
        across_relations: bool = False,
        self_dropout: float = 0.0,
        **options,
    ):
        if (bases is None) == (blocks is None):
            raise UserError(f"model.bases={bases} model.blocks={blocks}: give one of them a number and the other null")
        if blocks is not None and (dim < 1 or dim % blocks):
            raise UserError(
                f"model.dim={dim}: R-GCN cuts vectors into model.blocks={blocks} blocks, so dim must be a multiple of "
                f"{blocks}; try {max(1, round(dim / blocks)) * blocks}"
            )
        encoder = _Layers(2 * num_relations, max(1, dim), layers, bases, blocks, across_relations, self_dropout)
        super().__init__(num_entities, num_relations, dim, decoder=decoder, encoder=encoder, **options)


class _Layers(nn.Module):
    def __init__(
        self,
        relations: int,
        dim: int,
        layers: int,
        bases: int | None,
        blocks: int | None,
        across_relations: bool,
        dropout: float,
    ):
        super().__init__()
        self.across_relations = across_relations
        self.layers = nn.ModuleList(
            RGCNLayer(_Bases(relations, dim, bases) if bases else _Blocks(relations, dim, blocks), dim, dropout)
            for _ in range(layers)
        )

    def forward(self, entity: Tensor, relation: Tensor, graph: MessageGraph) -> tuple[Tensor, Tensor]:
        weight = shares(graph, self.across_relations).to(entity.dtype)
        for i, layer in enumerate(self.layers):
            entity = layer(entity.relu() if i else entity, graph, weight)
        return entity, relation


def shares(graph: MessageGraph, across_relations: bool) -> Tensor:
    """[M] float64 1/c of each edge."""
    if across_relations:
        return graph.in_degree[graph.target].double().reciprocal()
    key = graph.target * (2 * graph.num_relations) + graph.relation[graph.pair]
    _, group, count = torch.unique(key, return_inverse=True, return_counts=True)
    return count[group].double().reciprocal()


class RGCNLayer(nn.Module):
    """One layer, before σ.

    Args:
        matrices: the Wᵣ.
        dim: width of vectors.
        dropout: of the self-loop.
    """

    def __init__(self, matrices: nn.Module, dim: int, dropout: float):
        super().__init__()
        self.matrices = matrices
        self.loop = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dim, dim)))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.dropout = dropout

    def forward(self, entity: Tensor, graph: MessageGraph, weight: Tensor) -> Tensor:
        """[E, dim] vectors and [M] factors of edges to [E, dim]."""
        own = F.dropout(entity @ self.loop, self.dropout, self.training)
        return own + self.bias + sum_messages(self.matrices(entity, graph), graph, weight)


class _Bases(nn.Module):
    """Wᵣ = Σ_b a_rb V_b."""

    def __init__(self, relations: int, dim: int, bases: int):
        super().__init__()
        self.basis = nn.Parameter(torch.stack([nn.init.xavier_uniform_(torch.empty(dim, dim)) for _ in range(bases)]))
        self.coefficient = nn.Parameter(torch.randn(relations, bases) / math.sqrt(bases))

    def forward(self, entity: Tensor, graph: MessageGraph) -> Tensor:
        """[P, dim] messages."""
        matrices = torch.einsum("rb,bio->rio", self.coefficient, self.basis)
        parts = graph.sources(entity).split(graph.sizes)
        return torch.cat([part @ matrix for part, matrix in zip(parts, matrices.unbind(), strict=True)])


class _Blocks(nn.Module):
    """Wᵣ of blocks along the diagonal."""

    def __init__(self, relations: int, dim: int, blocks: int):
        super().__init__()
        width = dim // blocks
        bound = math.sqrt(3 / width)  # Xavier of one block
        self.block = nn.Parameter(torch.empty(relations, blocks, width, width).uniform_(-bound, bound))

    def forward(self, entity: Tensor, graph: MessageGraph) -> Tensor:
        """[P, dim] messages."""
        _, blocks, width, _ = self.block.shape
        parts = graph.sources(entity.unflatten(-1, (blocks, width))).split(graph.sizes)  # [p, blocks, width] each
        matrices = self.block.unbind()
        made = [torch.einsum("pbi,bio->pbo", part, block) for part, block in zip(parts, matrices, strict=True)]
        return torch.cat(made).flatten(1)
