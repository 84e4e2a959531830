"""What proposals that learn exchange between the processes of a run; alone, a process keeps what it has."""

from __future__ import annotations

import torch
from torch import Tensor


def together() -> bool:
    """Whether several processes train."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, the same in each."""
    if together():
        torch.distributed.all_reduce(values)
    return values


def gathered(part: Tensor) -> Tensor:
    """[B, ·] of each process, B the same everywhere, to [processes · B, ·] in their order."""
    if not together():
        return part
    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts)
