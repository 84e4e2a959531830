"""The search with Optuna: by valid MRR, stopped and gone on with, shared by processes, with hopeless trials ended."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import runs
from omegaconf import DictConfig
from optuna.trial import TrialState

from kgc import cli
from kgc.errors import Pruned, UserError

SWEEP = ["-m", "hydra/sweeper=optuna", "hydra.sweep.dir=my sweep", "hydra/sweeper/sampler=random"]
LR = "optimizer.lr=interval(0.01,0.99)"


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "my sweep" / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def study(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="kgc", storage=f"sqlite:///{folder / 'my sweep' / 'study.db'}")


def finish(cfg: DictConfig, folder: Path) -> dict[str, float]:
    """A result whose valid MRR rises with the learning rate while its test MRR falls."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "last.ckpt").touch()
    metrics = {"valid/mrr": cfg.optimizer.lr, "test/mrr": 1 - cfg.optimizer.lr}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return metrics


def tasks(patch: pytest.MonkeyPatch, task: Callable) -> None:
    """Trials that do what `task(cfg, folder, trial)` does."""
    patch.setattr(cli, "_train", lambda cfg, folder, words, trial=None: task(cfg, folder, trial))


def test_the_objective_is_the_valid_mrr(tmp_path, capsys, monkeypatch):
    tasks(monkeypatch, lambda cfg, folder, trial: finish(cfg, folder))
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=4", LR, "dataset=nations")
    assert (done.code, done.err) == (0, "")
    rows = table(tmp_path)
    rates = [float(row["optimizer.lr"]) for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4
    assert [float(row["valid/mrr"]) for row in rows] == rates
    trials = study(tmp_path).trials
    assert study(tmp_path).best_value == rates[0]
    assert [trial.params["optimizer.lr"] for trial in trials] == [trial.value for trial in trials]
    assert {row["trial"]: row["folder"] for row in rows} == {str(i): f"{i}_rotate_nations" for i in range(4)}
    assert {row["dataset"] for row in rows} == {"nations"}
    assert (tmp_path / "my sweep" / "sweep.html").exists()
    assert "4 trials: 4 finished" in done.out


def test_stopped_and_gone_on_with(tmp_path, capsys, monkeypatch):
    """The stopped trial goes on from its checkpoint, with its values; no more are run than were asked for."""
    ran = []

    def task(cfg, folder, trial):
        ran.append((trial.number, cfg.optimizer.lr, cfg.checkpoint))
        if len(ran) == 3:
            finish(cfg, folder)
            (folder / "metrics.json").unlink()
            raise KeyboardInterrupt
        if trial.number == 1:
            raise UserError("no luck")
        return finish(cfg, folder)

    tasks(monkeypatch, task)
    words = [*SWEEP, "hydra.sweeper.n_trials=5", LR]
    stopped = runs.command(capsys, tmp_path, "train", *words)
    assert stopped.code == 130
    assert "3 trials: 1 finished, 1 failed, 1 interrupted" in stopped.out
    done = runs.command(capsys, tmp_path, "train", *words)
    assert (done.code, done.err) == (0, "")
    assert [number for number, *_ in ran] == [0, 1, 2, 2, 3, 4, 5]
    assert ran[3][1] == ran[2][1]
    assert ran[2][2] is None
    assert ran[3][2] == str(tmp_path / "my sweep" / "2_rotate_umls" / "checkpoints" / "last.ckpt")
    states = [trial.state for trial in study(tmp_path).trials]
    assert states.count(TrialState.COMPLETE) == 5  # the failed one has been replaced
    assert states.count(TrialState.FAIL) == 1
    assert len(states) == 6
    again = runs.command(capsys, tmp_path, "train", *words)
    assert (again.code, len(ran)) == (0, 7)
    assert "6 trials: 5 finished, 1 failed" in again.out


def test_failures_do_not_go_on_for_ever(tmp_path, capsys, monkeypatch):
    def task(cfg, folder, trial):
        raise UserError("never")

    tasks(monkeypatch, task)
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=3", LR)
    assert done.code == 2
    assert len(done.err.splitlines()) == 3
    assert [trial.state for trial in study(tmp_path).trials] == [TrialState.FAIL] * 3


def test_hopeless_trials_are_pruned_by_the_median(tmp_path, capsys, monkeypatch):
    """Six trials report .5 throughout; later ones are below that, and ended."""

    def task(cfg, folder, trial):
        value = 0.5 if trial.number < 6 else cfg.optimizer.lr / 3
        opened = trial.open()
        for epoch in (5, 10, 15, 20):
            opened.report(value, epoch)
            if opened.should_prune():
                raise Pruned(f"valid MRR {value} after epoch {epoch}", {"valid/mrr": value})
        (folder / "metrics.json").write_text(json.dumps({"valid/mrr": value}))
        return {"valid/mrr": value}

    tasks(monkeypatch, task)
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=8", LR)
    assert (done.code, done.err) == (0, "")
    trials = study(tmp_path).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6 + [TrialState.PRUNED] * 2
    assert [list(trial.intermediate_values) for trial in trials[6:]] == [[5, 10]] * 2  # none before epoch 10
    pruned = [row for row in table(tmp_path) if row["status"] == "pruned"]
    assert {row["trial"] for row in pruned} == {"6", "7"}
    for row in pruned:
        assert float(row["valid/mrr"]) == float(row["optimizer.lr"]) / 3
        assert row["reason"].endswith("after epoch 10")
    again = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=8", LR)
    assert len(study(tmp_path).trials) == 8
    assert "8 trials: 6 finished, 2 pruned" in again.out


def test_a_real_run_reports_every_validation_and_is_ended(tmp_path, capsys):
    """A pruner that nothing satisfies ends training after its first validation but for the last."""
    quick = ["dataset=nations", "model.dim=8", "trainer=cpu", "trainer.max_epochs=4", "trainer.val_every=2"]
    words = ["hydra/sweeper/pruner=none", "hydra.sweeper.pruner._target_=optuna.pruners.ThresholdPruner"]
    words += ["+hydra.sweeper.pruner.lower=2", "+hydra.sweeper.pruner.n_warmup_steps=1", "hydra.sweeper.n_trials=1"]
    done = runs.command(capsys, tmp_path, "train", *SWEEP, *words, *quick, "logger=csv", LR)
    assert (done.code, done.err) == (0, "")
    (trial,) = study(tmp_path).trials
    assert trial.state == TrialState.PRUNED
    (row,) = table(tmp_path)
    folder = tmp_path / "my sweep" / row["folder"]
    history = runs.content(folder / "checkpoints" / "last.ckpt")["kgc"]["history"]
    assert trial.intermediate_values == {2: history[1]["valid/mrr"]}
    assert float(row["valid/mrr"]) == history[1]["valid/mrr"]
    assert (row["status"], row["train/epochs"]) == ("pruned", "2")
    assert row["reason"] == f"valid MRR {history[1]['valid/mrr']:.4f} after epoch 2 (ThresholdPruner)"
    assert f"pruned     {row['reason']}" in (folder / "train.log").read_text()
    assert not (folder / "metrics.json").exists()


def test_several_processes_are_ended_together(tmp_path, capsys):
    """Two processes of one run: the first asks the study, both end."""
    quick = ["dataset=nations", "model.dim=8", "trainer=ddp_cpu", "trainer.max_epochs=4", "trainer.val_every=2"]
    words = ["hydra/sweeper/pruner=none", "hydra.sweeper.pruner._target_=optuna.pruners.ThresholdPruner"]
    words += ["+hydra.sweeper.pruner.lower=2", "hydra.sweeper.n_trials=1", "logger=none"]
    done = runs.command(capsys, tmp_path, "train", *SWEEP, *words, *quick, LR)
    assert (done.code, done.err) == (0, "")
    (trial,) = study(tmp_path).trials
    assert trial.state == TrialState.PRUNED
    assert list(trial.intermediate_values) == [2]


def forked(folder: Path, *words: str) -> int:
    """`python train.py WORDS` in a process of its own, which starts as a copy of this one; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.chdir(folder)
        sys.argv = ["train.py", *words]
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        cli.train()
        code = 0
    except SystemExit as error:
        code = error.code
    finally:
        os._exit(code)


def test_two_processes_share_a_study(tmp_path, monkeypatch):
    """Each trial is run by one of them, and together they run as many as were asked for."""

    def task(cfg, folder, trial):
        with (tmp_path / "ran").open("a") as file:
            file.write(f"{os.getpid()} {trial.number}\n")
        time.sleep(0.5)
        return finish(cfg, folder)

    tasks(monkeypatch, task)
    children = [forked(tmp_path, *SWEEP, "hydra.sweeper.n_trials=8", LR) for _ in range(2)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(number) for _, number in ran) == list(range(8))
    assert {int(process) for process, _ in ran} == set(children)
    assert [trial.state for trial in study(tmp_path).trials] == [TrialState.COMPLETE] * 8
    assert len({trial.value for trial in study(tmp_path).trials}) == 8
    assert {row["status"] for row in table(tmp_path)} == {"finished"}


def test_a_killed_process_leaves_its_trial_to_the_next(tmp_path, capsys, monkeypatch):
    """While it lives another process leaves the trial alone; once it is killed the trial is gone on with."""

    def hang(cfg, folder, trial):
        finish(cfg, folder)
        (folder / "metrics.json").unlink()
        (tmp_path / "began").touch()
        time.sleep(120)

    tasks(monkeypatch, hang)
    child = forked(tmp_path, *SWEEP, "hydra.sweeper.n_trials=2", LR)
    while not (tmp_path / "began").exists():
        time.sleep(0.1)
    ran = []

    def task(cfg, folder, trial):
        ran.append((trial.number, cfg.optimizer.lr, cfg.checkpoint is not None))
        return finish(cfg, folder)

    tasks(monkeypatch, task)
    assert runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=2", LR).code == 0
    assert [number for number, *_ in ran] == [1]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=2", LR)
    assert (done.code, done.err) == (0, "")
    assert ran[1:] == [(0, study(tmp_path).trials[0].params["optimizer.lr"], True)]
    assert [trial.state for trial in study(tmp_path).trials] == [TrialState.COMPLETE] * 2
    assert "2 trials: 2 finished" in done.out


def test_the_ready_space_of_the_model(tmp_path, capsys, monkeypatch):
    tasks(monkeypatch, lambda cfg, folder, trial: finish(cfg, folder))
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=2", "model=complex", "batch_size=64")
    assert (done.code, done.err) == (0, "")
    for row in table(tmp_path):
        assert (row["model"], row["objective"], row["batch_size"]) == ("complex", "one_vs_all", "64")
        assert row["model.dim"] in ("128", "256", "512")
        assert row["model.reciprocal"] in ("true", "false")
        assert 0.01 <= float(row["optimizer.lr"]) <= 0.5
        assert 0.0001 <= float(row["regularizer.weight"]) <= 0.3


def test_mistakes(tmp_path, capsys, monkeypatch):
    tasks(monkeypatch, lambda cfg, folder, trial: finish(cfg, folder))

    def mistake(*words: str) -> str:
        return runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=1", *words).mistake()

    assert "model=nbfnet has no ready search space; there are" in mistake("model=nbfnet")
    assert "hydra.sweeper.space=foo: no such file" in mistake("hydra.sweeper.space=foo")
    assert mistake("model=foo", LR).startswith("model=foo: no such choice")
    assert mistake("optimizer.lr=interval(1,0)").startswith("optimizer.lr=interval(1,0)")
    assert runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=1", "seed=1,2").code == 0
    said = mistake("seed=1,2", "dataset=nations")
    assert said.startswith("dataset.name=nations: the study in ")
    assert said.endswith("compares trials with dataset.name=umls; choose another hydra.sweep.dir")
    again = runs.command(capsys, tmp_path, "train", *SWEEP, "hydra.sweeper.n_trials=2", "seed=1,3")
    assert "another search space" in again.mistake()
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert mistake(LR) == "hydra/sweeper=optuna needs Optuna: pip install 'kgc[sweep]'"


def test_combinations_that_cannot_be_composed_are_failed_rows(tmp_path, capsys, monkeypatch):
    tasks(monkeypatch, lambda cfg, folder, trial: finish(cfg, folder))
    words = ["model=transe,distmult", "model.norm=1,2", "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=0"]
    done = runs.command(capsys, tmp_path, "train", *SWEEP, *words, "hydra.sweeper.n_trials=6")
    rows = table(tmp_path)
    assert {(row["model"], row["status"]) for row in rows} == {("transe", "finished"), ("distmult", "failed")}
    assert done.code == 2
    assert "Could not override 'model.norm'" in done.err
