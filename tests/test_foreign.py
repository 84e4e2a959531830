"""Vectors that came from anywhere: file formats, label files, layouts, and ranks against plain Python."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import oracle
import pytest
import runs
import safetensors.numpy
import safetensors.torch
import torch

from kgc.errors import UserError
from kgc.tasks import output

ENTITIES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
RELATIONS = ["likes", "eats", "sees"]
_RANDOM = random.Random(0)
_ALL = [(h, r, t) for h in ENTITIES for r in RELATIONS for t in ENTITIES]
_TRIPLES = _RANDOM.sample(_ALL, 40)
SPLITS = {"train": _TRIPLES[:24], "valid": _TRIPLES[24:30], "test": _TRIPLES[30:]}
DIM = 4


def integers(rows: int, width: int, seed: int) -> list[list[int]]:
    """Small whole numbers: exact in every format and every arithmetic, with many ties."""
    draw = random.Random(seed)
    return [[draw.randint(-2, 2) for _ in range(width)] for _ in range(rows)]


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


class Given:
    """A folder with the data, two tables and two label files; tests change what they need."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = runs.write_splits(folder / "data", **SPLITS)
        self.entities, self.relations = list(ENTITIES), list(RELATIONS)
        self.entity_table = integers(len(ENTITIES), DIM, seed=1)
        self.relation_table = integers(len(RELATIONS), DIM, seed=2)
        self.paths = {
            "entities": folder / "entities.npy",
            "relations": folder / "relations.npy",
            "entity_labels": folder / "entities.txt",
            "relation_labels": folder / "relations.txt",
        }
        self.choices = ["model=distmult", "dataset=folder", f"dataset.path='{self.data}'"]
        self.write()

    def write(self, dtype: str = "float32") -> None:
        np.save(self.paths["entities"], np.array(self.entity_table, dtype))
        np.save(self.paths["relations"], np.array(self.relation_table, dtype))
        self.paths["entity_labels"].write_text("".join(f"{label}\n" for label in self.entities))
        self.paths["relation_labels"].write_text("".join(f"{label}\n" for label in self.relations))

    def evaluate(self, *words: str) -> list[tuple[int, int, int]]:
        """(optimistic, pessimistic, candidates) of every query of test."""
        given = [f"embeddings.{key}='{path}'" for key, path in self.paths.items()]
        runs.evaluate(self.folder / "run", *self.choices, *given, *words)
        return runs.ranks(self.folder / "run").select("optimistic", "pessimistic", "candidates").rows()

    def expected(self, formula=oracle.distmult) -> list[tuple[int, int, int]]:
        """The same by brute force over the tables, in Python."""
        ids = {
            split: [(self.entities.index(h), self.relations.index(r), self.entities.index(t)) for h, r, t in triples]
            for split, triples in SPLITS.items()
        }

        def score(h: int, r: int, t: int) -> float:
            return formula(self.entity_table[h], self.relation_table[r], self.entity_table[t])

        ranks = oracle.ranks(score, ids["test"], list(ids.values()), len(self.entities))
        return [(rank.better + 1, rank.better + rank.equal + 1, rank.candidates) for rank in ranks]

    def mistake(self, *words: str) -> str:
        with pytest.raises(UserError) as caught:
            self.evaluate(*words)
        return " ".join(str(caught.value).split("\n"))


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


# Formats.


def test_brute_force_has_ties(given):
    """What the tests below compare with is no trivial ranking."""
    expected = given.expected()
    assert len(expected) == 20
    assert len(set(expected)) > 5
    assert any(optimistic < pessimistic for optimistic, pessimistic, _ in expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "int8", ">f4"])
def test_npy(given, dtype):
    given.write(dtype)
    assert given.evaluate() == given.expected()


