"""Trains the recipes of `conf/experiment/` and prints what each reaches.

    python tests/benchmarks/recipes.py [NAME or PATTERN …]

for instance '*_umls' '*_nations'. `processor` is the seconds of processors for the whole run, start, validations, test
and report included, which other work on the machine changes little.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from kgc.paths import config_dir

KEYS = ("valid/mrr", "test/mrr", "test/hits@1", "test/hits@3", "test/hits@10", "train/seconds", "train/epochs")


def processor_seconds() -> float:
    """Of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    files = (config_dir() / "experiment").glob("*.yaml")
    names = sorted(path.stem for path in files if any(fnmatch(path.stem, pattern) for pattern in sys.argv[1:] or ["*"]))
    root = Path(__file__).parents[2]
    print("recipe".ljust(24), *(key.rjust(13) for key in (*KEYS, "processor")))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            words = [f"experiment={name}", "logger=none", f"hydra.run.dir={folder}/run"]
            before = processor_seconds()
            subprocess.run([sys.executable, root / "train.py", *words], check=True, stdout=subprocess.DEVNULL)
            metrics = json.loads((Path(folder) / "run" / "metrics.json").read_text())
        values = [*(metrics.get(key, float("nan")) for key in KEYS), processor_seconds() - before]
        print(name.ljust(24), *(f"{value:13.4f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
