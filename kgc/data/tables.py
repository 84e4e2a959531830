"""Label triples of three splits, and how files of ids and labels become them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from kgc.data.lines import read_lines, read_records
from kgc.data.reader import COLUMNS, ordered_labels, shown, split_fields
from kgc.errors import UserError

SPLITS = ("train", "valid", "test")
NOTHING = pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.String))


@dataclass(frozen=True)
class Tables:
    """Label triples of three splits.

    Args:
        frames: String columns head, relation, tail by split.
        where: the place of a row of a split, for messages.
        entities, relations: labels that a file of ids names, whether they occur or not; None where there is none.
        dropped: what was left out, by what it was.
    """

    frames: dict[str, pl.DataFrame]
    where: Callable[[str, int], str]
    entities: list[str] | None = None
    relations: list[str] | None = None
    dropped: dict[str, int] = field(default_factory=dict)


def tables_of_ids(
    folder: Path, files: dict[str, str], order: str, entities: list[str], relations: list[str], counted: int = 0
) -> Tables:
    """Splits of whole numbers separated by spaces or tabs, after `counted` lines that say how many there are."""
    names = [{name[0]: name for name in COLUMNS}[letter] for letter in order]
    frames = {}
    for split, name in files.items():
        path = folder / name
        if split != "train" and not path.exists():
            frames[split] = NOTHING
            continue
        lines = read_lines(path)
        if counted:
            check_count(path, lines)
        fields = lines[counted:].str.extract_groups(r"^[ \t]*(\S+)[ \t]+(\S+)[ \t]+(\S+)[ \t]*$").struct.unnest()
        wrong = fields["1"].is_null()
        if wrong.any():
            row = wrong.arg_max()
            found = len(lines[row + counted].split())
            columns = "1 column" if found == 1 else f"{found} columns"
            raise UserError(f"{path}:{row + counted + 1}: {columns}, expected 3 ids: {', '.join(names)}")
        fields = fields.rename(dict(zip(("1", "2", "3"), names, strict=True)))
        at = pl.int_range(counted + 1, len(lines) + 1, eager=True)
        frames[split] = labels_of_ids(path, fields, at, entities, relations)
    return Tables(frames, lambda split, row: f"{folder / files[split]}:{row + counted + 1}", entities, relations)


def check_count(path: Path, lines: pl.Series) -> None:
    """OpenKE's first line is the number of lines that follow."""
    said = lines[0].strip() if len(lines) else ""
    if said != str(len(lines) - 1):
        raise UserError(f"{path}:1: says {shown(said)}, but {max(0, len(lines) - 1):,} lines follow; is it complete?")


def tabbed_labels(path: Path) -> list[str]:
    """Labels of a map in the order of their ids: `id<TAB>label`, or `label<TAB>id` if that alone makes sense."""
    lines = read_lines(path)
    fields = lines.str.split_exact("\t", 2).struct.unnest()
    wrong = fields["field_1"].is_null() | fields["field_2"].is_not_null()
    if wrong.any():
        raise UserError(f"{path}:{wrong.arg_max() + 1}: expected id<TAB>label")
    first, second = fields["field_0"], fields["field_1"]
    ids = first.cast(pl.Int64, strict=False)
    if ids.is_null().any() and second.cast(pl.Int64, strict=False).is_not_null().all():
        first, second = second, first
    return ordered_labels(path, first, second, first_line=1)


def quoted_labels(path: Path, id_column: str) -> list[str]:
    """Labels in the order of their ids, from a table with a line of names as pandas writes it, quoted where needed."""
    records = read_records(path, quoted=True)
    separator = "," if ".csv" in path.suffixes else "\t"
    names = [name.strip('"') for name in records["text"][0].split(separator)] if len(records) else []
    if len(names) != 2:
        raise UserError(f"{path}:1: expected the names of two columns, {id_column} and label")
    fields = split_fields(path, records[1:], separator, names, quoted=True)
    place = names.index(id_column) if id_column in names else 0
    return ordered_labels(path, fields[:, place], fields[:, 1 - place], first_line=2)


def labels_of_ids(
    path: Path, ids: pl.DataFrame, lines: pl.Series, entities: list[str], relations: list[str]
) -> pl.DataFrame:
    """Label triples of columns of ids in text form."""
    columns = {}
    for column in COLUMNS:
        labels = relations if column == "relation" else entities
        numbers = ids[column].cast(pl.Int64, strict=False)
        wrong = ~numbers.is_between(0, len(labels) - 1).fill_null(False)
        if wrong.any():
            row = wrong.arg_max()
            what = "relations" if column == "relation" else "entities"
            have = f"the {what} have the ids 0 to {len(labels) - 1}"
            raise UserError(f"{path}:{lines[row]}: {column} id {shown(ids[column][row])}; {have}")
        columns[column] = pl.Series(labels, dtype=pl.String).gather(numbers)
    return pl.DataFrame(columns)
