"""Trains as a chain of processes, each killed (SIGKILL) shortly after it has saved a state, until one gets through.

    python killing.py FOLDER WORD …

Every link but the first goes on from `last.ckpt`. Processes are forked from this one, which has everything imported, so
that a link costs what its training costs. Prints the number of links that were killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import runs
import torch

DELAYS = (0.0, 0.02, 0.05, 0.08, 0.13)  # seconds between a new last.ckpt and the kill: an epoch takes about 0.1


def link(folder: Path, words: list[str]) -> None:
    """One process of the chain; does not return."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists():
        runs.resume(last)
    else:
        runs.train(folder, *words)
    os._exit(0)


def main(folder: Path, words: list[str]) -> int:
    torch.set_num_threads(1)
    last = folder / "checkpoints" / "last.ckpt"
    killed = 0
    while True:
        before = last.stat().st_mtime_ns if last.exists() else 0
        child = os.fork()
        if child == 0:
            try:
                link(folder, words)
            finally:
                os._exit(1)
        while not last.exists() or last.stat().st_mtime_ns == before:
            time.sleep(0.001)
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
        else:
            time.sleep(DELAYS[killed % len(DELAYS)])
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(killed)
            return os.waitstatus_to_exitcode(status)
        killed += 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
