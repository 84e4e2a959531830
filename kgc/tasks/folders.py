"""Every run has a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write


class OwnFolder(Callback):
    """Makes the folder that a run or a sweep has by default, under a name that nobody else has taken.

    Two that start in the same second would get the same name: the later one's ends with `_2`. A folder that the command
    line names is left to it. Processes that something else started for one run (torchrun, Slurm) share a folder.
    """

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._make(config, "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self._make(config, "hydra.sweep.dir")

    def _make(self, config: DictConfig, key: str) -> None:
        HydraConfig.instance().set_config(config)  # names hold choices of groups, and it says where a sweep is
        words = config.hydra.overrides.hydra
        if any(word.lstrip("+").startswith(f"{key}=") for word in words):
            return
        if "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ:
            return
        folder = made(Path(str(OmegaConf.select(config, key))))
        with read_write(config.hydra), open_dict(config.hydra):
            OmegaConf.update(config, key, str(folder))
            words.append(f"{key}='{folder}'")  # trials of a sweep are composed anew
        HydraConfig.instance().set_config(config)


def made(wanted: Path) -> Path:
    """Makes a new folder: of the name wanted, or with `_2`, `_3`, … at its end if there is one."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
