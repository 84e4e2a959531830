"""A checkpoint as a folder, which each process writes its part of; read by any number of processes.

The folder holds `meta.pt`, the checkpoint without its tensors, and the folder that `meta.pt` names, in which
`torch.distributed.checkpoint` has the tensors. A new state lies beside the old one until `meta.pt` is replaced, in one
step, so that a run killed while it writes keeps the state before.

Nothing in a folder is run: DCP's index is a pickle, of which only the records that DCP writes are taken.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from kgc.sharding import Shard

_META = "meta.pt"
# What DCP's index is made of.
_RECORDS = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "torch.serialization": {"_get_layout"},
    "torch": {
        "Size",
        *(str(kind).removeprefix("torch.") for kind in vars(torch).values() if type(kind) is torch.dtype),
    },
}


def is_folder(path: str | Path) -> bool:
    """Whether a checkpoint is a folder of this kind."""
    return (Path(path) / _META).is_file()


def write_folder(path: Path, checkpoint: dict[str, Any], name: str, first: bool, barrier: Callable[[], None]) -> None:
    """Writes a checkpoint of Lightning's form; called by all processes together.

    Args:
        path: the folder, made if missing; what it held before is taken away in the end.
        checkpoint: `state_dict` and `optimizer_states` hold tensors that are the same on all processes, and DTensors.
        name: of the folder in it, the same on all processes and new.
        first: whether this is the process that writes `meta.pt`.
        barrier: waits for all processes.
    """
    tensors, rest = _taken_apart(checkpoint)
    if first:
        (path / name).mkdir(parents=True)
    barrier()
    dcp.save(tensors, storage_writer=FileSystemWriter(path / name, single_file_per_rank=True, thread_count=1))
    if first:
        meta = {"data": name, "sharded": [key for key, t in tensors.items() if hasattr(t, "to_local")], "rest": rest}
        part = path / f"{_META}.part"
        with open(part, "wb") as file:
            torch.save(meta, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path / _META)
        for old in path.iterdir():
            if old.is_dir() and old.name != name:
                shutil.rmtree(old, ignore_errors=True)


def read_folder(path: str | Path, shard: Shard | None = None, tensors: bool = True) -> dict[str, Any]:
    """The checkpoint in a folder, in Lightning's form; no other process is needed.

    Args:
        path: the folder.
        shard: of this process; sharded tensors are then its rows. None gives whole tensors.
        tensors: False leaves them out.

    Raises:
        Exception: whatever a folder that is damaged makes the reader raise.
    """
    path = Path(path)
    meta = torch.load(path / _META, map_location="cpu", weights_only=True)
    if not tensors:
        return _put_together({}, meta["rest"])
    reader = _Reader(path / Path(meta["data"]).name)
    wanted: dict[str, Tensor] = {}
    first: dict[str, int] = {}
    for key, entry in reader.read_metadata().state_dict_metadata.items():
        size = list(entry.size)
        if shard is not None and key in meta["sharded"]:
            size[0], first[key] = shard.held, shard.first
        wanted[key] = torch.zeros(size, dtype=entry.properties.dtype)
    try:
        with _quiet():
            dcp.load(wanted, storage_reader=reader, planner=_Rows(first), no_dist=True)
    except CheckpointException as error:  # which is no Exception
        cause = next(iter(error.failures.values()))[0]
        raise ValueError(f"{type(cause).__name__}: {cause}") from error
    return _put_together(wanted, meta["rest"])


class _Rows(DefaultLoadPlanner):
    """Reads tensors from a row on.

    Args:
        first: that row, by key; 0 where none is given.
    """

    def __init__(self, first: dict[str, int]):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.first = first

    def create_local_plan(self) -> LoadPlan:
        items = []
        for key, tensor in self.state_dict.items():
            offsets = torch.Size([self.first.get(key, 0), *[0] * (tensor.dim() - 1)][: tensor.dim()])
            part = ChunkStorageMetadata(offsets=offsets, sizes=tensor.shape)
            items += create_read_items_for_chunk_list(key, self.metadata.state_dict_metadata[key], [part])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn]


def check_index(path: str | Path) -> None:
    """Reads a folder's index of tensors.

    Raises:
        Exception: whatever one that is damaged makes the reader raise; `pickle.UnpicklingError` if it names what is no
            record of it.
    """
    meta = torch.load(Path(path) / _META, map_location="cpu", weights_only=True)
    _Reader(Path(path) / Path(meta["data"]).name).read_metadata()


def remove(path: Path) -> None:
    """Takes a checkpoint away, a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(part: Path, path: Path) -> None:
    """Gives a complete checkpoint its name, in one step where it takes the place of one of its kind."""
    if path.is_dir() or part.is_dir():
        remove(path)
    os.replace(part, path)


def _taken_apart(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of weights and optimizers by keys `state_dict/NAME`, `optimizer_states/0/PARAMETER/NAME`, and the
    checkpoint without them."""
    tensors = {f"state_dict/{name}": t for name, t in checkpoint["state_dict"].items() if isinstance(t, Tensor)}
    optimizers = []
    for number, optimizer in enumerate(checkpoint.get("optimizer_states", [])):
        left: dict[Any, dict[str, Any]] = {}
        for parameter, state in optimizer["state"].items():
            left[parameter] = {name: None if isinstance(v, Tensor) else v for name, v in state.items()}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer_states/{number}/{parameter}/{name}"] = value
        optimizers.append(optimizer | {"state": left})
    states = {name: None if isinstance(t, Tensor) else t for name, t in checkpoint["state_dict"].items()}
    rest = checkpoint | {"state_dict": states}
    if optimizers:
        rest["optimizer_states"] = optimizers
    return tensors, rest


def _put_together(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        if kind == "state_dict":
            rest["state_dict"][name] = value
        else:
            number, parameter, name = name.split("/", 2)
            rest["optimizer_states"][int(number)]["state"][int(parameter)][name] = value
    return rest


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):  # so Python 3.11.0 to 3.11.3 writes the members of an Enum
            return _member
        raise pickle.UnpicklingError(f"the index names {module}.{name}, which is none of its records")


def _member(kind: Any, name: str) -> Enum:
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"the index takes {name} of what is none of its records")
    return kind[name]


class _Reader(FileSystemReader):
    """Reads tensors, and an index that runs nothing."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _Index(file).load()
        if any(not isinstance(entry, TensorStorageMetadata) for entry in metadata.state_dict_metadata.values()):
            raise pickle.UnpicklingError("the index names what is no tensor")
        if any(Path(place.relative_path).name != place.relative_path for place in metadata.storage_data.values()):
            raise pickle.UnpicklingError("the index names a file outside of its folder")
        metadata.planner_data = None
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DCP warns that it works alone, which is what is wanted."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed is (unavailable|disabled).*")
        yield
