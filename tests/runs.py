"""Runs of the two tasks in this process and in others, and what they leave behind.

Training and evaluation are called as functions on a composed config, which costs a second where a process costs ten;
`command` goes through the command line's entry point, still in this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir

from kgc.paths import config_dir

REPOSITORY = Path(__file__).parents[1]

# 14 entities, 7 steps an epoch. What tests count on is said here, whatever the defaults are.
TINY = [
    "dataset=nations",
    "model.dim=8",
    "optimizer.lr=0.02",
    "sampler.num_negatives=4",
    "sampler.mask_known=false",
    "scheduler=none",
    "trainer=cpu",
    "trainer.max_epochs=2",
    "trainer.val_every=1",
    "logger=none",
]

# Learns well for two epochs; then the learning rate is multiplied by a hundred again and again, and the model is lost.
LOST_AFTER_TWO = [
    "model=complex",
    "objective=one_vs_all",
    "optimizer=adagrad",
    "scheduler=step",
    "scheduler.step_size=2",
    "scheduler.gamma=100",
    "trainer.max_epochs=10",
]

Labels = tuple[str, str, str]


def train(run_dir: Path, *overrides: str) -> dict[str, float]:
    """`python train.py` with the words of `TINY` before those given."""
    from kgc.tasks.train import train

    words = [*TINY, *overrides]
    return train(_compose("train", words), run_dir, words)


def resume(checkpoint: Path, *overrides: str, run_dir: Path | None = None) -> dict[str, float]:
    """`python train.py checkpoint=…` and nothing else but the words given."""
    from kgc.tasks.train import train

    words = [f'checkpoint="{checkpoint}"', *overrides]
    home = checkpoint.parent.parent
    if run_dir is not None:
        words.append(f"hydra.run.dir={run_dir}")
    return train(_compose("train", [w for w in words if not w.startswith("hydra.")]), run_dir or home, words)


def evaluate(run_dir: Path, *overrides: str) -> dict[str, float]:
    """`python evaluate.py` with the words given, on the CPU."""
    from kgc.tasks.evaluate import evaluate

    return evaluate(_compose("evaluate", ["trainer=cpu", *overrides]), run_dir)


def _compose(name: str, words: list[str]) -> Any:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose(name, overrides=words)


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def mistake(self) -> str:
        """The message of a user's mistake, which is all that a command says about it."""
        lines = self.err.splitlines()
        assert self.code == 2, (self.code, self.err)
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert "Traceback" not in self.out
        return lines[0].removeprefix("error: ")


def command(capsys: pytest.CaptureFixture[str], folder: Path, name: str, *words: str) -> Outcome:
    """`python NAME.py WORDS`, started in a folder, through the entry point and in this process."""
    from kgc import cli

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "")  # the entry point sets it
        patch.setattr(sys, "argv", [f"{name}.py", *words])
        patch.chdir(folder)
        try:
            getattr(cli, name)()
            code = 0
        except SystemExit as error:
            code = error.code
    captured = capsys.readouterr()
    return Outcome(code, captured.out, captured.err)


def process(folder: Path, *words: object, timeout: float = 240) -> Outcome:
    """`python WORDS` in a folder as a process of its own, with nobody at its terminal."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])  # this checkout, whatever is installed
    started = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # with the processes that it started
        out, err = started.communicate()
        pytest.fail(f"still running after {timeout} s: {out[-1000:]} {err[-1000:]}")
    return Outcome(started.returncode, out, err)


def script(name: str) -> str:
    """`train.py` or `evaluate.py`, callable from any folder."""
    return str(REPOSITORY / f"{name}.py")


# What a run leaves.


def metrics(run_dir: Path) -> dict[str, float]:
    """`metrics.json`."""
    return json.loads((run_dir / "metrics.json").read_text())


def digits(values: dict[str, float], split: str | None = None) -> dict[str, float]:
    """Metrics without what a clock measured, of one split or of all."""
    return {
        name: value
        for name, value in values.items()
        if not name.endswith("/seconds") and (split is None or name.startswith(f"{split}/"))
    }


def ranks(run_dir: Path) -> pl.DataFrame:
    """`ranks.parquet`."""
    return pl.read_parquet(run_dir / "ranks.parquet")


def content(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint as plain data."""
    return torch.load(checkpoint, weights_only=True)


def trained(checkpoint: Path) -> dict[str, Any]:
    """What of a checkpoint must not depend on how the run came to it."""
    whole = content(checkpoint)
    history = [{k: v for k, v in row.items() if not k.endswith("_per_second")} for row in whole["kgc"]["history"]]
    return {
        "epoch": whole["epoch"],
        "global_step": whole["global_step"],
        "weights": whole["state_dict"],
        "optimizer": whole["optimizer_states"],
        "callbacks": whole["callbacks"],
        "schedule": whole["kgc"]["schedule"],
        "history": history,
        "entities": whole["kgc"]["entities"],
        "relations": whole["kgc"]["relations"],
        "digest": whole["kgc"]["digest"],
    }


def assert_same(first: Any, second: Any, where: str = "") -> None:
    """Equality of nested data, bit for bit."""
    assert type(first) is type(second), where
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype, where
        assert first.shape == second.shape, where
        assert first.numpy().tobytes() == second.numpy().tobytes(), where
    elif isinstance(first, dict):
        assert list(first) == list(second), where
        for key in first:
            assert_same(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert first == second, where


# Data sets.


def bundled(name: str) -> dict[str, list[Labels]]:
    """The splits of a bundled data set, by label, in the order of their files."""
    folder = REPOSITORY / "kgc" / "data" / "bundled" / name
    splits = {}
    for split in ("train", "valid", "test"):
        lines = pl.scan_lines(folder / f"{split}.txt.zst", name="line").collect()["line"].to_list()
        splits[split] = [tuple(line.split("\t")) for line in lines]
    return splits


def write_splits(folder: Path, **splits: list[Labels]) -> Path:
    """A folder of tab-separated files."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, triples in splits.items():
        (folder / f"{split}.txt").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    return folder
