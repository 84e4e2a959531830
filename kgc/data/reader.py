"""Files to label triples.

A label is exactly the text between two separators: no quoting in `.txt` and `.tsv`, no missing-value markers (`nan`,
`NA` and `null` are labels), no trimming. A line ends at LF or CRLF only; other characters that Unicode calls line
breaks, and a lone CR, belong to the label. One leading byte-order mark is dropped. Work is done on columns; a line is
looked at by itself only to say what is wrong with it.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import NoReturn

import polars as pl

from kgc.errors import UserError

COLUMNS = ["head", "relation", "tail"]
SEPARATORS = {".txt": "\t", ".tsv": "\t", ".csv": ","}
COMPRESSIONS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}  # ending: first bytes of such a file
ENDINGS = [text + packed for text in SEPARATORS for packed in ("", *COMPRESSIONS)] + [".parquet"]
EXPECTED = "expected 3: head, relation, tail"


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


def read_triples(path: Path) -> pl.DataFrame:
    """The triples of a file in their order, as String columns `head`, `relation`, `tail`.

    Raises:
        UserError: no such file, unknown ending, damaged compression, not UTF-8, not three columns, or an empty label.
    """
    path = Path(path)
    if _ending(path) == ".parquet":
        return _read_parquet(path)
    separator = SEPARATORS[_ending(path)]
    records = _read_records(path)
    quoted = separator == "," and records["text"].str.contains('"', literal=True).any()
    frame = _split_quoted(path, records) if quoted else _split(path, records, separator)
    for column in COLUMNS:
        empty = frame[column] == ""
        if empty.any():
            raise UserError(f"{path}:{records['line'][empty.arg_max()]}: empty {column}")
    return frame


def locate(path: Path, row: int) -> str:
    """Where triple `row` (from 0) of `read_triples(path)` stands, for messages: `file:line`, or `file: row n`."""
    path = Path(path)
    if _ending(path) == ".parquet":
        return f"{path}: row {row + 1}"
    return f"{path}:{_read_records(path)['line'][row]}"


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
    frame = pl.DataFrame({"label": lines}).with_columns(id=pl.int_range(pl.len()))
    if len(lines) and tabs[0]:
        fields = lines.str.split_exact("\t", 1).struct.unnest()
        ids = fields["field_0"].cast(pl.Int64, strict=False)
        wrong = ~(ids.is_between(0, len(ids) - 1) & ids.is_first_distinct()).fill_null(False)
        if wrong.any():
            line = wrong.arg_max()
            need = f"expected each of 0 to {len(ids) - 1} once"
            raise UserError(f"{path}:{line + 1}: id {fields['field_0'][line]!r}, {need}")
        frame = frame.with_columns(label=fields["field_1"], id=ids)
    empty = frame["label"] == ""
    if empty.any():
        raise UserError(f"{path}:{empty.arg_max() + 1}: empty label")
    again = ~frame["label"].is_first_distinct()
    if again.any():
        line = again.arg_max()
        label = frame["label"][line]
        raise UserError(
            f"{path}:{line + 1}: label {label!r} again; line {frame['label'].index_of(label) + 1} has it too"
        )
    return frame.sort("id")["label"].to_list()


def _ending(path: Path) -> str:
    """The ending that says how a file is laid out, without the compression's."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in (*SEPARATORS, ".parquet"):
        raise UserError(f"{path}: unknown ending; known are {' '.join(ENDINGS)}")
    return suffixes[-1]


