"""What other libraries save, in our layout.

No code of a file is run: of pickles only tensors and plain values are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgc.errors import UserError
from kgc.foreign.vectors import read_safetensors, read_vectors

_TABLES = ("entity", "relation")


@dataclass
class Found:
    """Two tables in our layout, and what their library tells about them.

    Args:
        entities: [E, D] float32.
        relations: [R, Dr] float32, or [2R, Dr] with reciprocal relations.
        model: our name of the model.
        options: of the model's config, such as `norm`.
        entity_labels, relation_labels: a file of labels or the labels; None where there are none.
        alternating: reciprocal relations stand in turn with their own, r in row 2r and its inverse in row 2r + 1; ours
            stand behind all the others.
    """

    entities: Tensor
    relations: Tensor
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    entity_labels: Path | list[str] | None = None
    relation_labels: Path | list[str] | None = None
    alternating: bool = False


def rotate(folder: Path, model: str | None, norm: int | None) -> Found:
    """The RotatE repository: `entity_embedding.npy`, `relation_embedding.npy` and `config.json` (Sun et al. 2019)."""
    config = _config(folder)
    names = {"TransE": "transe", "DistMult": "distmult", "ComplEx": "complex", "RotatE": "rotate", "pRotatE": "protate"}
    name = _known(str(config.get("model")), names, folder)
    entities = read_vectors(str(folder / "entity_embedding.npy"), "embeddings.path")
    relations = read_vectors(str(folder / "relation_embedding.npy"), "embeddings.path")
    labels = (_first(folder, config.get("data_path"), f"{what}.dict") for what in ("entities", "relations"))
    found = Found(entities, relations, name, {}, *labels)
    _distances(found, config, folder, norm=1)
    if name == "protate":  # its distance is |sin(h + r - t)|, ours |sin((h + r - t) / 2)|
        scale = 2 * math.pi / _range(config, folder)
        found.entities, found.relations = entities * scale, relations * scale
        found.options["modulus"] = _range(config, folder) / 4  # where its training starts; ranks do not depend on it
    return found


def dglke(folder: Path, model: str | None, norm: int | None) -> Found:
    """DGL-KE: `DATASET_MODEL_entity.npy`, `DATASET_MODEL_relation.npy` and `config.json` (Zheng et al. 2020)."""
    config = _config(folder)
    names = {"TransE": "transe", "TransE_l1": "transe", "TransE_l2": "transe", "DistMult": "distmult"}
    names |= {"ComplEx": "complex", "RotatE": "rotate", "RESCAL": "rescal", "SimplE": "simple"}
    kind = str(config.get("model_name"))
    name = _known(kind, names, folder)
    stem = f"{config.get('dataset')}_{kind}"
    found = Found(
        read_vectors(str(folder / f"{stem}_entity.npy"), "embeddings.path"),
        read_vectors(str(folder / f"{stem}_relation.npy"), "embeddings.path"),
        name,
        entity_labels=_first(folder, config.get("data_path"), config.get("emp_file")),
        relation_labels=_first(folder, config.get("data_path"), config.get("rmap_file")),
    )
    _distances(found, config, folder, norm=1 if kind in ("TransE_l1", "RotatE") else 2)
    return found


def _distances(found: Found, config: Mapping[str, Any], folder: Path, norm: int) -> None:
    """Norm and margin of distances; in radians RotatE's phases, which both repositories store in units of range / π."""
    if found.model in ("transe", "rotate", "protate"):
        found.options["margin"] = _number(config, "gamma", folder)
    if found.model in ("transe", "rotate"):
        found.options["norm"] = norm
    if found.model == "rotate":
        found.relations = found.relations * (math.pi / _range(config, folder))


def _range(config: Mapping[str, Any], folder: Path) -> float:
    """The bound of both repositories' initial values, (γ + 2) / hidden_dim."""
    return (_number(config, "gamma", folder) + 2) / _number(config, "hidden_dim", folder)


def libkge(place: Path, model: str | None, norm: int | None) -> Found:
    """LibKGE: the weights and the config of a checkpoint or a package (Broscheit et al. 2020)."""
    file = place / "checkpoint_best.pt" if place.is_dir() else place
    content = _tensors(file)
    try:
        weights = content["model"][0]
        config = content["config"].__dict__["options"]
        kind = str(config["model"])
        reciprocal = kind == "reciprocal_relations_model"
        if reciprocal:
            kind = str(config[kind]["base_model"]["type"])
        entities, relations = (_one(weights, f"{name}_embedder._embeddings.weight") for name in ("entity", "relation"))
        meta = content.get("dataset", {}).get("meta", {})
        options = {"reciprocal": reciprocal}
        names = {name: name for name in ("transe", "distmult", "complex", "rotate", "rescal", "cp", "simple")}
        name = _known(kind, names, file)
        if name in ("transe", "rotate"):
            options["norm"] = _whole(config[kind]["l_norm"])
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UserError(
            f"embeddings.path={file}: not a checkpoint of LibKGE ({type(error).__name__}: {error})"
        ) from error
    return Found(entities, relations, name, options, meta.get("entity_ids"), meta.get("relation_ids"))


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(f"l_norm is {value}, ours are 1 and 2")
    return int(value)


