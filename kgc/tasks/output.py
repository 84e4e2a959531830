"""The files a run leaves in its folder."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from kgc import annotated, tracking
from kgc.callbacks import Interrupted
from kgc.console import Terminal
from kgc.data.graph import KnowledgeGraph
from kgc.errors import Pruned, UserError
from kgc.report import breakdown_by_relation, metrics_table, ranked_parts, write_report
from kgc.summary import plain_table, write_page
from kgc.sweeps.labels import agents_sweep
from kgc.tasks.build import call


def _claimed(folder: Path) -> int | None:
    """Locks a folder until the process ends or the descriptor returned is closed; None where folders cannot be locked.

    Raises:
        UserError: another run writes there.
    """
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"another run is writing to {folder}; choose another hydra.run.dir") from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Session:
    """The terminal with its log file, and the loggers, closed in any case; silent on processes other than the first.

    Args:
        run_dir: the run's folder, made if missing.
        log: name of the log file.
    """

    def __init__(self, run_dir: Path, log: str):
        self.first = rank_zero_only.rank == 0
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self._claim = _claimed(run_dir) if self.first else None
        self.terminal = Terminal(run_dir / log, active=self.first)
        self.loggers: list[Logger] = []
        self._capture = self.terminal.capture()

    def start_logging(self, cfg: DictConfig) -> None:
        """Writes `config.yaml` and opens the loggers of `cfg.logger`; called when data and model are good."""
        if self.first:
            OmegaConf.save(cfg, self.run_dir / "config.yaml", resolve=True)
            self.loggers = call(cfg.logger, "logger", save_dir=self.run_dir, name=self.run_dir.name)
            tracking.log_config(self.loggers, OmegaConf.to_container(cfg, resolve=True))

    def __enter__(self) -> Session:
        self._capture.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UserError):
            self.terminal.note(f"error: {error}")
        # A trial that a sweep ends because it is hopeless did not fail; W&B's agent ends them by a signal.
        ended = isinstance(error, Pruned) or (isinstance(error, Interrupted) and agents_sweep() is not None)
        tracking.finish(self.loggers, failed=error is not None and not ended)
        self._capture.__exit__(kind, error, trace)
        self.terminal.close()
        if self._claim is not None:
            os.close(self._claim)


def write_run(
    cfg: DictConfig,
    graph: KnowledgeGraph,
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    history: list[dict[str, float]],
    session: Session,
) -> None:
    """`metrics.json`, `ranks.parquet`, `report.html`, the loggers' summary, and the closing table."""
    run_dir, terminal = session.run_dir, session.terminal
    write_json(run_dir / "metrics.json", metrics)
    write_parquet(run_dir / "ranks.parquet", ranks)
    write_report(
        run_dir / "report.html",
        title=f"{cfg.model._target_.split('.')[-1]} on {graph.name}",
        metrics=metrics,
        ranks=ranks,
        history=history,
        config=OmegaConf.to_yaml(cfg),
        facts=run_facts(graph),
        names=graph.annotations.relation_names,
        more=annotated.sections(ranks, graph.annotations, graph.entities),
    )
    parts = ranked_parts(metrics)
    if not parts:
        terminal.say("warning: no split was ranked: neither valid nor test has triples")
        return
    tracking.log_summary(session.loggers, metrics, ranks, breakdown_by_relation(ranks), split=parts[0])
    terminal.say(metrics_table(metrics, parts[0]))
    terminal.say(f"written to {run_dir}: metrics.json, ranks.parquet, report.html")


def write_answers(
    cfg: DictConfig,
    title: str,
    metrics: dict[str, float],
    session: Session,
    frames: dict[str, pl.DataFrame],
    facts: dict[str, str],
    parts: Sequence[str] = (),
    page: str = "report.html",
) -> None:
    """What a task other than the ranking of a split leaves: `metrics.json`, each frame as `NAME.parquet`, `report.html`
    and the loggers' summary, with the metrics on the console.

    Args:
        parts: further sections of the report, ready HTML.
        page: the report's name.
    """
    write_json(session.run_dir / "metrics.json", metrics)
    for name, frame in frames.items():
        write_parquet(session.run_dir / f"{name}.parquet", frame)
    write_page(session.run_dir / page, title, metrics, OmegaConf.to_yaml(cfg), facts, parts)
    for logger in session.loggers:
        logger.log_metrics(metrics)
    session.terminal.say(plain_table(title, metrics))
    files = ", ".join(["metrics.json", *(f"{name}.parquet" for name in frames), page])
    session.terminal.say(f"written to {session.run_dir}: {files}")


def run_facts(graph: KnowledgeGraph | None = None) -> dict[str, str]:
    """What reproduces a run, for the report."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "command": " ".join(map(quoted, [Path(sys.argv[0]).name, *sys.argv[1:]])),
        **({"data": f"{graph.name}, SHA-256 {graph.digest}"} if graph is not None else {}),
        "versions": f"kgc {version('kgc')}, torch {torch.__version__}, Python {platform.python_version()}",
        "device": device,
    }


def quoted(text: object) -> str:
    """A word of a shell command."""
    return shlex.quote(str(text))


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON object that appears only when complete; NaN and infinity are refused."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """Writes a table that appears only when complete."""
    part = path.with_name(path.name + ".part")
    frame.write_parquet(part)
    os.replace(part, path)
