"""Redundant relations, leaks and what `drop` takes out, against plain Python and graphs whose leaks are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import runs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgc.data.catalogue import load_dataset, load_folder
from kgc.data.graph import KnowledgeGraph
from kgc.data.hygiene import cleaned, degrees, leaks, redundant_relations, relation_table, reversed_in_train
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

SPLITS = ("train", "valid", "test")
Ids = tuple[int, int, int]
E, R = 5, 4

triples = st.lists(st.tuples(st.integers(0, E - 1), st.integers(0, R - 1), st.integers(0, E - 1)), max_size=25)


def graph_of(**splits: list[Ids]) -> KnowledgeGraph:
    parts = {
        split: Triples(*torch.tensor(splits.get(split, []), dtype=torch.int64).reshape(-1, 3).T.contiguous())
        for split in SPLITS
    }
    return KnowledgeGraph("drawn", Vocabulary(list("abcde")), Vocabulary(list("rstu")), **parts)


def rows_of(part: Triples) -> list[Ids]:
    return list(zip(part.head.tolist(), part.relation.tolist(), part.tail.tolist(), strict=True))


def expected_redundant(splits: dict[str, list[Ids]]) -> set[tuple[int, int, str, int]]:
    pairs = {r: {(h, t) for part in splits.values() for h, q, t in part if q == r} for r in range(R)}
    turned = {r: {(t, h) for h, t in pairs[r]} for r in range(R)}
    found = set()
    for first in range(R):
        for second in range(first + 1, R):
            for kind, other in (("duplicate", pairs[second]), ("inverse", turned[second])):
                shared = len(pairs[first] & other)
                if shared and shared >= 0.8 * len(pairs[first]) and shared >= 0.8 * len(pairs[second]):
                    found.add((first, second, kind, shared))
    return found


def expected_leaks(splits: dict[str, list[Ids]], split: str) -> list[bool]:
    redundant = {(a, b, kind) for a, b, kind, _ in expected_redundant(splits)}
    redundant |= {(b, a, kind) for a, b, kind in redundant}
    train = set(splits["train"])
    before = train | (set(splits["valid"]) if split == "test" else set())

    def told(h: int, r: int, t: int) -> bool:
        return (h, r, t) in before or any(
            ((h, q, t) if kind == "duplicate" else (t, q, h)) in train for p, q, kind in redundant if p == r
        )

    return [told(*triple) for triple in splits[split]]


@settings(max_examples=25)
@given(train=triples.filter(bool), valid=triples, test=triples)
def test_redundant_relations_and_leaks(train, valid, test):
    # relation 1 is an inverse of 0 but for what is drawn beside, 2 a copy
    train = train + [(t, 1, h) for h, r, t in train if r == 0] + [(h, 2, t) for h, r, t in train if r == 0]
    splits = {"train": train, "valid": valid, "test": test}
    graph = graph_of(**splits)
    table = redundant_relations(graph)
    found = set(table.select("first", "second", "kind", "shared").iter_rows())
    assert found == expected_redundant(splits)
    for split in ("valid", "test"):
        assert leaks(graph, split, table).tolist() == expected_leaks(splits, split)
        turned = [(t, r, h) in set(train) and h != t for h, r, t in splits[split]]
        assert reversed_in_train(graph, split).tolist() == turned


@settings(max_examples=12)
@given(train=triples.filter(bool), test=triples)
def test_relation_table(train, test):
    table = {row["relation"]: row for row in relation_table(graph_of(train=train, test=test)).iter_rows(named=True)}
    for r, label in enumerate("rstu"):
        pairs = {(h, t) for h, q, t in train + test if q == r}
        row = table[label]
        assert (row["train"], row["valid"]) == (sum(q == r for _, q, _ in train), 0)
        assert row["test"] == sum(q == r for _, q, _ in test)
        assert row["symmetric"] == pytest.approx(sum((t, h) in pairs for h, t in pairs) / max(1, len(pairs)))
        assert row["loops"] == pytest.approx(sum(h == t for h, t in pairs) / max(1, len(pairs)))


def test_degrees():
    head, tail = degrees(graph_of(train=[(0, 0, 1), (0, 1, 1), (1, 0, 4)]).train, E)
    assert head.tolist() == [2, 1, 0, 0, 0]
    assert tail.tolist() == [0, 2, 0, 0, 1]


@settings(max_examples=12)
@given(train=triples.filter(bool), valid=triples, test=triples)
def test_what_drop_takes_out(train, valid, test):
    train = train + [(t, 1, h) for h, r, t in train if r == 0]
    splits = {"train": train, "valid": valid, "test": test}
    graph = graph_of(**splits)

    def ids(found: KnowledgeGraph) -> dict[str, list[Ids]]:
        entity = {label: i for i, label in enumerate("abcde")}
        relation = {label: i for i, label in enumerate("rstu")}
        return {
            split: [
                (entity[found.entities[h]], relation[found.relations[r]], entity[found.entities[t]])
                for h, r, t in rows_of(found.split(split))
            ]
            for split in SPLITS
        }

    once = {split: list(dict.fromkeys(part)) for split, part in splits.items()}
    assert ids(cleaned(graph, ["duplicates"])) == once
    kept = cleaned(graph, ["leaks"])
    for split in ("valid", "test"):
        told = expected_leaks(splits, split)
        assert ids(kept)[split] == [triple for triple, out in zip(splits[split], told, strict=True) if not out]
    assert ids(kept)["train"] == train
    seen = cleaned(graph, ["unseen"])
    ends, relations = {e for h, _, t in train for e in (h, t)}, {r for _, r, _ in train}
    for split in ("valid", "test"):
        fits = [triple for triple in splits[split] if {triple[0], triple[2]} <= ends and triple[1] in relations]
        assert ids(seen)[split] == fits
    assert seen.num_entities == len(ends)
    assert seen.report.unseen_entities == seen.report.unseen_relations == 0
    assert cleaned(graph, []).digest == graph.digest
    whole = cleaned(graph, ["duplicates", "leaks", "unseen"])
    assert sum(whole.dropped.values()) == sum(map(len, splits.values())) - sum(map(len, ids(whole).values()))


@pytest.fixture
def wn18_like(tmp_path) -> Path:
    """WordNet has an inverse for nearly every relation: put them back, in the splits where chance puts them."""
    splits = runs.bundled("umls")
    backward = {"train": [], "valid": [], "test": []}
    for i, triple in enumerate(triple for part in splits.values() for triple in part):
        split = ("train", "train", "train", "train", "test")[i % 5]
        backward[split].append((triple[2], f"inverse of {triple[1]}", triple[0]))
    return runs.write_splits(tmp_path / "data", **{split: splits[split] + backward[split] for split in SPLITS})


def test_the_leak_of_wn18(wn18_like):
    graph = load_folder(wn18_like)
    table = redundant_relations(graph)
    rows = table.filter(table["kind"] == "inverse").select("first", "second").rows()
    pairs = {(graph.relations[first], graph.relations[second]) for first, second in rows}
    names = [label for label in graph.relations.labels if not label.startswith("inverse of")]
    assert {tuple(sorted((name, f"inverse of {name}"))) for name in names} <= {tuple(sorted(pair)) for pair in pairs}
    # all test triples of UMLS whose inverse went to train can be looked up
    known, asked = set(rows_of(graph.train)), rows_of(graph.test)
    inverse = {a: b for name in names for a, b in _both(graph, name)}
    at_least = [(tail, inverse[relation], head) in known for head, relation, tail in asked]
    mask = leaks(graph, "test").tolist()
    assert sum(at_least) > 500
    assert all(found for found, sure in zip(mask, at_least, strict=True) if sure)
    without = load_folder(wn18_like, drop=["leaks"])
    assert leaks(without, "test", table).sum() == leaks(without, "valid", table).sum() == 0
    assert len(without.train) == len(graph.train)
    number = sum(mask) + int(leaks(graph, "valid", table).sum())
    assert without.report.lines()[1] == f"left out: {number:,} valid or test triples that train gives away"


def _both(graph: KnowledgeGraph, name: str) -> list[tuple[int, int]]:
    a, b = graph.relations.labels.index(name), graph.relations.labels.index(f"inverse of {name}")
    return [(a, b), (b, a)]


@pytest.mark.skipif(not os.environ.get("KGC_DATA"), reason="needs $KGC_DATA/wn18rr")
def test_known_facts_of_wn18rr():
    """It was made by removing inverse relations (Dettmers et al. 2018); three of its relations are symmetric."""
    if not (Path(os.environ["KGC_DATA"]) / "wn18rr").is_dir():
        pytest.skip("needs $KGC_DATA/wn18rr")
    graph = load_dataset("wn18rr")
    assert redundant_relations(graph).is_empty()
    assert leaks(graph, "test").sum() == 0
    table = relation_table(graph)
    symmetric = set(table.filter(table["symmetric"] >= 0.8)["relation"])
    assert symmetric == {"_derivationally_related_form", "_verb_group", "_similar_to"}
    seen = load_dataset("wn18rr", drop=["unseen"])
    # PyKEEN, which drops them, has these counts
    assert (seen.num_entities, len(seen.valid), len(seen.test)) == (40559, 2824, 2924)


def test_drop_goes_with_a_model(tmp_path):
    """Vocabularies of a checkpoint that was trained without the unseen ones."""
    data = runs.write_splits(tmp_path / "data", train=[("a", "r", "b")] * 2, test=[("b", "r", "a"), ("x", "r", "a")])
    own = load_folder(data, drop=["unseen", "duplicates"])
    assert own.entities.labels == ["a", "b"]
    assert own.report.lines()[1] == (
        "left out: 1 repeated triples, 1 valid or test triples with an entity or relation that train has not"
    )
    again = load_folder(data, drop=["unseen", "duplicates"], entities=Vocabulary(["b", "a"]), relations=own.relations)
    assert again.digest == own.digest
    assert again.test.head.tolist() == [0]
    with pytest.raises(UserError, match=r"^data, without what dataset\.drop names: triple 1 of train: entity 'a'"):
        load_folder(data, drop=["unseen"], entities=Vocabulary(["b"]))
    for wrong in ("leaks", ["leak"], 3):
        with pytest.raises(UserError) as caught:
            load_folder(data, drop=wrong)
        expected = f"dataset.drop={wrong}: must be a list of duplicates, leaks, unseen; [] for none"
        assert str(caught.value) == expected


def test_the_catalogue_is_checked_before_anything_is_dropped(monkeypatch):
    monkeypatch.delenv("KGC_DATA", raising=False)
    graph = load_dataset("nations", drop=["leaks"])
    assert len(graph.train) == 1592
    assert len(graph.test) + len(graph.valid) + sum(graph.dropped.values()) == 400
