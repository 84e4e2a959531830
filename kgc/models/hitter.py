"""HittER without context: a Transformer over the anchor and the relation (Chen et al. 2021, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.layers import LayerNorm, Linear
from kgc.models.network import NetworkModel
from kgc.models.similarity import fixed_sum


class HittER(NetworkModel):
    """⟨z, t⟩, with z what a Transformer encoder makes of [CLS] in the sequence [CLS], anchor, relation.

    The anchor and the relation get a vector of their kind added, learnt like [CLS]. The paper's second Transformer,
    over the anchor's neighbours, is left out.

    Args:
        layers: of the encoder.
        heads: of attention; divides dim.
        width: of the feed-forward part.
        dropout: of attention and feed-forward parts.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        layers: int = 2,
        heads: int = 4,
        width: int = 512,
        dropout: float = 0.1,
        **options,
    ):
        if dim < 1 or dim % heads:
            nearest = max(1, round(dim / heads)) * heads
            raise UserError(
                f"model.dim={dim}: HittER's model.heads={heads} share a vector's numbers evenly, so dim must be a "
                f"multiple of {heads}; try {nearest}"
            )
        options = {"entity_init": nn.init.xavier_normal_, "relation_init": nn.init.xavier_normal_} | options
        network = _Encoder(dim, layers, heads, width, dropout)
        super().__init__(num_entities, num_relations, dim, network=network, **options)


class _Encoder(nn.Module):
    """[B, dim] anchors and relations to the [B, dim] encodings of [CLS]."""

    def __init__(self, dim: int, layers: int, heads: int, width: int, dropout: float):
        super().__init__()
        self.kinds = nn.Parameter(torch.empty(3, dim))  # [CLS], and what is added to the anchor and to the relation
        self.layers = nn.ModuleList(_Layer(dim, heads, width, dropout) for _ in range(layers))
        nn.init.normal_(self.kinds, std=0.02)

    def forward(self, anchor: Tensor, relation: Tensor) -> Tensor:
        tokens = torch.stack([torch.zeros_like(anchor), anchor, relation], dim=1) + self.kinds  # [B, 3, dim]
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens[:, 0]


class _Layer(nn.Module):
    """Attention and a feed-forward part on [B, T, dim] tokens, each added and normalised (Vaswani et al. 2017)."""

    def __init__(self, dim: int, heads: int, width: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.attention = Linear(dim, 3 * dim)  # to queries, keys and values
        self.joined = Linear(dim, dim)
        self.inner = Linear(dim, width)
        self.outer = Linear(width, dim)
        self.norm1, self.norm2 = LayerNorm(dim), LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.attention, self.joined, self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm1(tokens + self.dropout(self.attend(tokens)))
        return self.norm2(tokens + self.dropout(self.outer(self.dropout(self.inner(tokens).relu()))))

    def attend(self, tokens: Tensor) -> Tensor:
        """Tokens are three: sums over them, and over a head's few numbers, are quicker than products of matrices."""
        split = self.attention(tokens).unflatten(-1, (3, self.heads, -1))  # [B, T, 3, heads, dim / heads]
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [B, heads, T, dim / heads] each
        logits = fixed_sum(query.unsqueeze(-2) * key.unsqueeze(-3)) / query.shape[-1] ** 0.5  # [B, heads, T, T]
        weights = (logits - logits.amax(-1, keepdim=True).detach()).exp()
        weights = self.dropout(weights / fixed_sum(weights).unsqueeze(-1))
        seen = fixed_sum(weights.unsqueeze(-2) * value.mT.unsqueeze(-3))  # [B, heads, T, dim / heads]
        return self.joined(seen.transpose(1, 2).flatten(-2))
