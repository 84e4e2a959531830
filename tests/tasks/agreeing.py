"""Trains with two processes whose memories, by a mocked allocator, differ.

python agreeing.py FOLDER WORD …
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import runs
import torch

from kgc.objectives import NegativeSampling
from kgc.tasks import memory, train

run = train.run


def work(*arguments: Any) -> Any:
    """One process."""
    limit = (512, 256)[int(os.environ["RANK"])]
    original = NegativeSampling.loss

    def loss(self, model, index, step, generator):
        if len(index) > limit:
            raise torch.OutOfMemoryError
        return original(self, model, index, step, generator)

    NegativeSampling.loss = loss
    memory.reports_memory = lambda device: True
    return run(*arguments)


if __name__ == "__main__":
    train.run = work
    runs.train(Path(sys.argv[1]), *sys.argv[2:])
