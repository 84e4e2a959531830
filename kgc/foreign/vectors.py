"""Vectors trained elsewhere, as a model of ours.

Layouts: entities of DistMult, TransE and TransH, and relations of the first two, one real vector; ComplEx entities and
relations, and RotatE entities, [real half | imaginary half]; RotatE relations phases in radians, half as wide as an
entity; TransH relations [translation | normal], twice as wide. Those of other models stand in their class's docstring.
Models with weights beside the two tables cannot be made so.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kgc.data.reader import read_labels
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.base import KGEModel


def read_vectors(path: str, key: str) -> Tensor:
    """A [n, d] float32 table from a `.npy` file, or from a `.safetensors` file with one tensor.

    Args:
        path: the file.
        key: the config key, for messages.

    Raises:
        UserError: no such file, another format, Python objects inside, or not a table of numbers.
    """
    file = Path(str(path))
    if not file.is_file():
        raise UserError(f"{key}={path}: no such file")
    if file.suffix == ".safetensors":
        tensors = read_safetensors(file, key)
        if len(tensors) != 1:
            raise UserError(
                f"{key}={file}: one tensor is needed, the file has {len(tensors)}: {', '.join(sorted(tensors))}"
            )
        table = next(iter(tensors.values()))
    elif file.suffix == ".npy":
        table = _read_npy(file, key)
    else:
        raise UserError(f"{key}={path}: the file must end in .npy or .safetensors")
    if table.dim() != 2 or not table.numel():
        raise UserError(f"{key}={path}: a table [rows, dim] is needed, the file has shape {list(table.shape)}")
    if table.is_complex():
        raise UserError(f"{key}={path}: complex numbers; store [real half | imaginary half] as real numbers instead")
    return table.float()


def _read_npy(file: Path, key: str) -> Tensor:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{key}={file}: not a readable .npy file of numbers ({error})") from error
    if array.dtype.kind not in "fciu":
        raise UserError(f"{key}={file}: numbers are needed, the file holds {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("=")))


def read_safetensors(file: Path, key: str) -> dict[str, Tensor]:
    """All tensors of a `.safetensors` file by name.

    Raises:
        UserError: not such a file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError, struct.error) as error:
        raise UserError(f"{key}={file}: not a readable .safetensors file ({error})") from error


def read_vocabulary(path: str | None, key: str, rows: int) -> Vocabulary:
    """The labels of the rows of a table.

    Raises:
        UserError: no file, repeated labels, or another number of labels than rows.
    """
    if path is None:
        raise UserError(f"{key} is needed: a file with one label a line, or id<TAB>label, for the rows of the table")
    labels = read_labels(Path(str(path)))
    if len(labels) != rows:
        raise UserError(f"{key}={path}: {len(labels)} labels for a table of {rows} rows")
    return Vocabulary(labels)


def load_vectors(model: KGEModel, entities: Tensor, relations: Tensor) -> None:
    """Puts [E, D] and [R, Dr] tables into a model of the same sizes.

    Raises:
        UserError: a width does not fit the model, or the model has parameters beside the two tables.
    """
    further = [name for name, _ in model.named_parameters() if name.split(".")[0] not in ("entity", "relation")]
    if further:
        raise UserError(
            f"embeddings.entities: {type(model).__name__} has further parameters ({', '.join(further)}), which two "
            "tables of vectors do not give; evaluate a run of kgc by checkpoint=PATH instead"
        )
    for name, table, given in (("entities", model.entity, entities), ("relations", model.relation, relations)):
        rows = model.num_entities if name == "entities" else len(table.weight)
        if [rows, table.embedding_dim] != list(given.shape):
            raise UserError(
                f"embeddings.{name} has shape {list(given.shape)}, but {type(model).__name__} with {entities.shape[1]} "
                f"numbers an entity needs {[rows, table.embedding_dim]}"
            )
        own = given if name == "relations" or model.shard is None else model.shard.part_of(given)
        with torch.no_grad():
            table.weight.copy_(own)
