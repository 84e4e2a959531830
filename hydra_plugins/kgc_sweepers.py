"""Sweepers of kgc, where Hydra looks for plug-ins; it imports this file at every start, so that imports are inside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override


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
                refused.append(
                    Trial(None, tuple(words), status="failed", reason=reason, code=2, ended=time.time())
                )
        if not legal:
            raise errors[0]
        for trial in refused:
            print(f"refused {' '.join(trial.words)}: {trial.reason}", flush=True)
        write_refused(Path(self.config.hydra.sweep.dir), refused)
        return list(self.split_overrides_to_chunks(legal, max_batch_size))

    def validate_batch_is_legal(self, batch: Any) -> None:
        """Done before."""
