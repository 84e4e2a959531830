"""What a training says of itself to the loggers: one row an epoch, and some points inside of it.

The names are fixed, dashboards are built on them; README.md lists them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.loggers import Logger
from torch import Tensor

from kgc.optim import TABLES, coalesce_gradients

_HELD = 100  # points on the device before they are written inside an epoch


class Telemetry(Checkpoint):
    """Writes a row after each epoch, and the loss and the gradients' norms of every n-th step, to all loggers.

    What a step gives stays on its device until the epoch ends, or until there are a hundred points of it: no step waits
    for the device. Process zero measures and writes: gradients are alike on all.

    Args:
        loggers: where to; none measures nothing.
        every: steps from one point to the next; None writes epochs only.
        saving: has `seconds`, what writing checkpoints has taken so far.
        clock: seconds that pass.
    """

    def __init__(
        self,
        loggers: Sequence[Logger],
        every: int | None = 50,
        saving: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.loggers = list(loggers)
        self.every = every
        self.saving = saving
        self.clock = clock
        self.seconds = {"train": 0.0, "valid": 0.0, "checkpoint": 0.0, "log": 0.0}  # of the whole training
        self._points: list[tuple[int, Tensor]] = []
        self._names: list[str] = []
        self._saved = 0.0
        self._steps = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._steps = trainer.global_step

    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, optimizer: Any) -> None:
        """Before gradients are clipped."""
        self._steps += 1
        if self.every is None or self._steps % self.every or not self.loggers or not trainer.is_global_zero:
            return
        coalesce_gradients(optimizer)
        names, values = ["loss"], [module.loss.float().reshape(())]
        for group in optimizer.param_groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                names.append(f"grad_norm/{group['name']}")
                values.append(_norm([g.values() if g.is_sparse else g for g in gradients]))
        if names != self._names or len(self._points) == _HELD:
            self._flush(module)
        self._names = names
        self._points.append((self._steps, torch.stack(values)))

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        began = self.clock()
        spent = module.phases | {"checkpoint": self._since_last_save()}
        for name, seconds in spent.items():
            self.seconds[name] += seconds
        if not self.loggers or not trainer.is_global_zero:
            return
        self._flush(module)
        row = module.history[-1] | {f"time/{name}": seconds for name, seconds in spent.items()}
        row |= {"time/elapsed": module.seconds} | table_norms(module.model) | memory(module.device)
        if module.valid is not None:
            row |= {f"valid/{name}": value for name, value in module.valid.items()}
            row["valid/queries_per_second"] = module.valid["num_queries"] / max(1e-9, module.phases["valid"])
        self._write(row, trainer.global_step)
        for logger in self.loggers:
            logger.save()  # what an epoch said survives a run that is killed
        self.seconds["log"] += self.clock() - began

    def _since_last_save(self) -> float:
        total = 0.0 if self.saving is None else self.saving.seconds
        spent, self._saved = total - self._saved, total
        return spent

    def _flush(self, module: LightningModule) -> None:
        if not self._points:
            return
        values = torch.stack([values for _, values in self._points]).tolist()
        for (step, _), row in zip(self._points, values, strict=True):
            names = (f"step/{name}" for name in self._names)
            self._write(dict(zip(names, row, strict=True)) | {"epoch": module.current_epoch + 1}, step)
        self._points = []

    def _write(self, row: dict[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(row, step)


def _norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of some tensors, on their device."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t.float()) for t in tensors]))


@torch.no_grad()
def table_norms(model: torch.nn.Module) -> dict[str, float]:
    """`norm/entity` and `norm/relation`: the mean Euclidean norm of the rows of each table that the model has."""
    tables = {name: getattr(getattr(model, name, None), "weight", None) for name in TABLES}
    found = {name: torch.linalg.vector_norm(t, dim=-1).mean() for name, t in tables.items() if isinstance(t, Tensor)}
    values = torch.stack(list(found.values())).tolist() if found else []
    return {f"norm/{name}": value for name, value in zip(found, values, strict=True)}


def memory(device: torch.device) -> dict[str, float]:
    """`memory/host_mib`, the most that the process has held so far, and `memory/device_mib`, the same of a GPU."""
    found = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["memory/host_mib"] = peak / (2**20 if sys.platform == "darwin" else 2**10)
    if device.type == "cuda":
        found["memory/device_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found
