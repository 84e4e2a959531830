"""Splits of one file: by a column, by chance, by entity, by time."""

from __future__ import annotations

import random
import tempfile
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
import runs
from hypothesis import given, settings
from hypothesis import strategies as st

from kgc.data.catalogue import load_file
from kgc.data.graph import KnowledgeGraph
from kgc.data.splitting import split_by_time
from kgc.errors import UserError

SPLITS = ("train", "valid", "test")
Labels = tuple[str, str, str]


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def labelled(graph: KnowledgeGraph) -> dict[str, list[Labels]]:
    found = {}
    for split in SPLITS:
        part = graph.split(split)
        columns = (part.head.tolist(), part.relation.tolist(), part.tail.tolist())
        rows = zip(*columns, strict=True)
        found[split] = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in rows]
    return found


def write(folder: Path, triples: list[Labels]) -> Path:
    path = folder / "all.tsv"
    path.write_text("".join("\t".join(triple) + "\n" for triple in triples))
    return path


triples = st.lists(
    st.tuples(*(st.sampled_from(letters) for letters in ("abcdefgh", "rst", "abcdefgh"))), min_size=1, max_size=40
)


@settings(max_examples=30)
@given(triples=triples, seed=st.integers(0, 5), way=st.sampled_from(["transductive", "inductive"]))
def test_nothing_is_lost_and_the_order_of_lines_is_nothing(triples, seed, way):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), triples)
        words = {"split": way, "fractions": [0.6, 0.2, 0.2], "seed": seed}
        if way == "inductive" and len({end for head, _, tail in triples for end in (head, tail)}) < 8:
            return  # too few entities: train may be left with nothing
        graph = load_file(path, **words)
        found = labelled(graph)
        random.Random(seed).shuffle(triples)
        again = load_file(write(Path(folder), triples), **words)
    assert sorted(triple for part in found.values() for triple in part) == sorted(set(triples))
    assert graph.dropped["repeated triples"] == len(triples) - len(set(triples))
    assert again.digest == graph.digest
    in_train = {end for head, _, tail in found["train"] for end in (head, tail)}
    if way == "transductive":
        assert graph.report.unseen_entities == graph.report.unseen_relations == 0
        assert len(found["valid"]) <= 0.2 * len(set(triples))
        assert len(found["test"]) <= 0.2 * len(set(triples))
    else:
        in_valid = {end for head, _, tail in found["valid"] for end in (head, tail)}
        assert all(head not in in_train or tail not in in_train for head, _, tail in found["valid"])
        assert all({head, tail} - in_train - in_valid for head, _, tail in found["test"])