def test_npy_in_fortran_order(given):
    np.save(given.paths["entities"], np.asfortranarray(np.array(given.entity_table, "float32")))
    assert given.evaluate() == given.expected()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_safetensors(given, dtype):
    for key, table in (("entities", given.entity_table), ("relations", given.relation_table)):
        given.paths[key] = given.folder / f"{key}.safetensors"
        safetensors.torch.save_file({"whatever": torch.tensor(table, dtype=dtype)}, given.paths[key])
    assert given.evaluate() == given.expected()


# Layouts, with the formulas written out in Python's numbers.


def distance(h, r, t, power):
    return -(sum(abs(a + b - c) ** power for a, b, c in zip(h, r, t, strict=True)) ** (1 / power))


def complex_numbers(vector):
    """[real half | imaginary half]"""
    half = len(vector) // 2
    return [complex(vector[i], vector[half + i]) for i in range(half)]


def hermitian(h, r, t):
    numbers = zip(complex_numbers(h), complex_numbers(r), complex_numbers(t), strict=True)
    return sum((a * b * c.conjugate()).real for a, b, c in numbers)


def rotation(h, phases, t):
    numbers = zip(complex_numbers(h), phases, complex_numbers(t), strict=True)
    return -sum(abs(a * complex(math.cos(phase), math.sin(phase)) - c) for a, phase, c in numbers)


@pytest.mark.parametrize(
    ("words", "formula"),
    [
        (["model=distmult"], lambda h, r, t: sum(a * b * c for a, b, c in zip(h, r, t, strict=True))),
        (["model=transe"], lambda h, r, t: distance(h, r, t, 1)),
        (["model=transe", "model.norm=1"], lambda h, r, t: distance(h, r, t, 1)),
        (["model=transe", "model.norm=2"], lambda h, r, t: distance(h, r, t, 2)),
        (["model=complex"], hermitian),
    ],
    ids=["distmult", "transe", "transe-l1", "transe-l2", "complex"],
)
def test_layouts_of_whole_numbers(given, words, formula):
    """Exact, ties included: sums of whole numbers, and roots of equal ones are equal."""
    assert given.evaluate(*words) == given.expected(formula)
    assert given.expected(formula) != given.expected(rotation_like_nothing)


def rotation_like_nothing(h, r, t):
    return sum(h)  # a scorer that none of the models is


