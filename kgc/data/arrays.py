"""Work on long arrays of ids and numbers of triples, a part at a time or in their own memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PART = 1 << 20  # numbers that are handled at once


def drop_repeated(keys: np.ndarray) -> np.ndarray:
    """The distinct values of an ascending array, in its own memory, whose content is lost."""
    kept, last = 0, None
    for start in range(0, keys.size, PART):
        part = keys[start : start + PART]
        new = np.diff(part, prepend=part[0] - 1) != 0
        if last is not None:
            new[0] = part[0] != last
        last, found = part[-1].copy(), part[new]
        keys[kept : kept + found.size] = found
        kept += found.size
    return keys[:kept]


def counts(ids: Tensor, size: int) -> Tensor:
    """[size] int64: how often each of the ids 0 … size − 1 occurs, of int32 or int64 ids."""
    total = torch.zeros(size, dtype=torch.int64, device=ids.device)
    for part in ids.split(max(PART, size)):
        total += torch.bincount(part, minlength=size)
    return total


def occurring(columns: list[Tensor], size: int) -> Tensor:
    """[size] bool: the ids that occur in any of the columns."""
    occurs = torch.zeros(size, dtype=torch.bool)
    for column in columns:
        for part in column.split(PART):
            occurs[part.long()] = True
    return occurs


def num_shared(first: np.ndarray, second: np.ndarray) -> int:
    """How many values two ascending arrays of distinct values share."""
    short, long = sorted((first, second), key=len)
    place = np.searchsorted(long, short)
    inside = place < long.size
    return int((long[place[inside]] == short[inside]).sum())


def int64_bytes(array: np.ndarray) -> bytes:
    """The numbers as 8 bytes each, the lowest first."""
    return array.astype("<i8").tobytes()
