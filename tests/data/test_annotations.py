"""Names, types and numbers beside the triples: what files mean, and what is wrong with others."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from kgc.data.annotations import Annotations, read_annotations
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError

ENTITIES, RELATIONS = Vocabulary(["oslo", "norway", "paris"]), Vocabulary(["in", "of"])


def read(**files: Path) -> Annotations:
    return read_annotations(files, ENTITIES, RELATIONS)


def message(**files: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(**files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_is_said_of_a_graph_without_files():
    said = read(entity_names=None, relation_names=None, entity_types=None, numbers=None)
    assert (said.entity_names, said.relation_names, said.types.rows(), said.numbers.rows()) == ({}, {}, [], [])
    assert (said.lines, said.digest) == ((), None)


def test_names_types_and_numbers(tmp_path):
    (tmp_path / "names.tsv").write_text("norway\tKingdom of Norway\nrome\tRoma\nnorway\tNorge\nparis\tnull\n")
    (tmp_path / "relations.csv").write_text('in,"lies in, or near"\n')
    (tmp_path / "types.txt.gz").write_bytes(
        gzip.compress(b"paris\tcity\noslo\tport\noslo\tcity\nrome\tcity\noslo\tport\n")
    )
    (tmp_path / "numbers.txt").write_text("oslo\tpopulation\t709037\noslo\tnorth\t59.91\nparis\tnorth\t-4.9e1\n")
    said = read(
        entity_names=tmp_path / "names.tsv",
        relation_names=tmp_path / "relations.csv",
        entity_types=tmp_path / "types.txt.gz",
        numbers=tmp_path / "numbers.txt",
    )
    assert said.entity_names == {"norway": "Kingdom of Norway", "paris": "null"}  # the first of two; null is a name
    assert said.relation_names == {"in": "lies in, or near"}
    assert said.types.rows() == [(0, "city"), (0, "port"), (2, "city")]
    assert said.numbers.rows() == [(0, "population", 709037.0), (0, "north", 59.91), (2, "north", -49.0)]
    assert said.lines == (
        "entity names: 2 of 3 entities; 1 others in the file are not in the graph",
        "relation names: 1 of 2 relations",
        "entity types: 2 of 3 entities; 1 others in the file are not in the graph",
        "numbers: 2 of 3 entities",
    )


def test_the_digest_is_of_the_types_only(tmp_path):
    def digest(text: str) -> str | None:
        (tmp_path / "types.tsv").write_text(text)
        return read(entity_types=tmp_path / "types.tsv").digest

    assert digest("oslo\tcity\nparis\tcity\n") == digest("paris\tcity\nrome\tcity\noslo\tcity\n")
    assert digest("oslo\tcity\n") != digest("oslo\tport\n")
    assert digest("oslo\tcity\n") != digest("paris\tcity\n")
    assert digest("rome\tcity\n") is None


def test_parquet(tmp_path):
    path = tmp_path / "n.parquet"
    pl.DataFrame({"a": ["oslo"], "b": ["height"], "c": [1.5]}).write_parquet(path)
    assert read(numbers=path).numbers.rows() == [(0, "height", 1.5)]
    pl.DataFrame({"a": ["oslo", "paris"], "b": ["height", None], "c": [1.5, 2]}).write_parquet(path)
    assert message(numbers=path) == f"{path}: row 2: empty attribute"
    assert message(entity_names=path) == f"{path}: 3 columns, expected 2: entity, name"
    path.write_bytes(b"PAR1")
    assert message(numbers=path).startswith(f"{path}: cannot be read as parquet (")


def test_nodes_of_neo4j(tmp_path):
    """Of `apoc.export.csv.all`, which has the relationships in the same table, and of neo4j-admin."""
    path = tmp_path / "nodes.csv"
    path.write_text(
        '"_id","_labels","name","_start","_end","_type"\n"oslo",":City:Port","Oslo, Norway",,,\n'
        '"norway",":Land","",,,\n'
        ',,,"oslo","norway","IN"\n'
    )
    said = read(entity_names=path, entity_types=path)
    assert said.entity_names == {"oslo": "Oslo, Norway"}
    assert said.types.rows() == [(0, "City"), (0, "Port"), (1, "Land")]
    path.write_text("code:ID(Place),born:int,title:string,:LABEL\noslo,1048,Oslo,City;Port\nparis,250,Paris,City\n")
    said = read(entity_names=path, entity_types=path)
    assert said.entity_names == {"oslo": "Oslo", "paris": "Paris"}
    assert said.types.rows() == [(0, "City"), (0, "Port"), (2, "City")]
    path.write_text("code:ID,born:int\noslo,1048\n")
    assert (
        message(entity_names=path) == f"{path}: no column of name, title, label; its columns are 'code:ID', 'born:int'"
    )
    assert message(entity_types=path) == f"{path}: no column :LABEL; its columns are 'code:ID', 'born:int'"


@pytest.mark.parametrize(
    ("what", "text", "expected"),
    [
        ("entity_names", "oslo\n", ":1: 1 column, expected 2: entity, name"),
        ("entity_names", "oslo\tOslo\tNorway\n", ":1: 3 columns, expected 2: entity, name"),
        ("entity_types", "oslo\tcity\n\tcity\n", ":2: empty entity"),
        ("relation_names", "in\t\n", ":1: empty name"),
        ("numbers", "oslo\tnorth\n", ":1: 2 columns, expected 3: entity, attribute, number"),
        ("numbers", "oslo\tnorth\t1\nrome\tnorth\tfar\n", ":2: 'far' is no finite number"),
        ("numbers", "oslo\tnorth\tnan\n", ":1: 'nan' is no finite number"),
        ("numbers", "oslo\tnorth\t1e999\n", ":1: '1e999' is no finite number"),
        ("entity_names", "oslo\t" + "o" * (2**20 + 1) + "\n", ":1: name of 1,048,577 bytes; it has at most 1,048,576"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(what, text, expected, tmp_path):
    path = tmp_path / "file.tsv"
    path.write_text(text)
    assert message(**{what: path}) == f"{path}{expected}"


def test_other_files(tmp_path):
    assert message(numbers=tmp_path / "n.tsv") == f"annotations.numbers={tmp_path}/n.tsv: no such file"
    (tmp_path / "n.nt").write_text("")
    assert message(entity_names=tmp_path / "n.nt") == (
        f"{tmp_path}/n.nt: entity and name are read from .txt .tsv .csv, plain, .gz or .zst, or .parquet"
    )
    (tmp_path / "n.tsv").write_bytes(b"oslo\tcaf\xe9\n")
    assert message(entity_names=tmp_path / "n.tsv") == (
        f"{tmp_path}/n.tsv:1: not UTF-8 (byte 0xe9 at column 9); convert the file to UTF-8"
    )
