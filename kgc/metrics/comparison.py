"""Is the difference of two runs more than chance? Paired by query, clustered by triple."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.metrics.intervals import bootstrap_interval
from kgc.metrics.ranks import mean

# Numbers of a block of random signs.
_CELLS = 1 << 22


def permutation_p_value(differences: Tensor, resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference of 0: each pair is exchanged by chance (Fisher 1935; Smucker et al. 2007).

    (1 + how many of the random exchanges have a mean at least as far from 0) / (1 + resamples).

    Args:
        differences: [n] of independent pairs.
        resamples: random exchanges.
        seed: of the exchanges.
    """
    values = differences.double().cpu()
    observed = abs(float(values.sum()))
    slack = 1e-12 * float(values.abs().sum())  # sums that differ by rounding are equal
    generator = torch.Generator().manual_seed(seed)
    extreme, rows = 0, max(1, _CELLS // max(1, len(values)))
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), len(values))
        signs = torch.randint(2, shape, generator=generator, dtype=torch.int8).double() * 2 - 1
        extreme += int(((signs @ values).abs() >= observed - slack).sum())
    return (1 + extreme) / (1 + resamples)


def compare_means(differences: Tensor, resamples: int = 10_000, seed: int = 0) -> dict[str, float]:
    """`difference`, `ci_low`, `ci_high` (95 %, paired bootstrap) and `p_value` (permutation test) of [n] pairs."""
    low, high = bootstrap_interval(differences, resamples, seed)
    p_value = permutation_p_value(differences, resamples, seed)
    return {"difference": mean(differences), "ci_low": low, "ci_high": high, "p_value": p_value}
