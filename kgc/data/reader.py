"""Files to label triples.

A label is exactly the text between two separators: no quoting in `.txt` and `.tsv`, no missing-value markers (`nan`,
`NA` and `null` are labels), no trimming. Work is done on columns; a line is looked at by itself only to say what is
wrong with it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kgc.data import rdf
from kgc.data.lines import COMPRESSIONS, LONGEST_FIELD, read_lines, read_records, simple_source
from kgc.errors import UserError

COLUMNS = ["head", "relation", "tail"]
SEPARATORS = {".txt": "\t", ".tsv": "\t", ".csv": ","}
ENDINGS = [
    *(text + packed for text in SEPARATORS for packed in ("", *COMPRESSIONS)),
    ".parquet",
    *(text + packed for text in rdf.FORMATS for packed in ("", ".gz")),
]
EXPECTED = "expected 3: head, relation, tail"
# Headers of graph databases: Neo4j's procedure apoc.export.csv, and the files of neo4j-admin.
_APOC = ("_start", "_type", "_end")
_ADMIN = (":START_ID", ":TYPE", ":END_ID")


@dataclass(frozen=True)
class Layout:
    """Where the labels of a triple stand in a file.

    Args:
        columns: names of the columns of heads, relations and tails, in a first line of names or of a Parquet file;
            None: a text file has three columns and no names, a Parquet file `head`, `relation` and `tail` or its
            first three; with `extra` columns both must have these three names. The exports of Neo4j are known by
            their names.
        order: how the columns without names stand, such as `hrt`, `htr`, or `hrt--` with two columns that are not read.
        extra: names of further columns wanted.
        literals: `drop` or `keep` the RDF statements whose object is a literal.

    Raises:
        UserError: not three different columns, an order that is none, or an unknown choice for literals.
    """

    columns: Sequence[str] | None = None
    order: str = "hrt"
    extra: Sequence[str] = ()
    literals: str = "drop"

    def __post_init__(self) -> None:
        if self.columns is not None and (isinstance(self.columns, str) or len(set(self.columns)) != 3):
            raise UserError(
                f"dataset.columns={self.columns}: must name the three columns of heads, relations and tails, such as "
                "[subject,predicate,object]"
            )
        if sorted(str(self.order).replace("-", "")) != ["h", "r", "t"]:
            need = "must be the letters h, r and t in the order of the columns, and - for a column that is not read"
            raise UserError(f"dataset.order={self.order}: {need}")
        if self.literals not in rdf.LITERALS:
            raise UserError(f"dataset.literals={self.literals}: choices are {', '.join(rdf.LITERALS)}")

    @property
    def names(self) -> list[str]:
        """`head`, `relation`, `tail`, and `-` for what is not read, in the order of the columns without names."""
        return [{name[0]: name for name in COLUMNS}.get(letter, letter) for letter in self.order]


PLAIN = Layout()


def find_split(folder: Path, split: str) -> Path | None:
    """The file of one split: its name and any ending of `ENDINGS`; None if there is none.

    Raises:
        UserError: two files could be meant.
    """
    found = [path for ending in ENDINGS if (path := Path(folder) / f"{split}{ending}").is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise UserError(f"{folder}: {names} both look like the {split} split; keep one of them")
    return found[0] if found else None


def read_triples(path: Path, layout: Layout = PLAIN) -> pl.DataFrame:
    """The triples of a file, see `read_split`."""
    return read_split(path, layout)[0]


def read_split(path: Path, layout: Layout = PLAIN) -> tuple[pl.DataFrame, int]:
    """The triples of a file in their order, as String columns `head`, `relation`, `tail`, then `layout.extra`; and how
    many statements with literals were left out.

    Raises:
        UserError: no such file, unknown ending, damaged compression, not UTF-8, not the columns expected, an empty
            label, or one longer than a mebibyte.
    """
    path = Path(path)
    ending = file_ending(path)
    if ending == ".parquet":
        return _read_parquet(path, layout), 0
    if ending in rdf.FORMATS:
        if layout.columns or layout.extra:
            raise UserError(f"{path}: RDF has no named columns; leave dataset.columns and the like out")
        return rdf.read_statements(path, layout.literals)
    if (simple := _read_simple(path, SEPARATORS[ending], layout)) is not None:
        return simple, 0
    frame, lines = _read_text(path, layout)
    for column in COLUMNS:
        empty = frame[column] == ""
        if empty.any():
            raise UserError(f"{path}:{lines[empty.arg_max()]}: empty {column}")
        long = frame[column].str.len_bytes() > LONGEST_FIELD
        if long.any():
            row = long.arg_max()
            size = frame[column].str.len_bytes()[row]
            raise UserError(f"{path}:{lines[row]}: {column} of {size:,} bytes; a label has at most {LONGEST_FIELD:,}")
    return frame, 0


def locate(path: Path, row: int, layout: Layout = PLAIN) -> str:
    """Where triple `row` (from 0) of `read_triples(path, layout)` stands, for messages: `file:line`, `file: row n`."""
    path = Path(path)
    ending = file_ending(path)
    if ending == ".parquet":
        return f"{path}: row {row + 1}"
    if ending in rdf.FORMATS:
        return f"{path}: triple {row + 1}"
    return f"{path}:{_read_text(path, layout)[1][row]}"


def read_labels(path: Path) -> list[str]:
    """The labels of a label file in the order of their ids.

    Each line is a label, or each line is `id<TAB>label` with the ids 0..n-1 in any order.

    Raises:
        UserError: the two forms are mixed, an id is missing, twice or not a number, a label is empty or occurs twice.
    """
    path = Path(path)
    lines = read_lines(path)
    tabs = lines.str.count_matches("\t", literal=True)
    wrong = tabs != min(tabs[0], 1) if len(lines) else tabs != 0
    if wrong.any():
        line = wrong.arg_max()
        form = "every line must be one label, or every line id<TAB>label"
        raise UserError(f"{path}:{line + 1}: {_columns(tabs[line] + 1)}; {form}")
    if len(lines) and tabs[0]:
        fields = lines.str.split_exact("\t", 1).struct.unnest()
        return ordered_labels(path, fields["field_0"], fields["field_1"], first_line=1)
    return ordered_labels(path, pl.int_range(len(lines), eager=True).cast(pl.String), lines, first_line=1)


def ordered_labels(path: Path, ids: pl.Series, labels: pl.Series, first_line: int) -> list[str]:
    """Labels in the order of their ids, which must be 0..n-1 in any order; `first_line` is where row 0 stands.

    Raises:
        UserError: an id is missing, twice or not a number, a label is empty or occurs twice.
    """
    numbers = ids.cast(pl.Int64, strict=False)
    wrong = ~(numbers.is_between(0, len(ids) - 1) & numbers.is_first_distinct()).fill_null(False)
    if wrong.any():
        row = wrong.arg_max()
        need = f"expected each of 0 to {len(ids) - 1} once"
        raise UserError(f"{path}:{row + first_line}: id {shown(ids[row])}, {need}")
    empty = labels == ""
    if empty.any():
        raise UserError(f"{path}:{empty.arg_max() + first_line}: empty label")
    again = ~labels.is_first_distinct()
    if again.any():
        row = again.arg_max()
        first = labels.index_of(labels[row]) + first_line
        raise UserError(f"{path}:{row + first_line}: label {shown(labels[row])} again; line {first} has it too")
    return pl.DataFrame({"id": numbers, "label": labels}).sort("id")["label"].to_list()


def shown(label: str, longest: int = 80) -> str:
    """A label in quotes for a message, escape codes spelled out, cut when long."""
    return repr(label if len(label) <= longest else label[: longest - 1] + "…")


def file_ending(path: Path) -> str:
    """The ending that says how a file is laid out, without the compression's."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in (*SEPARATORS, ".parquet", *rdf.FORMATS):
        raise UserError(f"{path}: unknown ending; known are {' '.join(ENDINGS)}")
    return suffixes[-1]


