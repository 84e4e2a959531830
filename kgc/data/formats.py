"""Folders as other libraries write them: found out by their files, read to label triples.

A file of ids and labels names every entity, also those that occur in no triple: they are kept, as the library keeps
them. Nothing here unpickles an object.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from kgc.data.lines import read_lines, read_records
from kgc.data.ogb import read_ogb
from kgc.data.reader import (
    COLUMNS,
    ENDINGS,
    PLAIN,
    Layout,
    find_split,
    locate,
    ordered_labels,
    read_split,
    split_fields,
)
from kgc.data.tables import (
    NOTHING,
    SPLITS,
    Tables,
    check_count,
    labels_of_ids,
    quoted_labels,
    tabbed_labels,
    tables_of_ids,
)
from kgc.errors import UserError

_NUMERIC = "numeric_triples.tsv.gz"  # of a TriplesFactory of PyKEEN


def read_folder(folder: Path, format: str | None = None, layout: Layout = PLAIN) -> Tables:
    """The triples of a folder.

    Args:
        folder: holds a `train` split; a missing `valid` or `test` is an empty one.
        format: a key of `FORMATS`; None finds out by the names of the files.
        layout: of the files of triples, where the format leaves a choice.

    Raises:
        UserError: no folder, no or an empty train split, an unknown format, or an unreadable file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if format is not None and format not in FORMATS:
        raise UserError(f"dataset.format={format}: choices are {', '.join(FORMATS)}")
    tables = FORMATS[format or find_format(folder)](folder, layout)
    if tables.frames["train"].is_empty():
        raise UserError(f"{folder}: the train split has no triples")
    return tables


def source_files(folder: Path, format: str | None = None) -> list[Path]:
    """The files that `read_folder` reads, in a fixed order; none where there is nothing to read."""
    folder = Path(folder)
    format = format or find_format(folder)
    if format == "splits":
        return [path for split in SPLITS if (path := find_split(folder, split)) is not None]
    if format == "libkge":
        names = sorted({"dataset.yaml", *_libkge_names(folder).values()})
        return [path for name in names if (path := folder / name).is_file()]
    return sorted({path for mark in _FILES.get(format, ()) for path in folder.glob(mark) if path.is_file()})


def find_format(folder: Path) -> str:
    """The key of `FORMATS` that the names of the files say."""
    marks = {
        "openke": folder / "train2id.txt",
        "libkge": folder / "entity_ids.del",
        "pykeen": folder / "training" / _NUMERIC,
        "ogb": folder / "split",
    }
    found = next((name for name, path in marks.items() if path.exists()), "splits")
    return "pykeen" if found == "splits" and _is_factory(folder) else found


def _is_factory(folder: Path) -> bool:
    """Whether a folder is one TriplesFactory of PyKEEN: a part of a data set."""
    return (folder / _NUMERIC).is_file() and not find_split(folder, "train")


def _splits(folder: Path, layout: Layout) -> Tables:
    """`train`, `valid` and `test` with any ending of `reader.ENDINGS`."""
    paths = {split: find_split(folder, split) for split in SPLITS}
    if paths["train"] is None:
        found = sorted(path.name for path in folder.iterdir())
        names = ", ".join(found[:20]) + (f" and {len(found) - 20:,} more" if len(found) > 20 else "") or "nothing"
        raise UserError(f"{folder}: no train split; looked for train{{{','.join(ENDINGS)}}}, found {names}")
    read = {split: read_split(path, layout) if path else (NOTHING, 0) for split, path in paths.items()}
    frames = {split: frame for split, (frame, _) in read.items()}
    if frames["train"].is_empty():
        raise UserError(f"{paths['train']}: the train split has no triples")
    literals = sum(dropped for _, dropped in read.values())
    dropped = {"statements with literals": literals} if literals else {}
    return Tables(frames, lambda split, row: locate(paths[split], row, layout), dropped=dropped)


def _openke(folder: Path, layout: Layout) -> Tables:
    """OpenKE: `entity2id.txt` and `relation2id.txt` (label, id), `train2id.txt` … (head, tail, relation); the first
    line of each is the number of lines after it."""
    entities, relations = (_openke_labels(folder / f"{what}2id.txt") for what in ("entity", "relation"))
    return tables_of_ids(folder, {split: f"{split}2id.txt" for split in SPLITS}, "htr", entities, relations, counted=1)


