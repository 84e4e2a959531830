"""TREC's two text formats: qrels (`query iteration document grade`) and runs (`query Q0 document rank score tag`)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kgc.data.lines import read_lines
from kgc.errors import UserError

_QRELS = ("query", "iteration", "document", "grade")
_RUN = ("query", "Q0", "document", "rank", "score", "tag")


def read_qrels(path: Path) -> pl.DataFrame:
    """Judgements: String columns `query`, `document`, Int64 `grade`, and the `line` of each, from 1.

    Raises:
        UserError: no such file, another number of columns, a grade that is no whole number, or a pair judged twice.
    """
    frame = _columns(path, _QRELS)
    frame = _numbers(path, frame, "grade", pl.Int64, "a whole number").drop("iteration")
    _unique(path, frame, "judged twice")
    return frame


def read_run(path: Path) -> tuple[pl.DataFrame, str | None]:
    """Retrieved documents: String columns `query`, `document`, Float64 `score`, and the `line` of each.

    The score alone orders a run, as in trec_eval; the second result says where the file's own order or its rank column
    says otherwise, None where they agree.

    Raises:
        UserError: no such file, another number of columns, a score that is no number, or a document listed twice.
    """
    frame = _columns(path, _RUN)
    frame = _numbers(path, frame, "score", pl.Float64, "a finite number")
    _unique(path, frame, "listed twice")
    before = pl.col("score").shift(1).over("query")
    rises = frame.with_columns(wrong=pl.col("score") > before).filter("wrong")
    if len(rises):
        return frame.drop("Q0", "rank", "tag"), f"{path}:{rises['line'][0]}: the run is not sorted by score"
    rank = pl.col("rank").cast(pl.Int64, strict=False)
    falls = frame.with_columns(wrong=rank < rank.shift(1).over("query")).filter("wrong")
    odd = f"{path}:{falls['line'][0]}: the rank column contradicts the scores" if len(falls) else None
    return frame.drop("Q0", "rank", "tag"), odd


def _columns(path: Path, names: tuple[str, ...]) -> pl.DataFrame:
    """String columns separated by white space, and the line of each row; empty lines are left out."""
    lines = pl.DataFrame({"text": read_lines(Path(path))}).with_columns(line=pl.int_range(1, pl.len() + 1))
    lines = lines.filter(pl.col("text").str.strip_chars() != "")
    if lines.is_empty():
        raise UserError(f"{path}: the file is empty; each line must be: {' '.join(names)}")
    pattern = r"^\s*" + r"\s+".join([r"(\S+)"] * len(names)) + r"\s*$"
    fields = lines["text"].str.extract_groups(pattern).struct.unnest()
    fields = fields.rename(dict(zip(fields.columns, names, strict=True)))
    wrong = fields[names[0]].is_null()
    if wrong.any():
        row = wrong.arg_max()
        number = len(lines["text"][row].split())
        raise UserError(f"{path}:{lines['line'][row]}: {number} columns, expected {len(names)}: {' '.join(names)}")
    return fields.with_columns(lines["line"])


def _numbers(path: Path, frame: pl.DataFrame, name: str, kind: pl.DataType, words: str) -> pl.DataFrame:
    values = frame[name].cast(kind, strict=False)
    wrong = values.is_null() | (~values.is_finite() if kind.is_float() else False)
    if wrong.any():
        row = wrong.arg_max()
        raise UserError(f"{path}:{frame['line'][row]}: {name} {frame[name][row]!r} is not {words}")
    return frame.with_columns(values)


def _unique(path: Path, frame: pl.DataFrame, words: str) -> None:
    again = ~frame.select(pl.struct("query", "document").is_first_distinct()).to_series()
    if again.any():
        row = again.arg_max()
        query, document = frame["query"][row], frame["document"][row]
        raise UserError(f"{path}:{frame['line'][row]}: document {document!r} is {words} for query {query!r}")
