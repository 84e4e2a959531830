"""What goes to W&B, TensorBoard and CSV files: the loggers of `conf/logger`, and what is written when a run closes.

Every function works with any mix of loggers and acts on process zero only. W&B and TensorBoard are imported inside the
functions, because they are slow to load and TensorBoard is optional.
"""

from __future__ import annotations

import configparser
import logging
import math
import netrc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import polars as pl
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from kgc.errors import UserError

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
_NEEDS_KEY = ("online", "shared", "run")
_TABLE_ROWS = 1000  # W&B shows no more without paging, and a page of the browser stays quick
_HEADLINE = ("mrr", "mr", "hits@1", "hits@3", "hits@10")


def wandb_mode() -> str:
    """How W&B shall run: `WANDB_MODE` where it is set, else online for a user who is logged in and offline otherwise.

    Looks at the environment and at files only; nothing is asked and nothing is sent.

    Raises:
        UserError: `WANDB_MODE` is none of W&B's modes.
    """
    mode = os.environ.get("WANDB_MODE", "").strip().lower()
    if not mode:
        return "online" if _logged_in() else "offline"
    return _checked_mode(mode, "WANDB_MODE")


def wandb_logger(
    save_dir: str | Path,
    name: str | None = None,
    project: str = "kgc",
    entity: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    log_model: bool | str = False,
    mode: str | None = None,
    id: str | None = None,
) -> list[Logger]:
    """A W&B run whose files lie in `save_dir/wandb`, opened at once so that a wrong key shows before training.

    Args:
        save_dir: the run's folder.
        name: the run's display name, None for one of W&B's own.
        project, entity, group, tags: where the run is filed; entity None is the user's default.
        log_model: True uploads checkpoints when training ends, `all` each when it is written.
        mode: None for `wandb_mode()`, or `online`, `offline`, `disabled`.
        id: the id of an earlier W&B run to continue, None for a new one.

    Raises:
        UserError: unknown mode, a wrong key, no connection, or an online mode without a key: W&B would ask for one
            on the terminal and hold up the run.
    """
    mode = wandb_mode() if mode is None else _checked_mode(mode.lower(), "logger.mode")
    if mode in _NEEDS_KEY and not _logged_in():
        raise UserError(
            f"W&B mode `{mode}` needs an API key and none was found: run `wandb login`, set WANDB_API_KEY, "
            "or choose logger.mode=offline (or logger=csv)"
        )
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    run = _start_run(
        mode=mode, dir=save_dir, name=name, project=project, entity=entity, group=group, tags=list(tags), id=id
    )
    return [WandbLogger(name=name, save_dir=save_dir, project=project, log_model=log_model, id=id, experiment=run)]


def csv_logger(save_dir: str | Path, name: str | None = None) -> list[Logger]:
    """Metrics in `save_dir/csv/version_0/metrics.csv`; a resumed run writes `version_1`, and so on.

    `name` is taken so that all loggers are called alike: the folder already has the run's name.
    """
    (Path(save_dir) / "csv").mkdir(parents=True, exist_ok=True)
    return [CSVLogger(save_dir, name="csv")]


def tensorboard_logger(save_dir: str | Path, name: str | None = None) -> list[Logger]:
    """Event files in `save_dir/tensorboard`; those of a resumed run continue the same curves.

    `name` is taken so that all loggers are called alike: the folder already has the run's name.

    Raises:
        UserError: TensorBoard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise UserError("logger=tensorboard needs TensorBoard: pip install 'kgc[tensorboard]'")
    (Path(save_dir) / "tensorboard").mkdir(parents=True, exist_ok=True)
    return [TensorBoardLogger(save_dir, name="tensorboard", version="", default_hp_metric=False)]


def no_logger(save_dir: str | Path, name: str | None = None) -> list[Logger]:
    """No logger at all: the run's folder still gets its metrics, ranks and report."""
    return []


@rank_zero_only
def log_config(loggers: Sequence[Logger], config: dict[str, Any]) -> None:
    """Writes the resolved config to every logger.

    A trial of W&B's agent has the sweep's parameters in its config already, locked, under names such as `model` and
    `optimizer.lr`. The rest joins them under dotted names, which is how W&B shows nested ones.

    Args:
        config: plain nested containers (`OmegaConf.to_container(cfg, resolve=True)`).
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger) and getattr(logger.experiment, "sweep_id", None):
            own = logger.experiment.config
            own.update({key: value for key, value in _dotted(config).items() if key not in own.keys()})  # noqa: SIM118
        else:
            logger.log_hyperparams(config)


def _dotted(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; lists and empty mappings are leaves."""
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    return {k: v for name, child in node.items() for k, v in _dotted(child, f"{prefix}.{name}".lstrip(".")).items()}


