"""Runs of models of rules: mined or learned, saved, evaluated, listed and explained."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest
import runs
import torch

from kgc.errors import UserError
from kgc.models.rules.model import RuleModel
from kgc.tasks.evaluate import evaluate
from kgc.tasks.train import train

COMMON = ["dataset=nations", "trainer=cpu", "logger=none"]
MINED = ["model=rules", "model.length=1", "model.min_support=4", *COMMON]
LEARNED = ["model=drum", "model.dim=4", "model.rank=1", "objective=one_vs_all", "trainer.max_epochs=1", *COMMON]


def trained(folder: Path, words: list[str]) -> dict[str, float]:
    return train(runs._compose("train", words), folder, words)


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mined") / "run"
    trained(folder, MINED)
    return folder


def test_a_mined_run_leaves_what_a_trained_one_does(mined):
    metrics = runs.metrics(mined)
    rules = pl.read_csv(mined / "rules.tsv", separator="\t")
    assert rules.columns == ["head", "body", "support", "groundings", "confidence"]
    assert metrics["train/rules"] == len(rules) > 100
    assert metrics["train/epochs"] == 0
    assert metrics["train/seconds"] > 0
    assert metrics["test/num_queries"] == 402
    assert metrics["test/mrr"] > 0.5
    assert len(runs.ranks(mined)) == 402
    names = {"config.yaml", "report.html", "train.log", "checkpoints"}
    assert names <= {path.name for path in mined.iterdir()}
    assert rules["confidence"].is_sorted(descending=True)
    worked = rules["support"] / (rules["groundings"] + 5)
    assert (worked - rules["confidence"]).abs().max() < 1e-12


def test_a_counted_rule(mined):
    """The best closed rule, counted from the files by label."""
    rules = pl.read_csv(mined / "rules.tsv", separator="\t")
    rule = rules.filter(pl.col("head").str.ends_with("(X, Y)")).row(0, named=True)
    head, body = rule["head"].removesuffix("(X, Y)"), rule["body"]
    back = body.endswith("(Y, X)")
    train_split = {t for t in runs.bundled("nations")["train"] if t[0] != t[2]}
    pairs = {(t, h) if back else (h, t) for h, r, t in train_split if r == body.split("(")[0]}
    assert rule["groundings"] == len(pairs)
    assert rule["support"] == sum((h, head, t) in train_split for h, t in pairs)


def test_evaluate_gives_the_same_digits(mined, tmp_path):
    metrics = runs.evaluate(tmp_path / "again", f"checkpoint='{mined / 'checkpoints' / 'best.ckpt'}'")
    assert runs.digits(metrics, "test") == runs.digits(runs.metrics(mined), "test")
    assert runs.ranks(tmp_path / "again").equals(runs.ranks(mined))


def test_rules_answer_the_other_tasks(mined, tmp_path):
    """A model without a parameter, whose scores are confidences."""
    checkpoint = f"checkpoint='{mined / 'checkpoints' / 'best.ckpt'}'"
    runs.evaluate(tmp_path / "answers", checkpoint, "task=predict", "predict.head=usa", "predict.relation=embassy")
    predictions = pl.read_csv(tmp_path / "answers" / "predictions.csv")
    assert predictions["score"].is_sorted(descending=True)
    equal = predictions.filter(pl.len().over("score") > 1)
    assert len(equal) == 0 or all(part["tail"].is_sorted() for part in equal.partition_by("score"))
    best = runs.evaluate(tmp_path / "best", checkpoint, "task=predict", "predict.relation=embassy", "predict.k=5")
    assert best["predict/num_predictions"] == 5
    values = runs.evaluate(tmp_path / "classified", checkpoint, "task=triple_classification")
    assert values["classification/roc_auc"] > 0.8
    values = runs.evaluate(tmp_path / "hops", checkpoint, "task=queries", "queries.sample='1p:5,2p:5,2u:5'")
    assert 0 < values["queries/2p/mrr"] <= 1
    logits = RuleModel(3, 1, aggregation="noisy_or").logits(torch.tensor([0.0, math.log(4.0), 800.0]).double())
    assert logits.isfinite().all()
    assert logits[1].item() == pytest.approx(math.log(3))  # 1 − e^(−log 4) = ¾


def test_mining_again_finds_the_same_rules(mined, tmp_path):
    trained(tmp_path / "again", [*MINED, "test=false"])
    paths = [folder / "checkpoints" / "best.ckpt" for folder in (mined, tmp_path / "again")]
    runs.assert_same(*(runs.content(path)["state_dict"] for path in paths))
    assert (tmp_path / "again" / "rules.tsv").read_bytes() == (mined / "rules.tsv").read_bytes()


def explained(mined: Path, folder: Path, triple: str) -> pl.DataFrame:
    words = ["trainer=cpu", f"checkpoint='{mined / 'checkpoints' / 'best.ckpt'}'", "task=explain", f"triple={triple}"]
    assert evaluate(runs._compose("evaluate", words), folder) == {}
    return pl.read_csv(folder / "explanations.tsv", separator="\t")


def test_triples_and_questions_are_explained(mined, tmp_path):
    head, relation, tail = runs.bundled("nations")["test"][0]
    one = explained(mined, tmp_path / "one", f"[{head},{relation},{tail}]")
    rules = pl.read_csv(mined / "rules.tsv", separator="\t")
    said = set((rules["head"] + " <- " + rules["body"]).to_list())
    assert len(one) > 0
    assert set(one["rule"].to_list()) <= said
    assert one["confidence"].is_sorted(descending=True)
    asked = explained(mined, tmp_path / "asked", f"[{head},{relation},null]")
    assert asked["tail"].n_unique() == 10
    assert asked["score"].is_sorted(descending=True)
    both = asked.filter(pl.col("tail") == tail)
    assert len(both) == 0 or both.drop("score").equals(one.drop("score"))


@pytest.mark.parametrize(
    ("triple", "message"),
    [
        ("[a,b]", r"triple=.*must be \[head, relation, tail\]"),
        ("[null,embassy,null]", r"triple=.*must be \[head, relation, tail\]"),
        ("[usa,embassy,nowhere]", "triple: the tail 'nowhere' is not among the checkpoint's labels"),
    ],
)
def test_a_triple_that_is_none_is_refused(mined, tmp_path, triple, message):
    with pytest.raises(UserError, match=message):
        explained(mined, tmp_path, triple)


def test_what_mining_cannot_do_is_refused(mined, tmp_path):
    with pytest.raises(UserError, match="needs one process: choose trainer=cpu"):
        trained(tmp_path, [*MINED, "trainer=ddp_cpu"])
    with pytest.raises(UserError, match="mine again"):
        runs.resume(mined / "checkpoints" / "last.ckpt")
    words = ["model=rules", "dataset=nations", "trainer=cpu", "embeddings.entities=E.npy", "embeddings.relations=R.npy"]
    with pytest.raises(UserError, match="has no vectors of entities"):
        evaluate(runs._compose("evaluate", words), tmp_path)


def test_a_learned_run_is_evaluated_and_lists_its_rules(tmp_path):
    trained(tmp_path / "run", LEARNED)
    rules = pl.read_csv(tmp_path / "run" / "rules.tsv", separator="\t")
    assert rules.columns == ["head", "body", "weight"]
    assert len(rules) == 2 * 55 * 20
    metrics = runs.evaluate(tmp_path / "again", f"checkpoint='{tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}'")
    assert runs.digits(metrics, "test") == runs.digits(runs.metrics(tmp_path / "run"), "test")
    checkpoint = f"checkpoint='{tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}'"
    values = runs.evaluate(tmp_path / "hops", checkpoint, "task=queries", "queries.sample=2p:3")
    assert 0 < values["queries/2p/mrr"] <= 1
    with pytest.raises(UserError, match="choose objective=one_vs_all"):
        trained(tmp_path / "other", [*LEARNED, "objective=k_vs_all"])
    with pytest.raises(UserError, match="task=explain: DRUM has no rules"):
        explained(tmp_path / "run", tmp_path / "explained", "[usa,embassy,uk]")