@pytest.mark.parametrize(
    ("words", "formula", "width"),
    [
        (["model=rotate"], rotation, DIM // 2),
        (["model=complex"], hermitian, DIM),
        (["model=transe", "model.norm=2"], lambda h, r, t: distance(h, r, t, 2), DIM),
        (["model=transe", "model.norm=1"], lambda h, r, t: distance(h, r, t, 1), DIM),
    ],
    ids=["rotate", "complex", "transe-l2", "transe-l1"],
)
def test_layouts_of_fractions(given, words, formula, width):
    """Numbers between −2 and 2 (phases between −2 and 2 radians), stored in fp32, none of them a whole number."""
    draw = random.Random(3)

    def table(rows: int, width: int) -> list[list[float]]:
        return np.array([[draw.uniform(-2, 2) for _ in range(width)] for _ in range(rows)], "float32").tolist()

    given.entity_table, given.relation_table = table(len(ENTITIES), DIM), table(len(RELATIONS), width)
    given.write()
    assert given.evaluate(*words) == given.expected(formula)


@pytest.mark.parametrize("model", ["model=rotate", "model=rote"])
def test_vectors_of_a_run_of_ours(tmp_path, model):
    """What a checkpoint stores, written to files, gives the run's own digits."""
    values = runs.train(tmp_path / "run", model)
    stored = runs.content(tmp_path / "run" / "checkpoints" / "best.ckpt")
    words = []
    for key, name in (("entities", "entity"), ("relations", "relation")):
        np.save(tmp_path / f"{key}.npy", stored["state_dict"][f"model.{name}.weight"].numpy())
        (tmp_path / f"{key}.txt").write_text("\n".join(stored["kgc"][key]))
        words += [f"embeddings.{key}={tmp_path}/{key}.npy", f"embeddings.{name}_labels={tmp_path}/{key}.txt"]
    again = runs.evaluate(tmp_path / "again", model, "dataset=nations", *words)
    assert runs.digits(again) == runs.digits(values, "test")
    assert runs.ranks(tmp_path / "again").equals(runs.ranks(tmp_path / "run"))


# Labels.


def test_labels_with_ids_in_any_order(given):
    for key, labels in (("entity_labels", given.entities), ("relation_labels", given.relations)):
        lines = [f"{number}\t{label}\n" for number, label in enumerate(labels)]
        random.Random(4).shuffle(lines)
        given.paths[key].write_text("".join(lines))
    assert given.paths["entity_labels"].read_text()[0] != "0"
    assert given.evaluate() == given.expected()


def test_rows_in_any_order(given):
    """The label file alone says whose vector a row is."""
    expected = given.expected()
    order = [3, 0, 6, 2, 5, 1, 4]
    given.entities = [given.entities[i] for i in order]
    given.entity_table = [given.entity_table[i] for i in order]
    given.write()
    assert given.evaluate() == expected == given.expected()


def test_more_rows_than_the_graph_has_entities(given):
    """They compete: the model could answer with them."""
    before = given.expected()
    given.entities += ["yak", "zebra"]
    given.relations += ["fears"]
    given.entity_table += integers(2, DIM, seed=5)
    given.relation_table += integers(1, DIM, seed=6)
    given.write()
    assert given.evaluate() == given.expected()
    assert [c for _, _, c in given.expected()] == [c + 2 for _, _, c in before]


def test_a_missing_label_is_named(given):
    given.entities[2] = "cow"
    given.write()
    message = given.mistake()
    assert "'cat'" in message
    assert str(given.data) in message
    assert ".txt:" in message


def test_a_repeated_label_is_named(given):
    given.entities[2] = "ant"
    given.write()
    message = given.mistake()
    assert "entities.txt:3" in message
    assert "'ant'" in message


def test_another_number_of_labels_than_rows(given):
    given.entities.append("zebra")
    given.write()
    message = given.mistake()
    assert "embeddings.entity_labels" in message
    assert "8 labels" in message
    assert "7 rows" in message


@pytest.mark.parametrize("key", ["relations", "entity_labels", "relation_labels"])
def test_a_companion_that_is_not_given_is_named(given, key):
    del given.paths[key]
    assert f"embeddings.{key} is needed" in given.mistake()


@pytest.mark.parametrize("key", ["entities", "relations", "entity_labels", "relation_labels"])
def test_a_file_that_is_not_there_is_named(given, key):
    given.paths[key] = given.folder / "nowhere.npy"
    message = given.mistake()
    assert "nowhere.npy" in message
    assert "no such file" in message


@pytest.mark.parametrize("name", ["model", "dataset"])
def test_model_and_data_are_needed(given, name):
    given.choices = [word for word in given.choices if not word.startswith(name)]
    message = given.mistake()
    assert f"{name}=" in message
    assert "needed" in message


# Tables that do not fit.


def test_relations_of_another_width(given):
    given.relation_table = integers(len(RELATIONS), DIM + 1, seed=2)
    given.write()
    message = given.mistake()
    assert "embeddings.relations has shape [3, 5]" in message
    assert "[3, 4]" in message


def test_rotate_needs_phases_of_half_the_width(given):
    message = given.mistake("model=rotate")
    assert "embeddings.relations has shape [3, 4]" in message
    assert "[3, 2]" in message


@pytest.mark.parametrize("model", ["complex", "rotate"])
def test_complex_models_need_an_even_width(given, model):
    given.entity_table = integers(len(ENTITIES), 5, seed=1)
    given.write()
    message = given.mistake(f"model={model}")
    assert "even" in message
    assert "5" in message


def test_a_model_with_further_parameters_is_refused_with_the_cure(given):
    message = given.mistake("model=tucker")
    assert "embeddings.entities: TuckER has further parameters (core)" in message
    assert "checkpoint=PATH" in message


@pytest.mark.parametrize("shape", [(7,), (7, 4, 1), (0, 4), (7, 0)])
def test_a_table_has_rows_and_columns(given, shape):
    np.save(given.paths["entities"], np.zeros(shape, "float32"))
    message = given.mistake()
    assert "embeddings.entities" in message
    assert str(list(shape)) in message


@pytest.mark.parametrize("dtype", ["complex64", "U3", "bool", "datetime64[s]"])
def test_a_table_holds_real_numbers(given, dtype):
    np.save(given.paths["entities"], np.zeros((7, 4), dtype))
    assert "embeddings.entities" in given.mistake()


def test_complex_numbers_are_told_the_layout(given):
    np.save(given.paths["entities"], np.zeros((7, 4), "complex64"))
    assert "[real half | imaginary half]" in given.mistake()


def test_two_tensors_are_ambiguous(given):
    given.paths["entities"] = given.folder / "entities.safetensors"
    table = np.zeros((7, 4), "float32")
    safetensors.numpy.save_file({"first": table, "second": table + 1}, given.paths["entities"])
    message = given.mistake()
    assert "first, second" in message


@pytest.mark.parametrize("name", ["entities.pt", "entities.csv", "entities"])
def test_other_endings(given, name):
    given.paths["entities"] = given.folder / name
    given.paths["entities"].write_bytes(b"1 2 3")
    message = given.mistake()
    assert ".npy" in message
    assert ".safetensors" in message


@pytest.mark.parametrize("ending", [".npy", ".safetensors"])
@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_damaged_files(given, ending, damage):
    path = given.folder / f"damaged{ending}"
    if damage is None:
        table = np.ones((7, 4), "float32")
        np.save(path, table) if ending == ".npy" else safetensors.numpy.save_file({"x": table}, path)
        damage = path.read_bytes()[:-20]
    path.write_bytes(damage)
    given.paths["entities"] = path
    message = given.mistake()
    assert f"embeddings.entities={path}" in message
    assert "not a readable" in message


# Numbers that are none.


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_vector_that_is_no_number_is_an_error_that_names_a_triple(given, value):
    h = SPLITS["test"][0][0]
    given.entity_table[given.entities.index(h)] = [value] * DIM
    given.write()
    message = given.mistake()
    triples = ["({!r}, {!r}, {!r})".format(*triple) for triple in SPLITS["test"]]
    named = [triple for triple, text in zip(SPLITS["test"], triples, strict=True) if text in message]
    assert len(named) == 1, message
    assert h in named[0]


def test_a_number_too_large_for_fp32_is_an_error(given):
    given.entity_table[0][0] = 1e300
    given.write("float64")
    assert "embeddings.entities" in given.mistake() or "score" in given.mistake()


@pytest.mark.filterwarnings("default:.*non-finite")
def test_nan_never_flatters(given, capsys):
    """Queries whose answer has no score come last; a rival without one never wins."""
    lost = given.entities.index(SPLITS["test"][0][0])
    given.entity_table[lost] = [math.nan] * DIM
    given.write()
    found = given.evaluate("ranking.nonfinite=worst")
    assert found == given.expected()
    assert "non-finite" in capsys.readouterr().out


def test_vectors_that_are_all_alike_score_as_chance(given):
    """A constant model: every rank is the middle, and AMRI is 0."""
    given.entity_table = [[1] * DIM for _ in ENTITIES]
    given.relation_table = [[1] * DIM for _ in RELATIONS]
    given.write()
    found = given.evaluate()
    assert all((optimistic, pessimistic) == (1, candidates) for optimistic, pessimistic, candidates in found)
    values = runs.metrics(given.folder / "run")
    assert values["test/amri"] == pytest.approx(0, abs=1e-12)
    assert values["test/num_tied"] == sum(candidates > 1 for _, _, candidates in found)


def test_console_says_what_was_read(given, capsys):
    given.evaluate()
    assert "DistMult of 7 entity and 3 relation vectors" in capsys.readouterr().out
