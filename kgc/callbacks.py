"""Checkpoints that lose nothing, a clean stop, and early stopping.

Lightning calls callbacks of its class `Checkpoint` after the module's own hooks: at the end of an epoch they see the
epoch's row of `module.history`, and a state that is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint, EarlyStopping
from pytorch_lightning.strategies import ModelParallelStrategy

from kgc.checkpoint_folder import is_folder, read_folder, remove, replace
from kgc.cluster import in_job, stop_signals
from kgc.errors import UserError

_AGREE = 16  # batches after which several processes agree whether to stop: an exchange of one number


class Interrupted(Exception):
    """The user (Ctrl-C) or the machine (SIGTERM) asked a run to stop, and its state has been saved."""


class CheckpointFiles(TorchCheckpointIO):
    """Writes a checkpoint straight to its file, where Lightning holds it in memory, twice, and in the folder for
    temporary files first; and maps it into memory to read, so that a table is not there twice."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        try:
            with open(path, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            # torch's writer says that its count of bytes is wrong, not what the system said.
            raise OSError(errno.EIO, "the file could not be written whole", str(path)) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if is_folder(path):
            return read_folder(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


class Checkpoints(Checkpoint):
    """`best.ckpt` whenever valid MRR rises, and `last.ckpt`, from which a run goes on.

    `last.ckpt` is written at the end of the first epoch, of every epoch that was validated, of the last one, and of
    those at which writing it took less than a hundredth of the time since it was last written: never much of a run, and
    little of one is lost when it is killed. With one process it is written inside an epoch too, when the last time was
    too long ago. Each file appears under its name in one step, so that a run killed while writing keeps the previous
    one. Without a valid split the last is the best.

    Args:
        folder: where the two files go.
        minutes: after which the state is saved inside an epoch; None never does.
        clock: seconds that pass.
    """

    def __init__(self, folder: Path, minutes: float | None = None, clock: Callable[[], float] = time.monotonic):
        self.folder = folder
        self.minutes = minutes
        self.clock = clock
        self.best_score = float("-inf")
        self.best_epoch = -1
        self._saved: float | None = None  # when `last.ckpt` was written by this process
        self._since = self._cost = 0.0
        self.seconds = 0.0  # spent on writing

    @property
    def best(self) -> Path:
        return self.folder / "best.ckpt"

    @property
    def last(self) -> Path:
        return self.folder / "last.ckpt"

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._since = self.clock()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if self.minutes is None or trainer.world_size > 1 or self.clock() - self._since < 60 * self.minutes:
            return
        if between_steps(trainer):
            with step_counted(trainer):
                self.save(trainer, self.last)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        score = module.history[-1].get("valid/mrr")
        last = trainer.current_epoch + 1 == trainer.max_epochs
        if score is None and last:
            self.save(trainer, self.best)
        elif score is not None and score > self.best_score:
            self.best_score, self.best_epoch = score, trainer.current_epoch
            self.save(trainer, self.best)
        if score is not None or last or self._cheap(trainer):
            self.save(trainer, self.last)

    def _cheap(self, trainer: Trainer) -> bool:
        """Whether it is time to save; all processes say the same."""
        cheap = self._saved is None or self.clock() - self._saved >= 100 * self._cost
        return trainer.strategy.reduce_boolean_decision(cheap, all=False)

    def save(self, trainer: Trainer, path: Path) -> None:
        """Writes a checkpoint that appears under its name only when complete.

        Raises:
            UserError: it cannot be written; what was there before is kept.
        """
        began = self.clock()
        part = path.with_name(path.name + ".part")
        try:
            if isinstance(trainer.strategy, ModelParallelStrategy):  # a folder, which changes in one step by itself
                trainer.save_checkpoint(path)
            else:
                trainer.save_checkpoint(part)
                if trainer.is_global_zero:
                    replace(part, path)
        except OSError as error:
            remove(part)
            raise UserError(self._not_written(path, error)) from error
        trainer.strategy.barrier()
        self.seconds += self.clock() - began
        if path == self.last:
            self._saved = self._since = self.clock()
            self._cost = self._saved - began

    def _not_written(self, path: Path, error: OSError) -> str:
        message = f"{path}: cannot be written ({error.strerror}); make room there"
        if self.last.exists():
            return f"{message} and go on from the state before: checkpoint={self.last}"
        return f"{message} or choose another folder by hydra.run.dir=DIR"

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.best.exists():  # else the next validation makes one
            self.best_score, self.best_epoch = state["best_score"], state["best_epoch"]


def between_steps(trainer: Trainer) -> bool:
    """Whether a state saved at the end of this batch could be gone on from inside the epoch.

    Not where the epoch ends with it, whose end saves a state without a half-finished epoch; nor between accumulated
    batches, whose gradients are not part of a state.
    """
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return ready < len(trainer.train_dataloader) and ready % trainer.accumulate_grad_batches == 0


@contextlib.contextmanager
def step_counted(trainer: Trainer) -> Iterator[None]:
    """Counts the batch at hand as done, as Lightning does after its hooks; a state saved here must know it."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    progress.increment_completed()
    yield
    progress.current.completed -= 1
    progress.total.completed -= 1


class StopOnSignal(Checkpoint):
    """The first Ctrl-C or SIGTERM saves `last.ckpt` after the step at hand and ends the run; a second one ends it now.

    A step of accumulated batches is finished first: gradients are not part of a saved state. Several processes agree
    every few steps, and at the end of an epoch, whether one of them was asked. In a job of a cluster its own signals
    are heard too, see `kgc.cluster`.

    Args:
        checkpoints: writes the file.

    Attributes:
        number: the signal that asked, 0 for none in this process.
        before: what was to be called at each signal that was taken over.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.asked = False
        self.number = 0
        self.before: dict[int, Any] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the signals over, and gives them back however training ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            wanted = [signal.SIGUSR1]  # from the process that launched this one; see kgc.tasks.launch
        wanted += [number for number in stop_signals() if number not in wanted]
        self.before = {number: signal.signal(number, self._ask) for number in wanted}
        try:
            yield
        finally:
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked, self.number = True, number

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        # Lightning put a handler before ours that makes a collective call wherever a process happens to be.
        if trainer.world_size > 1 or in_job():
            for number in self.before:
                signal.signal(number, self._ask)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        together = trainer.world_size > 1
        if not between_steps(trainer) or (together and (batch_idx + 1) % _AGREE):
            return
        if trainer.strategy.reduce_boolean_decision(self.asked, all=False) if together else self.asked:
            with step_counted(trainer):
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
