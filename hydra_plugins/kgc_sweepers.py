"""Sweepers of kgc, where Hydra looks for plug-ins. It imports this file at every start: slow imports are inside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class GridSweeper(BasicSweeper):
    """Hydra's own sweeper, which runs every combination; one whose config cannot be composed becomes a failed row of
    the sweep's table, and the others run. Only when none can be composed the first reason ends the sweep."""

    def split_arguments(self, overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        from kgc.cli import mistake_of
        from kgc.sweeps.records import Trial, write_refused

        (jobs,) = BasicSweeper.split_arguments(overrides, None)
        legal, refused, errors = [], [], []
        for words in jobs:
            try:
                super().validate_batch_is_legal([words])
                legal.append(words)
            except Exception as error:  # whatever composing raises
                reason = mistake_of(error)
                if reason is None:
                    raise
                errors.append(error)
                refused.append(Trial(None, tuple(words), status="failed", reason=reason, code=2, ended=time.time()))
        if not legal:
            raise errors[0]
        for trial in refused:
            print(f"refused {' '.join(trial.words)}: {trial.reason}", flush=True)
        write_refused(Path(self.config.hydra.sweep.dir), refused)
        return list(self.split_overrides_to_chunks(legal, max_batch_size))

    def validate_batch_is_legal(self, batch: Any) -> None:
        """Done before."""


class OptunaSweeper(Sweeper):
    """Searches for the highest valid MRR with Optuna; the options are those of `conf/hydra/sweeper/optuna.yaml`.

    hydra-optuna-sweeper does not serve: it needs an Optuna older than 3, and hands no trial to the job that could
    report and be pruned.
    """

    def __init__(self, **options: Any):
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from kgc.cli import mistake_of
        from kgc.sweeps.study import optuna_or_mistake

        optuna_or_mistake()
        from kgc.sweeps.search import Search

        loader = self.hydra_context.config_loader
        Search(
            options=self.config.hydra.sweeper,
            sweep_dir=Path(self.config.hydra.sweep.dir).absolute(),
            subdir=OmegaConf.to_container(self.config.hydra.sweep, resolve=False)["subdir"],
            model=self.config.hydra.runtime.choices.get("model"),
            compose=lambda words: loader.load_sweep_config(self.config, words),
            launch=lambda jobs, first: self.launcher.launch(jobs, initial_job_idx=first),
            reasons=mistake_of,
        ).run(arguments)
