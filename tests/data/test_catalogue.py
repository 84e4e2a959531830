"""Named data sets: bundled, in $KGC_DATA, in the cache, or a clear word about why not."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pooch
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from kgc.data import catalogue
from kgc.data.catalogue import CATALOGUE, Entry, load_dataset, load_folder
from kgc.errors import UserError

CONF = Path(__file__).parents[2] / "conf" / "dataset"
# entities, relations, train, valid, test, entities of valid or test that never occur in train
PUBLISHED = {
    "nations": (14, 55, 1592, 199, 201, 0),
    "umls": (135, 46, 5216, 652, 661, 0),
    "kinship": (104, 25, 8544, 1068, 1074, 0),
    "codex_s": (2034, 42, 32888, 1827, 1828, 0),
    "wn18rr": (40943, 11, 86835, 3034, 3134, 384),
    "fb15k237": (14541, 237, 272115, 17535, 20466, 36),
}
BUNDLED = ["nations", "umls", "kinship"]


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.delenv("KGC_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def counts(graph) -> tuple[int, ...]:
    sizes = (len(graph.split(split)) for split in ("train", "valid", "test"))
    return (graph.num_entities, graph.num_relations, *sizes, graph.report.unseen_entities)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled(no_data, name):
    graph = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert graph.name == name
    assert counts(graph) == PUBLISHED[name]
    assert graph.report.overlap == {"train/valid": 0, "train/test": 0, "valid/test": 0}
    assert graph.report.unseen_relations == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_ready_data(name):
    root = os.environ.get("KGC_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"needs $KGC_DATA/{name}")
    start = time.perf_counter()
    graph = load_dataset(name)
    found = counts(graph)
    seconds = time.perf_counter() - start
    assert found == PUBLISHED[name]
    assert seconds < 3


def test_every_entry_has_a_config_and_the_published_counts():
    assert {path.stem for path in CONF.glob("*.yaml")} == {*CATALOGUE, "folder"}
    for name, entry in CATALOGUE.items():
        assert OmegaConf.load(CONF / f"{name}.yaml").name == name
        assert (entry.entities, entry.relations, entry.train, entry.valid, entry.test) == PUBLISHED[name][:5]


def test_folder_config(no_data, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.csv").write_text("a,r,b\n")
    config = OmegaConf.load(CONF / "folder.yaml")
    assert OmegaConf.is_missing(config, "path")
    config.path = str(tmp_path / "mine")
    graph = instantiate(config)
    assert graph.name == "mine"
    assert counts(graph) == (2, 1, 1, 0, 0, 0)
    assert load_folder(config.path, name="other").name == "other"


def test_kgc_data_comes_first_and_is_checked(no_data, monkeypatch, tmp_path):
    monkeypatch.setenv("KGC_DATA", str(tmp_path))
    full = load_dataset("nations")  # no such folder in KGC_DATA: bundled
    for name in ("nations", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("usa\tembassy\tuk\n")
    assert counts(load_dataset("mine")) == (2, 1, 1, 0, 0, 0)
    expected = "1 train triples, but nations has 1,592; get a complete copy, or use dataset=folder for a variant of it"
    assert message(load_dataset, "nations") == f"{tmp_path / 'nations'}: {expected}"
    known = {"entities": full.entities, "relations": full.relations}
    assert message(load_dataset, "nations", **known) == f"{tmp_path / 'nations'}: {expected}"


def test_unknown_name(no_data, monkeypatch, tmp_path):
    known = "codex_s, fb15k237, kinship, nations, umls, wn18rr"
    cure = "; for files of your own use dataset=folder dataset.path=DIR"
    assert message(load_dataset, "fb15k") == f"dataset 'fb15k' is not in the catalogue ({known}){cure}"
    monkeypatch.setenv("KGC_DATA", str(tmp_path))
    looked = f" and {tmp_path} has no folder of this name"
    assert message(load_dataset, "fb15k") == f"dataset 'fb15k' is not in the catalogue ({known}){looked}{cure}"


def local_entry(folder: Path, train_hash: str | None = None) -> Entry:
    """A catalogue entry whose files are in the cache already; its address answers nothing."""
    hashes = []
    for split in ("train", "valid", "test"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{split}.txt").write_text(f"a\tr\t{split}\n")
        hashes.append(pooch.file_hash(str(folder / f"{split}.txt")))
    return Entry(4, 1, 1, 1, 1, url="http://127.0.0.1:9/{split}.txt", sha256=(train_hash or hashes[0], *hashes[1:]))


def test_cache_is_used_without_network(no_data, monkeypatch):
    entry = local_entry(no_data / "cache" / "kgc" / "tiny")
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    assert counts(load_dataset("tiny")) == (4, 1, 1, 1, 1, 2)


def test_download_without_network(no_data, monkeypatch):
    folder = no_data / "cache" / "kgc" / "tiny"
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", local_entry(folder))
    shutil.rmtree(folder)
    assert message(load_dataset, "tiny") == (
        "cannot download tiny from http://127.0.0.1:9/train.txt (no connection); put its files in a folder tiny and "
        "set KGC_DATA to the folder above, or use dataset=folder dataset.path=DIR"
    )
