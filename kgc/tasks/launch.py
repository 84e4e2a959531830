"""Several processes for one run: the config is composed once, and every process gets the same one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning.utilities import rank_zero_only

from kgc.errors import UserError


def processes_wanted(cfg: DictConfig) -> int:
    """How many processes this machine shall run for `cfg.trainer`; 1 in a process of torchrun or Slurm."""
    if "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ:
        return 1
    devices = cfg.trainer.devices
    if devices in (-1, "-1", "auto"):
        import torch

        cuda = cfg.trainer.accelerator in ("gpu", "auto") and torch.cuda.is_available()
        return max(1, torch.cuda.device_count()) if cuda else 1
    if isinstance(devices, int) and devices >= 1:
        return devices
    raise UserError(f"trainer.devices={devices}: must be a positive number, or -1 for all GPUs")


def launch(function: Callable[..., Any], processes: int, *arguments: Any) -> Any:
    """Runs `function(*arguments)` in so many processes and returns what the first of them returned.

    torch's elastic launcher starts them, and ends all when one fails. `function` must be importable by name, and
    arguments and results picklable.

    Raises:
        UserError: a process reported one; any other failure keeps its traceback.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="kgc",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
        start_method="spawn",
    )
    # torch's matrix products would otherwise use all cores in each process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    try:
        results = elastic_launch(config, _guarded)(function, *arguments)
    except ChildFailedError as error:
        raise RuntimeError(f"a process of the run failed: {error}") from error
    outcome, value = results[0]
    if outcome == "mistake":
        raise UserError(value)
    return value


def _guarded(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """A user's mistake travels back as a value: every process meets it alike."""
    # Lightning learnt this process's rank when it was imported, before the launcher had set it.
    rank_zero_only.rank = int(os.environ["RANK"])
    try:
        return "done", function(*arguments)
    except UserError as error:
        return "mistake", str(error)
