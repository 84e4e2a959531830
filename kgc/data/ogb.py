"""Folders of the Open Graph Benchmark's link prediction. Their `.pt` files are pickles: of what may stand in one, only
arrays, numbers and text are taken, and nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.data.reader import COLUMNS
from kgc.data.tables import SPLITS, Tables, quoted_labels
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError

_ROWS = 1 << 16  # rows of candidates that are handled at once


def read_ogb(folder: Path) -> Tables:
    """OGB: `split/SCHEME/train.pt` …, dicts of arrays, and `mapping/*.csv.gz`. Ids of typed entities count within
    their type, whose name goes before the label: `drug:CID000000143`."""
    found = sorted(folder.glob("split/*/train.pt"))
    if len(found) != 1:
        raise UserError(f"{folder / 'split'}: expected one folder with a train.pt, found {len(found)}")
    mapping, frames = folder / "mapping", {}
    parts = {split: _arrays(found[0].with_name(f"{split}.pt")) for split in SPLITS}
    relations = _labels(mapping, ("relidx2relname.csv.gz", "reltype2relid.csv.gz"))
    known: dict[str, list[str] | None] = {}
    for split, part in parts.items():
        path = found[0].with_name(f"{split}.pt")
        columns = {"relation": _gathered(path, part["relation"], relations, "relation")}
        for end in ("head", "tail"):
            kinds = part.get(f"{end}_type")
            if kinds is None:
                known.setdefault("", _labels(mapping, ("nodeidx2entityid.csv.gz",)))
                columns[end] = _gathered(path, part[end], known[""], end)
                continue
            labels = pl.Series([""] * len(kinds), dtype=pl.String)
            for kind in sorted(set(kinds.to_list())):
                if kind not in known:
                    known[kind] = _labels(mapping, (f"{kind}_entidx2name.csv.gz",))
                rows = (kinds == kind).arg_true()
                typed = f"{kind}:" + _gathered(path, part[end][rows.to_numpy()], known[kind], end)
                labels = labels.scatter(rows, typed)
            columns[end] = labels
        frames[split] = pl.DataFrame(columns).select(COLUMNS)
    named = [f"{kind}:{label}" if kind else label for kind, labels in known.items() for label in labels or []]
    complete = all(labels is not None for labels in known.values())
    return Tables(
        frames,
        lambda split, row: f"{found[0].with_name(f'{split}.pt')}: triple {row + 1}",
        named if complete else None,
        relations,
    )


def read_candidates(folder: Path, split: str, entities: Vocabulary) -> tuple[Tensor, Tensor]:
    """The candidates that OGB gives with each triple of `valid` or `test`, in the order of its triples.

    Args:
        folder: of `read_ogb`.
        split: the split.
        entities: whose ids they get.

    Returns:
        [T, K] int32 entities to rank the head against, and [T, K] for the tail.

    Raises:
        UserError: no such file, no candidates in it, or ids that are not there.
    """
    found = sorted(folder.glob(f"split/*/{split}.pt"))
    if len(found) != 1:
        raise UserError(f"{folder / 'split'}: expected one folder with a {split}.pt, found {len(found)}")
    part = _arrays(found[0], ("head_neg", "tail_neg"))
    sides = []
    for end in ("head", "tail"):
        given = part.pop(f"{end}_neg", None)
        if given is None or given.ndim != 2 or len(given) != len(part[end]):
            raise UserError(f"{found[0]}: gives no {end}_neg, a row of candidates for each triple")
        kinds = part.get(f"{end}_type")
        ids = torch.empty(given.shape, dtype=torch.int32)
        for kind in [None] if kinds is None else sorted(set(kinds.to_list())):
            rows = slice(None) if kind is None else (kinds == kind).arg_true().to_numpy()
            file = "nodeidx2entityid.csv.gz" if kind is None else f"{kind}_entidx2name.csv.gz"
            labels = _labels(folder / "mapping", (file,))
            size = int(given[rows].max(initial=-1)) + 1
            names = pl.Series(labels or map(str, range(size)), dtype=pl.String)
            place = entities.index(names if kind is None else f"{kind}:" + names)
            if int(given[rows].min(initial=0)) < 0 or size > len(place):
                raise UserError(f"{found[0]}: {end}_neg has ids that are no entities of this data set")
            for start in range(0, len(given), _ROWS) if kind is None else [0]:
                some = slice(start, start + _ROWS) if kind is None else rows
                ids[some] = place[torch.from_numpy(given[some])].int()
        if len(ids) and int(ids.min()) < 0:
            raise UserError(f"{found[0]}: {end}_neg has ids that are no entities of this data set")
        sides.append(ids)
    return sides[0], sides[1]


def _arrays(path: Path, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """The dict of a `.pt` file: arrays of ids, lists of types, and `more` arrays if it has them. Only numbers and text
    are unpickled."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    core = getattr(np, "_core", None) or np.core
    rebuild = core.multiarray._reconstruct
    kinds = [type(np.dtype(kind)) for kind in (np.int64, np.int32, np.float32)]
    trusted = [np.ndarray, np.dtype, *kinds, rebuild]
    trusted += [(rebuild, f"numpy.{name}.multiarray._reconstruct") for name in ("core", "_core")]
    try:
        with torch.serialization.safe_globals(trusted):
            content = torch.load(path, map_location="cpu", weights_only=True)
        part: dict[str, Any] = {name: np.asarray(content[name]).astype(np.int64, casting="safe") for name in COLUMNS}
        for end in ("head_type", "tail_type"):
            if end in content:
                part[end] = pl.Series(list(content[end]), dtype=pl.String)
        part |= {name: np.asarray(content[name]) for name in more if name in content}
        if len({len(column) for column in part.values()}) != 1:
            raise ValueError("its columns differ in length")
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).split("\n")[0].split(". ")[0]
        raise UserError(f"{path}: not a dict of triples of OGB ({type(error).__name__}: {reason})") from error
    return part


def _labels(mapping: Path, names: tuple[str, ...]) -> list[str] | None:
    path = next((mapping / name for name in names if (mapping / name).is_file()), None)
    return None if path is None else quoted_labels(path, "id")


def _gathered(path: Path, ids: np.ndarray, labels: list[str] | None, what: str) -> pl.Series:
    """Labels of ids; their digits where no mapping says otherwise."""
    if labels is None:
        return pl.Series(ids).cast(pl.String)
    wrong = (ids < 0) | (ids >= len(labels))
    if wrong.any():
        row = int(wrong.argmax())
        need = f"the mapping has the ids 0 to {len(labels) - 1}"
        raise UserError(f"{path}: triple {row + 1}: {what} id {ids[row]}; {need}")
    return pl.Series(labels, dtype=pl.String).gather(ids)
