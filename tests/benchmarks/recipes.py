"""Trains the recipes of `conf/experiment/` and prints what each reaches.

python tests/benchmarks/recipes.py [NAME or PATTERN …], for instance '*_umls' '*_nations'
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from kgc.paths import config_dir

KEYS = ("valid/mrr", "test/mrr", "test/hits@1", "test/hits@3", "test/hits@10", "train/seconds", "train/epochs")


def main() -> None:
    files = (config_dir() / "experiment").glob("*.yaml")
    names = sorted(path.stem for path in files if any(fnmatch(path.stem, pattern) for pattern in sys.argv[1:] or ["*"]))
    root = Path(__file__).parents[2]
    print("recipe".ljust(24), *(key.rjust(13) for key in KEYS))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            words = [f"experiment={name}", "logger=none", f"hydra.run.dir={folder}/run"]
            subprocess.run([sys.executable, root / "train.py", *words], check=True, stdout=subprocess.DEVNULL)
            metrics = json.loads((Path(folder) / "run" / "metrics.json").read_text())
        print(name.ljust(24), *(f"{metrics[key]:13.4f}" for key in KEYS), flush=True)


if __name__ == "__main__":
    main()
