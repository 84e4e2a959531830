"""What a sweep knows of its trials: `trial.json` in each one's folder, and `refused.json` beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

RECORD, _LOCK, REFUSED = "trial.json", ".trial.lock", "refused.json"


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Args:
        number: its place in the sweep; None where its config could not be composed, so that it never started.
        words: the words of its command line.
        config: SHA-256 of its resolved config.
        status: `running`, `finished`, `pruned` (ended because it was hopeless), `failed`, `interrupted`.
        reason: why it was pruned or failed, on one line.
        code: the exit code that a run of its own would have had: 0, 1 for a fault of ours, 2 for a user's mistake, 3
            for an alert.
        trace: the traceback of a fault of ours.
        seconds: what its last start took.
        ended: when that was, in seconds since 1970.
        metrics: the content of its `metrics.json`; of a pruned one what it had reached.
        folder: where its files are; not part of the file.
    """

    number: int | None
    words: tuple[str, ...]
    config: str = ""
    status: str = "running"
    reason: str = ""
    code: int = 0
    trace: str = ""
    seconds: float = 0.0
    ended: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def settled(self) -> bool:
        """Whether the trial need not run again: its result is there, complete, or it was pruned."""
        if self.status == "finished" and self.folder:
            return bool(self.metrics) and _json(self.folder / "metrics.json") == self.metrics
        return self.status == "pruned"

    @property
    def state(self) -> str:
        """The status, `interrupted` for one whose process is gone."""
        if self.status == "running" and self.folder and not _held(self.folder):
            return "interrupted"
        return self.status


def identity(cfg: DictConfig) -> str:
    """SHA-256 of a config, whatever the order of its keys."""
    try:
        content = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException:  # the trial itself will say what is wrong
        content = OmegaConf.to_container(cfg, resolve=False)
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def read(folder: Path) -> Trial | None:
    """The record in a trial's folder; None where there is none that can be read."""
    return _trial(_json(folder / RECORD), folder)


def write(folder: Path, trial: Trial) -> None:
    """Writes a trial's record, which appears only when complete."""
    _write_json(folder / RECORD, _fields(trial))


def trials(sweep_dir: Path) -> list[Trial]:
    """All trials of a sweep: those with a folder, by number, and those that were refused before they had one."""
    found = [trial for folder in _folders(sweep_dir) if (trial := read(folder))]
    refused = _json(sweep_dir / REFUSED)
    lost = [_trial(row, None) for row in refused] if isinstance(refused, list) else []
    found.sort(key=lambda trial: (trial.number is None, trial.number or 0, str(trial.folder)))
    return found + [trial for trial in lost if trial]


def write_refused(sweep_dir: Path, refused: list[Trial]) -> None:
    """Keeps the trials whose configs could not be composed at this start, instead of those of an earlier one."""
    if refused:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        _write_json(sweep_dir / REFUSED, [_fields(trial) for trial in refused])
    else:
        (sweep_dir / REFUSED).unlink(missing_ok=True)


def folder_of(sweep_dir: Path, wanted: Path, config: str) -> Path:
    """Where the trial of a config lies: its folder of an earlier start, else the one wanted or, where another trial
    or run has that, one whose name ends with `_2`, `_3`, …; made if missing."""
    for folder in _folders(sweep_dir):
        trial = read(folder)
        if trial and trial.config == config:
            if wanted != folder and wanted.is_dir() and not any(wanted.iterdir()):
                wanted.rmdir()  # Hydra made it
            return folder
    number = 1
    while True:
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        if not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        number += 1


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Takes a trial's folder for this process until it ends; False where another process has it."""
    descriptor = _lock(folder / _LOCK)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)


def _held(folder: Path) -> bool:
    """Whether a process has a trial's folder."""
    if not (folder / _LOCK).exists():
        return False
    descriptor = _lock(folder / _LOCK)
    if descriptor is not None and descriptor >= 0:
        os.close(descriptor)
    return descriptor is None


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a file until it is closed; None if another process holds it, −1 where files
    cannot be locked."""
    try:
        import fcntl
    except ImportError:
        return -1
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def _folders(sweep_dir: Path) -> Iterator[Path]:
    """Folders with a record, at any depth; those inside a trial's folder are not looked at."""
    for path, names, files in os.walk(sweep_dir):
        if RECORD in files:
            names.clear()
            yield Path(path)
        names.sort()


def _fields(trial: Trial) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(trial).items() if key != "folder"}


def _trial(content: Any, folder: Path | None) -> Trial | None:
    names = {f.name for f in dataclasses.fields(Trial)} - {"folder"}
    if not isinstance(content, dict) or not {"words", "number"} <= set(content) <= names:
        return None
    return Trial(**content | {"words": tuple(content["words"])}, folder=folder)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_json(path: Path, content: Any) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)
