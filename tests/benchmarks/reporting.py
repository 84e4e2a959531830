"""What logging and reporting cost the default job (RotatE on UMLS, W&B offline), against its training.

    python tests/benchmarks/reporting.py [--words logger=wandb] [--out reporting.json]

Counted is the time inside what is there for logs and reports: opening the loggers (W&B's client is imported there), the
row of each epoch and the points inside it, the closing summary, `report.html` and the other files, closing the loggers,
and W&B's own process. In CPU time, which other work on the machine changes less than the time on a clock; both are
shown. The bar: 3 % of the training's time and one second.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from pytorch_lightning import Trainer

from kgc import dashboard, tracking
from kgc.paths import config_dir
from kgc.tasks import output
from kgc.tasks.train import train
from kgc.telemetry import Telemetry

_PARTS = (
    (output.Session, "start_logging"),
    (Telemetry, "on_before_optimizer_step"),
    (Telemetry, "on_train_epoch_end"),
    (output, "worst_answered"),
    (output, "notes"),
    (output, "write_report"),
    (dashboard, "log_summary"),
    (dashboard, "log_artifacts"),
    (output, "write_run"),
    (tracking, "finish"),
)


class Clock:
    """CPU and wall seconds by name; of calls inside calls each has its own share."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}
        self._inner = [[0.0, 0.0]]

    def counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.process_time(), time.perf_counter()
            self._inner.append([0.0, 0.0])
            try:
                return function(*arguments, **options)
            finally:
                passed = time.process_time() - began[0], time.perf_counter() - began[1]
                inner = self._inner.pop()
                own = self.spent.setdefault(name, [0.0, 0.0])
                for i in range(2):
                    own[i] += passed[i] - inner[i]
                    self._inner[-1][i] += passed[i]

        return call


def client_seconds() -> float:
    """CPU seconds of W&B's own process, a child of this one."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        fields = rest.split()
        if int(fields[1]) == os.getpid() and "wandb" in name:
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", nargs="*", default=[], help="of train.py's command line")
    parser.add_argument("--out", type=Path, default=Path("reporting.json"))
    args = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "offline")
    torch.set_num_threads(1)
    clock, client = Clock(), []
    for owner, name in _PARTS:
        setattr(owner, name, clock.counted(getattr(owner, name), name))
    # Not the parts counted above that run inside of it.
    Trainer.fit = clock.counted(Trainer.fit, "training")
    closing = tracking.finish

    def finish(*arguments: Any, **options: Any) -> None:
        closing(*arguments, **options)
        client.append(client_seconds())

    tracking.finish = finish
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(config_dir()), version_base="1.3"):
        train(compose("train", args.words), Path(folder) / "run")
    training = clock.spent.pop("training")
    clock.spent["W&B's process"] = [max(client, default=0.0), 0.0]
    print(f"{'':28}{'CPU s':>8}{'wall s':>8}")
    for name, (cpu, wall) in clock.spent.items():
        print(f"{name:28}{cpu:8.3f}{wall:8.3f}")
    total = [sum(values[i] for values in clock.spent.values()) for i in range(2)]
    print(f"{'all of it':28}{total[0]:8.3f}{total[1]:8.3f}")
    print(f"{'training':28}{training[0]:8.3f}{training[1]:8.3f}")
    print(f"beyond one second: {max(0.0, total[0] - 1) / training[0]:.1%} of the training's CPU time")
    args.out.write_text(json.dumps({"parts": clock.spent, "training": training}, indent=1))


if __name__ == "__main__":
    main()
