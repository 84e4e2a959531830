"""Named data sets: bundled, in $KGC_DATA, in the cache, or a clear word about why not."""

from __future__ import annotations

import gzip
import os
import re
import time
from pathlib import Path

import pooch
import pytest
import runs
from hydra.utils import instantiate
from omegaconf import OmegaConf

from kgc.data.catalogue import catalogue, described, load_dataset, load_folder
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
    start = time.process_time()  # of all threads: other programs on the machine do not count
    graph = load_dataset(name)
    found = counts(graph)
    seconds = time.process_time() - start
    assert found == PUBLISHED[name]
    assert seconds < 3


NAMES = [
    *("nations", "umls", "kinship", "fb15k", "fb15k237", "wn18", "wn18rr", "codex_s", "codex_m", "codex_l", "yago310"),
    *("nell995", "countries_s1", "countries_s2", "countries_s3", "hetionet", "primekg", "drkg", "openbiolink"),
    *("wikidata5m", "ogbl_biokg", "ogbl_wikikg2"),
    *(f"{of}_v{version}{part}" for of in ("fb15k237", "wn18rr") for version in (1, 2, 3, 4) for part in ("", "_ind")),
]


def test_all_data_sets_are_there():
    assert sorted(NAMES) == catalogue()
    assert {path.stem for path in CONF.glob("*.yaml")} == {*NAMES, "folder", "file", "synthetic"}


@pytest.mark.parametrize("name", NAMES)
def test_what_the_catalogue_says(name):
    entry = described(name)
    source, expected = entry["source"], entry["expected"]
    assert entry["name"] == name
    assert source["licence"]
    assert re.search(r"[12]\d{3}", source["citation"])
    digest = expected["digest"]
    assert (digest is not None) == (name in PUBLISHED)
    assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)
    if name in PUBLISHED:
        counts = dict(zip(("entities", "relations", "train", "valid", "test"), PUBLISHED[name][:5], strict=True))
        assert {key: expected[key] for key in counts} == counts
    if name in BUNDLED:
        assert "files" not in source
        return
    for file in [source["archive"]] if "archive" in source else source["files"]:
        assert re.fullmatch(r"https?://\S+", file["url"])
        assert (file["sha256"] is not None) == (name in PUBLISHED)
        assert file["sha256"] is None or re.fullmatch("[0-9a-f]{64}", file["sha256"])
    if "archive" in source:
        assert all(file["member"] for file in source["files"])


def test_a_checkpoint_or_a_call_needs_the_name_only(no_data):
    """`source` and `expected` are the catalogue's unless given."""
    assert load_dataset("nations").digest == described("nations")["expected"]["digest"]


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
    expected = "1 train triples, but nations has 1,592; get a complete copy, "
    expected += "or use dataset=folder for a variant of it, or dataset.check=false"
    assert message(load_dataset, "nations") == f"{tmp_path / 'nations'}: {expected}"
    known = {"entities": full.entities, "relations": full.relations}
    assert message(load_dataset, "nations", **known) == f"{tmp_path / 'nations'}: {expected}"

    assert counts(load_dataset("nations", check=False)) == (2, 1, 1, 0, 0, 0)


def test_ready_copies_as_published(no_data, monkeypatch, tmp_path):
    """One list of triples is split here; columns and order are those of the source, unless there are three splits."""
    monkeypatch.setenv("KGC_DATA", str(tmp_path))
    for name, file, lines in (
        ("primekg", "kg.csv", "relation,x_index,y_index\nr,1,2\nr,2,3\n"),
        ("hetionet", "edges.tsv.gz", "source\tmetaedge\ttarget\n1\tr\t2\n2\tr\t3\n"),
        ("drkg", "drkg.tsv", "1\tr\t2\n2\tr\t3\n"),
    ):
        (tmp_path / name).mkdir()
        data = lines.encode()
        (tmp_path / name / file).write_bytes(gzip.compress(data) if file.endswith(".gz") else data)
        graph = load_dataset(name, check=False)
        assert (graph.entities.labels, graph.relations.labels) == (["1", "2", "3"], ["r"])
        start = f"{tmp_path / name}: 2 triples, but {name} has {described(name)['expected']['triples']:,}; "
        assert message(load_dataset, name).startswith(start)
    (tmp_path / "nell995").mkdir()
    (tmp_path / "nell995" / "train.txt").write_text("a\tr\tb\n")  # not htr, as the archive has it
    assert load_dataset("nell995", check=False).relations.labels == ["r"]


def test_as_many_triples_but_not_the_same(no_data, monkeypatch, tmp_path):
    splits = runs.bundled("nations")
    known = {triple for part in splits.values() for triple in part}
    turned = next(t for t in ((tail, relation, head) for head, relation, tail in splits["test"]) if t not in known)
    splits["test"][0] = turned
    runs.write_splits(tmp_path / "nations", **splits)
    monkeypatch.setenv("KGC_DATA", str(tmp_path))
    start = f"{tmp_path / 'nations'}: as many triples as nations has, but not the same (digest "
    assert message(load_dataset, "nations").startswith(start)
    assert counts(load_dataset("nations", check=False)) == PUBLISHED["nations"]


def test_unknown_name(no_data, monkeypatch, tmp_path):
    cure = "; for files of your own use dataset=folder dataset.path=DIR"
    known = f"({', '.join(sorted(NAMES))})"
    assert message(load_dataset, "fb15k-237") == f"dataset 'fb15k-237' is not in the catalogue {known}{cure}"
    assert message(load_dataset, "folder") == f"dataset 'folder' is not in the catalogue {known}{cure}"
    assert (
        message(load_dataset, "../dataset/umls") == f"dataset '../dataset/umls' is not in the catalogue {known}{cure}"
    )
    monkeypatch.setenv("KGC_DATA", str(tmp_path / "sub"))
    (tmp_path / "sub").mkdir()
    looked = f" and {tmp_path / 'sub'} has no folder of this name"
    assert message(load_dataset, "../sub") == f"dataset '../sub' is not in the catalogue {known}{looked}{cure}"
