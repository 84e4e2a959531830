"""The search of `hydra/sweeper=optuna`: asks a study for trials and has a launcher run them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from kgc.errors import UserError
from kgc.sweeps import space as spaces
from kgc.sweeps.records import Trial, write_refused
from kgc.sweeps.space import Space
from kgc.sweeps.study import Owner, optuna_or_mistake

_OWNER, _CONFIG = "owner", "config"  # user attributes of a trial and of a study


@dataclass
class Search:
    """A search of the highest valid MRR, which other processes may share.

    Args:
        options: `hydra.sweeper` of the config.
        sweep_dir: the sweep's folder.
        subdir: `hydra.sweep.subdir` as it is written, with its interpolations.
        model: the chosen model, whose ready space is searched where the command line sweeps nothing.
        compose: makes a trial's config of its words.
        launch: runs trials, given a list of words each and the number of the first.
        reasons: a user's mistake as one line, None for a fault of ours.
    """

    options: DictConfig
    sweep_dir: Path
    subdir: str
    model: str
    compose: Callable[[list[str]], DictConfig]
    launch: Callable[[list[list[str]], int], Any]
    reasons: Callable[[Exception], str | None]
    storage: str = field(init=False)  # the study's address

    def __post_init__(self) -> None:
        # Whole, as a launcher may run trials from another folder.
        self.storage = self.options.storage or f"sqlite:///{(self.sweep_dir / 'study.db').absolute()}"

    def run(self, words: Sequence[str]) -> None:
        """Asks and runs until the study has its number of trials; those that failed here are not replaced.

        Raises:
            UserError: the study in the folder searched something else, or a mistake in the space.
        """
        optuna = optuna_or_mistake()
        self.sweep_dir.mkdir(parents=True, exist_ok=True)
        space = self._space(words)
        fixed = self._words(space.fixed)
        config = self.compose(fixed)
        refused: list[Trial] = []
        failed = 0
        owner = Owner(self.sweep_dir / ".searches")
        with owner.alive():
            with owner.alone():  # two that make the tables of one database at once would fail
                study = optuna.create_study(
                    storage=self.storage,
                    study_name=self.options.study_name,
                    sampler=instantiate(self.options.sampler),
                    pruner=instantiate(self.options.pruner),
                    direction="maximize",
                    load_if_exists=True,
                )
                self._check(study, config, space)
            while numbers := self._next(study, space, owner, failed):
                jobs: list[tuple[int, list[str]]] = []
                for number in numbers:
                    given = fixed + self._words(study.get_trials(deepcopy=False)[number].params)
                    try:
                        self.compose(given)
                        jobs.append((number, given))
                    except Exception as error:  # whatever composing raises
                        if (reason := self.reasons(error)) is None:
                            raise
                        print(f"refused {' '.join(given)}: {reason}", flush=True)
                        now = time.time()
                        refused.append(Trial(None, tuple(given), status="failed", reason=reason, code=2, ended=now))
                        study.tell(number, state=optuna.trial.TrialState.FAIL)
                write_refused(self.sweep_dir, refused)
                if jobs:
                    self.launch([given + self._own_words(number) for number, given in jobs], jobs[0][0])
                for number in numbers:
                    frozen = study.get_trials(deepcopy=False)[number]
                    if frozen.state == optuna.trial.TrialState.RUNNING:  # its process ended without a word
                        study.tell(number, state=optuna.trial.TrialState.FAIL)
                        failed += 1
                    else:
                        failed += frozen.state == optuna.trial.TrialState.FAIL

    def _space(self, words: Sequence[str]) -> Space:
        """What the command line says, over what the file says that it names, or the model's where it sweeps nothing."""
        given = spaces.of_words([*(f"{key}={value}" for key, value in (self.options.params or {}).items()), *words])
        name = self.options.space
        if name is None and not given.swept:
            if self.model not in spaces.ready():
                raise UserError(
                    f"hydra/sweeper=optuna: model={self.model} has no ready search space; there are "
                    f"{', '.join(spaces.ready())}. Say what to try, such as optimizer.lr=tag(log,interval(0.001,0.1))"
                )
            name = self.model
        return given if name is None else given.over(spaces.of_file(name))

    def _check(self, study: Any, config: DictConfig, space: Space) -> None:
        """Whether the study compared trials of this config; a new one keeps it."""
        content = OmegaConf.to_container(config, resolve=False)
        flat = {
            key: value
            for key, value in _flat({k: v for k, v in content.items() if k not in ("hydra", "logger")}).items()
            if key not in space.swept
        }
        flat = json.loads(json.dumps(flat, default=str))
        before = study.user_attrs.get(_CONFIG)
        if before is None:
            study.set_user_attr(_CONFIG, flat)
            return
        for key in sorted(before.keys() & flat.keys(), key=lambda key: (key.count("."), key)):
            if before[key] != flat[key]:
                raise UserError(
                    f"{key}={flat[key]}: the study in {self.sweep_dir} compares trials with {key}={before[key]}; "
                    "choose another hydra.sweep.dir"
                )

    def _next(self, study: Any, space: Space, owner: Owner, failed: int) -> list[int]:
        """Numbers of the trials to run now: those that a process left which is gone, and new ones."""
        from optuna.trial import TrialState

        with owner.alone():
            trials = study.get_trials(deepcopy=False)
            running = [trial for trial in trials if trial.state == TrialState.RUNNING]
            left = [trial for trial in running if owner.is_gone(trial.user_attrs.get(_OWNER))]
            numbers = []
            for trial in left[: self.options.n_jobs]:
                study._storage.set_trial_user_attr(trial._trial_id, _OWNER, owner.name)
                if set(space.swept) <= set(trial.params):
                    numbers.append(trial.number)
                else:  # it had not been told all of its values
                    study.tell(trial.number, state=TrialState.FAIL)
            done = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
            room = self.options.n_trials - len(done) - len(running) - failed
            for _ in range(min(room, self.options.n_jobs - len(numbers))):
                try:
                    trial = study.ask(space.swept)
                except ValueError as error:
                    raise UserError(
                        f"the study in {self.sweep_dir} has another search space ({error}); choose another "
                        "hydra.sweep.dir"
                    ) from error
                trial.set_user_attr(_OWNER, owner.name)
                numbers.append(trial.number)
            return numbers

    def _own_words(self, number: int) -> list[str]:
        """What tells a job which trial it is; folders have the trial's number, not the launcher's."""
        subdir = self.subdir.replace("${hydra:job.num}", str(number))
        return [
            f"hydra.sweeper.trial={number}",
            f"hydra.sweeper.storage='{self.storage}'",
            f"hydra.sweep.subdir='{subdir}'",
        ]

    @staticmethod
    def _words(values: dict[str, Any]) -> list[str]:
        return [f"{key}={spaces.word_of(value)}" for key, value in values.items()]


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key."""
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    return {k: v for name, child in node.items() for k, v in _flat(child, f"{prefix}.{name}".lstrip(".")).items()}
