"""What other libraries save, as a model of ours: `embeddings.format=NAME embeddings.path=PATH`.

| format | path | model, norm and margin | labels, where none are given |
| --- | --- | --- | --- |
| `rotate` | folder of the RotatE repository | from `config.json` | `entities.dict`, there or in its `data_path` |
| `dglke` | `ckpts/…` folder of DGL-KE | from `config.json` | `emp_file` and `rmap_file` of `config.json` |
| `libkge` | checkpoint or package, `.pt` | from its config | from a package; a checkpoint has none |
| `pykeen` | folder or file with `model.state_dict()` | `model=…` and `embeddings.norm` | `training_triples/` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from kgc.data.reader import read_labels
from kgc.data.tables import quoted_labels
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.foreign.libraries import Found, dglke, libkge, pykeen, rotate

FORMATS: dict[str, Callable[[Path, str | None, int | None], Found]] = {
    "rotate": rotate,
    "dglke": dglke,
    "libkge": libkge,
    "pykeen": pykeen,
}


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Args:
        model: its name among the choices of `model=`.
        options: of its config: `norm`, `margin`, `modulus`, `reciprocal`, where the model has them.
        entities: [E, D] float32 in our layout.
        relations: [R, Dr] float32, [2R, Dr] with `reciprocal`, the second half for head queries.
        entity_labels, relation_labels: of the E and R rows.
    """

    model: str
    options: dict[str, Any]
    entities: Tensor
    relations: Tensor
    entity_labels: Vocabulary
    relation_labels: Vocabulary


def read_trained(
    format: str,
    path: str | None,
    model: str | None = None,
    norm: int | None = None,
    entity_labels: str | None = None,
    relation_labels: str | None = None,
) -> Trained:
    """Reads what another library saved.

    Args:
        format: a key of `FORMATS`.
        path: the file or folder.
        model: our name of the model, where the user gave it; needed by formats that do not tell.
        norm: 1 or 2, of TransE and RotatE, where the format does not tell; None: the library's default.
        entity_labels, relation_labels: files of labels; None: those that the library saved.

    Raises:
        UserError: an unknown format, no such file, a file that is not what the format says, a model that we lack or
            that the user called another, or labels that are missing or do not fit.
    """
    if format not in FORMATS:
        raise UserError(f"embeddings.format={format}: choose one of {', '.join(FORMATS)}")
    if path is None:
        raise UserError(f"embeddings.format={format} needs embeddings.path=PATH, what that library saved")
    if norm is not None and (format != "pykeen" or norm not in (1, 2)):
        tells = f"embeddings.format={format} tells the norm itself; leave it out"
        cure = "choose 1 or 2" if format == "pykeen" else tells
        raise UserError(f"embeddings.norm={norm}: {cure}")
    place = Path(str(path))
    if not place.exists():
        raise UserError(f"embeddings.path={path}: no such file or folder")
    if place.suffix == ".pkl":
        raise UserError(
            f"embeddings.path={path}: a pickled model can run code and is not read; export its tensors by "
            "torch.save(model.state_dict(), 'state_dict.pt')"
        )
    found = FORMATS[format](place, model, norm)
    if model is not None and model != found.model:
        raise UserError(f"model={model}: {path} holds a model {found.model}; leave model out or choose that one")
    if norm is not None and "norm" not in found.options:
        raise UserError(f"embeddings.norm={norm}: {found.model} has no norm; leave it out")
    entities = _vocabulary(found.entity_labels, entity_labels, "embeddings.entity_labels", place)
    relations = _vocabulary(found.relation_labels, relation_labels, "embeddings.relation_labels", place)
    table, options = found.relations, dict(found.options)
    if len(entities) != len(found.entities):
        raise UserError(f"embeddings.path={path}: {len(found.entities)} entity vectors for {len(entities)} labels")
    if len(table) not in (len(relations), 2 * len(relations)):
        raise UserError(f"embeddings.path={path}: {len(table)} relation vectors for {len(relations)} labels")
    if len(table) != len(relations):
        if options.get("reciprocal") is False:
            raise UserError(
                f"embeddings.path={path}: {len(table)} relation vectors for {len(relations)} labels, but no reciprocal "
                "relations in its config"
            )
        table = table.view(-1, 2, table.shape[1]).transpose(0, 1).flatten(0, 1) if found.alternating else table
    options["reciprocal"] = len(table) != len(relations)
    return Trained(found.model, options, found.entities, table, entities, relations)


def _vocabulary(found: Path | list[str] | None, given: str | None, key: str, place: Path) -> Vocabulary:
    """The labels that were given, or else those that were found.

    Raises:
        UserError: there are none, or a label occurs twice.
    """
    if given is not None:
        return Vocabulary(read_labels(Path(str(given))))
    if found is None:
        raise UserError(f"{key}=FILE is needed: {place} comes without the labels of its rows")
    if isinstance(found, Path):
        return Vocabulary(quoted_labels(found, "id") if found.suffix == ".gz" else read_labels(found))
    return Vocabulary([str(label) for label in found])
