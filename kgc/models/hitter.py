"""HittER without context: a Transformer over the anchor and the relation (Chen et al. 2021, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.network import NetworkModel


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
        layer = nn.TransformerEncoderLayer(dim, heads, width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        nn.init.normal_(self.kinds, std=0.02)
        for parameter in self.encoder.parameters():  # torch makes all layers copies of one
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, anchor: Tensor, relation: Tensor) -> Tensor:
        tokens = torch.stack([torch.zeros_like(anchor), anchor, relation], dim=1) + self.kinds  # [B, 3, dim]
        return self.encoder(tokens)[:, 0]
