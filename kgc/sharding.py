"""A table whose rows lie on several processes, and what these tell each other.

The processes of a group hold blocks of ⌈E / size⌉ rows, as DTensor's `Shard(0)` lays them out, and do the same step on
the same batch: what they compute from rows looked up is the same on each. Candidates are compared where they lie: each
process scores its own rows, and scores, or what a loss makes of them, are put together. So gradients are exact:

- a row looked up (`Shard.lookup`) is summed over the processes, all but one of which have 0; its gradient is whole on
  each process, and its owner keeps it.
- queries enter the part of a step that each process does for its own rows (`Shard.enter`); their gradients are summed.
- scores leave it (`Shard.put_together`); their gradients are whole.

Rows, scores of targets and own scores cross as bits, in sums of integers: what arrives is what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError

_BITS = {4: torch.int32, 8: torch.int64}


class Shard:
    """The rows [first, stop) of a table of `rows` rows, which this process holds.

    Args:
        rank: this process among those that share the table.
        size: how many they are.
        rows: E.

    Raises:
        UserError: blocks of ⌈E / size⌉ rows leave a process without any.

    Attributes:
        most: rows of the largest block.
        held: rows of this process.
        inside: whether ids are those of the rows held, see `region`.
    """

    def __init__(self, rank: int, size: int, rows: int):
        self.rank, self.size, self.rows = rank, size, rows
        self.most = -(-rows // size)
        if (size - 1) * self.most >= rows:
            raise UserError(
                f"trainer.shards={size}: {rows} entities in blocks of {self.most} leave a process without any; choose "
                f"at most {-(-rows // self.most)} shards, or trainer=ddp"
            )
        self.first = rank * self.most
        self.stop = min(self.first + self.most, rows)
        self.held = self.stop - self.first
        self.mesh: Any = None
        self.inside = False

    def connect(self, mesh: Any) -> None:
        """Takes the one-dimensional `DeviceMesh` of the processes that share the table."""
        self.mesh = mesh

    def holds(self, ids: Tensor) -> Tensor:
        """Bool in the shape of ids: this process holds the row."""
        return (ids >= self.first) & (ids < self.stop)

    # What crosses the wire.

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the processes, in place, the same on each."""
        if self.size > 1 and values.numel():
            torch.distributed.all_reduce(values, group=self.mesh.get_group())
        return values

    def gathered(self, values: Tensor) -> Tensor:
        """[size, ...] of the processes' values, in their order."""
        if self.size == 1:
            return values.unsqueeze(0)
        parts = [torch.empty_like(values) for _ in range(self.size)]
        torch.distributed.all_gather(parts, values.contiguous(), group=self.mesh.get_group())
        return torch.stack(parts)

    def shared(self, values: Tensor, mine: Tensor) -> Tensor:
        """Values of which each is that of the one process where `mine`, bit for bit."""
        bits = values.detach().contiguous().view(_BITS[values.element_size()])
        return self.summed(torch.where(mine, bits, 0)).view(values.dtype)

    # Training, and look-ups.

    def lookup(self, table: Tensor, ids: Tensor, sparse: bool = False) -> Tensor:
        """[*] ids to [*, D] rows, wherever they lie; each distinct row crosses once.

        Args:
            table: [held, D] rows of this process.
            ids: the same on every process.
            sparse: whether the table's gradient is.
        """
        rows, place = torch.unique(ids, return_inverse=True)
        mine = self.holds(rows).nonzero().squeeze(-1)
        part = F.embedding(rows[mine] - self.first, table, sparse=sparse)
        found = part.new_zeros(len(rows), table.shape[1]).index_copy(0, mine, part)
        return F.embedding(place, self.put_together(found))

    def put_together(self, parts: Tensor) -> Tensor:
        """Values of which each is that of one process, and 0 on the others, to those of all."""
        return _PutTogether.apply(parts, self)

    def enter(self, vectors: Tensor) -> Tensor:
        """Vectors as they are; their gradients are summed over the processes."""
        return _Enter.apply(vectors, self)

    @contextlib.contextmanager
    def region(self, model: nn.Module) -> Iterator[None]:
        """What each process does for its own rows: ids are those of the rows held, and what the model has besides its
        table of entities gets the gradients of all processes."""
        swapped = []
        if torch.is_grad_enabled():
            for module in model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and parameter.requires_grad and module is not model.entity:
                        swapped.append((module, name, parameter))
        self.inside = True
        try:
            for module, name, parameter in swapped:
                module._parameters[name] = self.enter(parameter)
            yield
        finally:
            self.inside = False
            for module, name, parameter in swapped:
                module._parameters[name] = parameter

    def dropout(self, vectors: Tensor, probability: float) -> Tensor:
        """`F.dropout` of vectors that only this process has; what it draws next is what the others draw."""
        seed = int(torch.randint(1 << 62, ()))
        generator = torch.Generator(vectors.device).manual_seed(seed + self.rank)
        kept = torch.rand(vectors.shape, generator=generator, device=vectors.device) >= probability
        return vectors * kept / (1 - probability)

    # Checkpoints.

    def as_dtensor(self, part: Tensor) -> Tensor:
        """[held, ...] rows of this process as a DTensor of all [E, ...]; no copy."""
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size([self.rows, *part.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def part_of(self, table: Tensor) -> Tensor:
        """[held, ...] rows of this process from a DTensor, from a whole table [E, ...], or from these rows."""
        if hasattr(table, "to_local"):
            return table.to_local()
        return table[self.first : self.stop] if len(table) == self.rows and self.size > 1 else table


class _PutTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, shard: Shard) -> Tensor:
        bits = parts.clone(memory_format=torch.contiguous_format)
        shard.summed(bits.view(_BITS[parts.element_size()]))
        return bits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = gradient.float() if gradient.element_size() < 4 else gradient
        return ctx.shard.summed(whole.clone(memory_format=torch.contiguous_format)).to(gradient.dtype), None


# Which tables are sharded.

_layout: tuple[int, int] | None = None


@contextlib.contextmanager
def sharded(layout: tuple[int, int] | None) -> Iterator[None]:
    """Models made inside hold the rows of one process: `layout` is its (rank, size); None: models hold all rows."""
    global _layout
    before, _layout = _layout, layout
    try:
        yield
    finally:
        _layout = before


def shard_of(rows: int) -> Shard | None:
    """The part of a table of so many rows that a model made now holds; None: all of it."""
    return None if _layout is None else Shard(*_layout, rows)


def held(scorer: Any) -> int:
    """How many entities of a scorer this process compares with queries."""
    shard = getattr(scorer, "shard", None)
    return scorer.num_entities if shard is None else shard.held
