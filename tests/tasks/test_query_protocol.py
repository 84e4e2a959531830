"""`task=link_prediction`: one list a question against a brute force, breakdowns and intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
import runs
import torch

from kgc.tasks.build import build_model, load_weights, read_checkpoint
from kgc.types import Queries, Side


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder, "model=complex", "trainer.max_epochs=3")
    return folder / "checkpoints" / "best.ckpt"


def lists(checkpoint: Path) -> dict[tuple[str, str, str], list[bool]]:
    """Of every question of nations' test split, whether each answer, from the best, is a test answer.

    Answers known from train and valid are left out.
    """
    saved = read_checkpoint(str(checkpoint))
    model = build_model(saved.config, len(saved.entities), len(saved.relations)).eval()
    load_weights(model, saved)
    splits = runs.bundled("nations")
    places = {label: i for i, label in enumerate(saved.entities.labels)}
    relations = {label: i for i, label in enumerate(saved.relations.labels)}
    found = {}
    for side in Side:
        answers: dict[str, dict] = {split: defaultdict(set) for split in splits}
        for split, triples in splits.items():
            for head, relation, tail in triples:
                anchor, answer = (tail, head) if side is Side.HEAD else (head, tail)
                answers[split][anchor, relation].add(answer)
        for (anchor, relation), right in answers["test"].items():
            query = Queries(torch.tensor([places[anchor]]), torch.tensor([relations[relation]]), side)
            scores = model.score(query)[0].tolist()
            known = (answers["train"][anchor, relation] | answers["valid"][anchor, relation]) - right
            rivals = [e for e in places if e not in known]
            ordered = sorted(rivals, key=lambda e: -scores[places[e]])
            found[anchor, relation, side.label] = [e in right for e in ordered]
    return found


def test_lists_are_those_of_a_brute_force(checkpoint, tmp_path):
    metrics = runs.evaluate(tmp_path / "run", f'checkpoint="{checkpoint}"', "protocol=query", "ranking.hits=[1,5]")
    assert metrics == runs.metrics(tmp_path / "run")
    wanted = lists(checkpoint)
    rows = pl.read_parquet(tmp_path / "run" / "per_query.parquet")
    assert len(rows) == len(wanted) == metrics["test/query/num_queries"]
    for row in rows.iter_rows(named=True):
        relevant = wanted[row["anchor"], row["relation"], row["side"]]
        places = [i + 1 for i, right in enumerate(relevant) if right]
        assert row["answers"] == len(places)
        assert row["first_rank"] == places[0]
        assert row["mrr"] == pytest.approx(1 / places[0])
        assert row["map"] == pytest.approx(sum((i + 1) / p for i, p in enumerate(places)) / len(places))
        above = sum(p <= 5 for p in places)
        assert row["precision@5"] == pytest.approx(above / 5)
        assert row["recall@5"] == pytest.approx(above / len(places))
        assert row["f1@5"] == pytest.approx(2 * above / (5 + len(places)))
        gain = sum(1 / math.log2(p + 1) for p in places if p <= 5)
        assert row["ndcg@5"] == pytest.approx(gain / sum(1 / math.log2(i + 2) for i in range(min(5, len(places)))))
    for side in ("head", "tail"):
        mine = rows.filter(pl.col("side") == side)
        assert metrics[f"test/query/{side}/map"] == pytest.approx(mine["map"].mean())
        assert metrics[f"test/query/{side}/num_queries"] == len(mine)


def test_breakdowns_are_means_over_the_rows_of_the_ranks(checkpoint, tmp_path):
    metrics = runs.evaluate(tmp_path / "run", f'checkpoint="{checkpoint}"', "bootstrap=200")
    rows = runs.ranks(tmp_path / "run").with_columns(rr=1 / pl.col("realistic"))
    macro = rows.group_by("relation").agg(pl.col("rr").mean())["rr"].mean()
    assert metrics["test/macro/mrr"] == pytest.approx(macro)
    train = runs.bundled("nations")["train"]
    heads, tails = defaultdict(set), defaultdict(set)
    degree: dict[str, int] = defaultdict(int)
    for head, relation, tail in train:
        heads[relation, tail].add(head)
        tails[relation, head].add(tail)
        degree[head] += 1
        degree[tail] += 1

    def many(groups: dict, relation: str) -> str:
        sizes = [len(found) for (r, _), found in groups.items() if r == relation]
        return "N" if sizes and sum(sizes) / len(sizes) >= 1.5 else "1"

    names = {r: f"{many(heads, r)}-{many(tails, r)}" for r in rows["relation"].unique()}
    rows = rows.with_columns(category=pl.col("relation").replace_strict(names))
    for (category, side), part in rows.group_by("category", "side"):
        assert metrics[f"test/category/{category}/{side}/mrr"] == pytest.approx(part["rr"].mean())
        assert metrics[f"test/category/{category}/{side}/num_queries"] == len(part)
    answer = pl.when(pl.col("side") == "head").then("head").otherwise("tail")
    hubs = rows.filter(answer.replace_strict(dict(degree)) >= 100)
    assert metrics["test/degree/100-999/mr"] == pytest.approx(hubs["realistic"].mean())
    assert metrics["test/mrr_low"] < metrics["test/mrr"] < metrics["test/mrr_high"]
    # √(s²/n) over triples, within the noise of 200 draws.
    means = rows["rr"].to_numpy().reshape(2, -1).mean(0)
    width = 2 * 1.96 * means.std() / math.sqrt(len(means))
    assert metrics["test/mrr_high"] - metrics["test/mrr_low"] == pytest.approx(width, rel=0.25)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["protocol=each"], ["protocol=each", "triple, query"]),
        (["protocol=query", "ranking.limit=10"], ["ranking.limit", "protocol=triple"]),
        (["protocol=query", "ranking.nonfinite=worst"], ["ranking.nonfinite=worst", "protocol=triple"]),
        (["bootstrap=0"], ["bootstrap=0"]),
        (["task=foo"], ["task", "foo", "link_prediction"]),
    ],
)
def test_mistakes_are_one_line(checkpoint, tmp_path, capsys, words, names):
    message = runs.command(capsys, tmp_path, "evaluate", f'checkpoint="{checkpoint}"', "trainer=cpu", *words).mistake()
    for name in names:
        assert name in message, message
