"""All pairs of queries and candidates compared by their differences: scores, and gradients without keeping [S, N, D].

The eager form takes chunks and makes the differences anew in the backward pass. The compiled form reads the vectors
once for the scores and once for each gradient, and holds nothing between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Elements of the [b, N, D] temporary of the eager form: 2^18 floats stay in a core's cache on a CPU, 2^26 (256 MiB)
# keep a GPU busy.
_TEMPORARY = {"cpu": 1 << 18, "cuda": 1 << 26}


class Distance(Protocol):
    """What `pair_scores` needs of a similarity that is minus a function of q − c."""

    def distance(self, difference: Tensor) -> Tensor:
        """[..., D] differences q − c to [...] distances."""

    def slopes(self, difference: Tensor) -> tuple[Tensor, ...]:
        """[..., D] differences to slices that make up [..., D] along the last dimension: the gradient of the distance,
        but for a factor that the coordinates of a pair share (`rates`); 0 where it does not exist."""

    def rates(self, gradient: Tensor, scores: Tensor) -> Tensor:
        """The gradient of the scores times that factor."""


@dataclass(frozen=True)
class Kernels:
    """The three compiled functions of [G, S, D] queries and [G, N, D] candidates.

    Args:
        scores: (query, candidate) to [G, S, N].
        of_query: (query, candidate, rates [G, S, N]) to slices of [G, S, D].
        of_candidate: the same to slices of [G, N, D].
    """

    scores: Callable[[Tensor, Tensor], Tensor]
    of_query: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    of_candidate: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def compiled_kernels(similarity: Distance) -> Kernels:
    """Kernels that `torch.compile` makes when they are first called."""

    def difference(query: Tensor, candidate: Tensor) -> Tensor:
        return query.unsqueeze(2) - candidate.unsqueeze(1)

    def scores(query: Tensor, candidate: Tensor) -> Tensor:
        return -similarity.distance(difference(query, candidate))

    def of_query(query: Tensor, candidate: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        slopes = similarity.slopes(difference(query, candidate))
        return tuple(-(part * rates.unsqueeze(-1)).sum(2) for part in slopes)

    def of_candidate(query: Tensor, candidate: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        slopes = similarity.slopes(difference(query, candidate))
        return tuple((part * rates.unsqueeze(-1)).sum(1) for part in slopes)

    return Kernels(*(torch.compile(function, dynamic=True) for function in (scores, of_query, of_candidate)))


def pair_scores(similarity: Distance, query: Tensor, candidate: Tensor, kernels: Kernels | None = None) -> Tensor:
    """[G, S, D] queries against the [G, N, D] candidates of their pool gives [G, S, N]."""
    return _Pairs.apply(similarity, kernels, query, candidate)


class _Pairs(torch.autograd.Function):
    """Rows of queries are independent, so that no chunk changes a score."""

    @staticmethod
    def forward(ctx, similarity: Distance, kernels: Kernels | None, query: Tensor, candidate: Tensor) -> Tensor:
        ctx.similarity, ctx.kernels = similarity, kernels
        if kernels is not None:
            scores = kernels.scores(query.detach(), candidate.detach())
        else:
            scores = query.new_empty(*query.shape[:2], candidate.shape[1])
            for pools, rows in _chunks(query, candidate):
                scores[pools, rows] = -similarity.distance(_difference(query[pools, rows], candidate[pools]))
        ctx.save_for_backward(query, candidate, scores)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[None, None, Tensor, Tensor]:
        query, candidate, scores = (saved.detach() for saved in ctx.saved_tensors)
        rates = ctx.similarity.rates(gradient, scores)
        if ctx.kernels is not None:
            parts = (kernel(query, candidate, rates) for kernel in (ctx.kernels.of_query, ctx.kernels.of_candidate))
            return None, None, *(torch.cat(slices, dim=-1) for slices in parts)
        of_query, of_candidate = torch.empty_like(query), torch.zeros_like(candidate)
        for pools, rows in _chunks(query, candidate):
            slopes = ctx.similarity.slopes(_difference(query[pools, rows], candidate[pools]))
            slopes = torch.cat(slopes, dim=-1) if len(slopes) > 1 else slopes[0]  # [g, s, N, D]
            rate = rates[pools, rows]
            with torch.autocast(query.device.type, enabled=False):
                of_query[pools, rows] = (rate.unsqueeze(2) @ slopes).squeeze(2).neg_()
            of_candidate[pools] += (slopes * rate.unsqueeze(-1)).sum(1)
        return None, None, of_query, of_candidate


def _difference(query: Tensor, candidate: Tensor) -> Tensor:
    return query.unsqueeze(2) - candidate.unsqueeze(1)


def _chunks(query: Tensor, candidate: Tensor) -> list[tuple[slice, slice]]:
    """Slices of pools and of their rows: some rows of one pool, or several whole pools."""
    pools, size = query.shape[:2]
    rows = max(1, _TEMPORARY.get(query.device.type, _TEMPORARY["cpu"]) // max(1, candidate[:1].numel()))
    if rows < size:
        return [(slice(g, g + 1), slice(start, start + rows)) for g in range(pools) for start in range(0, size, rows)]
    step = rows // max(1, size)
    return [(slice(start, start + step), slice(None)) for start in range(0, pools, step)]
