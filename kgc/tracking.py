"""W&B, MLflow, TensorBoard and CSV files: the loggers of `conf/logger`, from their opening to their end.

Every function works with any mix of loggers and acts on process zero only. Their packages are imported inside the
functions, because they are slow to load and most of them optional.
"""

from __future__ import annotations

import configparser
import logging
import netrc
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hydra.utils import instantiate
from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from kgc.errors import UserError

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
_NEEDS_KEY = ("online", "shared", "run")
_OF_EPOCHS = ("train", "valid", "norm", "time", "memory")  # metrics whose x axis is `epoch`; of others it is the step
TRACKERS = ("wandb", "csv", "tensorboard", "mlflow")


class WandbRun(WandbLogger):
    """Lightning's logger of a W&B run that is open already.

    Args:
        artifacts: names of what is uploaded when the run closes: `best`, `last` (checkpoints), `ranks`.
    """

    def __init__(self, run: wandb.Run | None, save_dir: str | Path, artifacts: Sequence[str] = (), **options: Any):
        super().__init__(save_dir=save_dir, experiment=run, **options)
        self.artifacts = tuple(artifacts)


class MLflowRun(MLFlowLogger):
    """Lightning's logger of an MLflow run, whose metrics may not have an `@` in their names: `test/hits_at_10`."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any]) -> None:
        super().log_hyperparams({re.sub(r"[^\w/. -]", "_", key): value for key, value in _flat(params).items()})


def wandb_mode() -> str:
    """How W&B shall run: `WANDB_MODE` where it is set, else online for a user who is logged in and offline otherwise.

    Looks at the environment and at files only; nothing is asked and nothing is sent.

    Raises:
        UserError: `WANDB_MODE` is none of W&B's modes.
    """
    mode = os.environ.get("WANDB_MODE", "").strip().lower()
    if not mode:
        return "online" if is_logged_in() else "offline"
    return _checked_mode(mode, "WANDB_MODE")


def wandb_logger(
    save_dir: str | Path,
    name: str | None = None,
    project: str = "kgc",
    entity: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    log_model: bool | str = False,
    log_ranks: bool = False,
    mode: str | None = None,
    id: str | None = None,
) -> list[Logger]:
    """A W&B run whose files lie in `save_dir/wandb`, opened at once so that a wrong key shows before training.

    Args:
        save_dir: the run's folder.
        name: the run's display name, None for one of W&B's own.
        project, entity, group, tags: where the run is filed; entity None is the user's default.
        log_model: True makes an artifact of the best checkpoint when the run closes, `all` of the last one too.
        log_ranks: whether `ranks.parquet` becomes an artifact.
        mode: None for `wandb_mode()`, or `online`, `offline`, `disabled`.
        id: the id of an earlier W&B run to continue, None for a new one.

    Raises:
        UserError: unknown mode, a wrong key, no connection, or an online mode without a key: W&B would ask for one
            on the terminal and hold up the run.
    """
    mode = wandb_mode() if mode is None else _checked_mode(mode.lower(), "logger.mode")
    if log_model not in (True, False, "all"):
        raise UserError(f"logger.log_model={log_model}: must be true, false or all")
    if mode in _NEEDS_KEY and not is_logged_in():
        raise UserError(
            f"W&B mode `{mode}` needs an API key and none was found: run `wandb login`, set WANDB_API_KEY, "
            "or choose logger.mode=offline (or logger=csv)"
        )
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    run = _start_run(
        mode=mode, dir=save_dir, name=name, project=project, entity=entity, group=group, tags=list(tags), id=id
    )
    artifacts = [*(("best", "last") if log_model == "all" else ("best",) if log_model else ()), *["ranks"] * log_ranks]
    return [WandbRun(run, save_dir, artifacts, name=name, project=project, id=id)]


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


def mlflow_logger(
    save_dir: str | Path, name: str | None = None, experiment: str = "kgc", tracking_uri: str | None = None
) -> list[Logger]:
    """A run of MLflow.

    Args:
        save_dir: the run's folder.
        name: the run's display name.
        experiment: the experiment that it is filed under.
        tracking_uri: of a server or a store; None for `MLFLOW_TRACKING_URI` where that is set, else files in
            `save_dir/mlruns`.

    Raises:
        UserError: MLflow is not installed.
    """
    if find_spec("mlflow") is None:
        raise UserError("logger=mlflow needs MLflow: pip install 'kgc[mlflow]'")
    if not (tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask to be told so
        tracking_uri = (Path(save_dir) / "mlruns").absolute().as_uri()
    return [MLflowRun(experiment_name=experiment, run_name=name, tracking_uri=tracking_uri)]


def several_loggers(
    save_dir: str | Path,
    name: str | None = None,
    use: Sequence[str] = (),
    wandb: Mapping[str, Any] | None = None,
    csv: Mapping[str, Any] | None = None,
    tensorboard: Mapping[str, Any] | None = None,
    mlflow: Mapping[str, Any] | None = None,
) -> list[Logger]:
    """Several loggers at once.

    Args:
        save_dir: the run's folder.
        name: the run's display name.
        use: which, of `TRACKERS`.
        wandb, csv, tensorboard, mlflow: the config of each, as `conf/logger` has it.

    Raises:
        UserError: an unknown name, or what one of them raises.
    """
    nodes = {"wandb": wandb, "csv": csv, "tensorboard": tensorboard, "mlflow": mlflow}
    if isinstance(use, str) or not use or any(each not in TRACKERS for each in use):
        raise UserError(f"logger.use={use}: must be a list of {', '.join(TRACKERS)}")
    made: list[Logger] = []
    try:
        for each in dict.fromkeys(use):
            made += instantiate(nodes[each], save_dir=save_dir, name=name, _convert_="all")
    except Exception as error:
        finish(made, failed=True)
        cause = error.__cause__
        raise (cause if isinstance(cause, UserError) else error) from None
    return made


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
    os.environ.setdefault("WANDB__SERVICE_WAIT", "300")  # its process needs more than its 30 s on a busy machine
    import wandb

    # A run that was left open, for example by a trial that crashed, is closed and not written into.
    settings = wandb.Settings(silent=offline or mode == "disabled", reinit="finish_previous")
    try:
        run = wandb.init(mode=mode, id=id, resume=None if id is None else "allow", settings=settings, **where)
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise UserError(f"W&B could not open a run: {reason} (logger.mode=offline needs no server)") from error
    for axis in ("epoch", "trainer/global_step"):
        run.define_metric(axis)
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    for part in _OF_EPOCHS:
        run.define_metric(f"{part}/*", step_metric="epoch", step_sync=True)
    if offline:
        folder = Path(run.dir).parent
        log.info("W&B keeps this run offline; to upload it: wandb sync %s", shlex.quote(str(folder)))
    return run


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by key, `a/b`."""
    if not isinstance(node, Mapping) or not node:
        return {prefix: node}
    return {k: v for name, child in node.items() for k, v in _flat(child, f"{prefix}/{name}".lstrip("/")).items()}


def _checked_mode(mode: str, where: str) -> str:
    if mode not in _MODES:
        raise UserError(f"{where} is `{mode}`; choices: {', '.join(_MODES)}")
    return mode


def is_logged_in() -> bool:
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
