"""Names, types and numbers through training, evaluation and predictions."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
import runs

from kgc.errors import UserError

TYPES = {"usa": ["west", "large"], "uk": ["west"], "china": ["east", "large"], "cuba": ["east"], "brazil": ["south"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of Nations."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "names.tsv").write_text("usa\tUnited States\nuk\tUnited Kingdom\nuk\tBritain\ncuba\tTwin\nchina\tTwin\n")
    (folder / "relations.tsv").write_text("embassy\thas an <b>embassy</b> in\n")
    (folder / "types.tsv").write_text("".join(f"{e}\t{kind}\n" for e, kinds in TYPES.items() for kind in kinds))
    (folder / "numbers.tsv").write_text("usa\tarea\t9.8\nuk\tarea\t0.24\nchina\tarea\t9.6\ncuba\tarea\t0.11\n")
    return folder


def words(files: Path) -> list[str]:
    names = {"entity_names": "names", "relation_names": "relations", "entity_types": "types", "numbers": "numbers"}
    return [f"annotations.{what}={files}/{name}.tsv" for what, name in names.items()]


@pytest.fixture(scope="module")
def trained(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder, *words(files), "sampler=same_type", "sampler.num_negatives=4")
    return folder


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    body = page.split(f"<h2>{heading}</h2>")[1].split("</section>")[0].split("<tbody>")[1]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("</tr>")]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in cells if row]


def test_the_report_ranks_by_type_and_number(trained):
    ranks = pl.read_parquet(trained / "ranks.parquet")
    answers = [(r["head"] if r["side"] == "head" else r["tail"], r["realistic"]) for r in ranks.iter_rows(named=True)]
    page = (trained / "report.html").read_text()
    by_type = {kind: [r for e, r in answers if kind in TYPES.get(e, [])] for kind in ("west", "large", "east", "south")}
    expected = [
        [
            kind,
            str(sum(kind in kinds for kinds in TYPES.values())),
            str(len(own)),
            f"{sum(1 / r for r in own) / len(own):.4f}",
            f"{sum(r <= 10 for r in own) / len(own):.4f}",
        ]
        for kind, own in sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    assert rows_of(page, "Types") == expected
    area = {"usa": 9.8, "uk": 0.24, "china": 9.6, "cuba": 0.11}
    low, high = ([1 / r for e, r in answers if e in area and (area[e] < 4.92) is small] for small in (True, False))
    halves = [f"{sum(half) / len(half):.4f}" for half in (low, high)]
    assert rows_of(page, "Numbers") == [["area", "4", "0.11", "4.92", "9.8", str(len(low) + len(high)), *halves]]
    assert "has an &lt;b&gt;embassy&lt;&#x2F;b&gt; in (embassy)" in page.replace("/<wbr>", "&#x2F;")
    log = (trained / "train.log").read_text()
    assert "entity types: 5 of 14 entities" in log


def test_predictions_have_names(trained, tmp_path):
    checkpoint = f"checkpoint={trained}/checkpoints/best.ckpt"
    asked = ["task=predict", checkpoint, "predict.relation=embassy", "predict.k=20", "predict.known=mark"]
    runs.evaluate(tmp_path / "label", *asked, "predict.head=usa")
    frame = pl.read_csv(tmp_path / "label" / "predictions.csv")
    assert set(frame["head_name"]) == {"United States"}
    assert set(frame["relation_name"]) == {"has an <b>embassy</b> in"}
    called = dict(frame.select("tail", "tail_name").iter_rows())
    assert called["uk"] == "United Kingdom"
    assert called["egypt"] == "egypt"
    runs.evaluate(tmp_path / "name", *asked, "predict.head='United States'")
    assert pl.read_csv(tmp_path / "name" / "predictions.csv").equals(frame)
    with pytest.raises(UserError) as caught:
        runs.evaluate(tmp_path / "twin", *asked, "predict.head=Twin")
    said = "predict.head: 'Twin' is the name of 'cuba', 'china'; give one of these labels"
    assert str(caught.value) == said


def test_other_annotations_change_no_rank(trained, files, tmp_path):
    checkpoint = f"checkpoint={trained}/checkpoints/best.ckpt"
    own = runs.evaluate(tmp_path / "own", checkpoint)
    other = runs.evaluate(tmp_path / "other", checkpoint, f"annotations.entity_names={files}/names.tsv")
    assert runs.digits(own) == runs.digits(other)
    assert "<h2>Types</h2>" in (tmp_path / "own" / "report.html").read_text()
    assert "<h2>Types</h2>" not in (tmp_path / "other" / "report.html").read_text()


def test_files_that_are_gone_or_changed(tmp_path):
    types = tmp_path / "types.tsv"
    types.write_text("usa\twest\nuk\twest\n")
    runs.train(tmp_path / "run", f"annotations.entity_types={types}", "sampler=same_type")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    types.write_text("usa\twest\nuk\teast\n")
    with pytest.raises(UserError) as caught:
        runs.resume(last, "trainer.max_epochs=3")
    assert re.fullmatch(
        r"annotations\.entity_types: the types changed since the checkpoint was written \(digest [0-9a-f]{12}, then "
        r"[0-9a-f]{12}\), and a sampler may draw by them: start a new run",
        str(caught.value),
    )
    types.unlink()
    runs.evaluate(tmp_path / "evaluated", f"checkpoint={last}")
    log = (tmp_path / "evaluated" / "evaluate.log").read_text()
    assert f"warning: {types} is gone; annotations.entity_types=FILE says where it is now" in log
    with pytest.raises(UserError, match="no such file"):
        runs.resume(last, "trainer.max_epochs=3")


def test_the_sampler_needs_types(tmp_path):
    with pytest.raises(UserError) as caught:
        runs.train(tmp_path / "run", "sampler=same_type")
    assert str(caught.value) == "sampler=same_type: no entity has a type; give annotations.entity_types=FILE"
