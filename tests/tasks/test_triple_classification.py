"""`task=triple_classification` against scikit-learn, from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs
import torch

from kgc.data.catalogue import load_dataset
from kgc.sampling.proposals import Typed, Uniform
from kgc.tasks.triple_classification import draw_negatives
from kgc.types import Side

sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A checkpoint, and a folder with the data and false triples of test, every relation's tails shifted by one."""
    folder = tmp_path_factory.mktemp("trained")
    splits = runs.bundled("nations")
    data = runs.write_splits(folder / "data", **splits)
    known = {triple for split in splits.values() for triple in split}
    entities = sorted({head for head, _, _ in known})
    for split in ("valid", "test"):
        moved = [(h, r, entities[(entities.index(t) + 1) % len(entities)]) for h, r, t in splits[split]]
        runs.write_splits(data, **{f"{split}_negatives": [t for t in dict.fromkeys(moved) if t not in known]})
    words = ["dataset=folder", f"dataset.path={data}", "model=complex", "trainer.max_epochs=3"]
    runs.train(folder / "run", *words)
    return f'checkpoint="{folder / "run" / "checkpoints" / "best.ckpt"}"', data


@pytest.mark.parametrize("calibration", ["platt", "isotonic"])
def test_metrics_are_those_of_scikit_learn(trained, tmp_path, capsys, calibration):
    words = ["task=triple_classification", trained[0], "hydra.run.dir=out", "trainer=cpu", "bootstrap=20"]
    done = runs.command(capsys, tmp_path, "evaluate", *words, f"classification.calibration={calibration}")
    assert done.code == 0, done.err
    metrics = runs.metrics(tmp_path / "out")
    rows = pl.read_parquet(tmp_path / "out" / "triples.parquet")
    labels, scores = rows["label"].to_numpy(), rows["score"].to_numpy()
    negatives = (trained[1] / "test_negatives.txt").read_text().splitlines()
    assert metrics["classification/num_false"] == len(negatives) == (~labels).sum()
    assert metrics["classification/num_negatives_known"] == 0
    assert "note: " not in done.out + done.err
    assert [
        "\t".join(row) for row in rows.filter(~pl.col("label")).select("head", "relation", "tail").iter_rows()
    ] == negatives
    said, probability = rows["predicted"].to_numpy(), rows["probability"].to_numpy()
    wanted = {
        "roc_auc": sklearn.roc_auc_score(labels, scores),
        "pr_auc": sklearn.average_precision_score(labels, scores),
        "accuracy": sklearn.accuracy_score(labels, said),
        "f1": sklearn.f1_score(labels, said),
        "brier": sklearn.brier_score_loss(labels, probability),
    }
    for name, value in wanted.items():
        assert metrics[f"classification/{name}"] == pytest.approx(value, abs=1e-9), name
    thresholds = dict(pl.read_parquet(tmp_path / "out" / "thresholds.parquet").iter_rows())
    assert said.tolist() == [s >= thresholds[r] for s, r in zip(scores, rows["relation"], strict=True)]
    curve = pl.read_parquet(tmp_path / "out" / "reliability.parquet")
    assert curve["count"].sum() == len(rows)
    assert (curve["count"] * curve["observed"]).sum() == pytest.approx(labels.sum())
    assert (np.diff(probability[scores.argsort()]) >= 0).all()


