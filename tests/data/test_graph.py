"""Graphs from folders, their digest and report, and relation statistics against a plain Python count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgc.data.graph import (
    KnowledgeGraph,
    load_graph,
    relation_categories,
    tails_per_head,
    unseen_mask,
)
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples


def write(folder: Path, **splits: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for split, lines in splits.items():
        (folder / f"{split}.txt").write_text("".join("\t".join(line.split()) + "\n" for line in lines))
    return folder


def ids(rows: list[tuple[int, int, int]]) -> Triples:
    return Triples(*torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_ids_of_a_small_graph(tmp_path):
    graph = load_graph(write(tmp_path, train=["b r a", "a q c"], valid=["d r a"]), "small")
    assert graph.name == "small"
    assert graph.entities.labels == ["a", "b", "c", "d"]
    assert graph.relations.labels == ["q", "r"]
    assert graph.train.head.tolist() == [1, 0]
    assert graph.train.relation.tolist() == [1, 0]
    assert graph.train.tail.tolist() == [0, 2]
    assert graph.valid.head.tolist() == [3]
    assert len(graph.test) == 0
    assert (graph.num_entities, graph.num_relations) == (4, 2)
    for column in (graph.train.head, graph.valid.tail, graph.test.relation):
        assert column.dtype == torch.int64
        assert column.is_contiguous()
    assert graph.split("valid") is graph.valid
    assert message(graph.split, "dev") == "unknown split 'dev'; choose train, valid or test"


def test_line_order_changes_neither_ids_nor_digest(tmp_path):
    lines = ["b r a", "a q c", "c q a", "b r a"]
    one = load_graph(write(tmp_path / "one", train=lines, test=["a r d", "d r a"]), "one")
    two = load_graph(write(tmp_path / "two", train=lines[::-1], test=["d r a", "a r d"]), "two")
    assert one.entities == two.entities
    assert one.relations == two.relations
    assert one.digest == two.digest
    given_order = load_graph(tmp_path / "one", "one", entities=Vocabulary(["d", "b", "a", "c"]))
    assert given_order.train.head.tolist() != one.train.head.tolist()
    assert given_order.digest == one.digest


def test_digest_tells_graphs_apart(tmp_path):
    variants = [
        {"train": ["a r b"]},
        {"train": ["a r b", "a r b"]},
        {"train": ["b r a"]},
        {"train": ["a r b"], "valid": ["a r b"]},
        {"train": ["a r b"], "test": ["a r b"]},
        {"train": ["ab r c"]},
        {"train": ["a r bc"]},
    ]
    digests = {load_graph(write(tmp_path / str(i), **splits), "x").digest for i, splits in enumerate(variants)}
    assert len(digests) == len(variants)


def test_keys_of_a_graph_too_large_for_one_product():
    class Huge(KnowledgeGraph):
        num_entities = 3_000_000_000  # its square overflows an int64

    triples = ids([(0, 0, 1), (1, 1, 0), (0, 0, 1)])
    graph = Huge("huge", Vocabulary(["a", "b"]), Vocabulary(["r", "s"]), triples, triples[1:2], Triples.empty())
    first, again, other = graph._keys()["train"].tolist()
    assert 0 <= first == again < other
    assert graph._keys()["valid"].tolist() == [other]
    assert graph._keys()["test"].tolist() == []


def test_report(tmp_path):
    graph = load_graph(
        write(
            tmp_path,
            train=["a r b", "a r b", "b r c"],
            valid=["a r b", "x r a", "x s a", "x s a"],
            test=["b r c", "b r c", "a r b", "y r x"],
        ),
        "leaky",
    )
    report = graph.report
    assert (report.entities, report.relations) == (5, 2)
    assert report.sizes == {"train": 3, "valid": 4, "test": 4}
    assert report.duplicates == {"train": 1, "valid": 1, "test": 1}
    assert report.overlap == {"train/valid": 1, "train/test": 2, "valid/test": 1}
    assert (report.unseen_entities, report.unseen_relations) == (2, 1)
    assert report.lines() == [
        "5 entities, 2 relations; triples: 3 train, 4 valid, 4 test",
        "repeated triples: 1 in train, 1 in valid, 1 in test",
        "triples in two splits: 1 in train and valid, 2 in train and test, 1 in valid and test",
        "in valid or test but never in train: 2 entities, 1 relations",
    ]
    assert unseen_mask(graph, graph.valid).tolist() == [False, True, True, True]
    assert unseen_mask(graph, graph.test).tolist() == [False, False, False, True]
    assert not unseen_mask(graph, graph.train).any()
    clean = load_graph(write(tmp_path / "clean", train=["a r b"]), "clean")
    assert clean.report.lines() == ["2 entities, 1 relations; triples: 1 train, 0 valid, 0 test"]


def test_label_outside_a_given_vocabulary(tmp_path):
    write(tmp_path, train=["a r b", "b r a"], test=["a r b", "a r zoo", "a q b"])
    known = {"entities": Vocabulary(["a", "b"]), "relations": Vocabulary(["r"])}
    cure = "use the data set that the model was trained on, or remove the triple"
    assert message(load_graph, tmp_path, "x", **known) == (
        f"{tmp_path}/test.txt:3: relation 'q' is not among the model's 1 relations; {cure}"
    )
    assert message(load_graph, tmp_path, "x", entities=known["entities"]) == (
        f"{tmp_path}/test.txt:2: entity 'zoo' is not among the model's 2 entities; {cure}"
    )
    more = Vocabulary(["b", "unused", "zoo", "a"])
    graph = load_graph(tmp_path, "x", entities=more)
    assert graph.entities is more
    assert graph.test.tail.tolist() == [0, 2, 0]
    assert graph.report.unseen_entities == 1


def test_folders_without_train(tmp_path):
    assert message(load_graph, tmp_path / "no", "x") == f"{tmp_path}/no: no such folder"
    endings = ".txt,.txt.gz,.txt.zst,.tsv,.tsv.gz,.tsv.zst,.csv,.csv.gz,.csv.zst,.parquet,.nt,.nt.gz,.ttl,.ttl.gz"
    looked = f"{tmp_path}: no train split; looked for train{{{endings}}}"
    assert message(load_graph, tmp_path, "x") == f"{looked}, found nothing"
    write(tmp_path, valid=["a r b"])
    (tmp_path / "train.dat").write_text("a r b")
    assert message(load_graph, tmp_path, "x") == f"{looked}, found train.dat, valid.txt"
    write(tmp_path, train=[])
    assert message(load_graph, tmp_path, "x") == f"{tmp_path}/train.txt: the train split has no triples"


def test_categories_of_a_hand_made_graph():
    one_to_one = [(0, 0, 1), (2, 0, 3)]
    one_to_many = [(0, 1, 1), (0, 1, 2), (3, 1, 4)]  # 3 triples, 2 heads: 1.5 tails per head
    many_to_one = [(1, 2, 0), (2, 2, 0)]
    many_to_many = [(0, 3, 1), (0, 3, 2), (1, 3, 1), (1, 3, 2)]
    triples = ids(one_to_one + one_to_many + many_to_one + many_to_many + one_to_one)
    tph, hpt = tails_per_head(triples, 5)
    assert tph.dtype == torch.float64
    assert tph.tolist() == [1.0, 1.5, 1.0, 2.0, 1.0]
    assert hpt.tolist() == [1.0, 1.0, 2.0, 2.0, 1.0]
    assert relation_categories(triples, 5) == ["1-1", "1-N", "N-1", "N-N", "1-1"]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_means_against_a_plain_count(rows):
    tph, hpt = tails_per_head(ids(rows), 4)
    for relation in range(4):
        mine = {row for row in rows if row[1] == relation}
        heads, tails = {h for h, _, _ in mine}, {t for _, _, t in mine}
        assert tph[relation] == (len(mine) / len(heads) if mine else 1)
        assert hpt[relation] == (len(mine) / len(tails) if mine else 1)
