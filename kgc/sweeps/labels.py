"""Under which group and tags W&B shows the trials of a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterable

from omegaconf import DictConfig, open_dict


def agents_sweep() -> str | None:
    """The id of the W&B sweep for whose agent this process runs a trial."""
    return os.environ.get("WANDB_SWEEP_ID") or None


def label(cfg: DictConfig, sweep: str, tags: Iterable[str | None]) -> None:
    """Files a trial's W&B run under its sweep as group, unless the config has one, and adds tags.

    Args:
        cfg: the trial's config; loggers without groups or tags are left as they are.
        sweep: the name of the sweep.
        tags: those to add; None is none.
    """
    logger = cfg.get("logger")
    if not isinstance(logger, DictConfig):
        return
    for node in (logger, *(value for value in logger.values() if isinstance(value, DictConfig))):
        with open_dict(node):
            if "group" in node and node.group is None:
                node.group = sweep
            if "tags" in node:
                node.tags = list(dict.fromkeys([*(node.tags or ()), *(tag for tag in tags if tag)]))
