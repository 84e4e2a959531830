"""What proposals that learn exchange between the processes of a run; alone, a process keeps what it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_rehearsed: int | None = None  # processes of a rehearsal


def together() -> bool:
    """Whether several processes train."""
    return _rehearsed is None and torch.distributed.is_available() and torch.distributed.is_initialized()


@contextlib.contextmanager
def rehearsal(processes: int) -> Iterator[None]:
    """Nothing is exchanged: a process takes what it has itself for what the others would send.

    For steps that the processes do not do together, and that one may not finish, which the others would wait for.
    """
    global _rehearsed
    _rehearsed = processes
    try:
        yield
    finally:
        _rehearsed = None


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, the same in each."""
    if together():
        torch.distributed.all_reduce(values)
    return values


def gathered(part: Tensor) -> Tensor:
    """[B, ·] of each process, B the same everywhere, to [processes · B, ·] in their order."""
    if _rehearsed is not None:
        return torch.cat([part] * _rehearsed)
    if not together():
        return part
    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts)
