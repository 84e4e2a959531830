"""What other libraries save, ranked by their own formulas in plain Python, and by PyKEEN's own evaluator."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import random
import sys
import types
from pathlib import Path

import numpy as np
import oracle
import pytest
import runs
import safetensors.torch
import torch

from kgc.errors import UserError
from kgc.tasks import output

ENTITIES = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
RELATIONS = ["likes", "eats", "sees"]
_ALL = [(h, r, t) for h in ENTITIES for r in RELATIONS for t in ENTITIES]
_TRIPLES = random.Random(0).sample(_ALL, 40)
SPLITS = {"train": _TRIPLES[:24], "valid": _TRIPLES[24:30], "test": _TRIPLES[30:]}
HIDDEN, GAMMA = 3, 6.0
RANGE = (GAMMA + 2) / HIDDEN  # the bound of both repositories' initial values


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return runs.write_splits(tmp_path / "data", **SPLITS)


def table(rows: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-RANGE, RANGE, (rows, width)).astype("float32")


def ranks(run: Path, data: Path, *words: str) -> list[tuple[int, int]]:
    """(optimistic, pessimistic) rank of every test query."""
    runs.evaluate(run, "dataset=folder", f"dataset.path='{data}'", *words)
    return runs.ranks(run).select("optimistic", "pessimistic").rows()


def mistake(run: Path, data: Path, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        ranks(run, data, *words)
    return " ".join(str(caught.value).split("\n"))


def brute_force(score, entities=ENTITIES, relations=RELATIONS) -> list[tuple[int, int]]:
    """The same ranks by a score of ids, in a loop."""
    ids = {
        split: [(entities.index(h), relations.index(r), entities.index(t)) for h, r, t in triples]
        for split, triples in SPLITS.items()
    }
    found = oracle.ranks(score, ids["test"], list(ids.values()), len(entities))
    return [(rank.better + 1, rank.better + rank.equal + 1) for rank in found]


# The formulas of the RotatE repository and of DGL-KE, as their papers and code state them.


def translation(h, r, t, p):
    return GAMMA - np.linalg.norm(h + r - t, ord=p)


def rotation(h, r, t):
    phase = r / (RANGE / math.pi)
    h, t = (v[:HIDDEN] + 1j * v[HIDDEN:] for v in (h, t))
    return GAMMA - abs(h * np.exp(1j * phase) - t).sum()


def sines(h, r, t):
    return GAMMA - abs(np.sin((h + r - t) / (RANGE / math.pi))).sum() * RANGE / 2


def hermitian(h, r, t):
    h, r, t = (v[:HIDDEN] + 1j * v[HIDDEN:] for v in (h, r, t))
    return (h * r * t.conj()).real.sum()


def bilinear(h, r, t):
    return h @ r.reshape(HIDDEN, HIDDEN) @ t


def trilinear(h, r, t):
    return (h * r * t).sum()


def inverses(h, r, t):
    """SimplE: entities [as head | as tail], relations [r | inverse]."""
    return (h[:HIDDEN] * r[:HIDDEN] * t[HIDDEN:] + t[:HIDDEN] * r[HIDDEN:] * h[HIDDEN:]).sum() / 2


def roles(h, r, t):
    """CP: entities [as head | as tail]."""
    return (h[:HIDDEN] * r * t[HIDDEN:]).sum()


def of_tables(formula, entities, relations):
    wide = [v.astype("float64") for v in (entities, relations)]
    return lambda h, r, t: formula(wide[0][h], wide[1][r], wide[0][t])


REPOSITORY = {  # name: (numbers an entity, numbers a relation, formula)
    "TransE": (HIDDEN, HIDDEN, lambda h, r, t: translation(h, r, t, 1)),
    "DistMult": (HIDDEN, HIDDEN, trilinear),
    "ComplEx": (2 * HIDDEN, 2 * HIDDEN, hermitian),
    "RotatE": (2 * HIDDEN, HIDDEN, rotation),
    "pRotatE": (HIDDEN, HIDDEN, sines),
}


def repository(folder: Path, model: str, **changes) -> tuple[np.ndarray, np.ndarray]:
    """A folder as `codes/run.py` of the RotatE repository saves it."""
    folder.mkdir(exist_ok=True)
    width, relation_width, _ = REPOSITORY[model]
    entities, relations = table(len(ENTITIES), width, 1), table(len(RELATIONS), relation_width, 2)
    np.save(folder / "entity_embedding.npy", entities)
    np.save(folder / "relation_embedding.npy", relations)
    config = {"model": model, "hidden_dim": HIDDEN, "gamma": GAMMA, "double_entity_embedding": width > HIDDEN}
    (folder / "config.json").write_text(json.dumps(config | changes))
    for name, labels in (("entities", ENTITIES), ("relations", RELATIONS)):
        (folder / f"{name}.dict").write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(labels)))
    return entities, relations


@pytest.mark.parametrize("model", REPOSITORY)
def test_rotate_repository(tmp_path, data, model):
    tables = repository(tmp_path / "saved", model)
    found = ranks(tmp_path / "run", data, "embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'")
    assert found == brute_force(of_tables(REPOSITORY[model][2], *tables))


def test_labels_of_the_data_folder(tmp_path, data):
    tables = repository(tmp_path / "saved", "RotatE", data_path=str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    for name in ("entities.dict", "relations.dict"):
        (tmp_path / "saved" / name).rename(tmp_path / "elsewhere" / name)
    found = ranks(tmp_path / "run", data, "embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'")
    assert found == brute_force(of_tables(rotation, *tables))


def test_labels_that_are_given_win(tmp_path, data):
    """In another order, so that the wrong ones would give other ranks."""
    tables = repository(tmp_path / "saved", "RotatE")
    (tmp_path / "mine.txt").write_text("".join(f"{label}\n" for label in reversed(ENTITIES)))
    words = ["embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'", "model=rotate"]
    found = ranks(tmp_path / "run", data, *words, f"embeddings.entity_labels='{tmp_path / 'mine.txt'}'")
    assert found == brute_force(of_tables(rotation, *tables), entities=ENTITIES[::-1])
    assert found != brute_force(of_tables(rotation, *tables))


DGLKE = {
    "TransE": (HIDDEN, HIDDEN, lambda h, r, t: translation(h, r, t, 2)),
    "TransE_l1": (HIDDEN, HIDDEN, lambda h, r, t: translation(h, r, t, 1)),
    "TransE_l2": (HIDDEN, HIDDEN, lambda h, r, t: translation(h, r, t, 2)),
    "DistMult": (HIDDEN, HIDDEN, trilinear),
    "ComplEx": (2 * HIDDEN, 2 * HIDDEN, hermitian),
    "RotatE": (2 * HIDDEN, HIDDEN, rotation),
    "RESCAL": (HIDDEN, HIDDEN * HIDDEN, bilinear),
    "SimplE": (2 * HIDDEN, 2 * HIDDEN, inverses),
}


@pytest.mark.parametrize("model", DGLKE)
def test_dglke(tmp_path, data, model):
    folder = tmp_path / f"{model}_zoo_0"
    folder.mkdir()
    width, relation_width, formula = DGLKE[model]
    tables = table(len(ENTITIES), width, 1), table(len(RELATIONS), relation_width, 2)
    for name, values in zip(("entity", "relation"), tables, strict=True):
        np.save(folder / f"zoo_{model}_{name}.npy", values)
    (folder / "entities.tsv").write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(ENTITIES)))
    (folder / "relations.tsv").write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(RELATIONS)))
    config = {"model_name": model, "dataset": "zoo", "hidden_dim": HIDDEN, "gamma": GAMMA}
    config |= {"emp_file": "data/entities.tsv", "rmap_file": "data/relations.tsv"}
    (folder / "config.json").write_text(json.dumps(config))
    found = ranks(tmp_path / "run", data, "embeddings.format=dglke", f"embeddings.path='{folder}'")
    assert found == brute_force(of_tables(formula, *tables))


# LibKGE: a pickle that holds an object of its own, which is read without that class.


def libkge_checkpoint(path: Path, options: dict, weights: dict, meta: dict | None) -> None:
    """A file as `KgeModel.save` and `Config.save_to` of LibKGE write it, by a class of that name."""
    package, module = types.ModuleType("kge"), types.ModuleType("kge.config")
    config = type("Config", (), {"__module__": "kge.config", "__qualname__": "Config"})
    module.Config = config
    sys.modules |= {"kge": package, "kge.config": module}
    try:
        made = config()
        made.folder, made.options = "local/experiments/zoo", options
        content = {"type": "train", "epoch": 3, "model": (weights, {}), "config": made, "folder": made.folder}
        if meta is not None:
            content["dataset"] = {"num_entities": len(ENTITIES), "num_relations": len(RELATIONS), "meta": meta}
        torch.save(content, path)
    finally:
        del sys.modules["kge"], sys.modules["kge.config"]


LIBKGE = {
    "transe": (HIDDEN, HIDDEN, lambda h, r, t: -np.linalg.norm(h + r - t, ord=1)),
    "distmult": (HIDDEN, HIDDEN, trilinear),
    "complex": (2 * HIDDEN, 2 * HIDDEN, hermitian),
    "rotate": (2 * HIDDEN, HIDDEN, lambda h, r, t: rotation(h, r * RANGE / math.pi, t)),  # phases in radians
    "rescal": (HIDDEN, HIDDEN * HIDDEN, bilinear),
    "cp": (2 * HIDDEN, HIDDEN, roles),
    "simple": (2 * HIDDEN, 2 * HIDDEN, inverses),
}
META = {"entity_ids": ENTITIES, "relation_ids": RELATIONS}


def libkge(path: Path, model: str, rows: int = len(RELATIONS), reciprocal: bool = False, meta=META, norm: float = 1.0):
    width, relation_width, _ = LIBKGE[model]
    entities, relations = table(len(ENTITIES), width, 1), table(rows, relation_width, 2)
    options = {"model": model, model: {"l_norm": norm}}
    prefix = ""
    if reciprocal:
        options |= {
            "model": "reciprocal_relations_model",
            "reciprocal_relations_model": {"base_model": {"type": model}},
        }
        prefix = "_base_model."
    weights = {
        f"{prefix}_entity_embedder._embeddings.weight": torch.from_numpy(entities),
        f"{prefix}_relation_embedder._embeddings.weight": torch.from_numpy(relations),
    }
    if reciprocal:  # the same tables once more, as its state_dict has them
        weights |= {key.removeprefix(prefix): value for key, value in weights.items()}
    libkge_checkpoint(path, options, weights, meta)
    return entities, relations


@pytest.mark.parametrize("model", LIBKGE)
def test_libkge_package(tmp_path, data, model):
    tables = libkge(tmp_path / "zoo.pt", model)
    found = ranks(tmp_path / "run", data, "embeddings.format=libkge", f"embeddings.path='{tmp_path / 'zoo.pt'}'")
    assert found == brute_force(of_tables(LIBKGE[model][2], *tables))


def test_libkge_in_the_euclidean_norm(tmp_path, data):
    tables = libkge(tmp_path / "zoo.pt", "transe", norm=2.0)
    found = ranks(tmp_path / "run", data, "embeddings.format=libkge", f"embeddings.path='{tmp_path / 'zoo.pt'}'")
    assert found == brute_force(of_tables(lambda h, r, t: -np.linalg.norm(h + r - t), *tables))


def test_libkge_with_reciprocal_relations(tmp_path, data):
    """Heads are asked for by (t, r + R, ?)."""
    entities, relations = libkge(tmp_path / "zoo.pt", "complex", rows=2 * len(RELATIONS), reciprocal=True)
    found = ranks(tmp_path / "run", data, "embeddings.format=libkge", f"embeddings.path='{tmp_path / 'zoo.pt'}'")
    e, r = entities.astype("float64"), relations.astype("float64")
    tails = brute_force(lambda h, k, t: hermitian(e[h], r[k], e[t]))
    heads = brute_force(lambda h, k, t: hermitian(e[t], r[k + len(RELATIONS)], e[h]))
    half = len(tails) // 2
    assert found == heads[:half] + tails[half:]


def test_libkge_checkpoint_has_no_labels(tmp_path, data):
    tables = libkge(tmp_path / "checkpoint_best.pt", "complex", meta=None)
    words = ["embeddings.format=libkge", f"embeddings.path='{tmp_path}'"]
    assert mistake(tmp_path / "run", data, *words) == (
        f"embeddings.entity_labels=FILE is needed: {tmp_path} comes without the labels of its rows"
    )
    for name, labels in (("entity", ENTITIES), ("relation", RELATIONS)):
        (tmp_path / f"{name}_ids.del").write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(labels)))
        words.append(f"embeddings.{name}_labels='{tmp_path / f'{name}_ids.del'}'")
    assert ranks(tmp_path / "run", data, *words) == brute_force(of_tables(hermitian, *tables))


# PyKEEN: its own models, ranked by its own evaluator.


@pytest.fixture(scope="module")
def pykeen():
    return pytest.importorskip("pykeen", reason="PyKEEN is not installed")


@pytest.mark.parametrize(
    ("model", "options", "words", "inverse", "suffix"),
    [
        ("TransE", {}, [], False, "pt"),
        ("TransE", {"scoring_fct_norm": 2}, ["embeddings.norm=2"], True, "pt"),
        ("DistMult", {}, [], True, "pt"),
        ("ComplEx", {}, [], False, "safetensors"),
        ("ComplEx", {}, [], True, "pt"),
        ("RotatE", {}, [], False, "pt"),
        ("RotatE", {}, [], True, "safetensors"),
        ("RESCAL", {}, [], False, "pt"),
    ],
)
def test_pykeen(pykeen, tmp_path, data, model, options, words, inverse, suffix):
    """The mean reciprocal rank of both sides, with random weights of PyKEEN's own models."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import model_resolver
    from pykeen.triples import TriplesFactory

    arrays = {split: np.array(triples, dtype=str) for split, triples in SPLITS.items()}
    train = TriplesFactory.from_labeled_triples(arrays["train"], create_inverse_triples=inverse)
    rest = {
        split: TriplesFactory.from_labeled_triples(
            arrays[split], entity_to_id=train.entity_to_id, relation_to_id=train.relation_to_id
        )
        for split in ("valid", "test")
    }
    trained = model_resolver.make(model, triples_factory=train, embedding_dim=4, random_seed=0, **options)
    trained.eval()
    folder = tmp_path / "saved"
    folder.mkdir()
    train.to_path_binary(folder / "training_triples")
    if suffix == "pt":
        torch.save(trained.state_dict(), folder / "state_dict.pt")
    else:
        separate = {key: value.clone() for key, value in trained.state_dict().items()}
        safetensors.torch.save_file(separate, folder / "state_dict.safetensors")
    evaluator = RankBasedEvaluator(clear_on_finalize=False)
    result = evaluator.evaluate(
        trained,
        rest["test"].mapped_triples,
        additional_filter_triples=[train.mapped_triples, rest["valid"].mapped_triples],
        batch_size=4,
        use_tqdm=False,
    )
    words = ["embeddings.format=pykeen", f"embeddings.path='{folder}'", f"model={model.lower()}", *words]
    metrics = runs.evaluate(tmp_path / "run", "dataset=folder", f"dataset.path='{data}'", *words)
    for side, name in (("both", "test/mrr"), ("head", "test/head/mrr"), ("tail", "test/tail/mrr")):
        theirs = result.get_metric(f"{side}.realistic.inverse_harmonic_mean_rank")
        assert metrics[name] == pytest.approx(theirs, abs=1e-6)


