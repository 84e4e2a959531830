"""What a machine can hold, so that what cannot fit is refused before the system ends the process for it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from kgc.errors import UserError

_GIB = 1 << 30

# Control groups, versions 2 and 1: the limit, what is taken, and what of that are files that can be dropped.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Bytes that this process may still take: what the system calls available, within its control group's limit."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    words = _fields("/proc/meminfo")
    if "MemAvailable:" in words:
        free = 1024 * words["MemAvailable:"]
    for folder, most, taken, cached in _GROUPS:
        limit, used = _number(f"{folder}/{most}"), _number(f"{folder}/{taken}")
        if limit is not None and used is not None:
            free = min(free, limit - used + _fields(f"{folder}/memory.stat").get(cached, 0))
    return max(0, free)


def require_memory(size: int, key: str, what: str) -> None:
    """Raises a `UserError` that names the key if `what` takes more bytes than are free; small sizes are let pass."""
    if size < _GIB:
        return
    free = free_memory()
    if size > free:
        raise UserError(
            f"{key}: {what} would take {size / _GIB:,.1f} GiB, and {free / _GIB:,.1f} GiB of memory are free; lower it"
        )


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception is one of too little memory, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def _fields(path: str) -> dict[str, int]:
    """The first number of each line by the word before it."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split() for line in lines]
    return {part[0]: int(part[1]) for part in parts if len(part) > 1 and part[1].isdigit()}


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # `max`: no limit
