"""A training with all loggers at once: what their files hold, against the files of the run itself."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
import runs
import wandb_file

WORDS = [
    "logger=several",
    "logger.use=[wandb,csv,tensorboard]",
    "logger.wandb.mode=offline",
    "logger.wandb.log_model=all",
    "logger.wandb.log_ranks=true",
    "trainer.max_epochs=4",
    "trainer.val_every=2",
    "trainer.log_every=3",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorboard")
    path = tmp_path_factory.mktemp("logged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        runs.train(path, *WORDS)
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> wandb_file.WandbRun:
    return wandb_file.run_in(folder)


@pytest.fixture(scope="module")
def history(folder: Path) -> list[dict[str, float]]:
    return runs.content(folder / "checkpoints" / "last.ckpt")["kgc"]["history"]


def test_the_summary_is_metrics_json_with_the_best_and_the_last(folder, run, history):
    assert {key: run.summary[key] for key in runs.metrics(folder)} == runs.metrics(folder)
    best = max((row for row in history if "valid/mrr" in row), key=lambda row: row["valid/mrr"])
    assert (run.summary["best/epoch"], run.summary["best/valid/mrr"]) == (best["epoch"], best["valid/mrr"])
    assert (run.summary["last/epoch"], run.summary["last/train/loss"]) == (4, history[-1]["train/loss"])
    assert run.summary["valid/mrr"] == best["valid/mrr"]
    assert run.summary["total/train"] > 0
    assert run.exit_code == 0


def test_curves_are_over_epochs_and_no_epoch_is_written_twice(run, history):
    for name in ("train/loss", "train/lr", "valid/mrr"):
        assert run.axis(name) == "epoch"
        assert run.curve(name) == {row["epoch"]: row[name] for row in history if name in row}
    for name in ("norm/entity", "time/train", "memory/host_mib", "train/triples_per_second"):
        assert list(run.curve(name)) == [1, 2, 3, 4]
    assert list(run.curve("valid/hits@10")) == list(run.curve("valid/queries_per_second")) == [2, 4]


def test_steps_have_points_of_their_own(run):
    steps = -(-len(runs.bundled("nations")["train"]) // 256) * 4  # 256 triples a step, four epochs
    assert run.axis("step/loss") == "trainer/global_step"
    for name in ("step/loss", "step/grad_norm/entity", "step/grad_norm/relation"):
        assert list(run.curve(name)) == list(range(3, steps + 1, 3))
        assert all(value > 0 for value in run.curve(name).values())


def test_config_and_data(folder, run):
    assert run.config["trainer"]["max_epochs"] == 4
    assert run.config["model"]["dim"] == 8
    saved = runs.content(folder / "checkpoints" / "best.ckpt")["kgc"]
    assert run.config["data"] == {
        "name": "nations",
        "digest": saved["digest"],
        "entities": len(saved["entities"]),
        "relations": len(saved["relations"]),
        **{split: len(rows) for split, rows in runs.bundled("nations").items()},
    }


def test_artifacts_name_their_data(run):
    own = {a["name"].removeprefix(f"{run.id}-"): a for a in run.artifacts if a["name"].startswith(run.id)}
    assert {name: (a["type"], a["paths"]) for name, a in own.items()} == {
        "best": ("model", ["best.ckpt"]),
        "last": ("model", ["last.ckpt"]),
        "ranks": ("ranks", ["ranks.parquet"]),
    }
    assert all(a["metadata"] == {"data": run.config["data"]} for a in own.values())


def table(folder: Path, name: str) -> list[dict[str, object]]:
    (path,) = folder.glob(f"wandb/offline-run-*/files/media/table/{name}_*.json")
    stored = json.loads(path.read_text())
    return [dict(zip(stored["columns"], row, strict=True)) for row in stored["data"]]


def test_tables_and_rank_pictures_count_the_ranks(folder, run):
    ranks = runs.ranks(folder)
    by_relation = defaultdict(list)
    for row in ranks.iter_rows(named=True):
        by_relation[row["relation"]].append(row["realistic"])
    logged = {row["relation"]: (row["count"], row["mrr"]) for row in table(folder, "test/by_relation")}
    assert logged == {
        name: (len(values), pytest.approx(math.fsum(1 / v for v in values) / len(values)))
        for name, values in by_relation.items()
    }
    metrics = runs.metrics(folder)
    for row in table(folder, "test/by_category"):
        place = f"test/category/{row['category']}/" + ("" if row["side"] == "both" else f"{row['side']}/")
        assert (row["queries"], row["mrr"]) == (metrics[f"{place}num_queries"], metrics[f"{place}mrr"])
    hits = {row["k"]: row["hits"] for row in table(folder, "test/hits_curve_table") if row["side"] == "both"}
    for k in (1, 3, 10):
        assert hits[k] == pytest.approx(metrics[f"test/hits@{k}"], rel=1e-12)
    histogram = next(row["test/log10_rank"] for row in run.history if "test/log10_rank" in row)
    assert sum(histogram["values"]) == len(ranks)
    assert histogram["values"][0] == (ranks["realistic"] == 1).sum()


def test_csv_and_tensorboard_say_the_same(folder, run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    frame = pl.read_csv(folder / "csv" / "version_0" / "metrics.csv", infer_schema_length=None)
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    for name in ("train/loss", "valid/mrr", "norm/entity"):
        logged = frame.filter(pl.col(name).is_not_null())
        assert dict(zip(logged["epoch"], logged[name], strict=True)) == run.curve(name)
        assert [event.value for event in events.Scalars(name)] == pytest.approx(list(run.curve(name).values()))
    last = frame.row(-1, named=True)
    for name, value in runs.metrics(folder).items():
        if not name.startswith("valid/"):
            assert last[name] == pytest.approx(value, rel=1e-12)
            assert events.Scalars(name)[-1].value == pytest.approx(value, rel=1e-6)


def test_the_page_has_the_numbers_of_metrics_json(folder):
    page, metrics = (folder / "report.html").read_text(), runs.metrics(folder)
    for name in ("test/mrr", "test/hits@10", "test/optimistic/mrr", "test/pessimistic/hits@1", "valid/tail/mrr"):
        assert f"<td>{metrics[name]:.4f}</td>" in page
    assert f"95 %: {metrics['test/mrr_low']:.4f} to {metrics['test/mrr_high']:.4f}" in page
    assert "dataset=nations" in page[page.index("python ") :]
    assert "pytorch-lightning" in page


def test_worst_triples_are_those_of_the_ranks_with_the_models_answers(folder):
    """The page's last table against the ranks; its answers against what the filter leaves."""
    page, ranks = (folder / "report.html").read_text(), runs.ranks(folder)
    section = page[page.index("Worst-ranked triples") :]
    section = section[: section.index("</section>")]
    assert f"<td>{ranks['realistic'].max():,.10g}</td>" in section
    assert section.count("<strong>") == 12