@rank_zero_only
def log_summary(
    loggers: Sequence[Logger],
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    by_relation: pl.DataFrame,
    *,
    split: str = "test",
    step: int | None = None,
) -> None:
    """Writes what a run ends with: its final metrics, how its ranks are spread, and its relations.

    W&B gets the metrics in the run's summary, `SPLIT/log10_rank` as a histogram of 64 bins and `SPLIT/by_relation` as a
    table of the 1,000 most frequent relations. TensorBoard gets the metrics, the histogram, and the headline metrics
    next to the config under "hparams". Other loggers get the metrics.

    Args:
        metrics: the content of `metrics.json`.
        ranks: one row a query, as in `ranks.parquet`; `realistic` is read.
        by_relation: one row a relation, the most frequent first.
        split: the split that `ranks` belongs to, or SPLIT/sampled.
        step: optimizer steps done, None where nothing was trained.
    """
    counts, edges = _histogram(ranks)
    for logger in loggers:
        logger.log_metrics(metrics, step)
        if isinstance(logger, WandbLogger):
            _log_to_wandb(logger, metrics, counts, edges, by_relation.head(_TABLE_ROWS), split)
        elif isinstance(logger, TensorBoardLogger):
            if counts.sum():
                middles = np.repeat((edges[:-1] + edges[1:]) / 2, counts)
                logger.experiment.add_histogram(f"{split}/log10_rank", middles, step, bins=edges)
            place = "/".join(["hp", *split.split("/")[1:]])  # an estimate stays named as one
            headline = {f"{place}/{name}": metrics[key] for name in _HEADLINE if (key := f"{split}/{name}") in metrics}
            logger.log_hyperparams(logger.hparams, headline, step)


@rank_zero_only
def finish(loggers: Sequence[Logger], failed: bool) -> None:
    """Flushes and closes every logger, so that the next run of this process starts a W&B run of its own.

    Harmless when called twice.

    Args:
        failed: the run ended by an error; W&B shows it as failed.
    """
    for logger in loggers:
        logger.save()
        logger.finalize("failed" if failed else "success")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=int(failed))


@rank_zero_only
def _start_run(mode: str, id: str | None, **where: Any) -> wandb.Run:
    """Opens the run here, not in `WandbLogger`: its `offline` sets WANDB_MODE for all later runs of the process."""
    offline = mode in ("offline", "dryrun")
    if offline or mode == "disabled":
        # Offline means that nothing is sent, W&B's own crash reports included; it reads this when it is imported.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # A run that was left open, for example by a trial that crashed, is closed and not written into.
    settings = wandb.Settings(silent=offline or mode == "disabled", reinit="finish_previous")
    try:
        run = wandb.init(mode=mode, id=id, resume=None if id is None else "allow", settings=settings, **where)
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise UserError(f"W&B could not open a run: {reason} (logger.mode=offline needs no server)") from error
    # Every curve over optimizer steps, so that runs with other batch sizes or logging intervals can be laid together.
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    if offline:
        folder = Path(run.dir).parent
        log.info("W&B keeps this run offline; to upload it: wandb sync %s", folder)
    return run


def _log_to_wandb(
    logger: WandbLogger,
    metrics: dict[str, float],
    counts: np.ndarray,
    edges: np.ndarray,
    relations: pl.DataFrame,
    split: str,
) -> None:
    import wandb

    run = logger.experiment
    run.summary.update(metrics)
    extras: dict[str, Any] = {
        f"{split}/by_relation": wandb.Table(relations.columns, data=[list(row) for row in relations.rows()])
    }
    if counts.sum():
        extras[f"{split}/log10_rank"] = wandb.Histogram(np_histogram=(counts, edges))
    with _data_dir(logger.save_dir):
        run.log(extras)


@contextmanager
def _data_dir(folder: str | None) -> Iterator[None]:
    """Has W&B stage files in the run's folder; its own choice is the home directory, which may be full or read-only."""
    before = os.environ.get("WANDB_DATA_DIR")
    if before is None and folder is not None:
        os.environ["WANDB_DATA_DIR"] = str(Path(folder) / "wandb" / "staging")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("WANDB_DATA_DIR", None)


def _histogram(ranks: pl.DataFrame, bins: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Counts [bins] and edges [bins + 1] of log10 of the realistic ranks."""
    values = np.log10(ranks["realistic"].cast(pl.Float64).to_numpy())
    top = max(1.0, math.ceil(values.max())) if len(values) else 1.0
    return np.histogram(values, bins=bins, range=(0.0, top))


def _checked_mode(mode: str, where: str) -> str:
    if mode not in _MODES:
        raise UserError(f"{where} is `{mode}`; choices: {', '.join(_MODES)}")
    return mode


def _logged_in() -> bool:
    """Whether W&B would find a key without asking: in the environment, or in netrc under the server's name."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if path := os.environ.get("NETRC"):
        path = Path(path).expanduser()
    else:
        path = next((p for name in (".netrc", "_netrc") if (p := Path.home() / name).exists()), None)
    if path is None:
        return False
    try:
        entry = netrc.netrc(path).authenticators(urlsplit(_server()).netloc)
    except (OSError, netrc.NetrcParseError):
        return False
    return bool(entry and entry[2])


def _server() -> str:
    """The address of W&B's server: `WANDB_BASE_URL`, or what `wandb login --host` stored, or the public one."""
    if url := os.environ.get("WANDB_BASE_URL"):
        return url
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    stored = configparser.ConfigParser(interpolation=None)
    try:
        stored.read([folder / "settings", Path("wandb/settings")])
    except (OSError, configparser.Error, UnicodeDecodeError):
        return "https://api.wandb.ai"
    return stored.get("default", "base_url", fallback="https://api.wandb.ai")
