"""Train, valid and test out of one list of triples: by a column, or made here.

A split made here is a pure function of the distinct triples, the fractions and the seed, whatever the order of lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from kgc.data.reader import COLUMNS, Layout, locate, read_split, shown
from kgc.data.tables import SPLITS, Tables
from kgc.errors import UserError

# What splits are called, and what is meant.
NAMES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
WAYS = ("transductive", "inductive", "time")
_ROW = "_row"  # where a triple stands in the file
_ISO = (
    r"^(?<month>\d{4}-\d{2})(?:-(?<day>\d{2})"
    r"(?:[T ](?<hour>[01]\d|2[0-3]):(?<minute>[0-5]\d)(?::(?<second>[0-5]\d)(?:[.,](?<fraction>\d{1,9}))?)?"
    r"(?<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?|(?<zone_of_day>Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))?)?$"
)


@dataclass(frozen=True)
class SplitRule:
    """How one list of triples becomes train, valid and test.

    Args:
        split: `transductive`, `inductive` or `time`; not read with a split column.
        split_column: names of splits, `train`, `valid` and `test`.
        time_column: of `split=time`.
        fractions: shares of train, valid and test: of the triples, for `inductive` of the entities.
        seed: of what is drawn.

    Raises:
        UserError: an unknown choice, fractions that are no shares of 1, or time without its column.
    """

    split: str = "transductive"
    split_column: str | None = None
    time_column: str | None = None
    fractions: Sequence[float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in WAYS:
            raise UserError(
                f"dataset.split={self.split}: choices are {', '.join(WAYS)}; or name a dataset.split_column"
            )
        if self.split == "time" and not (self.time_column or self.split_column):
            raise UserError("dataset.split=time: dataset.time_column must name the column of the times")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise UserError(f"dataset.seed={self.seed}: must be a whole number, at least 0")
        check_fractions(self.fractions)

    @property
    def extra(self) -> list[str]:
        """The columns that are read besides those of the triples."""
        column = self.split_column or (self.time_column if self.split == "time" else None)
        return [column] if column else []


def split_table(path: Path, layout: Layout, rule: SplitRule) -> Tables:
    """The triples of one file, split.

    Raises:
        UserError: an unreadable file, or a train split without triples.
    """
    frame, literals = read_split(path, layout)
    frame = frame.with_row_index(_ROW)
    if rule.split_column:
        parts = split_by_column(frame, rule.split_column, str(path))
    elif rule.split == "time":
        parts = split_by_time(frame, rule.time_column, rule.fractions, lambda row: locate(path, row, layout))
    else:
        way = split_transductive if rule.split == "transductive" else split_inductive
        parts = way(frame, rule.fractions, rule.seed)
    if parts["train"].is_empty():
        raise UserError(f"{path}: no triple is left for train; give train a larger share in dataset.fractions")
    repeated = len(frame) - sum(map(len, parts.values()))
    dropped = {"statements with literals": literals, "repeated triples": repeated}

    def where(split: str, row: int) -> str:
        return locate(path, parts[split][_ROW][row], layout)

    return Tables({split: part.select(COLUMNS) for split, part in parts.items()}, where, dropped=dropped)


def split_by_column(frame: pl.DataFrame, column: str, source: str) -> dict[str, pl.DataFrame]:
    """The splits that a column names: train, valid and test, or their other usual names.

    Raises:
        UserError: another name.
    """
    names = frame[column].str.to_lowercase().replace_strict(NAMES, default=None, return_dtype=pl.String)
    if names.null_count():
        other = frame[column].filter(names.is_null())[0]
        raise UserError(f"{source}: {shown(other)} in the column {column}; expected train, valid or test")
    return {split: frame.filter(names == split).select(_ROW, *COLUMNS) for split in SPLITS}


def split_transductive(frame: pl.DataFrame, fractions: Sequence[float], seed: int) -> dict[str, pl.DataFrame]:
    """Distinct triples at random, but every entity and every relation keeps a triple in train.

    In a random order, a triple that is the first of its head, its tail or its relation stays in train; valid and test
    are drawn from the others. They are smaller than asked for where too few others are left.

    Args:
        frame: the row in the file, head, relation, tail.
        fractions: of train, valid and test; sum 1.
        seed: of the order.
    """
    frame = _shuffled(frame, seed)
    rows = frame.drop(_ROW).with_row_index("row")
    ends = pl.concat([rows.select("row", pl.col(end).alias("entity")) for end in ("head", "tail")])
    firsts = [
        part.group_by(key).agg(pl.col("row").min())["row"] for part, key in ((ends, "entity"), (rows, "relation"))
    ]
    first = pl.concat(firsts).unique()
    free = np.setdiff1d(np.arange(len(frame)), first.to_numpy(), assume_unique=True)
    valid, test = (math.floor(len(frame) * part) for part in fractions[1:])
    if valid + test > len(free):
        valid = len(free) * valid // (valid + test)
        test = len(free) - valid
    chosen = {"valid": free[:valid], "test": free[valid : valid + test]}
    chosen["train"] = np.setdiff1d(np.arange(len(frame)), free[: valid + test], assume_unique=True)
    return {split: frame[chosen[split]] for split in SPLITS}


def split_inductive(frame: pl.DataFrame, fractions: Sequence[float], seed: int) -> dict[str, pl.DataFrame]:
    """Entities at random: those held out for valid or test occur in no triple of train (the dynamic setting of Daza et
    al. 2021). A triple with an entity of test goes to test, of the others one with an entity of valid to valid.

    Args:
        frame: the row in the file, head, relation, tail.
        fractions: of the entities for train, valid and test; sum 1.
        seed: of the order of the entities.
    """
    frame = _distinct(frame)
    entities = pl.concat([frame["head"], frame["tail"]]).unique().sort()
    order = np.random.default_rng(seed).permutation(len(entities))
    valid, test = (math.floor(len(entities) * part) for part in fractions[1:])
    home = np.zeros(len(entities), dtype=np.int8)
    home[order[:valid]] = 1
    home[order[valid : valid + test]] = 2
    homes = pl.DataFrame({"entity": entities, "home": home})
    place = pl.DataFrame(
        {
            end: frame.select(entity=end).join(homes, "entity", "left", maintain_order="left")["home"]
            for end in ("head", "tail")
        }
    ).max_horizontal()
    return {split: frame.filter(place == number) for number, split in enumerate(SPLITS)}


def split_by_time(
    frame: pl.DataFrame, column: str, fractions: Sequence[float], where: Callable[[int], str]
) -> dict[str, pl.DataFrame]:
    """The latest triples are test, those before them valid; triples of one moment stay together, in the later split.

    Args:
        frame: the row in the file, head, relation, tail and the time: numbers, or dates as ISO 8601 writes them.
        column: the time's.
        fractions: of train, valid and test; sum 1.
        where: the place of a row, for messages.

    Raises:
        UserError: a time that is neither, or times with a zone and others without.
    """
    times = frame[column].cast(pl.Float64, strict=False)
    if times.is_null().any() or times.is_nan().any():
        times = _moments(frame[column], column, where)
    frame = frame.with_columns(pl.Series("_time", times)).sort("_time", *COLUMNS)
    frame = frame.unique(COLUMNS, keep="first", maintain_order=True)  # a fact is known from its first time on
    times, size = frame["_time"], len(frame)
    starts = []
    for share in (fractions[0], fractions[0] + fractions[1]):
        place = math.floor(size * share + 1e-9)
        starts.append(int(times.search_sorted(times[place], "left")) if place < size else size)
    ends = [0, *starts, size]
    return {split: frame[a:b] for split, a, b in zip(SPLITS, ends[:-1], ends[1:], strict=True)}


def _moments(texts: pl.Series, column: str, where: Callable[[int], str]) -> pl.Series:
    """Whole numbers in the order of ISO 8601 dates; equal ones are one moment. A month is its first day, a day its
    first second.

    Raises:
        UserError: another text, a date that no calendar has, or dates with a zone and others without.
    """
    parts = texts.str.extract_groups(_ISO).struct.unnest()
    days = (parts["month"] + "-" + parts["day"].fill_null("01")).str.to_date("%Y-%m-%d", strict=False)
    if days.null_count():
        row = days.is_null().arg_max()
        raise UserError(
            f"{where(row)}: {shown(texts[row])} in the column {column} is no time; expected numbers throughout, or ISO "
            "8601 dates such as 2024-05-31 or 2024-05-31T23:00:00+02:00 throughout"
        )
    zones = parts["zone"].fill_null(parts["zone_of_day"])
    mixed = zones.is_null() != zones.is_null()[0]
    if mixed.any():
        row = mixed.arg_max()
        has = "no zone" if zones.is_null()[row] else "a zone"
        raise UserError(
            f"{where(row)}: {shown(texts[row])} in the column {column} has {has}, unlike {shown(texts[0])}; give all "
            "times a zone, or none"
        )
    frame = parts.with_columns(pl.Series("days", days).cast(pl.Int64), pl.Series("zone", zones).replace("Z", "+00"))
    digits = {name: pl.col(name).cast(pl.Int64).fill_null(0) for name in ("hour", "minute", "second")}
    hours, minutes = pl.col("zone").str.slice(1, 2), pl.col("zone").str.slice(3).str.strip_chars_start(":")
    sign = pl.when(pl.col("zone").str.starts_with("-")).then(-1).otherwise(1)
    offset = sign * (60 * hours.cast(pl.Int64) + minutes.replace("", "0").cast(pl.Int64))
    minute = 1440 * pl.col("days") + 60 * digits["hour"] + digits["minute"] - offset.fill_null(0)
    nanosecond = pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64).fill_null(0)
    second = 60 * minute + digits["second"]
    return frame.select(pl.struct(second=second, nanosecond=nanosecond).rank("dense")).to_series()


def check_fractions(fractions: Sequence[float]) -> list[float]:
    """Three shares of 1, none negative, the first above 0.

    Raises:
        UserError: anything else.
    """
    values = list(fractions) if isinstance(fractions, Sequence) and not isinstance(fractions, str) else []
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1]
    if len(values) != 3 or len(numbers) != 3 or numbers[0] == 0 or abs(sum(numbers) - 1) > 1e-6:
        need = "must be the shares of train, valid and test, such as [0.8,0.1,0.1]"
        raise UserError(f"dataset.fractions={fractions}: {need}")
    return numbers


def _shuffled(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    frame = _distinct(frame)
    return frame[np.random.default_rng(seed).permutation(len(frame))]


def _distinct(frame: pl.DataFrame) -> pl.DataFrame:
    """Each triple once, where it stands first, in the order of the labels."""
    return frame.unique(COLUMNS, keep="first", maintain_order=True).sort(COLUMNS)
