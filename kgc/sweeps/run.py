"""One trial of a sweep: skipped where its result is there, gone on with where it was interrupted, always recorded."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from kgc.errors import Alert, Pruned
from kgc.sweeps import records
from kgc.sweeps.labels import label
from kgc.sweeps.records import Trial
from kgc.sweeps.table import write_tables
from kgc.text import printable


def run_trial(
    task: Callable[[DictConfig, Path, list[str]], Any],
    cfg: DictConfig,
    place: Trial,
    sweep_dir: Path,
    *,
    tags: Sequence[str | None],
    reasons: Callable[[Exception], str | None],
    resumable: bool,
) -> Trial:
    """Runs a trial, and returns how it ended; only a stop by the user is raised.

    A trial is known by its config, whatever its number: one that an earlier start of the sweep settled is not run
    again, an interrupted one goes on from its `last.ckpt`, a failed one starts afresh. A trial that another process is
    running is left to it.

    Args:
        task: what `train.py` or `evaluate.py` runs, called with the config, the folder and the words.
        cfg: the trial's config.
        place: its number, its words and the folder that it shall have.
        sweep_dir: the sweep's folder, by whose name W&B groups the trials.
        tags: of the trial at W&B.
        reasons: a user's mistake as one line, None for a fault of ours.
        resumable: the task can go on from `last.ckpt`, and its result need not be computed twice.

    Raises:
        KeyboardInterrupt: the run was stopped.
    """
    config = records.identity(cfg)
    folder = records.folder_of(sweep_dir, place.folder, config)
    trial = dataclasses.replace(place, config=config, folder=folder)
    name = " ".join([f"trial {trial.number}:", *trial.words])
    with records.claimed(folder) as mine:
        before = records.read(folder)
        if not mine:
            print(printable(f"{name}: another process is running it in {folder}"), flush=True)
            return before or trial
        if resumable and before and before.settled:
            print(printable(f"{name}: {before.status} already, in {folder}"), flush=True)
            return before
        print(printable(name), flush=True)
        label(cfg, sweep_dir.name, tags)
        resumed = resumable and before is not None and _prepare(cfg, before)
        records.write(folder, trial)
        words = [] if resumed else list(trial.words)  # a resumed trial's are those of its checkpoint
        trial = _ended(lambda: task(cfg, folder, words), trial, reasons)
        records.write(folder, trial)
    write_tables(sweep_dir)
    if trial.status == "interrupted":
        raise KeyboardInterrupt
    if trial.reason:
        print(printable(f"trial {trial.number} {trial.status}: {trial.reason}"), flush=True)
    return trial


def _prepare(cfg: DictConfig, before: Trial) -> bool:
    """Has an interrupted trial go on, and says so; clears the way of one that failed or whose result is incomplete."""
    last = before.folder / "checkpoints" / "last.ckpt"
    if before.status in ("running", "interrupted") and last.exists():
        with open_dict(cfg):
            cfg.checkpoint = str(last)
        return True
    for path in (last, last.with_name("best.ckpt"), before.folder / "metrics.json"):
        path.unlink(missing_ok=True)
    return False


def _ended(task: Callable[[], Any], trial: Trial, reasons: Callable[[Exception], str | None]) -> Trial:
    began = time.monotonic()
    status: dict[str, Any] = {"status": "finished"}
    metrics: Any = None
    try:
        metrics = task()
    except KeyboardInterrupt:
        status = {"status": "interrupted"}
    except Pruned as error:
        status, metrics = {"status": "pruned", "reason": str(error)}, error.metrics
    except Alert as error:
        status = {"status": "finished", "reason": str(error), "code": 3}
    except Exception as error:  # a row of the sweep's table; the trials after it still run
        mistake = reasons(error)
        status = {"status": "failed", "reason": mistake or f"{type(error).__name__}: {error}", "code": 2}
        if mistake is None:
            status |= {"code": 1, "trace": "".join(traceback.format_exception(error))}
    metrics = metrics if isinstance(metrics, dict) else {}
    took = time.monotonic() - began
    return dataclasses.replace(trial, **status, seconds=took, ended=time.time(), metrics=metrics)