def test_drawn_negatives_are_false_and_of_the_type_of_their_relation():
    graph = load_dataset("umls")
    known = {tuple(row) for split in ("train", "valid", "test") for row in _rows(graph.split(split))}
    members = {side: {} for side in Side}
    for head, relation, tail in _rows(graph.train):
        members[Side.HEAD].setdefault(relation, set()).add(head)
        members[Side.TAIL].setdefault(relation, set()).add(tail)
    for proposal in (Typed(), Uniform()):
        drawn = _rows(draw_negatives(graph, graph.test, proposal, torch.Generator().manual_seed(0)))
        assert len(drawn) == len(graph.test)
        assert not known & set(map(tuple, drawn))
        replaced, outside = set(), 0
        for (head, relation, tail), (h, r, t) in zip(_rows(graph.test), drawn, strict=True):
            assert r == relation
            assert (h == head) != (t == tail)
            side, entity = (Side.HEAD, h) if h != head else (Side.TAIL, t)
            replaced.add(side)
            if entity in members[side][r]:
                continue
            outside += 1
            if isinstance(proposal, Typed):  # hardly any entity of the type at either end makes a false triple
                for pool, end in ((members[Side.HEAD][r], 0), (members[Side.TAIL][r], 1)):
                    false = [x for x in pool if ((x, r, tail) if end == 0 else (head, r, x)) not in known]
                    assert len(pool) == 1 or len(false) < 0.2 * len(pool)
        assert replaced == set(Side)
        assert outside < 100 if isinstance(proposal, Typed) else outside > 100


def _rows(triples) -> list[list[int]]:
    return torch.stack([triples.head, triples.relation, triples.tail], dim=1).tolist()


def test_negatives_are_drawn_where_there_are_none_and_the_same_for_a_seed(trained, tmp_path):
    words = ["task=triple_classification", trained[0], "dataset=nations"]
    first = runs.evaluate(tmp_path / "a", *words)
    assert first == {**runs.evaluate(tmp_path / "b", *words), "classification/seconds": first["classification/seconds"]}
    assert first != runs.evaluate(tmp_path / "c", *words, "seed=1")
    assert first["classification/roc_auc"] > 0.55
    assert first["classification/num_negatives_known"] == 0


def test_given_negatives_that_are_true_are_counted_and_told(trained, tmp_path, capsys):
    """Two triples of train, one of them twice, among those of valid, and one of test among its own."""
    lines = {split: (trained[1] / f"{split}.txt").read_text().splitlines() for split in ("train", "test")}
    false = {split: (trained[1] / f"{split}_negatives.txt").read_text().splitlines() for split in ("valid", "test")}
    false["valid"] += [*lines["train"][:2], lines["train"][0]]
    false["test"] += lines["test"][:1]
    words = ["task=triple_classification", trained[0], "hydra.run.dir=out", "trainer=cpu"]
    for split, rows in false.items():
        (tmp_path / f"{split}.txt").write_text("".join(f"{row}\n" for row in rows))
        words.append(f"classification.{split}_negatives={tmp_path / f'{split}.txt'}")
    done = runs.command(capsys, tmp_path, "evaluate", *words)
    assert done.code == 0, done.err
    found = f"3 of {len(false['valid']):,} in valid, 1 of {len(false['test']):,} in test"
    told = f"note: negatives that the data have as true triples: {found}; take them out"
    assert [line for line in (done.out + done.err).splitlines() if line.startswith("note: ")] == [told]
    assert runs.metrics(tmp_path / "out")["classification/num_negatives_known"] == 4


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["split=valid"], ["split=valid", "thresholds"]),
        (["classification.calibration=magic"], ["magic", "platt, isotonic"]),
        (["classification.negatives=hard"], ["hard", "typed, uniform"]),
        (["classification.bins=0"], ["classification.bins=0"]),
        (["classification.test_negatives=FILE"], ["false.txt:1", "nowhere"]),
        (["classification.test_negatives=missing.txt"], ["missing.txt", "no such file"]),
    ],
)
def test_mistakes_are_one_line(trained, tmp_path, capsys, words, names):
    (tmp_path / "false.txt").write_text("nowhere\taidenemy\tusa\n")
    words = [word.replace("FILE", str(tmp_path / "false.txt")) for word in words]
    task = ["task=triple_classification", trained[0], "trainer=cpu"]
    message = runs.command(capsys, tmp_path, "evaluate", *task, *words).mistake()
    for name in names:
        assert name in message, message