# Mistakes.


def test_mistakes(tmp_path, data):
    saved, run = tmp_path / "saved", tmp_path / "run"
    repository(saved, "RotatE")
    path, rotate = f"embeddings.path='{saved}'", "embeddings.format=rotate"
    assert mistake(run, data, "embeddings.format=openke", path) == (
        "embeddings.format=openke: choose one of rotate, dglke, libkge, pykeen"
    )
    assert mistake(run, data, rotate) == "embeddings.format=rotate needs embeddings.path=PATH, what that library saved"
    assert mistake(run, data, rotate, "embeddings.path=nowhere") == "embeddings.path=nowhere: no such file or folder"
    assert mistake(run, data, rotate, path, "embeddings.norm=2") == (
        "embeddings.norm=2: embeddings.format=rotate tells the norm itself; leave it out"
    )
    assert mistake(run, data, rotate, path, "model=complex") == (
        f"model=complex: {saved} holds a model rotate; leave model out or choose that one"
    )
    assert mistake(run, data, rotate, path, "embeddings.entities=e.npy") == (
        "embeddings.entities and embeddings.format=rotate are both given: choose one"
    )
    assert mistake(run, data, "embeddings.path=x", "embeddings.entities=e.npy", "model=complex") == (
        "embeddings.path goes with embeddings.format, rotate | dglke | libkge | pykeen"
    )
    assert mistake(run, data, "embeddings.format=dglke", path) == (
        f"embeddings.path={saved}: the model None cannot be read; TransE, TransE_l1, TransE_l2, DistMult, ComplEx, "
        "RotatE, RESCAL, SimplE can"
    )
    assert mistake(run, data, "embeddings.format=pykeen", path) == (
        "embeddings.format=pykeen: give the model, say model=rotate; tensors alone do not tell"
    )
    assert "neither state_dict.pt nor state_dict.safetensors" in mistake(
        run, data, "embeddings.format=pykeen", path, "model=rotate"
    )
    assert mistake(run, data, "embeddings.format=pykeen", path, "model=hole") == (
        f"embeddings.path={saved}: the model hole cannot be read; transe, distmult, complex, rotate, rescal can"
    )
    assert "not a file of tensors" in mistake(
        run, data, "embeddings.format=libkge", f"embeddings.path='{saved / 'config.json'}'"
    )