def _read_text(path: Path, layout: Layout) -> tuple[pl.DataFrame, pl.Series]:
    """The wanted columns of a text file, and the line of each row."""
    separator = SEPARATORS[file_ending(path)]
    records = read_records(path, quoted=separator == ",")
    columns = layout.columns or neo4j_columns(records, separator)
    if columns is None and not layout.extra:
        frame = split_fields(path, records, separator, layout.names, separator == ",")
        return frame.select(COLUMNS), records["line"]
    wanted = {**dict(zip(COLUMNS, columns or COLUMNS, strict=True)), **{name: name for name in layout.extra}}
    if records.is_empty():
        raise UserError(f"{path}: no line with the names of the columns, {', '.join(wanted.values())}")
    names = header_names(path, records, separator)
    _check_names(path, names, list(wanted.values()), layout)
    records = records[1:]
    fields = split_fields(path, records, separator, names, separator == ",")
    frame = fields.select(pl.col(name).alias(column) for column, name in wanted.items())
    if columns == _APOC:  # the nodes of the graph come first, in the same table
        frame = frame.with_columns(records["line"]).filter(pl.any_horizontal(pl.col(*COLUMNS) != ""))
        return frame.drop("line"), frame["line"]
    return frame, records["line"]


def _read_simple(path: Path, separator: str, layout: Layout) -> pl.DataFrame | None:
    """Three columns separated by tabs, by polars' fast parser; None where there is anything else in the file.

    The parser is lenient, so that its word is taken only if no byte is lost: the labels, none of them empty, with a
    separator or a line end behind each make the whole file.
    """
    if separator != "\t" or layout.columns or layout.extra or len(layout.order) != len(COLUMNS):
        return None
    found = simple_source(path)
    if found is None:
        return None
    source, size = found
    schema = dict.fromkeys(layout.names, pl.String)
    try:
        frame = pl.read_csv(source, separator="\t", quote_char=None, has_header=False, schema=schema, glob=False)
    except (pl.exceptions.PolarsError, OSError):
        return None
    if frame.columns != layout.names or not len(frame) or sum(frame.null_count().row(0)):
        return None
    sizes = frame.select(pl.all().str.len_bytes())
    if min(sizes.min().row(0)) == 0 or max(sizes.max().row(0)) > LONGEST_FIELD:
        return None
    if sum(sizes.select(pl.all().cast(pl.Int64).sum()).row(0)) + len(COLUMNS) * len(frame) != size:
        return None
    names = {str(name).split("(")[0] for name in frame.row(0)}
    return None if names in (set(_APOC), set(_ADMIN)) else frame.select(COLUMNS)


