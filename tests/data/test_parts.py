"""Files read in parts give the graph that they give as a whole, and what is odd is left to the reader."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import runs
import torch

from kgc.data.catalogue import load_folder
from kgc.data.graph import load_graph
from kgc.data.parts import graph_in_parts
from kgc.data.reader import PLAIN, Layout, find_split
from kgc.errors import UserError


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("kgc.data.parts._BYTES", 1000)


def paths(folder: Path) -> dict[str, Path | None]:
    return {split: find_split(folder, split) for split in ("train", "valid", "test")}


def assert_equal(first, second) -> None:
    assert first.entities == second.entities
    assert first.relations == second.relations
    for split in ("train", "valid", "test"):
        for column in ("head", "relation", "tail"):
            assert torch.equal(getattr(first.split(split), column), getattr(second.split(split), column))
    assert first.report == second.report
    assert first.dropped == second.dropped


@pytest.mark.parametrize("packed", [False, True])
def test_real_data(packed, tmp_path):
    folder = runs.write_splits(tmp_path / "data", **runs.bundled("umls"))
    plain = load_graph(folder, "umls")
    if packed:
        for path in list(folder.iterdir()):
            path.with_suffix(".txt.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert_equal(graph_in_parts(paths(folder), PLAIN, "umls"), plain)


@pytest.mark.parametrize(
    ("name", "text", "layout"),
    [
        ("train.txt", "b\tr\ta\na\tr\tc", PLAIN),  # no line end at the end
        ("train.txt", "b\tr\ta\r\na\tr\tc\r\n\r\n\n", PLAIN),
        ("train.tsv", 'nan\tNA\t"x\n é \tr\t\u2028\n', PLAIN),
        ("train.csv", "b,r,a\na,r,c\n", PLAIN),
        ("train.txt", "b\ta\tr\tignored\nc\tb\tr\ttoo\n" * 200, Layout(order="htr-")),
    ],
)
def test_text(name, text, layout, tmp_path):
    (tmp_path / name).write_bytes(text.encode())
    assert_equal(graph_in_parts(paths(tmp_path), layout, "x"), load_graph(tmp_path, "x", layout=layout))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.txt", b"a\tr\n"),
        ("train.txt", b"a\tr\tb\tc\n"),
        ("train.txt", b"a\tr\tb\n\nc\tr\tb\n"),
        ("train.txt", b"a\t\tb\n"),
        ("train.txt", b"a\tr\tb\xff\n"),
        ("train.txt", b"\xef\xbb\xbfa\tr\tb\n"),
        ("train.txt", "a\tr\tb\n".encode("utf-16")),
        ("train.txt.gz", gzip.compress(b"a\tr\tb\n" * 99, mtime=0)[:-9]),
        ("train.csv", b'a,r,"b"\n'),
        ("train.csv", b":START_ID,:TYPE,:END_ID\na,r,b\n"),
        ("train.txt", b""),
        ("train.parquet", b"PAR1"),
    ],
)
def test_what_is_odd_is_left_to_the_reader(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert graph_in_parts(paths(tmp_path), PLAIN, "x") is None


def test_large_folders_are_read_in_parts_and_mistakes_have_their_line(tmp_path, monkeypatch):
    monkeypatch.setenv("KGC_CACHE", str(tmp_path / "cache"))
    folder = runs.write_splits(tmp_path / "data", **runs.bundled("nations"))
    plain = load_folder(str(folder))
    monkeypatch.setattr("kgc.data.cache._LARGE", 1000)
    with monkeypatch.context() as patch:
        patch.setattr("kgc.data.catalogue.read_folder", None)  # not called
        assert_equal(load_folder(str(folder)), plain)
    with (folder / "train.txt").open("a") as file:
        file.write("a\tb\n")
    with pytest.raises(UserError, match=r"train.txt:1593: 2 columns, expected 3"):
        load_folder(str(folder))
