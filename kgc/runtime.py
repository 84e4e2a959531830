"""Settings of the process that make PyTorch faster on a CPU and change no result a user could see."""

from __future__ import annotations

import contextlib
import ctypes
import gc

import torch

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def prepare_process() -> None:
    """Treats denormal numbers as 0, and keeps freed memory for the next step.

    Arithmetic on numbers below 1e-38 is many times slower; embeddings that decay towards 0 are full of them. glibc
    gives blocks of some MiB back to the kernel when they are freed, and a training step that asks for the same blocks
    again spends its time in page faults.
    """
    torch.set_flush_denormal(True)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_M_TOP_PAD, 1 << 28)


def release_memory() -> None:
    """Gives what is no longer used back to the machine, also what is held by circles of references."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