def neo4j_columns(records: pl.DataFrame, separator: str) -> Sequence[str] | None:
    """The columns of an export of Neo4j, known by its header; None for any other file."""
    if records.is_empty():
        return None
    names = [name.strip('"') for name in records["text"][0].split(separator)]
    if set(_APOC) <= set(names):
        return _APOC
    found = [next((n for n in names if n == key or n.startswith(f"{key}(")), None) for key in _ADMIN]
    return found if all(found) else None


def _check_names(path: Path, names: list[str], wanted: list[str], layout: Layout) -> None:
    for name in wanted:
        if names.count(name) != 1:
            what = "no column" if name not in names else "more than one column"
            unnamed = not layout.columns and name in COLUMNS and name not in layout.extra
            cure = "; dataset.columns=[…] names those of heads, relations and tails" if unnamed else ""
            raise UserError(f"{path}: {what} {shown(name)}; its columns are {', '.join(map(shown, names[:30]))}{cure}")


def header_names(path: Path, records: pl.DataFrame, separator: str) -> list[str]:
    """The names in the first line of a file."""
    text = records["text"][0]
    if separator != ",":
        return text.split(separator)
    try:
        return next(csv.reader(io.StringIO(text, newline=""), strict=True), [])
    except csv.Error:
        raise UserError(f"{path}:1: stray double quote in the names of the columns") from None