def _openke_labels(path: Path) -> list[str]:
    lines = read_lines(path)
    check_count(path, lines)
    fields = lines[1:].str.extract_groups(r"^(.*)[ \t](\d+)[ \t]*$").struct.unnest()
    wrong = fields["1"].is_null()
    if wrong.any():
        raise UserError(f"{path}:{wrong.arg_max() + 2}: expected a label and its id, separated by a tab")
    labels = fields["1"].str.strip_chars_end(" \t")
    return ordered_labels(path, fields["2"], labels, first_line=2)


def _libkge(folder: Path, layout: Layout) -> Tables:
    """LibKGE: `entity_ids.del`, `relation_ids.del` (id, label), `train.del` … (ids), or what `dataset.yaml` calls
    them."""
    names = _libkge_names(folder)
    entities, relations = (tabbed_labels(folder / names[f"{what}_ids"]) for what in ("entity", "relation"))
    return tables_of_ids(folder, {split: names[split] for split in SPLITS}, "hrt", entities, relations)


def _libkge_names(folder: Path) -> dict[str, str]:
    """The files of a LibKGE folder by what is in them."""
    names = {key: f"{key}.del" for key in ("entity_ids", "relation_ids", *SPLITS)}
    try:
        config = yaml.safe_load((folder / "dataset.yaml").read_text(encoding="utf-8"))["dataset"]
        names = {key: str(config.get(f"files.{key}.filename", name)) for key, name in names.items()}
    except FileNotFoundError:
        pass
    except (yaml.YAMLError, UnicodeError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / 'dataset.yaml'}: not a description of a LibKGE data set") from error
    for key, name in names.items():
        if Path(name).name != name:
            raise UserError(f"{folder / 'dataset.yaml'}: files.{key}.filename={name} leads out of the folder")
    return names


def _dglke(folder: Path, layout: Layout) -> Tables:
    """DGL-KE's `udd_hrt`: maps of entities and relations, and splits of ids in the order of `dataset.order`."""
    found = {}
    for what in ("entities", "relations"):
        names = [f"{what}{ending}" for ending in (".dict", ".tsv", ".txt")]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise UserError(f"{folder}: no map of {what}; looked for {', '.join(names)}")
        found[what] = tabbed_labels(path)
    files = {}
    for split in SPLITS:
        path = next((p for e in (".tsv", ".txt") if (p := folder / f"{split}{e}").is_file()), None)
        files[split] = path.name if path else f"{split}.tsv"
    return tables_of_ids(folder, files, layout.order, found["entities"], found["relations"])


def _pykeen(folder: Path, layout: Layout) -> Tables:
    """PyKEEN: `training`, `validation` and `testing`, each a TriplesFactory; their `.pth` files are not opened."""
    if _is_factory(folder):
        raise UserError(
            f"{folder}: one TriplesFactory of PyKEEN; dataset.path must be the folder in which it is named training, "
            "beside validation and testing if there are such"
        )
    folders = {split: folder / name for split, name in zip(SPLITS, ("training", "validation", "testing"), strict=True)}
    entities, relations = (quoted_labels(folders["train"] / f"{w}_to_id.tsv.gz", "id") for w in ("entity", "relation"))
    frames = {}
    for split, part in folders.items():
        path = part / _NUMERIC
        if split != "train" and not path.exists():
            frames[split] = NOTHING
            continue
        for what, labels in (("entity", entities), ("relation", relations)):
            if split != "train" and quoted_labels(part / f"{what}_to_id.tsv.gz", "id") != labels:
                raise UserError(f"{part}: its {what} ids are not those of training; write all parts as one data set")
        records = read_records(path, quoted=False)
        names = records["text"][0].split("\t") if len(records) else []
        if sorted(names) != sorted(COLUMNS):
            raise UserError(f"{path}:1: expected the names head, relation and tail")
        fields = split_fields(path, records[1:], "\t", names)
        frames[split] = labels_of_ids(path, fields, records["line"][1:], entities, relations)
    return Tables(frames, lambda split, row: f"{folders[split] / _NUMERIC}:{row + 2}", entities, relations)


FORMATS: dict[str, Callable[[Path, Layout], Tables]] = {
    "splits": _splits,
    "openke": _openke,
    "libkge": _libkge,
    "pykeen": _pykeen,
    "ogb": lambda folder, layout: read_ogb(folder),
    "dglke": _dglke,
}

# Where the files of a format lie in its folder; those of LibKGE have the names that it gives them.
_FILES = {
    "openke": ("*2id.txt",),
    "dglke": ("*.dict", "*.tsv", "*.txt"),
    "pykeen": ("*/*.tsv.gz",),
    "ogb": ("split/*/*.pt", "mapping/*.csv.gz"),
}
