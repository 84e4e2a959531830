"""What files beside the triples say of entities and relations: names to read, types, numbers.

They change no triple, no id and no digest. Lines about labels that the graph has not are counted, not refused: such
files often describe more than one data set. Tables of nodes that Neo4j exports are known by their header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from kgc.data.lines import LONGEST_FIELD, read_records
from kgc.data.reader import SEPARATORS, file_ending, header_names, shown, split_fields
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError

COLUMNS = {
    "entity_names": ("entity", "name"),
    "relation_names": ("relation", "name"),
    "entity_types": ("entity", "type"),
    "numbers": ("entity", "attribute", "number"),
}
_NAMES = ("name", "title", "label")  # properties of a node of Neo4j that may be its name
_TYPES = {"entity": pl.Int64, "type": pl.String}
_NUMBERS = {"entity": pl.Int64, "attribute": pl.String, "number": pl.Float64}
_KNOWN = ".txt .tsv .csv, plain, .gz or .zst, or .parquet"


@dataclass(frozen=True, eq=False)
class Annotations:
    """What is said of the entities and relations of one graph.

    Args:
        entity_names, relation_names: by label; whatever has none is shown by its label.
        types: distinct rows of entity (id) and type, in their order; an entity may have several types.
        numbers: rows of entity (id), attribute and number (finite, in the file's own unit).
        lines: short lines for the console.
    """

    entity_names: Mapping[str, str] = field(default_factory=dict)
    relation_names: Mapping[str, str] = field(default_factory=dict)
    types: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_TYPES))
    numbers: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_NUMBERS))
    lines: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """SHA-256 (hex) of the types, which a sampler may draw by; None where there are none."""
        if self.types.is_empty():
            return None
        return hashlib.sha256("".join(f"{e}\t{kind}\n" for e, kind in self.types.iter_rows()).encode()).hexdigest()


def read_annotations(files: Mapping[str, str | None], entities: Vocabulary, relations: Vocabulary) -> Annotations:
    """The content of the files that are given.

    Args:
        files: a path, or None, by the keys of `COLUMNS`, which say what a line has; no line of names. For the names and
            types of entities also a table of nodes of Neo4j. Of two names of one label the first counts.
        entities, relations: of the graph.

    Raises:
        UserError: an unreadable file, another number of columns, an empty field, or a number that is none.
    """
    found: dict[str, pl.DataFrame] = {}
    lines = []
    for what, path in files.items():
        if path is None:
            continue
        frame, where = _read(Path(str(path)).expanduser(), what)
        if what == "numbers":
            frame = frame.with_columns(number=_numbers(frame["number"], where))
        subject = COLUMNS[what][0]
        vocabulary = relations if subject == "relation" else entities
        frame = frame.with_columns(pl.Series("id", vocabulary.index(frame[subject]).numpy()))
        found[what] = frame.filter(pl.col("id") >= 0)
        plural = "relations" if subject == "relation" else "entities"
        strangers = frame.filter(pl.col("id") < 0)[subject].n_unique()
        lines.append(
            f"{what.replace('_', ' ')}: {found[what]['id'].n_unique():,} of {len(vocabulary):,} {plural}"
            + (f"; {strangers:,} others in the file are not in the graph" if strangers else "")
        )

    def names(what: str) -> dict[str, str]:
        if what not in found:
            return {}
        first = found[what].unique(COLUMNS[what][0], keep="first", maintain_order=True)
        return dict(first.select(COLUMNS[what]).iter_rows())

    def rows(what: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
        if what not in found:
            return pl.DataFrame(schema=schema)
        return found[what].select(pl.col("id").alias("entity"), *list(schema)[1:])

    return Annotations(
        names("entity_names"),
        names("relation_names"),
        rows("entity_types", _TYPES).unique().sort("entity", "type"),
        rows("numbers", _NUMBERS),
        tuple(lines),
    )


def _read(path: Path, what: str) -> tuple[pl.DataFrame, Callable[[int], str]]:
    """The String columns of a file, and where a row of them stands."""
    names = list(COLUMNS[what])
    if not path.is_file():
        raise UserError(f"annotations.{what}={path}: no such file")
    ending = file_ending(path)
    if ending == ".parquet":
        return _read_parquet(path, names), lambda row: f"{path}: row {row + 1}"
    if ending not in SEPARATORS:
        raise UserError(f"{path}: {' and '.join(names)} are read from {_KNOWN}")
    separator = SEPARATORS[ending]
    records = read_records(path, quoted=separator == ",")
    if what in ("entity_names", "entity_types") and (nodes := _neo4j(path, records, separator, names[1])) is not None:
        return nodes, lambda row: str(path)
    frame = split_fields(path, records, separator, names, separator == ",")

    def where(row: int) -> str:
        return f"{path}:{records['line'][row]}"

    for name in names:
        sizes = frame[name].str.len_bytes()
        if (sizes == 0).any():
            raise UserError(f"{where((sizes == 0).arg_max())}: empty {name}")
        if (sizes > LONGEST_FIELD).any():
            row = (sizes > LONGEST_FIELD).arg_max()
            raise UserError(f"{where(row)}: {name} of {sizes[row]:,} bytes; it has at most {LONGEST_FIELD:,}")
    return frame, where


def _read_parquet(path: Path, names: list[str]) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path, glob=False)
        if table.width != len(names):
            raise UserError(f"{path}: {table.width} columns, expected {len(names)}: {', '.join(names)}")
        frame = table.rename(dict(zip(table.columns, names, strict=True))).cast(pl.String)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})") from error
    for name in names:
        empty = frame[name].fill_null("") == ""
        if empty.any():
            raise UserError(f"{path}: row {empty.arg_max() + 1}: empty {name}")
    return frame


def _neo4j(path: Path, records: pl.DataFrame, separator: str, wanted: str) -> pl.DataFrame | None:
    """Names or types of a table of nodes of apoc.export.csv (`_id`, `_labels`) or neo4j-admin (`…:ID`, `:LABEL`); None
    for any other file."""
    if records.is_empty():
        return None
    columns = header_names(path, records, separator)
    ids = [name for name in columns if name == "_id" or ":ID" in name]
    if len(ids) != 1:
        return None
    label = "_labels" if ids[0] == "_id" else ":LABEL"
    properties = {name.split(":")[0].lower(): name for name in reversed(columns)}
    column = label if wanted == "type" else next((properties[n] for n in _NAMES if n in properties), None)
    if column not in columns:
        need = label if wanted == "type" else f"of {', '.join(_NAMES)}"
        raise UserError(f"{path}: no column {need}; its columns are {', '.join(map(shown, columns[:30]))}")
    frame = split_fields(path, records[1:], separator, columns, separator == ",")
    frame = frame.select(pl.col(ids[0]).alias("entity"), pl.col(column).alias(wanted))
    if wanted == "type":  # :City:Place, or City;Place
        types = pl.col("type").str.replace_all(":", ";", literal=True).str.split(";")
        frame = frame.with_columns(types).explode("type")
    return frame.filter((pl.col("entity") != "") & (pl.col(wanted) != ""))


def _numbers(texts: pl.Series, where: Callable[[int], str]) -> pl.Series:
    values = texts.str.strip_chars().cast(pl.Float64, strict=False)
    wrong = ~values.is_finite().fill_null(False)
    if wrong.any():
        row = wrong.arg_max()
        raise UserError(f"{where(row)}: {shown(texts[row])} is no finite number")
    return values
