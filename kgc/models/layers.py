"""Layers of networks whose rows, in float64, depend on nothing but themselves: certified ranks need that.

In fp32 they are torch's own. In float64 a product of matrices, which libraries add up in an order that changes with the
number of rows, is exact until one rounding; other sums have one order of additions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.models.exact import exact_product
from kgc.models.similarity import fixed_sum


class ExactProduct(torch.autograd.Function):
    """`exact_product` of [n, k] and [k, m], with gradients."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return exact_product(a, b)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return gradient @ b.T, a.T @ gradient


class Linear(nn.Linear):
    """x Wᵀ + b of [*, n] rows."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype != torch.float64:
            return super().forward(input)
        product = ExactProduct.apply(input.flatten(0, -2), self.weight.T)
        return product.unflatten(0, input.shape[:-1]) + self.bias


class Convolution(nn.Conv2d):
    """Filters over [B, channels, height, width] images, without padding."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype != torch.float64:
            return super().forward(input)
        height, width = (n - k + 1 for n, k in zip(input.shape[2:], self.kernel_size, strict=True))
        cells = F.unfold(input, self.kernel_size).mT  # [B, places, channels · k²]
        product = ExactProduct.apply(cells.flatten(0, 1), self.weight.flatten(1).T) + self.bias
        return product.unflatten(0, (len(input), height * width)).mT.unflatten(-1, (height, width))


class _Evaluated:
    """Batch normalisation whose form in evaluation mode is two operations a number."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.numel() > input.shape[1]:
            return super().forward(input)
        scale = self.weight / (self.running_var + self.eps).sqrt()
        shift = self.bias - self.running_mean * scale
        places = (-1, *[1] * (input.dim() - 2))
        return input * scale.view(places) + shift.view(places)


class BatchNorm(_Evaluated, nn.BatchNorm1d):
    """Batch normalisation of [B, D]. In training a batch of one, which has no spread, is taken as in evaluation."""


class ImageNorm(_Evaluated, nn.BatchNorm2d):
    """Batch normalisation of [B, channels, height, width]."""


class LayerNorm(nn.LayerNorm):
    """Normalisation of the rows of [*, D]."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype != torch.float64:
            return super().forward(input)
        width = input.shape[-1]
        centred = input - (fixed_sum(input) / width).unsqueeze(-1)
        variance = (fixed_sum(centred.square()) / width).unsqueeze(-1)
        return centred / (variance + self.eps).sqrt() * self.weight + self.bias
