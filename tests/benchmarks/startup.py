"""Seconds from the shell to the help, and to the end of the first training step of the default job.

    python tests/benchmarks/startup.py [--repeats 3]

Processor and wall time of a process of its own each time; the least of all repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FIRST_STEP = """
import os, sys, time
from kgc import cli
go_on = cli._train

def train(*arguments):
    from kgc.module import KGEModule

    def ended(self, *_):
        print(time.process_time(), flush=True)
        os._exit(0)

    KGEModule.on_train_batch_end = ended
    return go_on(*arguments)

cli._train = train
cli.train()
"""


def seconds(words: list[str]) -> tuple[float, float]:
    """Processor and wall seconds of a command; those that it prints last, if it does."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.setdefault("WANDB_MODE", "offline")
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said = process.stdout.read().split()
    _, _, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    try:
        return float(said[-1]), wall
    except ValueError:
        return used.ru_utime + used.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("startup.json"))
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.repeats):
            commands = {
                "python train.py --help": [sys.executable, str(_ROOT / "train.py"), "--help"],
                "first training step": [sys.executable, "-c", _FIRST_STEP, f"hydra.run.dir={folder}/{number}"],
            }
            for name, words in commands.items():
                rows.setdefault(name, []).append(seconds(words))
    for name, values in rows.items():
        print(f"{name:26}{min(cpu for cpu, _ in values):6.2f} s of a processor{min(w for _, w in values):8.2f} s")
    args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
