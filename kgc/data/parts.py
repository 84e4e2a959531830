"""Large text files read a part at a time, so that the text of a graph is never in memory as a whole.

What is odd in any way (quotes, names of columns, a byte-order mark, a mistake) is left to `kgc.data.reader`, which
reads whole files and says what is wrong with them and where.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import torch

from kgc.data.graph import KnowledgeGraph
from kgc.data.lines import LONGEST_FIELD, LONGEST_LINE, SAFE_RATIO, SAFE_SIZE
from kgc.data.reader import COLUMNS, SEPARATORS, Layout, file_ending, neo4j_columns
from kgc.data.tables import SPLITS
from kgc.data.vocabulary import Vocabulary
from kgc.types import Triples

_BYTES = 1 << 25  # of text that is looked at at once


class _Odd(Exception):
    """A file that is not as simple as that."""


class _Numbers:
    """Labels numbered in the order in which they come."""

    def __init__(self) -> None:
        self._kind = pl.Categorical(pl.Categories.random())
        self._last = pl.Series(dtype=self._kind)  # polars forgets numbers that no column has
        self._labels: list[pl.Series] = []
        self._number = 0

    def __call__(self, labels: pl.Series) -> np.ndarray:
        """[B] int32 numbers of B labels."""
        self._last = labels.cast(self._kind)
        codes = self._last.to_physical().cast(pl.Int32)
        new = pl.DataFrame({"code": codes, "label": labels}).filter(pl.col("code") >= self._number)
        if len(new):
            new = new.unique("code").sort("code")
            self._labels.append(new["label"])
            self._number += len(new)
        return codes.to_numpy()

    def sorted(self) -> tuple[Vocabulary, np.ndarray]:
        """The labels in order, and [n] int32 ids of the numbers."""
        labels = pl.concat(self._labels).rechunk()
        order = labels.arg_sort()
        ids = np.empty(len(labels), dtype=np.int32)
        ids[order.to_numpy()] = np.arange(len(labels), dtype=np.int32)
        return Vocabulary.of_distinct(labels.gather(order)), ids


def graph_in_parts(paths: Mapping[str, Path | None], layout: Layout, name: str) -> KnowledgeGraph | None:
    """The graph of plain or gzipped text files, as `reader.read_split` and `graph.graph_of` would make it.

    Args:
        paths: of the splits; None is an empty one.
        layout: of the files.
        name: of the data set.

    Returns:
        None where a file is anything else than triples of three columns without names.
    """
    entity, relation = _Numbers(), _Numbers()
    parts = {}
    try:
        for split in SPLITS:
            columns: dict[str, list[np.ndarray]] = {column: [] for column in COLUMNS}
            for frame in _frames(paths[split], layout) if paths[split] else ():
                for column in COLUMNS:
                    columns[column].append((relation if column == "relation" else entity)(frame[column]))
            parts[split] = {c: np.concatenate(v) if v else np.empty(0, np.int32) for c, v in columns.items()}
    except (_Odd, OSError, EOFError, zlib.error, pl.exceptions.PolarsError):
        return None
    if not parts["train"]["head"].size:
        return None
    entities, place_of_entity = entity.sorted()
    relations, place_of_relation = relation.sorted()
    triples = {}
    for split in SPLITS:
        ids = {}
        for column in COLUMNS:
            place = place_of_relation if column == "relation" else place_of_entity
            ids[column] = torch.from_numpy(place[parts[split].pop(column)])
        triples[split] = Triples(**ids)
    return KnowledgeGraph(name, entities, relations, **triples)


def _frames(path: Path, layout: Layout) -> Iterator[pl.DataFrame]:
    """String columns head, relation, tail of the lines of a file, in pieces.

    Raises:
        _Odd: see the module.
    """
    ending = file_ending(path)
    if ending not in SEPARATORS or path.suffix.lower() == ".zst" or layout.columns or layout.extra:
        raise _Odd
    separator, first = SEPARATORS[ending], True
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for data, last in _pieces(file, max(SAFE_SIZE, SAFE_RATIO * path.stat().st_size)):
            lines = pl.scan_lines(io.BytesIO(data), name="text").collect()["text"]
            if last:
                filled = (lines != "").arg_true()
                lines = lines[: filled[-1] + 1] if len(filled) else lines[:0]
            if not len(lines):
                continue
            records = lines.to_frame()
            odd = first and ("\0" in lines[0] or lines[0].startswith("\ufeff") or neo4j_columns(records, separator))
            quoted = separator == "," and lines.str.contains('"', literal=True).any()
            if odd or quoted or lines.str.len_bytes().max() > LONGEST_LINE:
                raise _Odd
            first = False
            names = layout.names
            fields = lines.str.split_exact(separator, len(names)).struct.unnest()
            if fields[f"field_{len(names) - 1}"].null_count() or fields[f"field_{len(names)}"].is_not_null().any():
                raise _Odd
            frame = pl.DataFrame({column: fields[f"field_{names.index(column)}"] for column in COLUMNS})
            sizes = frame.select(pl.all().str.len_bytes())
            if sizes.min_horizontal().min() == 0 or sizes.max_horizontal().max() > LONGEST_FIELD:
                raise _Odd
            yield frame


def _pieces(file: IO[bytes], limit: int) -> Iterator[tuple[bytes, bool]]:
    """The content of a file in pieces that end where a line ends, and whether a piece is the last."""
    size, data = 0, file.read(_BYTES)
    while data:
        data += file.readline(LONGEST_LINE + 2)
        size += len(data)
        following = file.read(_BYTES)
        if size > limit or (following and not data.endswith(b"\n")):
            raise _Odd
        yield data, not following
        data = following
