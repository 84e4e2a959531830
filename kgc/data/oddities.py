"""What is odd in the files of a data set, though each of them can be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from kgc.data.formats import find_format
from kgc.data.graph import KnowledgeGraph
from kgc.data.reader import ENDINGS, SEPARATORS, Layout, file_ending, find_split, read_triples
from kgc.data.splitting import NAMES
from kgc.data.tables import SPLITS

_HEADERS = [
    ("head", "relation", "tail"),
    ("subject", "predicate", "object"),
    ("source", "relation", "target"),
    ("s", "p", "o"),
    ("h", "r", "t"),
]


def folder_notes(graph: KnowledgeGraph, folder: Path, format: str | None, layout: Layout) -> list[str]:
    """Splits under names that are not read, and lines of names that are read as triples; of `formats.FORMATS` only
    `splits` has such.

    Args:
        graph: what was read.
        folder: where.
        format, layout: see `formats.read_folder`.
    """
    if (format or find_format(folder)) != "splits":
        return []
    paths = {split: path for split in SPLITS if (path := find_split(folder, split)) is not None}
    lines = []
    for split in SPLITS:
        others = (f"{name}{end}" for name, meant in NAMES.items() if meant == split for end in ENDINGS)
        found = None if split in paths else next((name for name in others if (folder / name).is_file()), None)
        if found:
            wanted = split + found[found.index(".") :]
            lines.append(f"{folder}: no {split} split found; {found} is not read, it must be named {wanted}")
    return lines + header_notes(graph, paths, layout)


def header_notes(graph: KnowledgeGraph, files: Mapping[str, Path], layout: Layout) -> list[str]:
    """Text files of triples without names whose first line looks like names; a line for each.

    Args:
        graph: what was read.
        files: by split.
        layout: of the files.
    """
    if layout.columns or layout.extra:
        return []
    words = {word for header in _HEADERS for word in header}
    relations = _are_among(graph.relations.series, words)
    if not relations.any():
        return []
    entities, lines = _are_among(graph.entities.series, words), {}
    for split, path in files.items():
        head, relation, tail = (getattr(graph.stored(split), c).numpy() for c in ("head", "relation", "tail"))
        like = relations[relation] & entities[head] & entities[tail]
        if file_ending(path) not in SEPARATORS or not like.any():
            continue
        if names := _header(read_triples(path, layout).row(0)):
            cure = f"dataset.columns=[{','.join(names)}] takes it for the names of the columns"
            lines[path] = f"{path}:1: looks like names of columns and is read as a triple; {cure}"
    return list(lines.values())


def _are_among(labels: pl.Series, words: set[str]) -> np.ndarray:
    return labels.str.to_lowercase().is_in(list(words)).to_numpy()


def _header(labels: tuple[str, ...]) -> list[str] | None:
    """The names of heads, relations and tails in a first line, in this order; None for a triple."""
    names = {label.lower(): label for label in labels}
    return next(([names[word] for word in header] for header in _HEADERS if set(header) == set(names)), None)
