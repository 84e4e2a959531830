"""Labels and their ids."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import torch
from torch import Tensor

from kgc.errors import UserError


class Vocabulary:
    """Unique labels with the ids 0..n-1: `labels[id]` is the label of `id`.

    `Vocabulary(labels)` keeps the order given, as a checkpoint or a label file wants it; `Vocabulary.from_labels` sorts
    by code point, so that ids do not depend on the order of lines in a file.

    Args:
        labels: n unique labels.

    Raises:
        UserError: a label occurs twice; the message names it.
    """

    def __init__(self, labels: list[str]):
        self.labels = list(labels)
        series = pl.Series("label", self.labels, dtype=pl.String)
        if series.n_unique() != len(series):
            again = series.filter(~series.is_first_distinct())[0]
            raise UserError(
                f"label {again!r} occurs more than once; every entity and relation needs a label of its own"
            )
        self._ids = pl.Enum(series)

    @staticmethod
    def from_labels(labels: Iterable[str] | pl.Series) -> Vocabulary:
        """The distinct labels, sorted by code point (which is the order of their UTF-8 bytes)."""
        series = labels if isinstance(labels, pl.Series) else pl.Series(list(labels), dtype=pl.String)
        return Vocabulary(series.unique().sort().to_list())

    def index(self, labels: pl.Series) -> Tensor:
        """[B] int64 ids of B labels; -1 for a label that is not in the vocabulary."""
        ids = labels.cast(self._ids, strict=False).to_physical().cast(pl.Int64).fill_null(-1)
        return torch.tensor(ids.to_numpy())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> str:
        return self.labels[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.labels == other.labels

    __hash__ = None  # holds a list

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} labels)"
