"""The files a run leaves in its folder."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from kgc import annotated, dashboard, tracking
from kgc.callbacks import Interrupted
from kgc.console import Terminal
from kgc.data.graph import KnowledgeGraph
from kgc.errors import Pruned, UserError
from kgc.module import KGEModule
from kgc.report import metrics_table, ranked_parts, write_report
from kgc.sections import breakdown_by_relation, category_table
from kgc.summary import plain_table, write_page
from kgc.sweeps.labels import agents_sweep
from kgc.tasks.build import call
from kgc.tasks.examples import worst_answered
from kgc.tasks.findings import notes

_VERSIONS = ("kgc", "torch", "pytorch-lightning", "torchmetrics", "hydra-core", "numpy", "polars")


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
        quiet: nothing but warnings on the terminal; the log file has all.
    """

    def __init__(self, run_dir: Path, log: str, quiet: bool = False):
        self.seconds: dict[str, float] = {}  # by what they were spent on, in order
        self.first = rank_zero_only.rank == 0
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self._claim = _claimed(run_dir) if self.first else None
        self.terminal = Terminal(run_dir / log, active=self.first, quiet=quiet)
        self.loggers: list[Logger] = []
        self._capture = self.terminal.capture()

    def start_logging(self, cfg: DictConfig, graph: KnowledgeGraph | None = None) -> None:
        """Writes `config.yaml` and opens the loggers of `cfg.logger`, which get the config and, under `data`, what the
        graph is; called when data and model are good."""
        if self.first:
            with self.phase("log"):
                OmegaConf.save(cfg, self.run_dir / "config.yaml", resolve=True)
                self.loggers = call(cfg.logger, "logger", save_dir=self.run_dir, name=self.run_dir.name)
                config = OmegaConf.to_container(cfg, resolve=True)
                tracking.log_config(self.loggers, config | ({"data": data_facts(graph)} if graph else {}))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the seconds inside for `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent({name: time.perf_counter() - began})

    def spent(self, seconds: dict[str, float]) -> None:
        """Adds seconds by what they were spent on."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

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
    module: KGEModule,
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    session: Session,
    words: Sequence[str] | None = None,
) -> None:
    """`metrics.json`, `ranks.parquet`, `report.html`, the loggers' summary, and the closing table.

    Args:
        cfg: the run's config.
        module: what was trained or ranked.
        metrics: the content of `metrics.json`.
        ranks: the content of `ranks.parquet`.
        session: the run's folder, terminal and loggers.
        words: of the command line, where they are not those of this process.
    """
    run_dir, terminal, graph = session.run_dir, session.terminal, module.graph
    with session.phase("report"):
        write_json(run_dir / "metrics.json", metrics)
        write_parquet(run_dir / "ranks.parquet", ranks)
        write_report(
            run_dir / "report.html",
            title=f"{cfg.model._target_.split('.')[-1]} on {graph.name}",
            metrics=metrics,
            ranks=ranks,
            history=module.history,
            config=OmegaConf.to_yaml(cfg),
            facts=run_facts(graph, words) | ({"time": spent_words(session.seconds)} if session.seconds else {}),
            notes=notes(graph),
            worst=None if module.shard is not None else worst_answered(module, ranks),
            names=graph.annotations.relation_names,
            more=annotated.sections(ranks, graph.annotations, graph.entities),
        )
    parts = ranked_parts(metrics)
    if not parts:
        terminal.say("warning: no split was ranked: neither valid nor test has triples")
        return
    with session.phase("log"):
        dashboard.log_summary(
            session.loggers,
            metrics | {f"total/{name}": value for name, value in session.seconds.items()},
            ranks,
            {"by_relation": breakdown_by_relation(ranks), "by_category": category_table(metrics, parts[0])},
            split=parts[0],
            history=module.history,
        )
        dashboard.log_artifacts(session.loggers, run_dir, data_facts(graph))
    terminal.say(metrics_table(metrics, parts[0]))
    terminal.say(f"time       {spent_words(session.seconds)}")
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


def run_facts(graph: KnowledgeGraph | None = None, words: Sequence[str] | None = None) -> dict[str, str]:
    """What reproduces a run, for the report.

    Args:
        graph: the data.
        words: of the command line; None takes those that Hydra read, of a sweep those of this trial.
    """
    if words is None:
        words = HydraConfig.get().overrides.task if HydraConfig.initialized() else sys.argv[1:]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "command": " ".join(["python", *map(quoted, [Path(sys.argv[0]).name, *words])]),
        **({"data": f"{graph.name}, SHA-256 {graph.digest}"} if graph is not None else {}),
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{n} {version(n)}" for n in _VERSIONS)]),
        "device": f"{device}, {torch.get_num_threads()} CPU threads",
    }


def data_facts(graph: KnowledgeGraph) -> dict[str, Any]:
    """Name, digest and sizes of a data set, for the loggers."""
    sizes = {"entities": graph.num_entities, "relations": graph.num_relations} | graph.report.sizes
    return {"name": graph.name, "digest": graph.digest} | sizes


def spent_words(seconds: dict[str, float]) -> str:
    """Seconds by what they were spent on, in words; less than a hundredth is not worth one."""
    return ", ".join(f"{name} {value:,.2f} s" for name, value in seconds.items() if value >= 0.005) or "none"


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
