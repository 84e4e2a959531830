"""Trains as a chain of processes, each killed (SIGKILL) shortly after it has saved a state, until one gets through.

    python killing.py FOLDER WORD …

    python killing.py FOLDER kills=N WORD …

Every link but the first goes on from `last.ckpt`. The second form makes N runs in FOLDER/0, FOLDER/1, …, each killed
once, after a random share of the time that one takes, and started again: from `last.ckpt` where there is one.

Processes are forked from this one, which has everything imported, so that a link costs what its training costs. Prints
the number of links that were killed.
"""

from __future__ import annotations

import os
import random
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
        child = forked(folder, words)
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


def forked(folder: Path, words: list[str]) -> int:
    """The process number of a new link."""
    child = os.fork()
    if child == 0:
        try:
            link(folder, words)
        finally:
            os._exit(1)
    return child


def kills(folder: Path, number: int, words: list[str]) -> int:
    """N runs, each killed once; the exit code is that of the first that does not end well when it is started again."""
    torch.set_num_threads(1)
    began = time.monotonic()
    os.waitpid(forked(folder / "measured", words), 0)
    takes = time.monotonic() - began
    killed = 0
    moments = random.Random(0)
    for run in range(number):
        child = forked(folder / str(run), words)
        time.sleep(takes * moments.random())
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        _, status = os.waitpid(forked(folder / str(run), words), 0)
        if status:
            return os.waitstatus_to_exitcode(status)
    print(killed)
    return 0


if __name__ == "__main__":
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    if words[0].startswith("kills="):
        sys.exit(kills(folder, int(words[0].removeprefix("kills=")), words[1:]))
    sys.exit(main(folder, words))
