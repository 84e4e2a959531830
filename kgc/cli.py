"""The command lines `train.py` and `evaluate.py`: compose a config, call a task, turn mistakes into one line."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kgc.errors import Alert, UserError
from kgc.paths import config_dir
from kgc.sweeps.labels import agents_sweep, label
from kgc.text import printable


def train() -> None:
    """`python train.py`, `kgc-train`."""
    _main("train", _train)


def evaluate() -> None:
    """`python evaluate.py`, `kgc-evaluate`."""
    _main("evaluate", _evaluate)


def _train(cfg: DictConfig, run_dir: Path, overrides: list[str], **trial: Any) -> Any:
    from kgc.tasks.train import train

    return train(cfg, run_dir, overrides, **trial)


def _evaluate(cfg: DictConfig, run_dir: Path, overrides: list[str]) -> Any:
    from kgc.tasks.evaluate import evaluate

    return evaluate(cfg, run_dir)


# A word of the command line that gives a secret.
_SECRET = re.compile(
    r"[+]*([\w/@]+[.])*\w*(api_?key|access_?key|private_?key|credentials?|token|secret|password|passwd)=", re.IGNORECASE
)
# An address with a password, as user:password@machine.
_ADDRESS = re.compile(r"[^=]+=.*\w://[^/\s:@]*:[^/\s@]+@")


def _main(name: str, task: Callable[[DictConfig, Path, list[str]], Any]) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    # Hydra prints errors of its own and exits with 1; with this it raises them, and they become one line below.
    os.environ["HYDRA_FULL_ERROR"] = "1"

    secrets = [word for word in sys.argv[1:] if _SECRET.match(word) or _ADDRESS.match(word)]
    if secrets:
        key = secrets[0].partition("=")[0].lstrip("+")
        print(
            f"error: {printable(key)}: a key on the command line stands in the shell's history, the list of processes "
            "and the run's report; set it in the environment (WANDB_API_KEY), or use `wandb login`",
            file=sys.stderr,
        )
        sys.exit(2)

    # To Hydra a bare comma is a sweep; queries.sample=2p:100,2i:100 is one value.
    sys.argv[1:] = [
        f"{key}='{value}'" if key == "queries.sample" and re.fullmatch(r"\w+:\d+(,\w+:\d+)+", value) else word
        for word in sys.argv[1:]
        for key, _, value in [word.partition("=")]
    ]

    sys.argv[1:] = with_several_loggers(sys.argv[1:])

    failures: list[Exception] = []  # of the only run

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)
    def run(cfg: DictConfig) -> Any:
        hydra_cfg = HydraConfig.get()
        run_dir = Path(hydra_cfg.runtime.output_dir)
        words = list(hydra_cfg.overrides.task)
        if hydra_cfg.mode is RunMode.MULTIRUN:
            return _trial(name, task, cfg)
        if sweep := agents_sweep():
            label(cfg, sweep, _tags(hydra_cfg))
        try:
            return task(cfg, run_dir, words)
        except Exception as error:  # reported below, past Hydra's own report
            failures.append(error)
            if run_dir.exists() and not any(run_dir.iterdir()):
                run_dir.rmdir()
            return None

    began = time.time()
    HydraConfig.instance().cfg = None
    try:
        run()
    except KeyboardInterrupt:
        _end_sweep(began)
        sys.exit(0 if agents_sweep() else 130)  # W&B's agent stops hopeless trials, which is no failure of theirs
    except Exception as error:  # a word that Hydra could not make sense of, or a folder that it could not make
        _end_sweep(began)
        print(f"error: {printable(find_mistake(error) or _config_message(error))}", file=sys.stderr)
        sys.exit(2)
    code = _end_sweep(began) or next(map(_report, failures), 0)
    if code:
        sys.exit(code)


def with_several_loggers(words: list[str]) -> list[str]:
    """Words of a command line with `logger=[wandb,csv]` spelled out as `logger=several logger.use=[wandb,csv]`.

    Loggers have keys of the same names, which Hydra would mix: several stand in a config of their own.
    """
    spelled = ((["logger=several", f"logger.use={w[7:]}"] if w.startswith("logger=[") else [w]) for w in words)
    return [part for parts in spelled for part in parts]


def _trial(name: str, task: Callable[[DictConfig, Path, list[str]], Any], cfg: DictConfig) -> float | None:
    """A trial of a sweep, in whatever process its launcher started for it; returns the valid MRR, for sweepers."""
    from hydra.core.hydra_config import HydraConfig

    from kgc.sweeps.records import Trial
    from kgc.sweeps.run import run_trial

    hydra_cfg = HydraConfig.get()
    place = Trial(
        number=hydra_cfg.job.num, words=tuple(hydra_cfg.overrides.task), folder=Path(hydra_cfg.runtime.output_dir)
    )
    sweep_dir = Path(hydra_cfg.sweep.dir).absolute()
    of_study = None
    if hydra_cfg.sweeper.get("trial") is not None:
        from kgc.sweeps.study import StudyTrial

        of_study = StudyTrial.of(hydra_cfg.sweeper)
        task, place = partial(task, trial=of_study), replace(place, number=of_study.number)
    trial = run_trial(task, cfg, place, sweep_dir, tags=_tags(hydra_cfg), reasons=mistake_of, resumable=name == "train")
    if of_study:
        of_study.tell(trial)
    return trial.metrics.get("valid/mrr") if trial.status == "finished" else None


def _tags(hydra_cfg: DictConfig) -> list[str | None]:
    """The choices by which people look for a trial."""
    return [hydra_cfg.runtime.choices.get(group) for group in ("model", "dataset", "sampler")]


def _end_sweep(began: float) -> int:
    """Shows the table of the sweep that this command was, and on stderr what ended each failed trial.

    A trial is named by its number and the words that not all trials have.

    Args:
        began: when the command was started; trials that an earlier start left are in the table, and not reported.

    Returns:
        The exit code: 0, 3 for alerts, 2 for the user's mistakes, 1 if others are there.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    cfg = HydraConfig.instance().cfg
    if cfg is None or cfg.hydra.mode is not RunMode.MULTIRUN:
        return 0
    from kgc.sweeps.table import show, write_tables

    sweep_dir = Path(cfg.hydra.sweep.dir).absolute()
    rows = write_tables(sweep_dir)
    if not rows:
        return 0
    show(rows, sweep_dir)
    code = 0
    shared = set.intersection(*(set(row.words) for row in rows))
    for row in sorted(rows, key=lambda row: (row.number is None, row.number)):
        if row.code == 0 or row.ended < began:
            continue
        print(row.trace, end="", file=sys.stderr)
        own = " ".join(word for word in row.words if word not in shared)
        kind, number = "alert" if row.code == 3 else "error", "" if row.number is None else f" {row.number}"
        print(printable(f"{kind}: trial{number}{f' ({own})' if own else ''}: {row.reason}"), file=sys.stderr)
        code = {3: code or 3, 2: code if code == 1 else 2}.get(row.code, 1)
    return code


def _report(error: Exception) -> int:
    """Says on stderr what ended the only run, and returns the exit code; a fault of ours is raised, with its
    traceback."""
    if isinstance(error, Alert):
        print(f"alert: {printable(str(error))}", file=sys.stderr)
        return 3
    mistake = mistake_of(error)
    if mistake is None:
        raise error
    print(f"error: {printable(mistake)}", file=sys.stderr)
    return 2


def mistake_of(error: Exception) -> str | None:
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
    if "Could not find 'hydra/launcher/submitit_" in str(error):
        return "hydra/launcher: jobs of Slurm need Hydra's launcher for it: pip install 'kgc[slurm]'"
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
