"""What Lightning's loop and our callbacks add to a training step on a CPU, against a bare loop of the same steps.

    python tests/benchmarks/overhead.py [--epochs 3] [--out overhead.json]

A step is as small as steps get: one row of a table of 14 is its own loss, and SGD moves it. Batches, objective and
optimizer are the same in both loops; 1,592 steps an epoch, both loops in turn, in CPU time of the process, which other
processes on the machine change less than the time on a clock. The loop is that of `train.py`: its module, its
callbacks, its trainer.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from pytorch_lightning import Callback, Trainer

from kgc.callbacks import CheckpointFiles, Checkpoints, LastEpochValidates, StopOnSignal
from kgc.console import ProgressLine, Terminal
from kgc.data.catalogue import load_dataset
from kgc.data.datamodule import KGDataModule
from kgc.models.distmult import DistMult
from kgc.module import KGEModule
from kgc.objectives import Objective
from kgc.optim import sgd, table_groups
from kgc.paths import config_dir
from kgc.tasks.build import build_trainer
from kgc.telemetry import Telemetry


class Row(Objective):
    """The sum of one row of the table of entities."""

    def setup(self, graph, device) -> int:
        return len(graph.train)

    def loss(self, model, index, step, generator) -> torch.Tensor:
        return model.entity.weight[0].sum()


class Clock(Callback):
    """CPU seconds of each epoch's batches."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer, module) -> None:
        self._began = time.process_time()

    def on_train_epoch_end(self, trainer, module) -> None:
        self.seconds.append(time.process_time() - self._began)


def made(graph) -> tuple[DistMult, Row, KGDataModule]:
    torch.manual_seed(0)
    objective = Row()
    data = KGDataModule(graph, objective.setup(graph, torch.device("cpu")), 1, 1024, 0)
    return DistMult(graph.num_entities, graph.num_relations, 8), objective, data


def lightning(graph, epochs: int, profile: bool = False) -> list[float]:
    """CPU seconds of each epoch in the trainer."""
    model, objective, data = made(graph)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", ["trainer=cpu"])
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(Path(folder) / "train.log", active=False)
        checkpoints = Checkpoints(Path(folder), 10)
        clock = Clock()
        stop = StopOnSignal(checkpoints)
        callbacks = [LastEpochValidates(), ProgressLine(terminal), checkpoints, Telemetry([]), stop, clock]
        trainer = build_trainer(
            cfg,
            Path(folder),
            callbacks=callbacks,
            plugins=[CheckpointFiles()],
            logger=False,
            max_epochs=epochs,
            limit_val_batches=0,
        )
        module = KGEModule(model, graph, objective, optimizer=lambda groups: sgd(groups, 0.1))
        profiler = cProfile.Profile() if profile else None
        if profiler:
            profiler.enable()
        with terminal.capture(), stop.listening():
            trainer.fit(module, datamodule=data)
        if profiler:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
        return clock.seconds


def bare(graph, epochs: int) -> list[float]:
    """CPU seconds of each epoch in a loop of our own."""
    model, objective, data = made(graph)
    data.trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    batches, generator = data.train_dataloader(), torch.Generator()
    optimizer = sgd(table_groups(model), 0.1)
    seconds = []
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        began = time.process_time()
        for number, index in enumerate(batches):
            loss = objective.loss(model, index, number, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.process_time() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the trainer spends its time")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    graph = load_dataset("nations")
    steps = len(graph.train)
    if args.profile:
        lightning(graph, 1, profile=True)
        return
    rows = {"lightning": [], "bare": []}
    for _ in range(args.epochs):
        rows["bare"] += bare(graph, 1)
        rows["lightning"] += lightning(graph, 1)
    microseconds = {name: 1e6 * min(seconds) / steps for name, seconds in rows.items()}
    microseconds["overhead"] = microseconds["lightning"] - microseconds["bare"]
    for name, value in microseconds.items():
        print(f"{name:10} {value:8.0f} µs a step")
    args.out.write_text(json.dumps({"threads": torch.get_num_threads(), "microseconds_a_step": microseconds}, indent=1))


if __name__ == "__main__":
    main()
