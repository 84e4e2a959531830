"""A run's folder: whether it can be written to and has room, before training, and one line where it has not."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from kgc.callbacks import Checkpoints
from kgc.errors import UserError
from kgc.module import KGEModule

_MIB = 1 << 20

# What the system says of files and folders that cannot be written.
_NAMES_OF_FAULTS = "EACCES EPERM EROFS ENOSPC EDQUOT EFBIG EIO ENOTDIR EISDIR EEXIST ENAMETOOLONG"
_FILES = {getattr(errno, name) for name in _NAMES_OF_FAULTS.split() if hasattr(errno, name)}

_NAMES = ("entity", "relation", "other")  # of parameter groups


@contextlib.contextmanager
def one_line_for_files(run_dir: Path) -> Iterator[None]:
    """Turns a file that cannot be written into a `UserError` with the state that is kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FILES:
            raise
        last = run_dir / "checkpoints" / "last.ckpt"
        kept = f"; checkpoint={last} goes on from the last saved state" if last.exists() else ""
        raise UserError(
            f"{error.filename or run_dir}: {error.strerror}; choose another folder by hydra.run.dir=DIR{kept}"
        ) from error


def check_writable(folder: Path) -> None:
    """Raises an `OSError` if no file can be made in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def check_room(checkpoints: Checkpoints, module: KGEModule) -> None:
    """Raises a `UserError` if the disk has no room for a run's checkpoints: best, last, and one in writing."""
    files = [path for path in (checkpoints.best, checkpoints.last) if path.exists()]
    size = checkpoint_size(module)
    needed = 3 * size - sum(size_of(path) for path in files)
    free = shutil.disk_usage(checkpoints.folder).free
    if needed > free:
        raise UserError(
            f"{checkpoints.folder}: this run's checkpoints need {needed / _MIB:,.0f} MiB, and {free / _MIB:,.0f} MiB "
            "are free; make room, or choose a folder on another disk by hydra.run.dir=DIR"
        )


def size_of(path: Path) -> int:
    """Bytes of a checkpoint, a file or a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def checkpoint_size(module: KGEModule) -> int:
    """About how many bytes a checkpoint takes: what is trained and kept, and the optimizer's state of it."""
    tensors = [t for t in module.state_dict().values() if isinstance(t, torch.Tensor)]
    trained = sum(p.numel() * p.element_size() for p in module.parameters())
    if module.shard is not None:  # and the rows of other processes
        table = module.model.entity.weight
        others = (module.shard.rows - module.shard.held) * table[0].numel() * table.element_size()
        return (
            others + int((trained + others) * state_share(module)) + sum(t.numel() * t.element_size() for t in tensors)
        )
    return sum(t.numel() * t.element_size() for t in tensors) + int(trained * state_share(module))


def state_share(module: KGEModule) -> float:
    """Numbers that the module's optimizer keeps for each that it trains, seen from a step of it."""
    width = module.model.dim
    tables = [nn.Parameter(torch.zeros(2, width)) for _ in _NAMES]
    optimizer = module.optimizer([{"params": [p], "name": n} for p, n in zip(tables, _NAMES, strict=True)])
    for table in tables:
        table.grad = torch.ones_like(table)
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor) and t.dim()]
    return sum(t.numel() for t in kept) / sum(t.numel() for t in tables)