def test_the_command_line_takes_several_loggers_and_keeps_quiet(tmp_path, capsys):
    words = [*runs.TINY[:-1], "trainer.max_epochs=1", "logger=[csv,tensorboard]", "quiet=true", "hydra.run.dir=a run"]
    done = runs.command(capsys, tmp_path, "train", *words)
    assert (done.code, done.out, done.err) == (0, "", "")
    run = tmp_path / "a run"
    assert {path.name for path in run.iterdir()} >= {"csv", "tensorboard", "metrics.json"}
    assert "both sides" in (run / "train.log").read_text()
    page = (run / "report.html").read_text()
    assert f"python train.py {words[0]} {words[1]}" in page
    assert "logger=several &#x27;logger.use=[csv,tensorboard]&#x27; quiet=true" in page


def test_a_list_of_loggers_names_its_mistakes(tmp_path, capsys):
    done = runs.command(capsys, tmp_path, "train", *runs.TINY[:-1], "logger=[csv,paper]")
    assert "must be a list of wandb, csv, tensorboard, mlflow" in done.mistake()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package itself
def test_every_panel_of_the_workspace_shows_what_a_run_logs(run):
    pytest.importorskip("wandb_workspaces")
    from kgc import workspace

    made = workspace.workspace("someone", "kgc")
    logged = {key for row in run.history for key in row}
    axes = {(x, name) for charts in workspace.CHARTS.values() for _, x, names in charts for name in names}
    for x, name in axes:
        assert name in logged
        assert run.axis(name) == x
    assert set(workspace.NUMBERS) <= set(run.summary)
    assert set(workspace.TABLES) <= logged
    spec = made._to_model().spec.model_dump_json()  # what would be sent
    for name in (*(name for _, name in axes), *workspace.NUMBERS, *workspace.TABLES):
        assert name in spec


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_workspace_needs_a_key_and_its_package(monkeypatch, tmp_path, capsys):
    from kgc import workspace

    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["workspace", "--entity", "someone"])
    for package, cure in ((None, "pip install 'kgc[workspace]'"), (sys, "wandb login")):
        monkeypatch.setattr(workspace, "find_spec", lambda _, found=package: found)
        if package:
            pytest.importorskip("wandb_workspaces")
        with pytest.raises(SystemExit, match="2"):
            workspace.main()
        assert cure in capsys.readouterr().err
