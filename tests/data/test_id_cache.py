"""Ids kept in mapped files: the same graph, read once, whoever else reads and writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs
import torch

from kgc.data import catalogue
from kgc.data.catalogue import load_file, load_folder
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError

TRAIN = [("b", "r", "a"), ("a", "q", "c"), ("b", "r", "a"), ("c", "q", "b")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KGC_CACHE", str(tmp_path / "cache"))
    return runs.write_splits(tmp_path / "data", train=TRAIN, valid=[("d", "r", "a")])


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    """The folders whose text was read."""
    read, done = catalogue.read_folder, []

    def counted(path, *arguments):
        done.append(path)
        return read(path, *arguments)

    monkeypatch.setattr(catalogue, "read_folder", counted)
    return done


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "graphs").glob("*"))


def assert_equal(first: KnowledgeGraph, second: KnowledgeGraph) -> None:
    assert first.entities == second.entities
    assert first.relations == second.relations
    for split in ("train", "valid", "test"):
        one, other = first.split(split), second.split(split)
        assert one.head.dtype == other.head.dtype == torch.int64
        for column in ("head", "relation", "tail"):
            assert torch.equal(getattr(one, column), getattr(other, column))
    assert first.digest == second.digest
    assert first.report == second.report
    assert first.dropped == second.dropped


def test_text_is_read_once_and_the_graph_is_the_same(folder, reads):
    plain = load_folder(str(folder), cache=False)
    graphs = [load_folder(str(folder), cache=True) for _ in range(3)]
    assert len(reads) == 2
    for graph in graphs:
        assert_equal(graph, plain)
        assert graph.stored("train").head.dtype == torch.int32
    assert len(kept(folder)) == 1
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("train.npy")]
    assert mapped


def test_small_files_are_not_kept_and_large_ones_are(folder, reads, monkeypatch):
    load_folder(str(folder))
    assert kept(folder) == []
    monkeypatch.setattr("kgc.data.cache._LARGE", 10)
    load_folder(str(folder))
    load_folder(str(folder))
    assert len(kept(folder)) == 1
    assert len(reads) == 1  # then in parts, see `kgc.data.parts`


def test_what_changes_the_triples_is_read_again(folder, reads):
    load_folder(str(folder), cache=True)
    with (folder / "train.txt").open("a") as file:
        file.write("a\tr\td\n")
    assert len(load_folder(str(folder), cache=True).train) == 5
    assert load_folder(str(folder), order="thr", cache=True).relations.labels == ["a", "b", "c", "d"]
    assert len(reads) == 3
    os.utime(folder / "train.txt", (1, 1))  # the same content
    shutil.copytree(folder, folder.parent / "copy")
    load_folder(str(folder.parent / "copy"), cache=True)
    assert len(reads) == 3


@pytest.mark.parametrize("key", ["train", "valid", "entity_ids"])
def test_a_file_of_libkge_by_any_name_is_read_again(key, tmp_path):
    """Two folders with other files under the same names: the second is not the first."""
    files = {
        "entity_ids": ("0\ta\n1\tb\n", "0\tb\n1\ta\n"),
        "relation_ids": ("0\tr\n",) * 2,
        "train": ("0\t0\t1\n", "0\t0\t0\n"),
        "valid": ("0\t0\t1\n", "1\t0\t0\n"),
    }
    for name, (text, _) in files.items():
        (tmp_path / f"{name}.del").write_text(text)
    if key == "entity_ids":
        (tmp_path / "entity_ids.del").write_text("")  # what LibKGE folders are known by
    (tmp_path / "dataset.yaml").write_text(f"dataset:\n  files.{key}.filename: own.txt\n")
    for text in files[key]:
        (tmp_path / "own.txt").write_text(text)
        assert_equal(load_folder(str(tmp_path), cache=True), load_folder(str(tmp_path), cache=False))


def test_a_file_that_is_split_here(folder):
    words = {"fractions": [0.5, 0.25, 0.25], "split": "transductive"}
    plain, first, again, other = (
        load_file(str(folder / "train.txt"), cache=cache, seed=seed, **words)
        for cache, seed in ((False, 0), (True, 0), (True, 0), (True, 1))
    )
    assert_equal(first, plain)
    assert_equal(again, plain)
    assert len(kept(folder)) == 2
    assert other.dropped == {"statements with literals": 0, "repeated triples": 1}


def test_in_the_vocabularies_of_a_model(folder):
    load_folder(str(folder), cache=True)
    known = {"entities": Vocabulary(["d", "c", "b", "a", "more"]), "relations": Vocabulary(["r", "q"])}
    assert_equal(load_folder(str(folder), cache=True, **known), load_folder(str(folder), cache=False, **known))
    with pytest.raises(UserError, match=r"^data: triple 4 of train: entity 'c' is not among the model's 2 entities"):
        load_folder(str(folder), cache=True, entities=Vocabulary(["a", "b"]))


def test_dropping_works_on_what_is_kept(folder):
    for _ in range(2):
        graph = load_folder(str(folder), cache=True, drop=["duplicates", "unseen"])
        assert (len(graph.train), len(graph.valid)) == (3, 0)


def test_a_damaged_file_is_made_anew(folder, reads):
    plain = load_folder(str(folder), cache=False)
    load_folder(str(folder), cache=True)
    for name, text in (("train.npy", b"no array"), ("facts.json", b"{"), ("entities.arrow", b"")):
        (kept(folder)[0] / name).write_bytes(text)
        assert_equal(load_folder(str(folder), cache=True), plain)
    assert len(reads) == 5


def test_a_cache_that_cannot_be_written_costs_a_warning(folder, monkeypatch, caplog):
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("KGC_CACHE", str(folder.parent / "file"))
    assert_equal(load_folder(str(folder), cache=True), load_folder(str(folder), cache=False))
    assert "dataset.cache=false does without" in caplog.text


def test_a_folder_that_may_only_be_read(folder):
    folder.chmod(0o555)
    try:
        load_folder(str(folder), cache=True)
    finally:
        folder.chmod(0o755)
    assert {path.name for path in folder.iterdir()} == {"train.txt", "valid.txt"}
    assert len(kept(folder)) == 1


def test_processes_that_write_the_same_one_at_once(folder):
    code = f"from kgc.data.catalogue import load_folder; print(load_folder({str(folder)!r}, cache=True).digest)"
    environment = os.environ | {"PYTHONPATH": str(runs.REPOSITORY)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {process.communicate(timeout=240)[0].strip() for process in started}
    assert said == {load_folder(str(folder), cache=False).digest}
    assert [process.returncode for process in started] == [0, 0, 0]
    (one,) = kept(folder)
    assert json.loads((one / "facts.json").read_text())["known"]["digest"] in said
