"""Folders of other libraries: the same graph comes out of each, and what is wrong is named with its place."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs
import torch

from kgc.data.catalogue import load_folder
from kgc.data.graph import KnowledgeGraph, load_graph
from kgc.errors import UserError

SPLITS = ("train", "valid", "test")
Splits = dict[str, list[runs.Labels]]

# A label may hold spaces; "spare" occurs in no triple.
SMALL: Splits = {
    "train": [("new york", "in", "usa"), ("usa", "near to", "canada"), ("7", "in", "usa")],
    "valid": [("canada", "near to", "usa")],
    "test": [("7", "in", "canada"), ("new york", "near to", "canada")],
}
ENTITIES = ["usa", "canada", "new york", "7"]
RELATIONS = ["near to", "in"]


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def labelled(graph: KnowledgeGraph) -> Splits:
    """The triples of a graph by label, in their order."""
    found = {}
    for split in SPLITS:
        part = graph.split(split)
        columns = (part.head.tolist(), part.relation.tolist(), part.tail.tolist())
        found[split] = [
            (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in zip(*columns, strict=True)
        ]
    return found


def ids(triples: list[runs.Labels], entities: list[str], relations: list[str]) -> list[tuple[int, int, int]]:
    entity, relation = ({label: i for i, label in enumerate(labels)} for labels in (entities, relations))
    return [(entity[h], relation[r], entity[t]) for h, r, t in triples]


def openke(folder: Path, splits: Splits, entities: list[str], relations: list[str]) -> Path:
    folder.mkdir()
    for what, labels in (("entity", entities), ("relation", relations)):
        lines = [f"{len(labels)}\n", *(f"{label}\t{i}\n" for i, label in enumerate(labels))]
        (folder / f"{what}2id.txt").write_text("".join(lines))
    for split, triples in splits.items():
        rows = [f"{h} {t} {r}\n" for h, r, t in ids(triples, entities, relations)]
        (folder / f"{split}2id.txt").write_text(f"{len(rows)}\n" + "".join(rows))
    return folder


def maps_and_ids(
    folder: Path, splits: Splits, entities: list[str], relations: list[str], names: str, order: str
) -> Path:
    """LibKGE and DGL-KE: `id<TAB>label`, and ids separated by tabs."""
    folder.mkdir()
    entity_map, relation_map, ending = names.split()
    for name, labels in ((entity_map, entities), (relation_map, relations)):
        (folder / name).write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(labels)))
    for split, triples in splits.items():
        rows = [dict(zip("hrt", row, strict=True)) for row in ids(triples, entities, relations)]
        text = "".join("\t".join(str(row[letter]) for letter in order) + "\n" for row in rows)
        (folder / f"{split}{ending}").write_text(text)
    return folder


def libkge(folder: Path, splits: Splits, entities: list[str], relations: list[str]) -> Path:
    return maps_and_ids(folder, splits, entities, relations, "entity_ids.del relation_ids.del .del", "hrt")


def dglke(folder: Path, splits: Splits, entities: list[str], relations: list[str]) -> Path:
    return maps_and_ids(folder, splits, entities, relations, "entities.tsv relations.tsv .tsv", "htr")


def ogb(folder: Path, splits: Splits, entities: list[str], relations: list[str]) -> Path:
    """As `ogbl-wikikg2` unpacks: pickled dicts of numpy arrays, maps as csv.gz."""
    (folder / "split" / "time").mkdir(parents=True)
    (folder / "mapping").mkdir()
    for split, triples in splits.items():
        head, relation, tail = np.array(ids(triples, entities, relations), dtype=np.int64).reshape(-1, 3).T
        part = {"head": head, "relation": relation, "tail": tail}
        if split != "train":
            part |= {"head_neg": np.zeros((len(head), 2), np.int32), "tail_neg": np.zeros((len(head), 2), np.int32)}
        torch.save(part, folder / "split" / "time" / f"{split}.pt")
    for name, header, labels in (
        ("nodeidx2entityid", "node idx,entity id", entities),
        ("reltype2relid", "reltype,rel id", relations),
    ):
        rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        (folder / "mapping" / f"{name}.csv.gz").write_bytes(gzip.compress(f"{header}\n{rows}".encode()))
    return folder


WRITERS = {"openke": openke, "libkge": libkge, "dglke": dglke, "ogb": ogb}
CALLS = {"dglke": {"format": "dglke", "order": "htr"}}


@pytest.mark.parametrize("format", WRITERS)
def test_small(format, tmp_path):
    folder = WRITERS[format](tmp_path / "data", SMALL, [*ENTITIES, "spare"], RELATIONS)
    graph = load_folder(folder, **CALLS.get(format, {}))
    assert labelled(graph) == SMALL
    assert graph.entities.labels == sorted([*ENTITIES, "spare"])
    assert graph.relations.labels == sorted(RELATIONS)


@pytest.mark.parametrize("format", WRITERS)
def test_real_data_come_out_as_from_their_triples(format, tmp_path):
    splits = runs.bundled("nations")
    plain = load_graph(runs.write_splits(tmp_path / "plain", **splits), "nations")
    entities, relations = plain.entities.labels[::-1], plain.relations.labels[::-1]
    folder = WRITERS[format](tmp_path / "data", splits, entities, relations)
    assert load_folder(folder, **CALLS.get(format, {})).digest == plain.digest


def test_pykeen_folder_as_pykeen_writes_it(tmp_path):
    pytest.importorskip("pykeen", reason="PyKEEN is not installed")
    from pykeen.datasets import EagerDataset
    from pykeen.triples import TriplesFactory

    splits = SMALL | {"train": [*SMALL["train"], ('say "hi"', "in", "a,b")]}
    arrays = {split: np.array(triples, dtype=str) for split, triples in splits.items()}
    train = TriplesFactory.from_labeled_triples(arrays["train"])
    known = {"entity_to_id": train.entity_to_id, "relation_to_id": train.relation_to_id}
    valid, test = (TriplesFactory.from_labeled_triples(arrays[split], **known) for split in ("valid", "test"))
    EagerDataset(training=train, testing=test, validation=valid).to_directory_binary(tmp_path / "data")
    found = labelled(load_folder(tmp_path / "data"))
    assert {split: sorted(triples) for split, triples in found.items()} == {s: sorted(t) for s, t in splits.items()}


def test_ogb_with_typed_entities(tmp_path):
    """As `ogbl-biokg`: ids count within their type."""
    folder = tmp_path / "data"
    (folder / "split" / "random").mkdir(parents=True)
    (folder / "mapping").mkdir()
    for split in SPLITS:
        part = {"head_type": ["drug", "drug"], "head": np.array([0, 1]), "relation": np.array([0, 0])}
        part |= {"tail_type": ["drug", "disease"], "tail": np.array([1, 1])}
        torch.save(part, folder / "split" / "random" / f"{split}.pt")
    for name, rows in (
        ("drug_entidx2name", "ent idx,ent name\n0,C1\n1,C2\n"),
        ("disease_entidx2name", "ent idx,ent name\n1,C9\n0,C8\n"),
        ("relidx2relname", "rel idx,rel name\n0,treats\n"),
    ):
        (folder / "mapping" / f"{name}.csv.gz").write_bytes(gzip.compress(rows.encode()))
    graph = load_folder(folder)
    assert labelled(graph)["test"] == [("drug:C1", "treats", "drug:C2"), ("drug:C2", "treats", "disease:C9")]
    assert graph.entities.labels == ["disease:C8", "disease:C9", "drug:C1", "drug:C2"]


def test_libkge_names_of_files(tmp_path):
    folder = libkge(tmp_path / "data", SMALL, ENTITIES, RELATIONS)
    (folder / "train.del").rename(folder / "train_sample.del")
    (folder / "dataset.yaml").write_text("dataset:\n  name: small\n  files.train.filename: train_sample.del\n")
    assert labelled(load_folder(folder)) == SMALL
    (folder / "dataset.yaml").write_text("dataset:\n  files.train.filename: ../../etc/passwd\n")
    place = f"{folder / 'dataset.yaml'}: files.train.filename="
    assert message(load_folder, folder) == f"{place}../../etc/passwd leads out of the folder"
    (folder / "dataset.yaml").write_text("!!python/object/apply:os.system [echo]\n")
    assert message(load_folder, folder) == f"{folder / 'dataset.yaml'}: not a description of a LibKGE data set"


def test_missing_valid_and_test_are_empty(tmp_path):
    for format, writer in WRITERS.items():
        if format != "ogb":
            folder = writer(tmp_path / format, {"train": SMALL["train"]}, ENTITIES, RELATIONS)
            assert len(load_folder(folder, **CALLS.get(format, {})).test) == 0


def test_folder_of_another_model_names_the_place(tmp_path):
    from kgc.data.vocabulary import Vocabulary

    folder = openke(tmp_path / "data", SMALL, ENTITIES, RELATIONS)
    expected = f"{folder}/train2id.txt:2: entity 'new york' is not among the model's 1 entities; "
    assert message(load_folder, folder, entities=Vocabulary(["usa"])).startswith(expected)


CHANGES = [
    # format, file, old text, new text, message after the folder
    ("openke", "train2id.txt", "3\n", "4\n", "train2id.txt:1: says '4', but 3 lines follow; is it complete?"),
    ("openke", "train2id.txt", "3\n", "", "train2id.txt:1: says '2 0 1', but 2 lines follow; is it complete?"),
    ("openke", "train2id.txt", "2 0 1", "2 0", "train2id.txt:2: 2 columns, expected 3 ids: head, tail, relation"),
    ("openke", "train2id.txt", "2 0 1", "2 9 1", "train2id.txt:2: tail id '9'; the entities have the ids 0 to 3"),
    (
        "openke",
        "train2id.txt",
        "2 0 1",
        "2 0 -1",
        "train2id.txt:2: relation id '-1'; the relations have the ids 0 to 1",
    ),
    ("openke", "train2id.txt", "2 0 1", "x 0 1", "train2id.txt:2: head id 'x'; the entities have the ids 0 to 3"),
    (
        "openke",
        "entity2id.txt",
        "usa\t0",
        "usa 0 x",
        "entity2id.txt:2: expected a label and its id, separated by a tab",
    ),
    ("openke", "entity2id.txt", "usa\t0", "usa\t1", "entity2id.txt:3: id '1', expected each of 0 to 3 once"),
    ("openke", "entity2id.txt", "usa\t0", "canada\t0", "entity2id.txt:3: label 'canada' again; line 2 has it too"),
    ("libkge", "train.del", "2\t1\t0", "2\t1\t0\t0", "train.del:1: 4 columns, expected 3 ids: head, relation, tail"),
    ("libkge", "train.del", "2\t1\t0", "", "train.del:1: 0 columns, expected 3 ids: head, relation, tail"),
    ("libkge", "entity_ids.del", "0\tusa", "0 usa", "entity_ids.del:1: expected id<TAB>label"),
    ("libkge", "relation_ids.del", "1\tin", "2\tin", "relation_ids.del:2: id '2', expected each of 0 to 1 once"),
    ("dglke", "train.tsv", "2\t0\t1", "2\t0\t9", "train.tsv:1: relation id '9'; the relations have the ids 0 to 1"),
]


@pytest.mark.parametrize(("format", "name", "old", "new", "expected"), CHANGES)
def test_what_is_wrong_is_named_with_its_line(format, name, old, new, expected, tmp_path):
    folder = WRITERS[format](tmp_path / "data", SMALL, ENTITIES, RELATIONS)
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    assert message(load_folder, folder, **CALLS.get(format, {})) == f"{folder}/{expected}"


def test_other_mistakes(tmp_path):
    assert message(load_folder, tmp_path, format="hdt") == (
        "dataset.format=hdt: choices are splits, openke, libkge, pykeen, ogb, dglke"
    )
    maps = "no map of entities; looked for entities.dict, entities.tsv, entities.txt"
    assert message(load_folder, tmp_path, format="dglke") == f"{tmp_path}: {maps}"
    assert message(load_folder, tmp_path, order="hrx").startswith("dataset.order=hrx: must be the letters h, r and t")
    (tmp_path / "split").mkdir()
    assert message(load_folder, tmp_path).startswith(f"{tmp_path}/split: expected one folder with a train.pt, found 0")


class Bomb:
    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("way", ["torch", "plain", "inside"])
def test_code_in_a_pt_file_is_not_run(way, tmp_path):
    mark = tmp_path / "mark"
    folder = ogb(tmp_path / "data", SMALL, ENTITIES, RELATIONS)
    path = folder / "split" / "time" / "train.pt"
    bomb = Bomb(f"touch {mark}")
    if way == "plain":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save({"head": bomb} if way == "inside" else bomb, path)
    assert message(load_folder, folder).startswith(f"{path}: not a dict of triples of OGB (")
    assert not mark.exists()


def test_dicts_of_something_else(tmp_path):
    folder = ogb(tmp_path / "data", SMALL, ENTITIES, RELATIONS)
    path = folder / "split" / "time" / "train.pt"
    good = {name: np.array([0]) for name in ("head", "relation", "tail")}
    for content in ([], {"head": np.array([0])}, good | {"tail": np.array([0, 1])}, good | {"tail": np.array([0.5])}):
        torch.save(content, path)
        assert message(load_folder, folder).startswith(f"{path}: not a dict of triples of OGB (")
    torch.save(good | {"tail": np.array([4])}, path)
    assert message(load_folder, folder) == f"{path}: triple 1: tail id 4; the mapping has the ids 0 to 3"


def test_a_pickle_of_pykeen_is_not_opened(tmp_path):
    """`base.pth` may be anything: the tables beside it say all."""
    mark = tmp_path / "mark"
    folder = tmp_path / "data" / "training"
    folder.mkdir(parents=True)
    (folder / "base.pth").write_bytes(pickle.dumps(Bomb(f"touch {mark}")))
    for name, text in (
        ("entity_to_id", "id\tlabel\n0\ta\n1\tb\n"),
        ("relation_to_id", "id\tlabel\n0\tr\n"),
        ("numeric_triples", "head\trelation\ttail\n0\t0\t1\n"),
    ):
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert labelled(load_folder(tmp_path / "data"))["train"] == [("a", "r", "b")]
    assert not mark.exists()
    (folder / "numeric_triples.tsv.gz").write_bytes(gzip.compress(b"head\trelation\ttail\n0\t0\t2\n"))
    expected = f"{folder}/numeric_triples.tsv.gz:2: tail id '2'; the entities have the ids 0 to 1"
    assert message(load_folder, tmp_path / "data") == expected


@pytest.mark.parametrize("format", [None, "pykeen"])
def test_one_part_of_a_pykeen_folder(format, tmp_path):
    (tmp_path / "numeric_triples.tsv.gz").write_bytes(gzip.compress(b"head\trelation\ttail\n0\t0\t1\n"))
    assert message(load_folder, tmp_path, format=format) == (
        f"{tmp_path}: one TriplesFactory of PyKEEN; dataset.path must be the folder in which it is named training, "
        "beside validation and testing if there are such"
    )
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    assert labelled(load_folder(tmp_path))["train"] == [("a", "r", "b")]


# Named columns.


def test_csv_with_named_columns(tmp_path):
    (tmp_path / "train.csv").write_text('weight,object,subject,predicate\n0.5,c,"a ""x"", y",b\n1,f,d,"e\ne"\n')
    graph = load_folder(tmp_path, columns=["subject", "predicate", "object"])
    assert labelled(graph)["train"] == [('a "x", y', "b", "c"), ("d", "e\ne", "f")]


def test_tsv_with_named_columns_and_order(tmp_path):
    (tmp_path / "train.tsv").write_text('t\th\tnote\tr\nc\ta\t"\tb\n')
    assert labelled(load_folder(tmp_path, columns=["h", "r", "t"]))["train"] == [("a", "b", "c")]
    (tmp_path / "train.tsv").write_text("a\tc\tb\n")
    assert labelled(load_folder(tmp_path, order="htr"))["train"] == [("a", "b", "c")]
    (tmp_path / "train.tsv").write_text("7\ta\tb\tc\t0.5\n")
    assert labelled(load_folder(tmp_path, order="-hrt-"))["train"] == [("a", "b", "c")]
    expected = f"{tmp_path}/train.tsv:1: 5 columns, expected 4: head, relation, tail, -"
    assert message(load_folder, tmp_path, order="hrt-") == expected


def test_parquet_columns_by_name(tmp_path):
    frame = pl.DataFrame({"o": ["c"], "x": [0.5], "s": [7], "p": ["b"]})
    frame.write_parquet(tmp_path / "train.parquet")
    assert labelled(load_folder(tmp_path, columns=["s", "p", "o"]))["train"] == [("7", "b", "c")]
    expected = f"{tmp_path}/train.parquet: no column 'subject'; its columns are 'o', 'x', 's', 'p'"
    assert message(load_folder, tmp_path, columns=["subject", "p", "o"]) == expected


NAMES = "must name the three columns of heads, relations and tails, such as [subject,predicate,object]"


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("s,p,o\na,b\n", ["s", "p", "o"], "{}:2: 2 columns, expected 3: s, p, o"),
        ("s,p,x\na,b,c\n", ["s", "p", "o"], "{}: no column 'o'; its columns are 's', 'p', 'x'"),
        ("s,p,o,o\na,b,c,d\n", ["s", "p", "o"], "{}: more than one column 'o'; its columns are 's', 'p', 'o', 'o'"),
        ("s,p,o\na,,c\n", ["s", "p", "o"], "{}:2: empty relation"),
        ('s,p,"o\na,b,c\n', ["s", "p", "o"], "{}:1: stray double quote in the names of the columns"),
        ("", ["s", "p", "o"], "{}: no line with the names of the columns, s, p, o"),
        ("s,p,o\n", ["s", "p", "o"], "{}: the train split has no triples"),
        ("a,b,c\n", ["s", "p"], f"dataset.columns=['s', 'p']: {NAMES}"),
        ("a,b,c\n", "spo", f"dataset.columns=spo: {NAMES}"),
    ],
)
def test_wrong_named_columns(text, columns, expected, tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(text)
    assert message(load_folder, tmp_path, columns=columns) == expected.format(path)


def test_exports_of_neo4j(tmp_path):
    """Of `apoc.export.csv.all`, whose nodes come first, and of neo4j-admin."""
    (tmp_path / "train.csv").write_text(
        '"_id","_labels","name","_start","_end","_type"\n"0",":City","Oslo",,,\n"1",":Land","Norway",,,\n'
        ',,,"0","1","IN"\n,,,"1","0","HAS"\n'
    )
    assert labelled(load_folder(tmp_path))["train"] == [("0", "IN", "1"), ("1", "HAS", "0")]
    (tmp_path / "train.csv").write_text(":START_ID(City),since,:END_ID(Land),:TYPE\nOslo,1814,Norway,IN\n")
    assert labelled(load_folder(tmp_path))["train"] == [("Oslo", "IN", "Norway")]
    (tmp_path / "train.csv").write_text("_start,_type,_end\n0,IN,1\n0,,1\n")
    assert message(load_folder, tmp_path) == f"{tmp_path}/train.csv:3: empty relation"
