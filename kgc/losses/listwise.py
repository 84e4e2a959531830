"""Losses over all entities, in nats per query, always in fp32, in blocks of queries: memory is that of one block.

The loss of a query needs its own row of logits alone, so a block's gradient is made as soon as its logits are, while
they are in the cache: the forward pass scores a block, turns it into its gradient in place, and takes that back to
the query and entity vectors; the backward pass only multiplies by the factor that reaches it. Exact, and one matrix
product fewer than recomputing the logits in the backward pass.

Where entities lie on several processes each has the logits of its own, and three or four numbers a query cross the
wire: the logits stay where they are.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from kgc.sharding import Shard

# Cells of one block of logits: 2^22 floats (16 MiB) stay in a CPU's caches; 2^28 (1 GiB) keep a GPU busy.
_CELLS = {"cpu": 1 << 22, "cuda": 1 << 28}


class Shared(Protocol):
    """What is needed of a similarity; see `kgc.models.similarity.Similarity`."""

    def write(self, query: Tensor, candidate: Tensor, out: Tensor) -> None: ...

    def pull_back(self, query: Tensor, candidate: Tensor, gradient: Tensor, of_candidate: Tensor) -> Tensor: ...


class RowLoss:
    """Interface: a loss of rows of logits over all entities, in nats."""

    def __call__(self, logits: Tensor, rows: slice) -> Tensor:
        """[b] losses of the queries `rows` from their [b, E] fp32 logits, which become the gradients, in place.

        With a shard the logits are those of the entities that this process holds.
        """
        raise NotImplementedError


def softmax_(logits: Tensor) -> Tensor:
    """Turns [b, E] logits into their softmax in place; returns the [b] logarithms of the sums of exponentials."""
    top = logits.amax(-1, keepdim=True)
    if logits.device.type == "cpu":  # whose kernel has read a number before it writes it, and keeps a row in the cache
        torch.softmax(logits, -1, out=logits)
        return (top - logits.amax(-1, keepdim=True).log()).squeeze(-1)  # the largest probability is 1 / total
    total = logits.sub_(top).exp_().sum(-1, keepdim=True)
    logits.div_(total)
    return (top + total.log()).squeeze(-1)


class CrossEntropy(RowLoss):
    """−log softmax of the right answer (1-vs-all; Lacroix et al. 2018).

    Args:
        target: [B] right answers.
        label_smoothing: ε, the share of the target's probability spread over all entities.
        shard: of the entities; None where this process has all.
    """

    def __init__(self, target: Tensor, label_smoothing: float = 0.0, shard: Shard | None = None):
        self.target = target.unsqueeze(-1)
        self.label_smoothing = label_smoothing
        self.shard = shard

    def __call__(self, logits: Tensor, rows: slice) -> Tensor:
        target, smoothing = self.target[rows], self.label_smoothing
        if self.shard is not None:
            return self._over_shards(logits, target.squeeze(-1), self.shard)
        wanted = (1 - smoothing) * logits.gather(1, target).squeeze(-1)
        if smoothing:
            wanted = wanted + smoothing * logits.mean(-1)
        log_total = softmax_(logits)
        if smoothing:
            logits.sub_(smoothing / logits.shape[-1])
        logits.scatter_add_(1, target, logits.new_full((), smoothing - 1).expand_as(target))
        return log_total - wanted

    def _over_shards(self, logits: Tensor, target: Tensor, shard: Shard) -> Tensor:
        """log Σ exp of all logits from that of each process; the softmax needs no more."""
        smoothing = self.label_smoothing
        own = shard.holds(target).nonzero().squeeze(-1)
        place = target[own] - shard.first
        wanted = logits.new_zeros(len(logits)).index_copy_(0, own, logits[own, place])
        summed = logits.sum(-1) if smoothing else torch.zeros_like(wanted)
        top = logits.amax(-1)
        total = logits.sub_(top.unsqueeze(-1)).exp_().sum(-1)
        tops, totals, wanteds, sums = shard.gathered(torch.stack([top, total, wanted, summed])).unbind(1)  # [size, b]
        highest = tops.amax(0)
        whole = (totals * (tops - highest).exp()).sum(0)
        logits.mul_(((top - highest).exp() / whole).unsqueeze(-1))
        if smoothing:
            logits.sub_(smoothing / shard.rows)
        logits[own, place] += smoothing - 1
        return highest + whole.log() - (1 - smoothing) * wanteds.sum(0) - smoothing * sums.sum(0) / shard.rows


class BinaryCrossEntropy(RowLoss):
    """Mean binary cross-entropy over the entities (K-vs-all; Dettmers et al. 2018).

    Args:
        row, answer: [M] the right answers: query, ascending, and entity; no pair twice.
        queries: B.
        label_smoothing: ε; labels y become (1 − ε) y + 1/E where it is not 0, as ConvE does.
        shard: of the entities; None where this process has all.
    """

    def __init__(
        self, row: Tensor, answer: Tensor, queries: int, label_smoothing: float = 0.0, shard: Shard | None = None
    ):
        if shard is not None:
            own = shard.holds(answer)
            row, answer = row[own], answer[own] - shard.first
        self.shard = shard
        self.row, self.answer = row, answer
        self.queries = queries
        self.label_smoothing = label_smoothing
        self._ends: list[int] | None = None

    def __call__(self, logits: Tensor, rows: slice) -> Tensor:
        row, answer = self._answers(rows)
        share = 1 - self.label_smoothing
        entities = logits.shape[-1] if self.shard is None else self.shard.rows
        base = 1 / entities if self.label_smoothing else 0.0
        right = logits.new_zeros(len(logits)).index_add_(0, row, logits[row, answer])
        losses = F.softplus(logits).sum(-1) - share * right
        if base:
            losses = losses - base * logits.sum(-1)
        logits.sigmoid_()
        if base:
            logits.sub_(base)
        logits.index_put_((row, answer), logits.new_tensor(-share), accumulate=True)
        logits.div_(entities)
        losses = losses / entities
        return losses if self.shard is None else self.shard.summed(losses)

    def _answers(self, rows: slice) -> tuple[Tensor, Tensor]:
        if (rows.start, rows.stop) == (0, self.queries):
            return self.row, self.answer
        if self._ends is None:
            self._ends = [0, *torch.bincount(self.row, minlength=self.queries).cumsum(0).tolist()]
        cells = slice(self._ends[rows.start], self._ends[rows.stop])
        return self.row[cells] - rows.start, self.answer[cells]


def mean_loss(
    similarity: Shared, query: Tensor, candidate: Tensor, margin: float, loss: RowLoss, shard: Shard | None = None
) -> Tensor:
    """Mean loss of B queries over all entities, in nats.

    Args:
        similarity: scores [B, D] query vectors against [E, D] candidates; its scores plus `margin` are the logits.
        query: [B, D].
        candidate: [E, D].
        margin: see above.
        loss: of rows of logits.
        shard: of the entities, whose part on this process the candidates are; None where they are all.
    """
    most = len(candidate)
    if shard is not None:
        query, most = shard.enter(query), shard.most  # blocks of queries are the same on all processes
    return _MeanLoss.apply(similarity, query.to(candidate.dtype), candidate, margin, loss, most)


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, similarity: Shared, query: Tensor, candidate: Tensor, margin: float, loss: RowLoss, most: int
    ) -> Tensor:
        size = len(query)
        block = max(1, _CELLS.get(query.device.type, _CELLS["cpu"]) // max(1, most))
        losses = query.new_empty(size, dtype=torch.float32)
        of_query, of_candidate = torch.empty_like(query), torch.zeros_like(candidate)
        cells = query.new_empty(min(block, size), len(candidate), dtype=torch.float32)
        for start in range(0, size, block):
            rows = slice(start, min(start + block, size))
            logits = cells[: rows.stop - start]
            similarity.write(query[rows], candidate, logits)
            losses[rows] = loss(logits.add_(margin) if margin else logits, rows)
            gradient = logits.to(query.dtype)
            of_query[rows] = similarity.pull_back(query[rows], candidate, gradient, of_candidate)
        ctx.save_for_backward(of_query, of_candidate)
        return losses.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, factor: Tensor) -> tuple[None, Tensor, Tensor, None, None, None]:
        of_query, of_candidate = ctx.saved_tensors
        factor = factor / len(of_query)
        return None, of_query * factor, of_candidate * factor, None, None, None