@pytest.mark.parametrize("value", ["null", '"nine"', "-1", "NaN", "true"])
def test_gamma_of_another_kind(tmp_path, data, value):
    repository(tmp_path / "saved", "RotatE")
    file = tmp_path / "saved" / "config.json"
    file.write_text(f'{{"model": "RotatE", "hidden_dim": {HIDDEN}, "gamma": {value}}}')
    message = mistake(tmp_path / "run", data, "embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'")
    assert message.startswith(f"{file}: gamma must be a number above 0, the file has ")


@pytest.mark.parametrize("content", ["", "[1, 2]", "{"])
def test_config_of_another_kind(tmp_path, data, content):
    repository(tmp_path / "saved", "RotatE")
    (tmp_path / "saved" / "config.json").write_text(content)
    message = mistake(tmp_path / "run", data, "embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'")
    assert "config" in message
    assert str(tmp_path / "saved") in message


def test_other_numbers_of_labels(tmp_path, data):
    repository(tmp_path / "saved", "RotatE")
    words = ["embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'"]
    for name, labels, message in (
        ("entities", [*ENTITIES, "owl"], "7 entity vectors for 8 labels"),
        ("relations", RELATIONS[:2], "3 relation vectors for 2 labels"),
    ):
        file = tmp_path / "saved" / f"{name}.dict"
        before = file.read_text()
        file.write_text("".join(f"{i}\t{label}\n" for i, label in enumerate(labels)))
        assert mistake(tmp_path / "run", data, *words) == f"embeddings.path={tmp_path / 'saved'}: {message}"
        file.write_text(before)