def split_fields(
    path: Path, records: pl.DataFrame, separator: str, names: list[str], quoted: bool = False
) -> pl.DataFrame:
    """A String column for each of n names.

    Args:
        path: for messages.
        records: what `read_records` returns.
        separator: a tab or a comma.
        names: of the columns, in the order of the fields.
        quoted: fields may stand in double quotes.

    Raises:
        UserError: a record with another number of fields, or a stray double quote.
    """
    quoted = quoted and records["text"].str.contains('"', literal=True).any()
    positions = [f"field_{i}" for i in range(len(names))]
    if quoted:
        fields = _split_quoted(path, records, separator, names)
    else:
        fields = records["text"].str.split_exact(separator, len(names)).struct.unnest()
        wrong = fields[f"field_{len(names) - 1}"].is_null() | fields[f"field_{len(names)}"].is_not_null()
        if wrong.any():
            text, line = records.row(wrong.arg_max())
            found = text.count(separator) + 1 if text else 0
            raise UserError(f"{path}:{line}: {_columns(found)}, {_expected(names)}{_hint(text, separator)}")
    # names may repeat where only some are wanted: those stay under their position
    chosen = {p: n if names.count(n) == 1 else p for p, n in zip(positions, names, strict=True)}
    return fields.select(positions).rename(chosen)


def _split_quoted(path: Path, records: pl.DataFrame, separator: str, names: list[str]) -> pl.DataFrame:
    """Fields with double quotes, after RFC 4180."""
    field = rf'(?:"((?:[^"]|"")*)"|([^"{separator}]*))'
    groups = records["text"].str.extract_groups(f"^{separator.join([field] * len(names))}$").struct.unnest()
    inner, bare = groups.columns[0::2], groups.columns[1::2]
    frame = groups.select(
        pl.coalesce(pl.col(i).str.replace_all('""', '"', literal=True), pl.col(b)).alias(f"field_{n}")
        for n, (i, b) in enumerate(zip(inner, bare, strict=True))
    )
    wrong = frame[f"field_{len(names) - 1}"].is_null()  # no match at all
    if wrong.any():
        text, line = records.row(wrong.arg_max())
        try:
            found = len(next(csv.reader(io.StringIO(text, newline=""), strict=True), []))
        except csv.Error:
            found = len(names)
        if found == len(names):
            raise UserError(f'{path}:{line}: stray double quote; write a label with quotes as "a ""quoted"" word"')
        raise UserError(f"{path}:{line}: {_columns(found)}, {_expected(names)}")
    return frame


def _read_parquet(path: Path, layout: Layout) -> pl.DataFrame:
    """The columns of a Parquet file as text; whole numbers become their digits."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        known = set(COLUMNS) <= set(schema) or layout.extra  # a split or a time may stand among the first three
        names = list(layout.columns or (COLUMNS if known else schema.names()[:3]))
        if len(names) < 3:
            raise UserError(f"{path}: {_columns(len(names))} ({', '.join(names)}), {EXPECTED}")
        _check_names(path, schema.names(), [*names, *layout.extra], layout)
        order = COLUMNS if layout.columns or names == COLUMNS else [name for name in layout.names if name != "-"]
        for name in names:
            kind = schema[name]
            if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum)):
                raise UserError(f"{path}: column {name!r} holds {kind}, expected text or whole numbers")
        wanted = {**dict(zip(order, names, strict=True)), **{name: name for name in layout.extra}}
        frame = table.select(pl.col(name).cast(pl.String).alias(column) for column, name in wanted.items()).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})") from error
    for column in COLUMNS:
        empty = frame[column].fill_null("") == ""
        if empty.any():
            raise UserError(f"{path}: row {empty.arg_max() + 1}: empty {column}")
    return frame.select(COLUMNS + list(layout.extra)).with_columns(pl.col(list(layout.extra)).fill_null(""))


def _columns(number: int) -> str:
    return "1 column" if number == 1 else f"{number} columns"


def _expected(names: list[str]) -> str:
    return f"expected {len(names)}: {', '.join(names)}" if len(names) <= 10 else f"expected {len(names)}, as in line 1"


def _hint(text: str, separator: str) -> str:
    """What else may separate the fields of a line that has only one."""
    others = {"\t": "tabs", ",": "commas", " ": "spaces", ";": "semicolons", "|": "bars"}
    if separator not in text:
        for other, name in others.items():
            if text.count(other) == 2:
                return f" (separated by {others[separator]}, not {name})"
    return ""
