"""Files that can be read and are not what they seem to be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kgc.data.catalogue import load_file, load_folder
from kgc.tasks.findings import notes


def header(path: Path, names: str) -> str:
    cure = f"dataset.columns=[{names}] takes it for the names of the columns"
    return f"{path}:1: looks like names of columns and is read as a triple; {cure}"


@pytest.mark.parametrize(
    ("first", "order", "names"),
    [
        ("head\trelation\ttail", "hrt", "head,relation,tail"),
        ("Subject\tPredicate\tObject", "hrt", "Subject,Predicate,Object"),
        ("s\to\tp", "htr", "s,p,o"),
        ("h\tt\tr", "hrt", "h,r,t"),  # another order than the one that is read
        ("SOURCE\tRELATION\tTARGET", "hrt", "SOURCE,RELATION,TARGET"),
        ("head\tr\ttail", "hrt", None),
        ("a\tb\tc\nhead\trelation\ttail", "hrt", None),  # not the first line
    ],
)
def test_a_line_of_names_that_is_read_as_a_triple(first, order, names, tmp_path, monkeypatch):
    monkeypatch.setenv("KGC_CACHE", str(tmp_path / "cache"))
    text = f"{first}\na\tb\tc\na\tb\tc\n"
    (tmp_path / "train.tsv").write_text(text)
    (tmp_path / "valid.csv.gz").write_bytes(gzip.compress(text.replace("\t", ",").encode()))
    (tmp_path / "test.txt").write_text("a\tb\tc\n")
    for words in ({}, {"drop": ["duplicates", "leaks", "unseen"]}, {"cache": True}, {"cache": True}):
        graph = load_folder(tmp_path, order=order, **words)
        assert graph.notes == [header(tmp_path / name, names) for name in ("train.tsv", "valid.csv.gz") if names]
    assert not set(graph.notes) - set(graph.lines())
    assert not set(graph.notes) - set(notes(graph))
    path = tmp_path / "train.tsv"
    graph = load_file(path, order=order, fractions=[0.4, 0.3, 0.3])
    assert graph.notes == ([header(path, names)] if names else [])
    if names:
        (tmp_path / "all.tsv").write_text(text)
        assert load_file(tmp_path / "all.tsv", columns=names.split(",")).notes == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("dev.txt", "valid.txt"), ("validation.tsv.gz", "valid.tsv.gz"), ("val.parquet", "valid.parquet")],
)
def test_a_split_under_a_name_that_is_not_read(name, wanted, tmp_path):
    (tmp_path / "train.txt").write_text("a\tb\tc\n")
    (tmp_path / name).touch()
    (tmp_path / "testing.txt").touch()
    assert load_folder(tmp_path).notes == [
        f"{tmp_path}: no valid split found; {name} is not read, it must be named {wanted}",
        f"{tmp_path}: no test split found; testing.txt is not read, it must be named test.txt",
    ]
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a\tb\tc\n")
    assert load_folder(tmp_path).notes == []
