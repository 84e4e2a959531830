"""One file of a checkpoint that is a folder: `python -m kgc.tasks.consolidate CHECKPOINT FILE`.

The file is what a run of one process writes: `evaluate.py` takes it, and `train.py` goes on from it. All of it, the
optimizer's state included, is in memory at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from kgc.checkpoint_folder import is_folder
from kgc.errors import UserError
from kgc.tasks.build import read_weights


def consolidate(checkpoint: Path, file: Path) -> None:
    """Writes the checkpoint of a sharded run as an ordinary file, which appears only when complete.

    Raises:
        UserError: there is no such folder, it is damaged, or the file is there already.
    """
    if checkpoint.is_file():
        raise UserError(f"{checkpoint}: is one file already")
    if not is_folder(checkpoint):
        raise UserError(f"{checkpoint}: no checkpoint of a sharded run; they lie in RUN_FOLDER/checkpoints/")
    if file.exists():
        raise UserError(f"{file}: is there already; choose another name")
    content = read_weights(checkpoint).read(None)
    part = file.with_name(file.name + ".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, part)
    os.replace(part, file)


def main(words: Sequence[str]) -> int:
    if len(words) != 2 or words[0].startswith("-"):
        print("usage: python -m kgc.tasks.consolidate CHECKPOINT FILE", file=sys.stderr)
        return 2
    try:
        consolidate(*map(Path, words))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