def pykeen(place: Path, model: str | None, norm: int | None) -> Found:
    """PyKEEN: `model.state_dict()`, saved by torch.save or safetensors, complex numbers as pairs (Ali et al. 2021)."""
    if model is None:
        raise UserError("embeddings.format=pykeen: give the model, say model=rotate; tensors alone do not tell")
    names = {name: name for name in ("transe", "distmult", "complex", "rotate", "rescal")}
    name = _known(model, names, place)
    file = place
    if place.is_dir():
        files = [place / name for name in ("state_dict.pt", "state_dict.safetensors")]
        file = next((path for path in files if path.is_file()), None)
        if file is None:
            raise UserError(
                f"embeddings.path={place}: neither state_dict.pt nor state_dict.safetensors; export the tensors by "
                "torch.save(model.state_dict(), 'state_dict.pt') (trained_model.pkl can run code and is not read)"
            )
    weights = _tensors(file)
    try:
        entities, relations = (_one(weights, f"{kind}_representations.0._embeddings.weight") for kind in _TABLES)
        if any(f"{kind}_representations.1." in key for kind in _TABLES for key in weights):
            raise KeyError("a second representation")
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"embeddings.path={file}: not the state_dict of a {name} model of PyKEEN ({error})") from error
    options: dict[str, Any] = {}
    if name in ("complex", "rotate"):
        entities, relations = _halves(entities), _halves(relations)
    if name == "rotate":
        real, imaginary = relations.chunk(2, dim=1)
        relations = torch.atan2(imaginary, real)
    if name in ("transe", "rotate"):
        options["norm"] = norm if norm is not None else {"transe": 1, "rotate": 2}[name]
    folder = (place if place.is_dir() else place.parent) / "training_triples"
    labels = {kind: _first(folder, None, f"{kind}_to_id.tsv.gz") for kind in _TABLES}
    return Found(entities, relations, name, options, labels["entity"], labels["relation"], alternating=True)


def _halves(pairs: Tensor) -> Tensor:
    """[n, 2d] of real and imaginary parts in turn, as [real half | imaginary half]."""
    return torch.cat([pairs[:, 0::2], pairs[:, 1::2]], dim=1)


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"embeddings.path={folder}: no readable config.json in it ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{file}: not the config of a run, which is a JSON object")
    return config


def _number(config: Mapping[str, Any], key: str, folder: Path) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{folder / 'config.json'}: {key} must be a number above 0, the file has {value}")
    return float(value)


def _known(kind: str, names: Mapping[str, str], place: Path) -> str:
    if kind not in names:
        raise UserError(f"embeddings.path={place}: the model {kind} cannot be read; {', '.join(names)} can")
    return names[kind]


def _first(folder: Path, data: str | None, name: str | None) -> Path | None:
    """The file of labels: `name` itself, or in the folder or in the data's folder."""
    if name is None:
        return None
    places = [folder / name, folder / Path(str(name)).name] + ([Path(str(data)) / name] if data else [])
    return next((path for path in places if path.is_file()), None)


def _tensors(file: Path) -> dict[str, Any]:
    """What a file of tensors holds; a config of LibKGE is read as plain values, any other class is refused."""
    if not file.is_file():
        raise UserError(f"embeddings.path={file}: no such file")
    if file.suffix == ".safetensors":
        return read_safetensors(file, "embeddings.path")
    try:
        with torch.serialization.safe_globals([(_Plain, "kge.config.Config")]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).split("\n")[0].split(". ")[0]
        raise UserError(f"embeddings.path={file}: not a file of tensors ({type(error).__name__}: {reason})") from error
    if not isinstance(content, dict):
        held = type(content).__name__
        raise UserError(f"embeddings.path={file}: a dictionary of tensors is needed, the file holds a {held}")
    return content


class _Plain:
    """Stands in for a class of another library: attributes without behaviour."""


def _one(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """The table whose key ends in `name`, of which there may be several that are the same tensor."""
    found = [value for key, value in weights.items() if key.endswith(name)]
    if not found or found[0].dim() != 2 or any(not torch.equal(found[0], other) for other in found[1:]):
        raise KeyError(f"{len(found)} tables {name}")
    return found[0].float()