def test_widths_that_do_not_fit_the_model(tmp_path, data):
    repository(tmp_path / "saved", "RotatE")
    np.save(tmp_path / "saved" / "relation_embedding.npy", table(len(RELATIONS), HIDDEN + 1, 2))
    message = mistake(tmp_path / "run", data, "embeddings.format=rotate", f"embeddings.path='{tmp_path / 'saved'}'")
    assert message == "embeddings.relations has shape [3, 4], but RotatE with 6 numbers an entity needs [3, 3]"


class Bomb:
    def __reduce__(self):
        return open, (str(Path.home() / "kgc_was_here"), "w")


@pytest.mark.parametrize("format", ["libkge", "pykeen"])
@pytest.mark.parametrize("name", ["state_dict.pt", "trained_model.pkl"])
def test_no_code_is_run(tmp_path, data, monkeypatch, format, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / name
    if name.endswith(".pt"):
        torch.save({"model": Bomb()}, file)
    else:
        file.write_bytes(pickle.dumps(Bomb()))
    message = mistake(
        tmp_path / "run", data, f"embeddings.format={format}", f"embeddings.path='{file}'", "model=rotate"
    )
    assert str(file) in message
    assert ("can run code" in message) == name.endswith(".pkl")
    assert not (tmp_path / "kgc_was_here").exists()


def test_pykeen_labels_are_those_of_its_folder(tmp_path, data):
    """A table that pandas wrote, with a label that is quoted."""
    folder = tmp_path / "training_triples"
    folder.mkdir()
    for name, labels in (("entity", ENTITIES), ("relation", RELATIONS)):
        with gzip.open(folder / f"{name}_to_id.tsv.gz", "wt") as file:
            file.write("id\tlabel\n" + "".join(f"{i}\t{label}\n" for i, label in reversed(list(enumerate(labels)))))
    entities, relations = table(len(ENTITIES), HIDDEN, 1), table(len(RELATIONS), HIDDEN, 2)
    weights = {
        "entity_representations.0._embeddings.weight": torch.from_numpy(entities),
        "relation_representations.0._embeddings.weight": torch.from_numpy(relations),
    }
    torch.save(weights, tmp_path / "state_dict.pt")
    words = ["embeddings.format=pykeen", f"embeddings.path='{tmp_path}'", "model=distmult"]
    assert ranks(tmp_path / "run", data, *words) == brute_force(of_tables(trilinear, entities, relations))
