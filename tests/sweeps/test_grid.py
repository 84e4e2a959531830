"""Grids: one table at the end, failed trials as rows, and a second start that runs only what is missing."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import runs
from omegaconf import DictConfig

from kgc import cli
from kgc.errors import Alert, UserError
from kgc.sweeps import records

QUICK = ["dataset=nations", "model.dim=8", "sampler.num_negatives=4", "trainer=cpu", "trainer.max_epochs=1"]
QUICK += ["logger=none"]
SWEEP = ["-m", "hydra.sweep.dir=my sweep"]


def table(folder: Path) -> list[dict[str, str]]:
    """`sweep.csv`, a dict a row."""
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


class Runs:
    """Trials that only write a result, which depends on their config; some fail."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.ran: list[int] = []
        self.failing: dict[int, BaseException] = {}
        self.checkpoints: list[str | None] = []
        patch.setattr(cli, "_train", self)

    def __call__(self, cfg: DictConfig, folder: Path, words: list[str]) -> dict[str, float]:
        self.ran.append(cfg.seed)
        self.checkpoints.append(cfg.checkpoint)
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").touch()
        if cfg.seed in self.failing:
            raise self.failing[cfg.seed]
        metrics = {"valid/mrr": (cfg.seed * 7 % 5) / 10, "test/mrr": cfg.seed / 100, "train/seconds": 1.5}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        return metrics


@pytest.fixture
def fake(monkeypatch) -> Runs:
    return Runs(monkeypatch)


def test_a_grid_of_twelve_with_a_failing_trial(tmp_path, capsys, monkeypatch):
    """Real runs on Nations: RotatE with uniform negatives fails. The second start runs that one only."""
    from kgc.tasks import train as module

    ran = []
    fit = module.fit_and_test

    def broken(cfg, *rest):
        name = cfg.model._target_.split(".")[-1]
        ran.append((name, cfg.sampler.sides._target_.split(".")[-1], cfg.sampler.temperature))
        if broken.on and name == "RotatE" and cfg.sampler.sides._target_.endswith("Bernoulli"):
            raise UserError("injected\nreason")
        return fit(cfg, *rest)

    broken.on = True
    monkeypatch.setattr(module, "fit_and_test", broken)
    words = [*SWEEP, *QUICK, "model=transe,distmult,complex,rotate", "sampler=uniform,bernoulli,adversarial"]
    done = runs.command(capsys, tmp_path, "train", *words)
    assert done.code == 2
    assert done.err == "error: trial 10 (model=rotate sampler=bernoulli): injected reason\n"
    assert len(ran) == 12
    sweep = tmp_path / "my sweep"
    rows = table(sweep)
    assert len(rows) == 12
    assert {(row["model"], row["sampler"]) for row in rows} == {
        (model, sampler)
        for model in ("transe", "distmult", "complex", "rotate")
        for sampler in ("uniform", "bernoulli", "adversarial")
    }
    for row in rows[:11]:
        assert row["status"] == "finished"
        assert row["folder"] == f"{row['trial']}_{row['model']}_nations"
        values = runs.metrics(sweep / row["folder"])
        for key in ("valid/mrr", "test/mrr", "test/mr", "test/hits@1", "test/hits@3", "test/hits@10", "train/seconds"):
            assert float(row[key]) == values[key]
        assert (row["dataset"], row["logger"], row["reason"]) == ("nations", "none", "")
    valid = [float(row["valid/mrr"]) for row in rows[:11]]
    assert valid == sorted(valid, reverse=True)
    assert len(set(valid)) >= 9
    last = rows[11]
    assert (last["trial"], last["status"], last["reason"]) == ("10", "failed", "injected reason")
    assert last["valid/mrr"] == last["test/mrr"] == ""
    printed = done.out.splitlines()[-14:]
    names = ["trial", "model", "sampler", "valid MRR", "test MRR", "Hits@1", "Hits@10", "time", "status"]
    assert printed[0].split() == " ".join([*names, "folder, or reason"]).split()
    assert [line.split()[0] for line in printed[1:13]] == [row["trial"] for row in rows]
    assert printed[12].endswith("failed    injected reason")
    assert printed[13].startswith("12 trials: 11 finished, 1 failed; written to ")
    page = (sweep / "sweep.html").read_text()
    assert page.count('<th scope="row">') >= 12
    assert f'href="{rows[0]["folder"]}/report.html"' in page
    assert "injected reason" in page

    before = {path: path.stat().st_mtime_ns for path in sweep.glob("*/metrics.json")}
    ran.clear()
    broken.on = False
    again = runs.command(capsys, tmp_path, "train", *words)
    assert (again.code, again.err) == (0, "")
    assert ran == [("RotatE", "Bernoulli", 0.0)]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.out.count("finished already") == 11
    rows = table(sweep)
    assert [row["status"] for row in rows] == ["finished"] * 12
    valid = [float(row["valid/mrr"]) for row in rows]
    assert valid == sorted(valid, reverse=True)


