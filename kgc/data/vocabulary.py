"""Labels and their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.errors import UserError

# From so many labels on a checkpoint holds them as bytes: a list of texts takes ten times the memory and seconds.
_MANY = 100_000
_MANY_IDS = 1_000_000  # from so many labels on a join finds ids: the Enum of fewer is faster, and takes more memory
_PIECE = 1 << 18  # labels that are handled as Python's texts at once


class Vocabulary:
    """Unique labels with the ids 0..n-1: `vocabulary[id]` is the label of `id`.

    `Vocabulary(labels)` keeps the order given, as a checkpoint or a label file wants it; `Vocabulary.from_labels` sorts
    by code point, so that ids do not depend on the order of lines in a file.

    Args:
        labels: n unique labels.

    Raises:
        UserError: a label occurs twice; the message names it.

    Attributes:
        series: the labels as a String column, in the order of their ids.
    """

    def __init__(self, labels: list[str] | pl.Series):
        self.series = pl.Series("label", labels, dtype=pl.String)
        if self.series.n_unique() != len(self.series):
            again = self.series.filter(~self.series.is_first_distinct())[0]
            raise UserError(
                f"label {again!r} occurs more than once; every entity and relation needs a label of its own"
            )

    @staticmethod
    def from_labels(labels: Iterable[str] | pl.Series) -> Vocabulary:
        """The distinct labels, sorted by code point (which is the order of their UTF-8 bytes)."""
        series = labels if isinstance(labels, pl.Series) else pl.Series(list(labels), dtype=pl.String)
        return Vocabulary.of_distinct(series.unique().sort())

    @staticmethod
    def of_distinct(series: pl.Series) -> Vocabulary:
        """Labels that are known to be unique."""
        vocabulary = object.__new__(Vocabulary)
        vocabulary.series = series.alias("label")
        return vocabulary

    @cached_property
    def _enum(self) -> pl.Enum:
        return pl.Enum(self.series)

    @cached_property
    def labels(self) -> list[str]:
        """The labels as a list; of millions it takes hundreds of megabytes, where `series` takes tens."""
        return self.series.to_list()

    def index(self, labels: pl.Series) -> Tensor:
        """[B] int64 ids of B labels; -1 for a label that is not in the vocabulary."""
        if len(self) < _MANY_IDS:
            ids = labels.cast(self._enum, strict=False).to_physical().cast(pl.Int64).fill_null(-1)
        else:
            wanted = labels.alias("label").to_frame()
            known = self.series.to_frame().with_columns(id=pl.int_range(pl.len()))
            if len(labels) < len(self) // 8:  # a join would build a table of all labels
                known = known.join(wanted, on="label", how="semi")
            ids = wanted.join(known, on="label", how="left", maintain_order="left")["id"].fill_null(-1)
        return torch.tensor(ids.to_numpy())

    def state(self) -> list[str] | dict[str, Tensor]:
        """What a checkpoint holds: the labels, or of very many their UTF-8 `bytes` and the `sizes` in bytes of each."""
        if len(self) < _MANY:
            return self.labels
        pieces = ("".join(frame["label"]).encode() for frame in self.series.to_frame().iter_slices(_PIECE))
        text = np.frombuffer(b"".join(pieces), np.uint8).copy()
        sizes = self.series.str.len_bytes().cast(pl.Int32).to_numpy().copy()
        return {"bytes": torch.from_numpy(text), "sizes": torch.from_numpy(sizes)}

    @staticmethod
    def from_state(state: list[str] | Mapping[str, Any]) -> Vocabulary:
        """The vocabulary of `state()`.

        Raises:
            ValueError: sizes that are not those of the bytes.
            UserError: a label occurs twice.
        """
        if not isinstance(state, Mapping):
            return Vocabulary(state)
        text, sizes = state["bytes"].numpy(), state["sizes"].numpy()
        ends = np.cumsum(sizes, dtype=np.int64)
        if len(sizes) and (sizes.min() < 0 or ends[-1] != len(text)):
            raise ValueError("its labels are damaged")
        parts = []
        for start in range(0, len(sizes), _PIECE):
            first = ends[start - 1] if start else 0
            piece = text[first : ends[min(start + _PIECE, len(sizes)) - 1]].tobytes()
            at = np.concatenate([[0], ends[start : start + _PIECE] - first])
            parts.append(pl.Series([piece[a:b] for a, b in pairwise(at)], dtype=pl.Binary))
        return Vocabulary(pl.concat(parts).cast(pl.String) if parts else [])

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: int) -> str:
        return self.series[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.series.equals(other.series)

    __hash__ = None  # holds a table

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} labels)"
