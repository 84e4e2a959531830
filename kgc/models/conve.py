"""ConvE: 2D convolution of the anchor and the relation (Dettmers et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.init import Columns, Constant
from kgc.models.layers import BatchNorm, Convolution, ImageNorm, Linear
from kgc.models.network import NetworkModel


class ConvE(NetworkModel):
    """⟨relu(W vec(relu([h̄; r̄] * ω))), t⟩ + b_t, with batch normalisation and dropout between (eq. 1, and its code).

    h̄ and r̄ are vectors laid out in `height` rows, one image under the other. An entity stores dim numbers and one bias,
    together dim + 1; a relation dim numbers.

    Args:
        height: rows of the image of one vector; divides dim.
        channels: filters.
        kernel: side of a square filter; images are not padded.
        input_dropout, feature_dropout, hidden_dropout: of the images, of whole feature maps, of the hidden vector.
    """

    extra = 1

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        height: int = 8,
        channels: int = 32,
        kernel: int = 3,
        input_dropout: float = 0.2,
        feature_dropout: float = 0.2,
        hidden_dropout: float = 0.3,
        **options,
    ):
        if dim < 1 or dim % height:
            nearest = max(1, round(dim / height)) * height
            raise UserError(
                f"model.dim={dim}: ConvE lays vectors out in model.height={height} rows, so dim must be a multiple of "
                f"{height}; try {nearest}"
            )
        width = dim // height
        if kernel > min(2 * height, width):
            raise UserError(
                f"model.kernel={kernel}: larger than the image of 2 x {height} rows and {width} columns; choose a "
                "smaller kernel, a larger model.dim or another model.height"
            )
        image = nn.Sequential(
            ImageNorm(1),
            nn.Dropout(input_dropout),
            Convolution(1, channels, kernel),
            ImageNorm(channels),
            nn.ReLU(),
            nn.Dropout2d(feature_dropout),
            nn.Flatten(),
            Linear(channels * (2 * height - kernel + 1) * (width - kernel + 1), dim),
            nn.Dropout(hidden_dropout),
            BatchNorm(dim),
            nn.ReLU(),
        )
        xavier = nn.init.xavier_normal_
        options = {"entity_init": Columns((dim, xavier), (1, Constant(0.0))), "relation_init": xavier} | options
        super().__init__(num_entities, num_relations, dim, network=_Stacked(image, height), **options)


class _Stacked(nn.Module):
    """[B, dim] anchors and relations, stacked to [B, 2·height, width] images, through a network."""

    def __init__(self, image: nn.Module, height: int):
        super().__init__()
        self.height = height
        self.image = image

    def forward(self, anchor: Tensor, relation: Tensor) -> Tensor:
        stacked = torch.cat([anchor, relation], dim=-1).unflatten(-1, (2 * self.height, -1))
        return self.image(stacked.unsqueeze(1))