def test_the_order_and_the_columns(tmp_path, capsys, fake):
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=0,1,2,3", "dataset=nations")
    assert (done.code, done.err) == (0, "")
    rows = table(tmp_path / "my sweep")
    assert [row["seed"] for row in rows] == ["2", "1", "3", "0"]  # .4 .2 .1 .0
    assert list(rows[0]) == [
        *("trial", "status", "valid/mrr", "test/mrr", "train/seconds", "seconds", "folder", "seed", "dataset", "reason")
    ]


def test_words_that_cannot_be_composed_are_rows(tmp_path, capsys, fake):
    """A name that is wrong for some of a grid's trials; the others run."""
    words = [*SWEEP, "model=transe,distmult,foo", "model.norm=1,2"]
    done = runs.command(capsys, tmp_path, "train", *words)
    assert done.code == 2
    assert len(fake.ran) == 2
    lines = done.err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("error: trial (model=distmult model.norm=1): Could not override 'model.norm'")
    assert lines[3].startswith("error: trial (model=foo model.norm=2): model=foo: no such choice of the group model")
    rows = table(tmp_path / "my sweep")
    assert [(row["model"], row["status"], row["trial"]) for row in rows] == [
        *[("transe", "finished", "0"), ("transe", "finished", "1")],
        *[("distmult", "failed", ""), ("distmult", "failed", ""), ("foo", "failed", ""), ("foo", "failed", "")],
    ]
    again = runs.command(capsys, tmp_path, "train", *SWEEP, "model=transe", "model.norm=1,2")
    assert (again.code, again.err, len(fake.ran)) == (0, "", 2)
    assert len(table(tmp_path / "my sweep")) == 2


def test_a_grid_without_any_that_composes_is_a_mistake(tmp_path, capsys, fake):
    message = runs.command(capsys, tmp_path, "train", *SWEEP, "model=foo,bar").mistake()
    assert message.startswith("model=foo: no such choice")
    assert not fake.ran


def test_only_the_same_config_counts_as_finished(tmp_path, capsys, fake):
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=0,1")
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=0,1", "batch_size=7")
    assert fake.ran == [0, 1, 0, 1]
    names = sorted(path.parent.name for path in (tmp_path / "my sweep").glob("*/metrics.json"))
    assert names == ["0_rotate_umls", "0_rotate_umls_2", "1_rotate_umls", "1_rotate_umls_2"]
    # Another order of the same words, and more of them, find the trials where they are.
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=2,1,0")
    assert fake.ran == [0, 1, 0, 1, 2]
    assert len(table(tmp_path / "my sweep")) == 5


@pytest.mark.parametrize("damage", ["gone", "torn", "other", "no record"])
def test_a_result_that_is_not_complete_is_made_again(damage, tmp_path, capsys, fake):
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2")
    folder = tmp_path / "my sweep" / "0_rotate_umls"
    path = folder / "metrics.json"
    if damage == "gone":
        path.unlink()
    elif damage == "no record":
        shutil.rmtree(folder)
    else:
        path.write_text(path.read_text()[:-3] if damage == "torn" else "{}")
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2")
    assert fake.ran == [1, 2, 1]
    assert runs.metrics(folder)["valid/mrr"] == 0.2


def test_a_failed_trial_starts_afresh_and_an_interrupted_one_goes_on(tmp_path, capsys, fake):
    fake.failing = {1: UserError("no"), 3: KeyboardInterrupt()}
    stopped = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=0,1,2,3,4")
    assert stopped.code == 130
    assert fake.ran == [0, 1, 2, 3]
    rows = {row["seed"]: row["status"] for row in table(tmp_path / "my sweep")}
    assert rows == {"0": "finished", "1": "failed", "2": "finished", "3": "interrupted"}
    assert "4 trials: 2 finished, 1 failed, 1 interrupted" in stopped.out
    fake.failing.clear()
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=0,1,2,3,4")
    assert done.code == 0
    assert fake.ran[4:] == [1, 3, 4]
    last = tmp_path / "my sweep" / "3_rotate_umls" / "checkpoints" / "last.ckpt"
    assert fake.checkpoints[4:] == [None, str(last), None]


