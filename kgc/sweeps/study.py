"""An Optuna study that several processes share: who runs which trial, what it reports, and how it ended."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint

from kgc.errors import Pruned, UserError
from kgc.sweeps.records import Trial


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a study, as plain values that any process can open.

    Args:
        storage: the study's address, such as `sqlite:////DIR/study.db`.
        study: its name.
        number: the trial's.
        pruner: `_target_` and arguments of an Optuna pruner.
    """

    storage: str
    study: str
    number: int
    pruner: dict[str, Any]

    @staticmethod
    def of(options: DictConfig) -> StudyTrial:
        """That of a job, whose `hydra.sweeper` has been told which it is."""
        pruner = OmegaConf.to_container(options.pruner, resolve=True)
        return StudyTrial(options.storage, options.study_name, options.trial, pruner)

    def open(self) -> Any:
        """The `optuna.trial.Trial`."""
        from hydra.utils import instantiate

        optuna = optuna_or_mistake()
        study = optuna.load_study(study_name=self.study, storage=self.storage, pruner=instantiate(self.pruner))
        (frozen,) = (trial for trial in study.get_trials(deepcopy=False) if trial.number == self.number)
        return optuna.trial.Trial(study, frozen._trial_id)

    def tell(self, trial: Trial) -> None:
        """Says how the trial ended: by its valid MRR, as pruned, or as failed; nothing of one that goes on elsewhere or
        was interrupted.

        Raises:
            UserError: it has no valid MRR.
        """
        from optuna.trial import TrialState

        states = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        if trial.status not in states:
            return
        value = trial.metrics.get("valid/mrr") if trial.status == "finished" else None
        study = self.open().study
        if trial.status == "finished" and value is None:
            study.tell(self.number, state=TrialState.FAIL)
            raise UserError("hydra/sweeper=optuna looks for the highest valid MRR, and the data have no valid split")
        study.tell(self.number, value, state=states[trial.status], skip_if_finished=True)


class PruneHopeless(Checkpoint):
    """Reports the valid MRR of every validation to the study, and ends a trial that its pruner finds hopeless.

    Lightning calls it after the module's own hooks, like the callbacks that write checkpoints.

    Args:
        trial: whom it reports for.

    Raises:
        Pruned: in all processes of the run together, between epochs.
    """

    def __init__(self, trial: StudyTrial):
        self.trial = trial
        self._open: Any = None

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        row = module.history[-1]
        if "valid/mrr" not in row:
            return
        hopeless = False
        if trainer.is_global_zero:
            self._open = self._open or self.trial.open()
            self._open.report(row["valid/mrr"], row["epoch"])
            hopeless = row["epoch"] < trainer.max_epochs and self._open.should_prune()
        if trainer.strategy.broadcast(hopeless):
            best = max(row["valid/mrr"] for row in module.history if "valid/mrr" in row)
            name = self.trial.pruner["_target_"].rpartition(".")[2]
            raise Pruned(
                f"valid MRR {best:.4f} after epoch {row['epoch']} ({name})",
                {"valid/mrr": best, "train/epochs": row["epoch"], "train/seconds": module.seconds},
            )


def optuna_or_mistake() -> Any:
    """The module.

    Raises:
        UserError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise UserError("hydra/sweeper=optuna needs Optuna: pip install 'kgc[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Owner:
    """One process that runs trials of a study. While it lives it holds the lock of a file of its own, by whose name its
    trials are marked; trials whose owner's lock is free were left by a process that is gone.

    Args:
        folder: where such files lie; shared by all processes.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = uuid.uuid4().hex

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / self.name
        with _locked(path):
            yield
        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process chooses trials."""
        with _locked(self.folder / "turn"):
            yield

    def is_gone(self, other: str | None) -> bool:
        """Whether another owner, or one that died before it could sign, left its trials here."""
        if other == self.name:
            return False
        if other is None:
            return True
        path = self.folder / other
        if not path.exists():  # ended well, or at work on another machine's folder
            return False
        with _locked(path, wait=False) as free:
            return free


@contextlib.contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[bool]:
    try:
        import fcntl
    except ImportError:  # no locks: nobody is ever gone
        yield wait
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        free = True
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)
