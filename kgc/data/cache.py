"""Ids of the triples of large data sets, kept in files that are mapped into memory, so that text is read once.

A data set is known by the SHA-256 of its files and of how they are read: files that change are read again, copies of
them are not. Its folder in the cache appears under its name in one step, complete, whoever else writes the same one;
any of them may be deleted. Processes that map one file share its memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pooch
import torch

from kgc.data.graph import Findings, KnowledgeGraph, in_vocabularies
from kgc.data.tables import SPLITS
from kgc.data.vocabulary import Vocabulary
from kgc.types import Triples

log = logging.getLogger(__name__)

_FORMAT = 1  # of the files below
_LARGE = 32 << 20  # bytes of source files from which on ids are kept unless the config says otherwise


def cache_folder() -> Path:
    """Where ids are kept: `$KGC_CACHE`, or the user's cache folder."""
    own = os.environ.get("KGC_CACHE")
    return (Path(own).expanduser() if own else Path(pooch.os_cache("kgc"))) / "graphs"


def cached_graph(
    name: str,
    files: Sequence[Path],
    how: Mapping[str, Any],
    make: Callable[[Vocabulary | None, Vocabulary | None], KnowledgeGraph],
    cache: bool | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """The graph of some files: from the cache, or as `make` reads it, and then kept.

    Args:
        name: of the data set.
        files: what is read.
        how: further things that what is read depends on, plain data.
        make: reads the graph in given vocabularies, or in its own for None.
        cache: whether ids are kept; None: those of files of 32 MiB or more.
        entities, relations: the vocabularies of a trained model; None takes the data's own.

    Raises:
        UserError: a label outside a given vocabulary, or what `make` raises.
    """
    if cache is None:
        cache = are_large(files)
    if not cache:
        return make(entities, relations)
    folder = cache_folder() / digest_of(files, how)
    graph = _load(folder, name)
    if graph is None:
        graph = make(None, None)
        if _store(folder, graph):
            graph = _load(folder, name) or graph
    return in_vocabularies(graph, entities, relations)


def are_large(files: Sequence[Path]) -> bool:
    """Whether files take so long to read that their ids are worth keeping."""
    return sum(path.stat().st_size for path in files) >= _LARGE


def digest_of(files: Sequence[Path], how: Mapping[str, Any]) -> str:
    """40 hexadecimal digits that stand for the content of files and the way they are read."""
    sha = hashlib.sha256(json.dumps([_FORMAT, dict(how)], sort_keys=True, default=list).encode())
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        sha.update(path.name.encode() + b"\0" + content)
    return sha.hexdigest()[:40]


def _load(folder: Path, name: str) -> KnowledgeGraph | None:
    """The graph that is kept in a folder; None if there is none, or it is damaged."""
    if not folder.is_dir():
        return None
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        labels = [pl.read_ipc(folder / f"{what}.arrow")["label"] for what in ("entities", "relations")]
        # Copies on writing: torch wants memory that could be written to; nothing writes to it.
        arrays = {split: np.load(folder / f"{split}.npy", mmap_mode="c") for split in SPLITS}
        if any(array.ndim != 2 or len(array) != 3 for array in arrays.values()):
            raise ValueError("not three columns")
        parts = {split: Triples(*map(torch.from_numpy, array)) for split, array in arrays.items()}
        vocabularies = map(Vocabulary.of_distinct, labels)
        return KnowledgeGraph(name, *vocabularies, **parts, dropped=facts["dropped"], known=Findings(**facts["known"]))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        log.warning("%s is damaged (%s) and made anew", folder, str(error).split("\n")[0])
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _store(folder: Path, graph: KnowledgeGraph) -> bool:
    """Keeps a graph in a folder; False where nothing can be written."""
    part = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for what, vocabulary in (("entities", graph.entities), ("relations", graph.relations)):
            vocabulary.series.alias("label").to_frame().write_ipc(part / f"{what}.arrow", compression="uncompressed")
        for split in SPLITS:
            triples = graph.stored(split)
            columns = (triples.head, triples.relation, triples.tail)
            kind = np.int32 if triples.head.dtype == torch.int32 else np.int64
            array = np.lib.format.open_memmap(part / f"{split}.npy", "w+", kind, (3, len(triples)))
            for row, column in zip(array, columns, strict=True):
                row[:] = column.numpy()
            array.flush()
            del array, row
        facts = {"name": graph.name, "dropped": graph.dropped, "known": asdict(graph.findings)}
        (part / "facts.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        os.chmod(part, 0o755)
        os.rename(part, folder)
    except OSError as error:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        if folder.is_dir():  # another process was quicker
            return True
        log.warning(
            "the ids of %s cannot be kept in %s (%s) and are read from text every time; KGC_CACHE=DIR names another "
            "folder, dataset.cache=false does without",
            graph.name,
            folder.parent,
            error.strerror,
        )
        return False
    log.info("cache      ids of %s are kept in %s", graph.name, folder)
    return True