def test_a_killed_trial_goes_on_to_the_same_result(tmp_path, capsys, monkeypatch):
    """A real run whose process is gone: its record still says that it runs, but nobody holds it."""
    words = [*SWEEP, *QUICK, "trainer.val_every=1", "scheduler=none", "seed=0,1"]
    words[words.index("trainer.max_epochs=1")] = "trainer.max_epochs=3"
    runs.command(capsys, tmp_path, "train", *words)
    whole = runs.metrics(tmp_path / "my sweep" / "1_rotate_nations")
    shutil.rmtree(tmp_path / "my sweep")

    from kgc.callbacks import Checkpoints

    class Killed(BaseException):
        pass

    saved = Checkpoints.on_train_epoch_end

    def kill(self, trainer, module):
        saved(self, trainer, module)
        if module.seed == 1 and trainer.current_epoch == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_train_epoch_end", kill)
        with pytest.raises(Killed):
            runs.command(capsys, tmp_path, "train", *words)
    folder = tmp_path / "my sweep" / "1_rotate_nations"
    assert records.read(folder).status == "running"
    assert records.read(folder).state == "interrupted"
    done = runs.command(capsys, tmp_path, "train", *words)
    assert (done.code, done.err) == (0, "")
    assert runs.digits(runs.metrics(folder)) == runs.digits(whole)
    assert len(runs.content(folder / "checkpoints" / "last.ckpt")["kgc"]["history"]) == 3
    assert (folder / "train.log").read_text().count("run        ") == 2


def test_a_trial_that_another_process_runs_is_left_to_it(tmp_path, capsys, fake):
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2")
    folder = tmp_path / "my sweep" / "0_rotate_umls"
    (folder / "metrics.json").unlink()
    with records.claimed(folder) as mine:
        assert mine
        done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2")
    assert done.code == 0
    assert fake.ran == [1, 2]
    assert "another process is running it" in done.out


def test_exit_codes(tmp_path, capsys, fake):
    fake.failing = {1: Alert("worse")}
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2")
    assert (done.code, done.err) == (3, "alert: trial 0 (seed=1): worse\n")
    fake.failing = {3: ZeroDivisionError("ours"), 4: UserError("theirs")}
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=3,4")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "error: trial 3 (seed=4): theirs" not in done.err
    assert done.err.splitlines()[-1] == "error: trial 1 (seed=4): theirs"
    # What an earlier start left failed stays in the table, and is no failure of a later one.
    done = runs.command(capsys, tmp_path, "train", *SWEEP, "seed=2,5")
    assert (done.code, done.err) == (0, "")
    assert [row["status"] for row in table(tmp_path / "my sweep")].count("failed") == 2


def test_hostile_words_are_shown_and_harm_nothing(tmp_path, capsys, fake):
    fake.failing = {1: UserError('<script>alert(1)</script>\x1b[31m,\n"quoted"')}
    runs.command(capsys, tmp_path, "train", *SWEEP, "seed=1,2", "checkpoint='<b>a,b</b>'")
    row = table(tmp_path / "my sweep")[-1]
    assert row["checkpoint"] == "<b>a,b</b>"
    assert row["reason"] == '<script>alert(1)</script>, "quoted"'
    page = (tmp_path / "my sweep" / "sweep.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_evaluations_have_a_table_and_run_anew(tmp_path, capsys, monkeypatch):
    ran = []

    def task(cfg, folder, words):
        ran.append(cfg.split)
        return {"test/mrr": 0.5, "test/mr": 3.0}

    monkeypatch.setattr(cli, "_evaluate", task)
    for _ in range(2):
        done = runs.command(capsys, tmp_path, "evaluate", *SWEEP, "split=test,valid")
        assert (done.code, done.err) == (0, "")
    assert ran == ["test", "valid"] * 2
    rows = table(tmp_path / "my sweep")
    assert [(row["split"], row["test/mrr"]) for row in rows] == [("test", "0.5"), ("valid", "0.5")]
