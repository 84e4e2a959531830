"""`task=predict` against scores of single triples."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
import runs
import torch

from kgc.tasks.build import build_model, load_weights, read_checkpoint
from kgc.types import Queries, Side


class Trained:
    """A model on nations, and the score of any triple by label."""

    def __init__(self, folder: Path):
        runs.train(folder, "model=complex", "trainer.max_epochs=2")
        self.checkpoint = folder / "checkpoints" / "best.ckpt"
        saved = read_checkpoint(str(self.checkpoint))
        model = build_model(saved.config, len(saved.entities), len(saved.relations)).eval()
        load_weights(model, saved)
        self.entities, self.relations = saved.entities.labels, saved.relations.labels
        everyone, n = torch.arange(len(self.entities)), len(self.entities)
        self.scores = {}
        for r, relation in enumerate(self.relations):
            with torch.no_grad():
                table = model.score(Queries(everyone, torch.full((n,), r), Side.TAIL))
            for h, head in enumerate(self.entities):
                for t, tail in enumerate(self.entities):
                    self.scores[head, relation, tail] = float(table[h, t])
        self.known = {triple for split in runs.bundled("nations").values() for triple in split}

    def best(self, k: int, mark: bool = False, head=None, relation=None, tail=None) -> list[tuple]:
        rows = [
            (triple, score)
            for triple, score in self.scores.items()
            if all(want in (None, is_) for want, is_ in zip((head, relation, tail), triple, strict=True))
            and (mark or triple not in self.known)
        ]
        return sorted(rows, key=lambda row: -row[1])[:k]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained") / "run")


def assert_rows(frame: pl.DataFrame, wanted: list[tuple]) -> None:
    assert frame["score"].to_list() == pytest.approx([score for _, score in wanted], rel=1e-5, abs=1e-6)
    got = list(frame.select("head", "relation", "tail").iter_rows())
    assert got == [triple for triple, _ in wanted]


QUESTIONS = [
    {"head": "usa", "relation": "embassy"},
    {"relation": "embassy", "tail": "cuba"},
    {"head": "usa", "tail": "cuba"},
    {"relation": "embassy"},
    {},
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: "-".join(q) or "all")
@pytest.mark.parametrize("known", ["remove", "mark"])
def test_answers_are_the_best_of_a_loop(trained, tmp_path, capsys, question, known):
    words = ["task=predict", f'checkpoint="{trained.checkpoint}"', "predict.k=7", f"predict.known={known}"]
    words += [f"predict.{name}={label}" for name, label in question.items()]
    done = runs.command(capsys, tmp_path, "evaluate", *words, "trainer=cpu", "hydra.run.dir=out")
    assert done.code == 0, done.err
    frame = pl.read_csv(tmp_path / "out" / "predictions.csv")
    wanted = trained.best(7, known == "mark", **question)
    assert_rows(frame, wanted)
    assert frame["known"].to_list() == [triple in trained.known for triple, _ in wanted]
    assert frame["rank"].to_list() == list(range(1, len(wanted) + 1))
    assert runs.metrics(tmp_path / "out")["predict/num_predictions"] == len(wanted)


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_file_of_questions_and_probabilities(trained, tmp_path, form):
    lines = ["usa\tembassy\t?", "?\tembassy\tcuba", "usa\t?\tcuba", "china\tembassy\t?"]
    (tmp_path / "ask.tsv").write_text("".join(f"{line}\n" for line in lines))
    words = ["task=predict", f'checkpoint="{trained.checkpoint}"', f"predict.queries={tmp_path / 'ask.tsv'}"]
    words += ["predict.k=3", f"predict.format={form}", "predict.calibration=platt"]
    runs.evaluate(tmp_path / "out", *words)
    path = tmp_path / "out" / f"predictions.{form}"
    frame = pl.read_parquet(path) if form == "parquet" else pl.read_json(path)
    for i, line in enumerate(lines):
        ends = dict(zip(("head", "relation", "tail"), line.split("\t"), strict=True))
        mine = frame.filter(pl.col("question") == i)
        assert_rows(mine, trained.best(3, **{name: label for name, label in ends.items() if label != "?"}))
    assert frame["probability"].is_between(0, 1).all()
    ordered = frame.sort("score")["probability"].to_list()
    assert ordered == sorted(ordered)


def test_a_relation_of_a_large_graph_takes_seconds():
    """All pairs of 14,541 entities, as FB15k-237 has."""
    from kgc.data.known import KnownAnswers
    from kgc.models.distmult import DistMult
    from kgc.tasks.predict import best_triples
    from kgc.types import Triples

    torch.manual_seed(0)
    model = DistMult(14_541, 1, 8).eval()
    began = time.process_time()
    with torch.no_grad():
        rows = best_triples(model, KnownAnswers(Triples.empty(), 14_541, 1), [0], 5, mark=False)
        assert time.process_time() - began < 60
        table = model.entity.weight
        best = max(
            float((part * model.relation.weight[0] @ table.T).max()) for part in table.split(1000)
        )  # 2e8 pairs, in blocks
    assert float(rows[2][0]) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["predict.head=usa"], ["predict.head", "second one"]),
        (["predict.head=usa", "predict.relation=embassy", "predict.tail=cuba"], ["leave out"]),
        (["predict.head=us", "predict.relation=embassy"], ["'us'", "'usa'"]),
        (["predict.head=usa", "predict.relation=embasy"], ["'embasy'", "'embassy'"]),
        (["predict.k=0"], ["predict.k=0"]),
        (["predict.known=keep"], ["keep", "remove, mark"]),
        (["predict.format=xml"], ["xml", "csv, parquet, json"]),
        (["predict.calibration=magic"], ["magic", "platt, isotonic"]),
        (["predict.queries=ASK"], ["ask.tsv:2", "2 ends"]),
        (["predict.queries=ASK", "predict.head=usa"], ["choose one"]),
        (["predict.queries=nowhere.tsv"], ["nowhere.tsv", "no such file"]),
    ],
)
def test_mistakes_are_one_line(trained, tmp_path, capsys, words, names):
    (tmp_path / "ask.tsv").write_text("usa\tembassy\t?\nusa\t?\t?\n")
    words = [word.replace("ASK", str(tmp_path / "ask.tsv")) for word in words]
    task = ["task=predict", f'checkpoint="{trained.checkpoint}"', "trainer=cpu"]
    message = runs.command(capsys, tmp_path, "evaluate", *task, *words).mistake()
    for name in names:
        assert name in message, message
