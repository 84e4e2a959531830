"""The console's closing table and the page: numbers by hand, and HTML that is closed, escaped and self-contained."""

from __future__ import annotations

import html
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from kgc import page, plots
from kgc.report import metrics_table, ranked_parts, write_report
from kgc.sections import breakdown_by_relation, category_table

VOID = {"meta", "wbr", "br", "img", "link", "input", "hr"}
METRICS = {
    "test/mrr": 0.51234,
    "test/mr": 1234.56,
    "test/hits@1": 0.4,
    "test/hits@10": 0.75,
    "test/hits@3": 0.6,
    "test/head/mrr": 0.25,
    "test/optimistic/mrr": 0.6,
    "test/amr": 0.0123,
    "test/amri": 0.9755,
    "test/num_queries": 1322.0,
    "test/num_tied": 33.0,
    "test/num_unseen": 0.0,
    "test/seconds": 1.25,
    "train/seconds": 60.0,
}
HOSTILE = "<script>alert(1)</script>&amp;\"'\x1b[31mred\x1b[0m\x1b]0;title\x07\x00"


class Page(HTMLParser):
    """Reads a page, fails on a tag that is not closed in order, and keeps what the tests look at."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len({name for name, _ in attrs}), f"<{tag}> repeats an attribute"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if self.open:
            self.words.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def frame(rows: list[tuple[str, str, float]]) -> pl.DataFrame:
    """ranks.parquet from (relation, side, realistic rank); a half rank is a tie of two."""
    relations, sides, realistic = zip(*rows, strict=True)
    return pl.DataFrame(
        {
            "head": [f"h{i}" for i in range(len(rows))],
            "relation": relations,
            "tail": [f"t{i}" for i in range(len(rows))],
            "side": sides,
            "optimistic": [math.floor(rank) for rank in realistic],
            "pessimistic": [math.ceil(rank) for rank in realistic],
            "realistic": realistic,
            "candidates": [5000] * len(rows),
        }
    )


RANKS = frame([("likes", "tail", 1.0), ("likes", "head", 4.0), ("likes", "tail", 20.0), ("knows", "head", 2.5)])
HISTORY = [
    {"epoch": 0, "train/loss": 2.0, "valid/mrr": 0.1},
    {"epoch": 1, "train/loss": math.nan, "valid/mrr": 0.4},
    {"epoch": 2, "train/loss": 0.5},
    {"epoch": 3, "train/loss": 0.25, "valid/mrr": 0.3},
]


def report(path: Path, **changes: object) -> Page:
    arguments = {
        "title": "rotate on umls",
        "metrics": METRICS,
        "ranks": RANKS,
        "history": HISTORY,
        "config": "model:\n  dim: 8\n",
        "facts": {"command": "python train.py"},
    }
    write_report(path / "report.html", **(arguments | changes))
    return Page(path / "report.html")


def printed(metrics: dict[str, float], prefix: str = "test") -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(metrics_table(metrics, prefix))
    return console.file.getvalue()


def test_console_table() -> None:
    lines = [line.split() for line in printed(METRICS).splitlines()]
    assert ["MRR", "MR", "Hits@1", "Hits@3", "Hits@10"] in lines
    assert ["both", "sides", "0.5123", "1,234.6", "0.4000", "0.6000", "0.7500"] in lines
    assert ["head", "0.2500", "–", "–", "–", "–"] in lines
    assert ["optimistic", "0.6000", "–", "–", "–", "–"] in lines
    assert not [line for line in lines if line[:1] in (["tail"], ["pessimistic"])]
    caption = " ".join(printed(METRICS).split())
    assert "AMR 0.0123 · AMRI 0.9755 · 1,322 queries · 33 tied · 0 unseen · 1.25 s" in caption


def test_console_table_takes_only_the_prefix_and_any_k() -> None:
    output = printed({"valid/hits@50": 0.5, "valid/tail/hits@2": 0.25, "test/hits@7": 0.1}, "valid")
    assert [line.split() for line in output.splitlines() if "Hits" in line] == [["MRR", "MR", "Hits@2", "Hits@50"]]
    assert ["tail", "–", "–", "0.2500", "–"] in [line.split() for line in output.splitlines()]
    assert "–" not in printed({})


SAMPLED = {
    "test/sampled/mrr": 0.5,
    "test/sampled/mrr_low": 0.41,
    "test/sampled/mrr_high": 0.59,
    "test/sampled/mr": 7.0,
    "test/sampled/hits@10": 0.75,
    "test/sampled/hits@10_low": 0.66,
    "test/sampled/hits@10_high": 0.84,
    "test/sampled/num_triples": 1000,
    "test/sampled/split_triples": 20466,
    "valid/mrr": 0.3,
}


def test_a_sample_is_called_an_estimate_on_the_console() -> None:
    lines = [line.split() for line in printed(SAMPLED, "test/sampled").splitlines() if line.strip()]
    words = " ".join(printed(SAMPLED, "test/sampled").split())
    assert words.startswith("test: estimate from 1,000 of 20,466 triples, filtered ranks ")
    assert ["both", "sides", "0.5000", "7.0", "0.7500"] in lines
    assert ["95", "%,", "from", "0.4100", "–", "0.6600"] in lines
    assert ["95", "%,", "to", "0.5900", "–", "0.8400"] in lines


def test_a_sample_is_called_an_estimate_everywhere_on_the_page(tmp_path: Path) -> None:
    page = report(tmp_path, metrics=SAMPLED)
    assert ["95 %, from", "0.4100", "–", "0.6600"] in page.rows
    assert "Metrics: test, estimate from 1,000 of 20,466 triples, filtered ranks" in page.words["h2"]
    assert "Metrics: valid" in page.words["h2"]
    # Under the heading, at the curves and at the relations.
    assert page.source.lower().count("estimate from 1,000 of 20,466 triples") == 4
    assert "estimate" not in report(tmp_path).source.lower()


def test_parts_of_metrics_that_were_ranked() -> None:
    assert ranked_parts(SAMPLED) == ["test/sampled", "valid"]
    assert ranked_parts(METRICS) == ["test"]
    assert ranked_parts({"train/seconds": 1.0}) == []


def test_breakdown_by_relation() -> None:
    table = breakdown_by_relation(RANKS)
    assert table.columns == ["relation", "count", "mrr", "mr", "hits@1", "hits@3", "hits@10"]
    likes, knows = table.rows()
    assert likes[:2] == ("likes", 3)
    assert likes[2:] == pytest.approx(((1 + 0.25 + 0.05) / 3, 25 / 3, 1 / 3, 1 / 3, 2 / 3), rel=1e-14)
    assert knows == ("knows", 1, 0.4, 2.5, 0.0, 1.0, 1.0)
    assert breakdown_by_relation(RANKS.clear()).shape == (0, 7)


def test_breakdown_orders_equal_counts_by_name() -> None:
    ranks = frame([("b", "tail", 1.0), ("a", "tail", 2.0), ("c", "tail", 3.0), ("c", "tail", 3.0)])
    assert breakdown_by_relation(ranks)["relation"].to_list() == ["c", "a", "b"]


def test_breakdown_reads_categories() -> None:
    ranks = RANKS.with_columns(pl.col("relation").cast(pl.Categorical))
    assert breakdown_by_relation(ranks).equals(breakdown_by_relation(RANKS))


def test_page_numbers(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert ["both sides", "0.5123", "1,234.6", "0.4000", "0.6000", "0.7500"] in page.rows
    assert ["likes", "3", "0.4333", "0.6667"] in page.rows
    assert ["knows", "1", "0.4000", "1.0000"] in page.rows
    assert ["test/mrr", "0.51234"] in page.rows
    assert ["command", "python train.py"] in page.rows
    assert page.words["pre"] == ["model:\n  dim: 8\n"]
    text = " ".join(page.source.split())
    assert "2.50% of the queries tie" in text  # 33 of 1322
    assert "Best: 0.4000 at epoch 1." in text
    assert "Training loss over epochs. 1 non-finite value is left out." in text
    assert "At K = 10: 50.0% for tail, 100.0% for head." in text
    assert "Median: 10.5 for tail, 3.2 for head." in text


def test_page_is_one_file_for_every_screen(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "http" not in page.source.replace("http-equiv", "")
    assert "@import" not in page.source
    assert re.findall(r"url\((?!#)", page.source) == []
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert page.all("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in page.source
    assert "@media print" in page.source
    scrolls = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(scrolls) == len(page.all("table"))


def test_pictures_have_words_and_the_pages_colours(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert len(page.all("svg")) == len(page.all("figcaption")) == 4
    alts = [attributes["aria-label"] for attributes in page.all("svg")]
    assert {attributes["role"] for attributes in page.all("svg")} == {"img"}
    assert alts[0] == "Training loss over epochs, from 2 at epoch 0 to 0.25 at epoch 3."
    assert alts[2] == (
        "Histogram of ranks. Below 2: 50.0% of tail queries, 0.0% of head queries. "
        "Median rank: 10.5 for tail, 3.2 for head."
    )
    assert len(set(alts)) == 4
    drawn = page.source[page.source.index("<svg") : page.source.rindex("</svg>")]
    assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name in re.findall(r'(?:url\(|href=")#([^)"]+)', drawn):
        assert name in ids


def test_labels_from_outside_are_escaped(tmp_path: Path) -> None:
    page = report(
        tmp_path,
        title=HOSTILE,
        ranks=frame([(HOSTILE, "tail", 1.0)]),
        config=f"label: {HOSTILE}",
        facts={HOSTILE: HOSTILE, "surrogate": "a\udce9b"},
    )
    clean = "<script>alert(1)</script>&amp;\"'red"
    assert not page.all("script")
    assert [clean, "1", "1.0000", "1.0000"] in page.rows
    assert [clean, clean] in page.rows
    assert page.words["h1"] == page.words["title"] == [clean]
    assert page.words["pre"] == [f"label: {clean}"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page.source)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x9b31mx", "31mx"),
        ("a\x1b", "a"),
        ("tab\tnew\nline\r\n", "tab\tnew\nline\n"),
        ("東京 <é>", "東京 &lt;é&gt;"),
    ],
)
def test_escape_codes_are_removed(raw: str, clean: str) -> None:
    assert page.text(raw) == clean


def test_long_labels_are_cut() -> None:
    assert html.unescape(page.label("x" * 1000)) == f"<bdi>{'x' * 199}…</bdi>"
    assert page.label("a/b") == "<bdi>a/<wbr>b</bdi>"


def test_page_without_training(tmp_path: Path) -> None:
    page = report(tmp_path, history=[], metrics={"valid/mrr": 1.0}, facts={})
    assert len(page.all("svg")) == 2
    assert "on the valid split" in page.source


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_page_of_a_run_that_diverged(tmp_path: Path, value: float) -> None:
    page = report(tmp_path, history=[{"epoch": epoch, "train/loss": value} for epoch in range(2)])
    assert len(page.all("svg")) == 2
    assert "Training loss: no picture. 2 non-finite values are left out." in page.source


@pytest.mark.parametrize("rank", [1.0, 1.5, 2.0, 10.0, 2_500_000.0])
@pytest.mark.parametrize("side", ["head", "tail"])
def test_page_of_one_query(tmp_path: Path, rank: float, side: str) -> None:
    page = report(tmp_path, ranks=frame([("only", side, rank)]), history=[{"epoch": 0, "train/loss": 1.0}])
    assert ["only", "1", f"{1 / rank:.4f}", f"{float(rank <= 10):.4f}"] in page.rows
    assert len(page.all("svg")) == 3


def test_page_without_queries(tmp_path: Path) -> None:
    page = report(tmp_path, ranks=RANKS.clear(), metrics={}, history=[])
    assert not page.all("svg")


def test_many_queries_relations_and_epochs_stay_small(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    size = 40_000
    ranks = pl.DataFrame(
        {
            "relation": [f"/very/long/path/to/a/relation/{i % 1000:04}" for i in range(size)],
            "side": ["head", "tail"] * (size // 2),
            "realistic": np.floor(np.exp(generator.exponential(2.0, size))),
        }
    )
    history = [{"epoch": i, "train/loss": 1 / (i + 1), "valid/mrr": i / 40_000} for i in range(20_000)]
    page = report(tmp_path, ranks=ranks, history=history)
    assert len(page.source) < 300_000
    assert page.words["h3"] == ["Highest MRR", "Lowest MRR", "Most frequent"]
    relations = breakdown_by_relation(ranks)
    listed = [row for row in page.rows if row[0].startswith("/very")]
    assert len(listed) == 40
    assert float(listed[0][2]) == round(relations["mrr"].max(), 4)
    assert float(listed[10][2]) == round(relations["mrr"].min(), 4)
    shown = len({row[0] for row in listed})
    assert f"1,000 relations; {shown} are shown, {1000 - shown:,} more can be" in page.source
    assert "Best: 0.5000 at epoch 19999." in page.source


def test_page_is_the_same_every_time(tmp_path: Path) -> None:
    first = report(tmp_path).source
    assert report(tmp_path).source == first
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_headline_says_how_sure_it_is(tmp_path: Path) -> None:
    page = report(tmp_path, metrics=METRICS | {"test/mrr_low": 0.48, "test/mrr_high": 0.54444})
    assert page.words["small"] == ["95 %: 0.4800 to 0.5444"]
    assert ["95 %, from", "0.4800", "–", "–", "–", "–"] in page.rows


CATEGORIES = {
    "test/category/1-N/mrr": 0.4,
    "test/category/1-N/mr": 9.0,
    "test/category/1-N/hits@10": 0.6,
    "test/category/1-N/num_queries": 8,
    "test/category/1-N/head/mrr": 0.5,
    "test/category/1-N/head/num_queries": 4,
    "test/category/1-N/tail/mrr": 0.3,
    "test/category/1-N/tail/num_queries": 4,
    "test/category/N-N/head/mrr": 1.0,
    "test/category/N-N/head/num_queries": 2,
}


def test_categories_are_a_table_and_bars(tmp_path: Path) -> None:
    rows = category_table(CATEGORIES, "test").to_dicts()
    assert [(row["category"], row["side"], row["queries"], row["mrr"]) for row in rows] == [
        ("1-N", "both", 8, 0.4),
        ("1-N", "head", 4, 0.5),
        ("1-N", "tail", 4, 0.3),
        ("N-N", "head", 2, 1.0),
    ]
    assert category_table(CATEGORIES, "valid").is_empty()
    page = report(tmp_path, metrics=METRICS | CATEGORIES)
    bars = page.all("svg")[-1]
    assert bars["aria-label"] == ("MRR by relation category and side. 1-N: head 0.5000, tail 0.3000; N-N: head 1.0000.")
    assert {"1-N", "N-N", "8 queries", "0.50", "0.30", "1.00", "head", "tail"} <= set(page.words["text"])


def test_bars_are_as_high_as_their_values() -> None:
    svg = plots.grouped_bars({"a": {"x": 1.0, "y": 0.25}}, y_label="MRR", alt="bars")
    tops = [(float(m[2]) - float(m[3]), m[1]) for m in re.finditer(r'd="M([\d.]+) ([\d.]+)V([\d.]+)H', svg)]
    assert tops[1][0] == pytest.approx(tops[0][0] / 4, abs=0.1)


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [-3.0, 2.0], [1e-7, 3e-7], [2e6, 5e6], [0.0, 0.0]])
def test_ticks_hold_all_values_and_are_few(values: list[float]) -> None:
    scale = plots._linear(min(values), max(values))
    assert scale.low <= min(values)
    assert max(values) <= scale.high
    assert 2 <= len(scale.ticks) <= 8
    assert len(set(scale.ticks.values())) == len(scale.ticks)
    epochs = plots._linear(1, 7, whole=True)
    assert all(label == str(int(value)) for value, label in epochs.ticks.items())


def worst(label: str) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "head": ["h"],
            "relation": [label],
            "tail": ["t"],
            "side": ["tail"],
            "realistic": [1234.5],
            "score": [-3.25],
            "answers": [["first", label]],
            "answer_scores": [[2.0, 1.5]],
        }
    )


def test_worst_triples_stand_beside_what_was_answered(tmp_path: Path) -> None:
    page = report(tmp_path, worst=worst("likes"), notes=["odd: 7 triples"])
    assert ["h · likes · t", "1,234.5", "-3.25", "first (2)likes (1.5)"] in page.rows
    assert "<strong><bdi>t</bdi></strong>" in page.source
    assert "odd: 7 triples" in page.words["li"]
    hostile = report(tmp_path, worst=worst(HOSTILE), notes=[HOSTILE])
    assert not hostile.all("script")
    assert "<script>alert(1)</script>&amp;\"'red" in hostile.words["li"]