def read_lines(path: Path) -> pl.Series:
    """The lines of a plain or compressed text file; empty lines at the end are dropped."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    packed = path.suffix.lower()
    if magic := COMPRESSIONS.get(packed):
        with path.open("rb") as file:
            if file.read(len(magic)) != magic:
                raise UserError(f"{path}: not a {packed} file (its first bytes differ); is the ending right?")
    try:
        lines = pl.scan_lines(path, name="text", glob=False).collect()["text"]
    except pl.exceptions.ComputeError:
        _raise_undecodable(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read, it looks damaged or cut off ({error})") from error
    if len(lines):
        _check_utf16(path, lines[0])
        if lines[0].startswith("\ufeff"):
            lines = pl.concat([pl.Series("text", [lines[0][1:]]), lines[1:]])
    filled = (lines != "").arg_true()
    return lines[: filled[-1] + 1] if len(filled) else lines[:0]


def _read_records(path: Path) -> pl.DataFrame:
    """One row a triple: `text` without its line end, and the `line` where it begins, from 1.

    A quoted field of a `.csv` file may hold line breaks; then several lines are one record.
    """
    records = pl.DataFrame({"text": read_lines(path)}).with_columns(line=pl.int_range(1, pl.len() + 1))
    if _ending(path) != ".csv":
        return records
    quotes = records["text"].str.count_matches('"', literal=True)
    if (quotes % 2 == 0).all():
        return records
    inside = (quotes.cum_sum() - quotes) % 2 == 1  # the line begins inside a quoted field
    return (
        records.group_by((~inside).cum_sum().alias("record"), maintain_order=True)
        .agg(pl.col("text").str.join("\n"), pl.col("line").first())
        .drop("record")
    )


def _split(path: Path, records: pl.DataFrame, separator: str) -> pl.DataFrame:
    """Three columns of fields that are not quoted."""
    fields = records["text"].str.split_exact(separator, 3).struct.unnest()
    wrong = fields["field_2"].is_null() | fields["field_3"].is_not_null()
    if wrong.any():
        text, line = records.row(wrong.arg_max())
        found = text.count(separator) + 1 if text else 0
        raise UserError(f"{path}:{line}: {_columns(found)}, {EXPECTED}{_hint(text, separator)}")
    return fields.drop("field_3").rename(dict(zip(fields.columns, COLUMNS, strict=False)))


def _split_quoted(path: Path, records: pl.DataFrame) -> pl.DataFrame:
    """Three columns of comma-separated fields with double quotes, after RFC 4180."""
    field = r'(?:"((?:[^"]|"")*)"|([^",]*))'
    groups = records["text"].str.extract_groups(f"^{field},{field},{field}$").struct.unnest()
    inner, bare = groups.columns[0::2], groups.columns[1::2]
    frame = groups.select(
        pl.coalesce(pl.col(i).str.replace_all('""', '"', literal=True), pl.col(b)).alias(column)
        for i, b, column in zip(inner, bare, COLUMNS, strict=True)
    )
    wrong = frame["tail"].is_null()  # no match at all
    if wrong.any():
        text, line = records.row(wrong.arg_max())
        try:
            found = len(next(csv.reader(io.StringIO(text, newline=""), strict=True)))
        except csv.Error:
            found = 3
        if found == 3:
            raise UserError(f'{path}:{line}: stray double quote; write a label with quotes as "a ""quoted"" word"')
        raise UserError(f"{path}:{line}: {_columns(found)}, {EXPECTED}")
    return frame


def _read_parquet(path: Path) -> pl.DataFrame:
    """The columns `head`, `relation`, `tail`, or the first three, as text; whole numbers become their digits."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        table = pl.scan_parquet(path, glob=False)
        schema = table.collect_schema()
        names = COLUMNS if set(COLUMNS) <= set(schema) else schema.names()[:3]
        if len(names) < 3:
            raise UserError(f"{path}: {_columns(len(names))} ({', '.join(names)}), {EXPECTED}")
        for name in names:
            kind = schema[name]
            if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum)):
                raise UserError(f"{path}: column {name!r} holds {kind}, expected text or whole numbers")
        frame = table.select(pl.col(n).cast(pl.String).alias(c) for n, c in zip(names, COLUMNS, strict=True)).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})") from error
    for column in COLUMNS:
        empty = frame[column].fill_null("") == ""
        if empty.any():
            raise UserError(f"{path}: row {empty.arg_max() + 1}: empty {column}")
    return frame


def _check_utf16(path: Path, first: str) -> None:
    """UTF-16 read as UTF-8 has a NUL beside every ASCII character, and two bad bytes where its mark stands."""
    head = first[:4]
    if (first.startswith("\ufffd\ufffd") and "\0" in first) or [c == "\0" for c in head] in (
        [True, False, True, False],
        [False, True, False, True],
    ):
        raise UserError(f"{path}:1: looks like UTF-16, convert to UTF-8")


def _raise_undecodable(path: Path) -> NoReturn:
    """Find the first line that is not UTF-8 and say so; slow, as only an error needs it."""
    if path.suffix.lower() == ".zst":  # polars alone unpacks it, and marks bad bytes by U+FFFD
        lossy = {"encoding": "utf8-lossy", "schema": {"text": pl.String}}
        lines = pl.read_csv(path, has_header=False, separator="\n", quote_char=None, glob=False, **lossy)["text"]
        lines = lines.fill_null("")
        _check_utf16(path, lines[0])
        line = lines.str.contains("\ufffd", literal=True).arg_max() + 1
        raise UserError(f"{path}:{line}: not UTF-8; convert the file to UTF-8")
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                if line == 1:
                    _check_utf16(path, raw.decode(errors="replace"))
                bad = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
                raise UserError(f"{path}:{line}: not UTF-8 ({bad}); convert the file to UTF-8") from None
    raise UserError(f"{path}: not UTF-8; convert the file to UTF-8")


def _columns(number: int) -> str:
    return "1 column" if number == 1 else f"{number} columns"


def _hint(text: str, separator: str) -> str:
    """What else may separate the fields of a line that has only one."""
    others = {"\t": "tabs", ",": "commas", " ": "spaces", ";": "semicolons", "|": "bars"}
    if separator not in text:
        for other, name in others.items():
            if text.count(other) == 2:
                return f" (separated by {others[separator]}, not {name})"
    return ""
