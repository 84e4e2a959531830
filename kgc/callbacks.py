"""Checkpoints that lose nothing, a clean stop, and early stopping.

Lightning calls callbacks of its class `Checkpoint` after the module's own hooks: at the end of an epoch they see the
epoch's row of `module.history`, and a state that is complete.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, EarlyStopping


class Interrupted(Exception):
    """The user (Ctrl-C) or the machine (SIGTERM) asked a run to stop, and its state has been saved."""


class Checkpoints(Checkpoint):
    """`last.ckpt` after every validation and `best.ckpt` whenever valid MRR rises.

    Written at the end of the epoch, when the state is that of a clean boundary. Each file appears under its name in one
    step, so that a run killed while writing keeps the previous one. Without a valid split the last is the best.

    Args:
        folder: where the two files go.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.best_score = float("-inf")
        self.best_epoch = -1

    @property
    def best(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.folder / "last.ckpt"

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        score = module.history[-1].get("valid/mrr")
        last = trainer.current_epoch + 1 == trainer.max_epochs
        if score is None and not last:
            return
        if score is None:
            self.save(trainer, self.best)
        elif score > self.best_score:
            self.best_score, self.best_epoch = score, trainer.current_epoch
            self.save(trainer, self.best)
        self.save(trainer, self.last)

    def save(self, trainer: Trainer, path: Path) -> None:
        """Writes a checkpoint that appears under its name only when complete."""
        part = path.with_name(path.name + ".part")
        trainer.save_checkpoint(part)
        if trainer.is_global_zero:
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        trainer.strategy.barrier()

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.best.exists():  # else the next validation makes one
            self.best_score, self.best_epoch = state["best_score"], state["best_epoch"]


class StopOnSignal(Checkpoint):
    """The first Ctrl-C or SIGTERM saves `last.ckpt` after the step at hand and ends the run; a second one ends it now.

    A step of accumulated batches is finished first: gradients are not part of a saved state. With several processes the
    run ends at the end of the epoch, when all of them can agree.

    Args:
        checkpoints: writes the file.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the signals over, and gives them back however training ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            wanted = [signal.SIGUSR1]  # from the process that launched this one; see kgc.tasks.launch
        before = {number: signal.signal(number, self._ask) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if self.asked and trainer.world_size == 1:
            progress = trainer.fit_loop.epoch_loop.batch_progress
            if progress.current.ready == len(trainer.train_dataloader):
                return  # the epoch ends here: its end saves a state without a half-finished epoch
            if progress.current.ready % trainer.accumulate_grad_batches:
                return
            progress.increment_completed()  # Lightning does so after this hook; the saved state must know it
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        self.checkpoints.save(trainer, self.checkpoints.last)
        raise Interrupted


class Patience(EarlyStopping):
    """Ends training after so many validations without a higher valid MRR; a resumed run that had ended stays ended.

    Args:
        patience: validations.
    """

    def __init__(self, patience: int):
        super().__init__("valid/mrr", mode="max", patience=patience)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience > 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"patience": self.patience})  # the config's, which may have been changed


class LastEpochValidates(Callback):
    """Validates after the last epoch too, where `max_epochs` is no multiple of `val_every`."""

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1
