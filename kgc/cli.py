"""The command lines `train.py` and `evaluate.py`: compose a config, call a task, turn mistakes into one line."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kgc.errors import Alert, UserError
from kgc.paths import config_dir
from kgc.text import printable


def train() -> None:
    """`python train.py`, `kgc-train`."""
    _main("train", _train)


def evaluate() -> None:
    """`python evaluate.py`, `kgc-evaluate`."""
    _main("evaluate", _evaluate)


def _train(cfg: DictConfig, run_dir: Path, overrides: list[str]) -> Any:
    from kgc.tasks.train import train

    return train(cfg, run_dir, overrides)


def _evaluate(cfg: DictConfig, run_dir: Path, overrides: list[str]) -> Any:
    from kgc.tasks.evaluate import evaluate

    return evaluate(cfg, run_dir)


@dataclass(frozen=True)
class Trial:
    """A run of a sweep, or the only one.

    Args:
        number: its place in the sweep; None outside of one.
        words: of its command line.
        error: what ended it.
    """

    number: int | None
    words: tuple[str, ...]
    error: Exception | None = None


def _main(name: str, task: Callable[[DictConfig, Path, list[str]], Any]) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    # Hydra prints errors of its own and exits with 1; with this it raises them, and they become one line below.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    # To Hydra a bare comma is a sweep; queries.sample=2p:100,2i:100 is one value.
    sys.argv[1:] = [
        f"{key}='{value}'" if key == "queries.sample" and re.fullmatch(r"\w+:\d+(,\w+:\d+)+", value) else word
        for word in sys.argv[1:]
        for key, _, value in [word.partition("=")]
    ]

    sys.argv[1:] = with_several_loggers(sys.argv[1:])

    trials: list[Trial] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)
    def run(cfg: DictConfig) -> Any:
        hydra_cfg = HydraConfig.get()
        run_dir = Path(hydra_cfg.runtime.output_dir)
        words = tuple(hydra_cfg.overrides.task)
        number = hydra_cfg.job.num if hydra_cfg.mode is RunMode.MULTIRUN else None
        try:
            result = task(cfg, run_dir, list(words))
            trials.append(Trial(number, words))
            return result
        except Exception as error:  # reported below, past Hydra's own report; the trials after it still run
            trials.append(Trial(number, words, error))
            if number is not None:
                print(f"trial {number} failed: {_mistake(error) or f'{type(error).__name__}: {error}'}", flush=True)
            if run_dir.exists() and not any(run_dir.iterdir()):
                run_dir.rmdir()
            return None

    try:
        run()
    except KeyboardInterrupt:
        _report(trials)
        sys.exit(130)
    except Exception as error:  # a word that Hydra could not make sense of, or a folder that it could not make
        print(f"error: {printable(find_mistake(error) or _config_message(error))}", file=sys.stderr)
        sys.exit(2)
    code = _report(trials)
    if code:
        sys.exit(code)


def with_several_loggers(words: list[str]) -> list[str]:
    """Words of a command line with `logger=[wandb,csv]` spelled out as `logger=several logger.use=[wandb,csv]`.

    Loggers have keys of the same names, which Hydra would mix: several stand in a config of their own.
    """
    spelled = ((["logger=several", f"logger.use={w[7:]}"] if w.startswith("logger=[") else [w]) for w in words)
    return [part for parts in spelled for part in parts]


def _report(trials: list[Trial]) -> int:
    """Says on stderr what ended each failed trial; the exit code: 0, 3 for alerts, 2 for the user's mistakes, 1 if
    others are there.

    A trial is named by its number and the words that not all trials have. A fault of ours is raised, with its
    traceback, where it is the only run.
    """
    code = 0
    shared = set.intersection(*(set(trial.words) for trial in trials)) if trials else set()
    for trial in trials:
        if trial.error is None:
            continue
        if isinstance(trial.error, Alert):
            print(f"alert: {printable(str(trial.error))}", file=sys.stderr)
            code = code or 3
            continue
        mistake = _mistake(trial.error)
        if mistake is None and trial.number is None:
            raise trial.error
        if mistake is None:
            traceback.print_exception(trial.error)
        own = " ".join(word for word in trial.words if word not in shared)
        where = "" if trial.number is None else f"trial {trial.number}{f' ({own})' if own else ''}: "
        said = mistake or f"{type(trial.error).__name__}: {trial.error}"
        print(f"error: {printable(f'{where}{said}')}", file=sys.stderr)
        code = 1 if mistake is None or code == 1 else 2
    return code


def _mistake(error: Exception) -> str | None:
    """What the user can mend, on one line; None for a fault of ours."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    mistake = find_mistake(error)
    if mistake is None and isinstance(error, HydraException | OmegaConfBaseException):
        return _config_message(error)
    return mistake


def find_mistake(error: BaseException | None) -> str | None:
    """The message of a `UserError` among an exception and its causes, on one line."""
    while error is not None:
        if isinstance(error, UserError):
            return " ".join(str(error).split("\n"))
        error = error.__cause__ or error.__context__
    return None


def _config_message(error: Exception) -> str:
    """Hydra's and OmegaConf's messages, several lines long, as one line; the cause says more than the wrapper."""
    from kgc.tasks.groups import listed, wrong_choice

    if "Config group override must be" in str(error) and (message := wrong_choice(sys.argv[1:])):
        return message
    if found := re.search(r"Could not find '([\w/]+)/([^/']+)'", str(error)):
        return f"{found[1]}={found[2]}: no such choice of the group {found[1]}; it has {listed(*found.groups())}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; choose another folder by hydra.run.dir=DIR"
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [
        line.strip() for text in (str(error), str(cause) if cause is not error else "") for line in text.split("\n")
    ]
    noise = ("See https", "full_key:", "object_type=", "set hydra.searchpath", "Config search path:", "provider=")
    kept = [line for line in lines if line and not line.startswith(noise)]
    message = "; ".join(dict.fromkeys(kept))
    if "mismatched input" in message or "no viable alternative" in message or "token recognition" in message:
        message += "; put a value with = , ( ) or spaces in quotes: 'key=\"value\"'"
    return message
