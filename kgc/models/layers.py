"""Layers of networks whose rows, in float64, depend on nothing but themselves: certified ranks need that.

In fp32 they are torch's own. In float64 a product of matrices, which libraries add up in an order that changes with the
number of rows, is exact until one rounding; other sums have one order of additions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.models.similarity import fixed_sum

# Whole numbers up to here are exact in float64, and so are their sums, in any order.
_BITS = 53
_SLICES = 3


class ExactProduct(torch.autograd.Function):
    """[n, k] @ [k, m] in float64, the same for a row whatever the other rows, the device and the library.

    Both sides are cut into slices of whole numbers so small that products of slices are exact (Ozaki et al. 2012), and
    those that matter are added in one order. Off by about k·2⁻⁵⁶ of the largest |a| of a row times the largest |b| of a
    column.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        bits = (_BITS - (a.shape[1] - 1).bit_length()) // 2  # k products of 2·bits
        left, left_scale = _sliced(a, bits)
        right, right_scale = _sliced(b.T, bits)
        total = torch.zeros(len(a), b.shape[1], dtype=a.dtype, device=a.device)
        for order in reversed(range(_SLICES)):
            total = total * 2.0**-bits
            for i in range(order + 1):
                total = total + left[i] @ right[order - i].T
        return total * left_scale * right_scale.T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return gradient @ b.T, a.T @ gradient


def _sliced(rows: Tensor, bits: int) -> tuple[list[Tensor], Tensor]:
    """[n, k] to slices s of whole numbers within ±2^bits and [n, 1] scales: rows ≈ scale·Σᵢ sᵢ·2^(−i·bits)."""
    _, exponent = torch.frexp(rows.abs().amax(dim=1, keepdim=True))
    rest = rows * _power_of_two(bits - exponent)
    slices = []
    for _ in range(_SLICES):
        slices.append(rest.round())
        rest = (rest - slices[-1]) * 2.0**bits
    return slices, _power_of_two(exponent - bits)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, made of its bits: no library rounds it."""
    return ((exponent.long() + 1023).clamp(1, 2046) << 52).view(torch.float64)


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
