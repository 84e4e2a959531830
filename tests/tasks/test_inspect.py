"""`evaluate.py task=inspect` and `python -m kgc.tasks.inspect`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import polars as pl
import pytest
import runs
from omegaconf import OmegaConf

from kgc.errors import UserError

FILES = {"metrics.json", "relations.parquet", "redundant.parquet", "report.html", "config.yaml", "evaluate.log"}


def test_a_data_set_with_all_that_can_be_wrong(tmp_path):
    likes = [(str(i), "likes", str(i + 1)) for i in range(10)]
    data = runs.write_splits(
        tmp_path / "data",
        train=[*likes, ("0", "likes", "1"), ("5", "near", "6"), ("6", "near", "5")],
        valid=[("0", "likes", "1"), ("x", "likes", "1")],
        test=[*((str(i + 1), "liked by", str(i)) for i in range(9)), ("7", "near", "8"), ("8", "near", "7")],
    )
    run = tmp_path / "run"
    metrics = runs.evaluate(run, "task=inspect", "dataset=folder", f"dataset.path={data}")
    assert {path.name for path in run.iterdir()} == FILES
    assert json.loads((run / "metrics.json").read_text()) == metrics
    wanted = {
        "data/entities": 12,
        "data/relations": 3,
        "data/train": 13,
        "data/duplicates/train": 1,
        "data/duplicates/valid": 0,
        "data/overlap/train_valid": 1,
        "data/overlap/train_test": 0,
        "data/unseen/entities": 1,
        "data/unseen/relations": 1,  # liked by
        "data/degree/max": 4,
        "data/relations/symmetric": 1,
        "data/redundant/inverse": 1,
        "data/redundant/duplicate": 0,
        "data/leaks/valid": 1,
        "data/leaks/test": 9,
        "data/reversed/test": 0,
    }
    assert {key: metrics[key] for key in wanted} == wanted
    assert pl.read_parquet(run / "relations.parquet")["relation"].to_list() == ["likes", "near", "liked by"]
    pair = pl.read_parquet(run / "redundant.parquet").row(0, named=True)
    assert {pair["first_relation"], pair["second_relation"]} == {"likes", "liked by"}
    assert (pair["kind"], pair["shared"]) == ("inverse", 9)
    log = (run / "evaluate.log").read_text()
    assert "note: triples that can be looked up in train: 1 of 2 in valid (50.0%), 9 of 11 in test (81.8%)" in log
    page = (run / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)

    clean = tmp_path / "clean"
    words = ["task=inspect", "dataset=folder", f"dataset.path={data}", "dataset.drop=[duplicates,leaks,unseen]"]
    metrics = runs.evaluate(clean, *words)
    assert metrics["data/duplicates/train"] == metrics["data/leaks/test"] == metrics["data/unseen/entities"] == 0
    assert metrics["data/test"] == 2
    assert list(OmegaConf.load(clean / "config.yaml").dataset.drop) == ["duplicates", "leaks", "unseen"]
    assert "note:" not in (clean / "evaluate.log").read_text()
    assert "nothing odd" in (clean / "report.html").read_text()


def test_training_without_leaks_says_so_and_evaluates_the_same(tmp_path):
    splits = runs.bundled("nations")
    splits["test"] += [*splits["train"][:5], ("atlantis", "embassy", "usa")]
    data = runs.write_splits(tmp_path / "data", **splits)
    words = ["dataset=folder", f"dataset.path={data}", "dataset.drop=[leaks,unseen]", "trainer.max_epochs=1"]
    trained = runs.train(tmp_path / "run", *words)
    assert trained["test/num_unseen"] == 0
    again = runs.evaluate(tmp_path / "again", f"checkpoint='{tmp_path}/run/checkpoints/best.ckpt'")
    assert again["test/mrr"] == trained["test/mrr"]
    assert again["test/num_queries"] == trained["test/num_queries"]
    assert "left out: " in (tmp_path / "run" / "train.log").read_text()


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"^task=inspect: dataset=… is needed$"):
        runs.evaluate(tmp_path / "run", "task=inspect")
    with pytest.raises(UserError, match=r"dataset\.drop="):
        runs.evaluate(tmp_path / "run", "task=inspect", "dataset=umls", "dataset.drop=[all]")


def test_as_a_module(tmp_path):
    words = ["-m", "kgc.tasks.inspect", "dataset=nations", f"hydra.run.dir='{tmp_path / 'run'}'"]
    options = {"cwd": runs.REPOSITORY, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, *words], **options)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    wrong = [sys.executable, "-m", "kgc.tasks.inspect", "dataset=folder", "dataset.path=nowhere"]
    done = subprocess.run(wrong, **options)
    assert (done.returncode, done.stderr) == (2, "error: nowhere: no such folder\n")