def test_sizes_on_real_data(tmp_path):
    rows = [triple for split in runs.bundled("umls").values() for triple in split]
    path = write(tmp_path, rows)
    graph = load_file(path, seed=1)
    assert [len(graph.split(split)) for split in SPLITS] == [len(rows) - 2 * (len(rows) // 10), *[len(rows) // 10] * 2]
    assert graph.report.unseen_entities == 0
    assert graph.digest != load_file(path, seed=2).digest
    assert graph.name == "all"


def test_few_free_triples_are_shared(tmp_path):
    """A chain: only repetitions between the same ends are free."""
    rows = [(str(i), "r", str(i + 1)) for i in range(8)] + [("0", "r", "0"), ("8", "r", "8")]
    graph = load_file(write(tmp_path, rows), fractions=[0.2, 0.4, 0.4])
    assert graph.report.unseen_entities == 0
    assert len(graph.valid) > 0
    assert len(graph.test) > 0


def test_held_out_entities_occur_in_no_triple_of_train(tmp_path):
    """Every pair of 20 entities is a triple: 16 entities make train, 2 more valid, and the last 2 test."""
    names = [f"e{i}" for i in range(20)]
    path = write(tmp_path, [(head, "r", tail) for head in names for tail in names])
    found = labelled(load_file(path, split="inductive", fractions=[0.8, 0.1, 0.1], seed=3))
    assert [len(found[split]) for split in SPLITS] == [16**2, 18**2 - 16**2, 20**2 - 18**2]
    ends = [{end for head, _, tail in found[split] for end in (head, tail)} for split in SPLITS]
    assert [len(each) for each in ends] == [16, 18, 20]


def test_split_column(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("s,p,o,part\na,r,b,Train\na,r,c,dev\nb,r,c,test\na,r,b,training\n")
    columns = {"columns": ["s", "p", "o"], "split_column": "part"}
    found = labelled(load_file(path, **columns))
    assert found == {"train": [("a", "r", "b")] * 2, "valid": [("a", "r", "c")], "test": [("b", "r", "c")]}
    path.write_text("s,p,o,part\na,r,b,train\na,r,c,held out\n")
    expected = f"{path}: 'held out' in the column part; expected train, valid or test"
    assert message(load_file, path, **columns) == expected
    path.write_text("s,p,o,part\na,r,c,test\n")
    expected = f"{path}: no triple is left for train; give train a larger share in dataset.fractions"
    assert message(load_file, path, **columns) == expected
    pl.DataFrame({"head": ["a"], "relation": ["r"], "tail": ["b"], "part": ["train"]}).write_parquet(
        tmp_path / "p.parquet"
    )
    assert len(load_file(tmp_path / "p.parquet", split_column="part").train) == 1


@pytest.mark.parametrize("way", [{"split_column": "part"}, {"split": "time", "time_column": "part"}])
def test_columns_beside_the_triples_are_never_labels(way, tmp_path):
    """Wherever the column of splits or times stands, the others need names, in Parquet as in CSV."""
    frame = pl.DataFrame({"part": ["train"], "s": ["a"], "p": ["r"], "o": ["b"]})
    if "split" in way:
        frame = frame.with_columns(part=pl.lit("2024"))
    frame.write_parquet(tmp_path / "all.parquet")
    frame.write_csv(tmp_path / "all.csv")
    cure = "dataset.columns=[…] names those of heads, relations and tails"
    for path in (tmp_path / "all.parquet", tmp_path / "all.csv"):
        expected = f"{path}: no column 'head'; its columns are 'part', 's', 'p', 'o'; {cure}"
        assert message(load_file, path, **way) == expected
        named = load_file(path, columns=["s", "p", "o"], fractions=[1, 0, 0], **way)
        assert labelled(named)["train"] == [("a", "r", "b")]


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        (["3", "1", "2", "10", "9"], ["bca", "e", "d"]),  # numbers, not text
        (["2020-03-01", "2019", "2020-02-28", "2021-01-01", "2020-12-31T10:00"], None),
        (["2020-03-01", "2019-01", "2020-02-28", "2021-01-01", "2020-12-31T10:00"], ["bca", "e", "d"]),
        (["1", "1", "1", "1", "2"], ["", "", ""]),
        (["1", "2", "2", "2", "2"], ["a", "", "bcde"]),  # of one moment, in the later split
    ],
)
def test_by_time(times, parts, tmp_path):
    path = tmp_path / "all.csv"
    rows = [f"{head},r,x,{time}\n" for head, time in zip("abcde", times, strict=True)]
    path.write_text("head,relation,tail,when\n" + "".join(rows))
    words = {"split": "time", "time_column": "when", "fractions": [0.6, 0.2, 0.2]}
    if parts is None:
        assert message(load_file, path, **words).startswith(f"{path}:3: '2019' in the column when is no time; ")
    elif parts == ["", "", ""]:
        assert message(load_file, path, **words).startswith(f"{path}: no triple is left for train")
    else:
        found = labelled(load_file(path, **words))
        assert ["".join(head for head, _, _ in found[split]) for split in SPLITS] == parts


MOMENTS = [  # each with all texts of that moment
    ["2024-05-31T10:00:00Z", "2024-05-31 12:00+02:00", "2024-05-31T05:30:00,000-0430", "2024-05-31T10:00:00.0+00"],
    ["2024-05-31T10:00:00.000000001Z"],
    ["2024-05-31T10:00:00.5Z", "2024-05-31T10:00:00.500Z"],
    ["2024-06-01Z", "2024-05-31T23:00-01", "2024-06-01T02:00+02:00", "2024-06-01+00:00"],
    ["2024-06-01T01:00Z"],
]
LOCAL = [
    ["0001-01-01"],
    ["2024-02", "2024-02-01", "2024-02-01 00:00", "2024-02-01T00:00:00.000"],
    ["2024-02-29"],
    ["2024-05-31T01:00"],
    ["2024-05-31 23:00"],
    ["9999-12-31T23:59:59.999999999"],
]


@pytest.mark.parametrize("moments", [MOMENTS, LOCAL])
def test_order_of_dates_is_that_of_time(moments):
    texts = [(text, place) for place, same in enumerate(moments) for text in same]
    random.Random(1).shuffle(texts)
    frame = pl.DataFrame([(i, f"e{place}", "r", "x", text) for i, (text, place) in enumerate(texts)], orient="row")
    frame.columns = ["_row", "head", "relation", "tail", "when"]
    for place in range(1, len(moments)):
        before = sum(other < place for _, other in texts)
        distinct = frame.with_columns(tail=pl.col("_row").cast(pl.String))
        parts = split_by_time(distinct, "when", [before / len(texts), 1 - before / len(texts), 0], str)
        assert set(parts["train"]["head"]) == {f"e{i}" for i in range(place)}
        assert set(parts["valid"]["head"]) == {f"e{i}" for i in range(place, len(moments))}


def test_times_of_a_parquet_file_have_its_type(tmp_path):
    times = pl.Series([datetime(2024, 5, 31, 23), datetime(2024, 5, 31, 1), datetime(2024, 6, 1, 0, 0, 0, 5)])
    for zone in (None, "Europe/Berlin"):
        frame = pl.DataFrame({"head": ["b", "a", "c"], "relation": "r", "tail": "x"})
        frame.with_columns(when=times.dt.replace_time_zone(zone)).write_parquet(tmp_path / "all.parquet")
        words = {"split": "time", "time_column": "when", "fractions": [0.34, 0.33, 0.33]}
        found = labelled(load_file(tmp_path / "all.parquet", **words))
        assert [found[split][0][0] for split in SPLITS] == ["a", "b", "c"]


NO_TIME = (
    "is no time; expected numbers throughout, or ISO 8601 dates such as 2024-05-31 or 2024-05-31T23:00:00+02:00 "
    "throughout"
)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        *(
            (bad, NO_TIME)
            for bad in ("2024-99-99", "2023-02-29", "2024-05-31T24:00", "2024-05-31T10:00:60", "2024-05Z")
        ),
        *((bad, NO_TIME) for bad in ("2024-05-31-10", "2024-05-31T10", "31.05.2024", "2024-05-31T10:00+25", "nan", "")),
        ("2024-05-31T10:00Z", "has a zone, unlike '2024-05-31'; give all times a zone, or none"),
    ],
)
def test_no_times(time, expected, tmp_path):
    path = tmp_path / "all.csv"
    path.write_text(f"head,relation,tail,when\na,r,b,2024-05-31\na,r,c,{time}\n")
    words = {"split": "time", "time_column": "when"}
    assert message(load_file, path, **words) == f"{path}:3: {time!r} in the column when {expected}"


SHARES = "must be the shares of train, valid and test, such as [0.8,0.1,0.1]"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"split": "no"},
            "dataset.split=no: choices are transductive, inductive, time; or name a dataset.split_column",
        ),
        ({"split": "time"}, "dataset.split=time: dataset.time_column must name the column of the times"),
        ({"seed": -1}, "dataset.seed=-1: must be a whole number, at least 0"),
        ({"fractions": [0.5, 0.5]}, f"dataset.fractions=[0.5, 0.5]: {SHARES}"),
        ({"fractions": [0.8, 0.1, 0.2]}, f"dataset.fractions=[0.8, 0.1, 0.2]: {SHARES}"),
        ({"fractions": [0, 0.5, 0.5]}, f"dataset.fractions=[0, 0.5, 0.5]: {SHARES}"),
        ({"fractions": "most"}, f"dataset.fractions=most: {SHARES}"),
        (
            {"split_column": "part"},
            "{}: no column 'head'; its columns are 'a', 'r', 'b'; dataset.columns=[…] names those of heads, relations "
            "and tails",
        ),
    ],
)
def test_mistakes(words, expected, tmp_path):
    path = write(tmp_path, [("a", "r", "b")])
    assert message(load_file, path, **words) == expected.format(path)
