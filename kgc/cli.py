"""The command lines `train.py` and `evaluate.py`: compose a config, call a task, turn mistakes into one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kgc.errors import UserError
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


def _main(name: str, task: Callable[[DictConfig, Path, list[str]], Any]) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    # Hydra prints errors of its own and exits with 1; with this it raises them, and they become one line below.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    failures: list[Exception] = []

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)
    def run(cfg: DictConfig) -> Any:
        hydra_cfg = HydraConfig.get()
        run_dir = Path(hydra_cfg.runtime.output_dir)
        try:
            return task(cfg, run_dir, list(hydra_cfg.overrides.task))
        except Exception as error:  # raised again below, past Hydra's own report; the trials after it still run
            failures.append(error)
            if run_dir.exists() and not any(run_dir.iterdir()):
                run_dir.rmdir()
            return None

    try:
        run()
        if failures:
            raise failures[0]
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        mistake = find_mistake(error)
        composing = error not in failures  # a word that Hydra could not make sense of
        if mistake is None and (composing or isinstance(error, HydraException | OmegaConfBaseException)):
            mistake = _config_message(error)
        if mistake is None:
            raise
        print(f"error: {printable(mistake)}", file=sys.stderr)
        sys.exit(2)


def find_mistake(error: BaseException | None) -> str | None:
    """The message of a `UserError` among an exception and its causes, on one line."""
    while error is not None:
        if isinstance(error, UserError):
            return " ".join(str(error).split("\n"))
        error = error.__cause__ or error.__context__
    return None


def _config_message(error: Exception) -> str:
    """Hydra's and OmegaConf's messages, several lines long, as one line; the cause says more than the wrapper."""
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
