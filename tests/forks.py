"""Groups of processes that work together, forked from this one, which has everything imported: a process costs what its
work costs. For scripts that a test starts: a process with threads, as pytest-xdist's are, must not fork.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def together(folder: Path, processes: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(*arguments)` returns in each of so many processes connected by gloo."""
    folder.mkdir(parents=True)
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            _work(folder, rank, processes, work, arguments)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0, [path.read_text() for path in folder.glob("*.txt")]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(processes)]


def _work(folder: Path, rank: int, processes: int, work: Callable[..., Any], arguments: tuple) -> None:
    code = 1
    try:
        meeting = f"file://{folder}/meeting"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
        torch.save(work(*arguments), folder / f"{rank}.pt")
        torch.distributed.barrier()
        code = 0
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def ended(pid: int, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
