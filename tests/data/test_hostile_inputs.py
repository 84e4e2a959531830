"""Files of strangers, each with the whole line that is said of it; more stand beside the tests of their formats."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kgc.data import lines
from kgc.data.formats import read_folder
from kgc.data.reader import Layout
from kgc.errors import UserError

TRIPLE = b"a\tr\tb\n"
THREE = "expected 3: head, relation, tail"
QUOTE = 'stray double quote; write a label with quotes as "a ""quoted"" word"'
UTF8 = "convert the file to UTF-8"
CUT = "cannot be read, it looks damaged or cut off"
FIRST = "not a {} file (its first bytes differ); is the ending right?"
PACKED = "packed once more than its name says (by its first bytes: {}); unpack it"
NAMED = {"columns": ("a", "b", "c")}
ZST = bytes.fromhex("28b52ffd045831000061096209630a1c654df1")  # "a b c" by the zstd command


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def parquet(schema: dict[str, Any] | None = None, **columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(columns or None, schema=schema).write_parquet(buffer)
    return buffer.getvalue()


# what: (file, content, message after the file's path, options of the layout)
INPUTS: dict[str, tuple[Any, ...]] = {
    "one column": ("train.txt", b"a\n", f":1: 1 column, {THREE}"),
    "two columns": ("train.txt", TRIPLE + b"a\tr\n", f":2: 2 columns, {THREE}"),
    "four columns": ("train.tsv", b"a\tr\tb\t1\n", f":1: 4 columns, {THREE}"),
    "a tab too many": ("train.txt", b"a\tr\tb\t\n", f":1: 4 columns, {THREE}"),
    "a gap": ("train.txt", TRIPLE + b"\n" + TRIPLE, f":2: 0 columns, {THREE}"),
    "only tabs": ("train.txt", b"\t\t\n", ":1: empty head"),
    "no relation": ("train.txt", b"a\t\tb\n", ":1: empty relation"),
    "no tail": ("train.txt", b"a\tr\t\r\n", ":1: empty tail"),
    "nothing": ("train.txt", b"", ": the train split has no triples"),
    "only line ends": ("train.txt", b"\n\r\n\n", ": the train split has no triples"),
    "only a byte-order mark": ("train.txt", b"\xef\xbb\xbf", ": the train split has no triples"),
    "two byte-order marks": ("train.txt", b"\xef\xbb\xbf\xef\xbb\xbf\t\t\n", ":1: empty relation"),
    "vertical tabs": ("train.txt", b"a\x0br\x0bb\n", f":1: 1 column, {THREE}"),
    "no-break spaces": ("train.txt", "a\u00a0r\u00a0b\n".encode(), f":1: 1 column, {THREE}"),
    "spaces": ("train.txt", b"a r b\n", f":1: 1 column, {THREE} (separated by tabs, not spaces)"),
    "aligned by spaces": ("train.txt", b"a  r  b\n", f":1: 1 column, {THREE}"),
    "commas in a .txt": ("train.txt", b"a,r,b\n", f":1: 1 column, {THREE} (separated by tabs, not commas)"),
    "bars": ("train.txt", b"a|r|b\n", f":1: 1 column, {THREE} (separated by tabs, not bars)"),
    "semicolons": ("train.csv", b"a;r;b\n", f":1: 1 column, {THREE} (separated by commas, not semicolons)"),
    "tabs in a .csv": ("train.csv", b"a\tr\tb\n", f":1: 1 column, {THREE} (separated by commas, not tabs)"),
    "CR for a line end": ("train.txt", b"a\tr\tb\rc\tr\td\r", f":1: 5 columns, {THREE}"),
    "an open quote": ("train.csv", b'a,"r,b\nc,r,d\n', f":1: {QUOTE}"),
    "an open quote at the end": ("train.csv", b'a,r,b\nc,r,"d\n', f":2: {QUOTE}"),
    "a quote within": ("train.csv", b'a,5" disk,b\n', f":1: {QUOTE}"),
    "three quotes": ("train.csv", b'""",r,b\n', f":1: {QUOTE}"),
    "quoted nothing": ("train.csv", b'a,"",b\n', ":1: empty relation"),
    "a row of a matrix": ("train.csv", b"0.1,0.2,0.3,0.4\n", f":1: 4 columns, {THREE}"),
    "half an export of Neo4j": ("train.csv", b"_start,_end\n1,2\n", f":1: 2 columns, {THREE}"),
    "a column twice": (
        "train.csv",
        b":START_ID,:END_ID,:TYPE,:TYPE\n1,2,R,R\n",
        ": more than one column ':TYPE'; its columns are ':START_ID', ':END_ID', ':TYPE', ':TYPE'",
    ),
    "named, twice": (
        "train.csv",
        b"a,b,a\n1,2,3\n",
        ": more than one column 'a'; its columns are 'a', 'b', 'a'",
        NAMED,
    ),
    "named, missing": ("train.csv", b"a,b,d\n1,2,3\n", ": no column 'c'; its columns are 'a', 'b', 'd'", NAMED),
    "named, of nothing": ("train.csv", b"", ": no line with the names of the columns, a, b, c", NAMED),
    "named, short": ("train.csv", b"a,b,c\n1,2\n", ":2: 2 columns, expected 3: a, b, c", NAMED),
    "named, long": ("train.csv", b"a,b,c\n1,2,3,4\n", ":2: 4 columns, expected 3: a, b, c", NAMED),
    "named, empty": ("train.csv", b"a,b,c\n1,,3\n", ":2: empty relation", NAMED),
    "a column to leave out": (
        "train.txt",
        b"a\tb\tr\n",
        ":1: 3 columns, expected 4: head, -, relation, tail",
        {"order": "h-rt"},
    ),
    "Latin-1": ("train.txt", b"caf\xe9\tr\tb\n", f":1: not UTF-8 (byte 0xe9 at column 4); {UTF8}"),
    "a surrogate": ("train.txt", b"\xed\xa0\x80\tr\tb\n", f":1: not UTF-8 (byte 0xed at column 1); {UTF8}"),
    "an overlong form": ("train.txt", b"\xc0\xaf\tr\tb\n", f":1: not UTF-8 (byte 0xc0 at column 1); {UTF8}"),
    "beyond Unicode": ("train.txt", b"\xf5\x80\x80\x80\tr\tb\n", f":1: not UTF-8 (byte 0xf5 at column 1); {UTF8}"),
    "half a character": ("train.txt", b"a\tr\tcaf\xc3", f":1: not UTF-8 (byte 0xc3 at column 8); {UTF8}"),
    "UTF-16": ("train.txt", "a\tr\tb\n".encode("utf-16"), ":1: looks like UTF-16, convert to UTF-8"),
    "UTF-16 without a mark": ("train.txt", "a\tr\tb\n".encode("utf-16-be"), ":1: looks like UTF-16, convert to UTF-8"),
    "a page of a server": ("train.txt", b"<!DOCTYPE html>\n<html>404</html>\n", f":1: 1 column, {THREE}"),
    "a pointer to a file": ("train.txt", b"version https://git-lfs.github.com/spec/v1\n", f":1: 1 column, {THREE}"),
    "JSON": ("train.txt", b'[["a","r","b"]]', f":1: 1 column, {THREE} (separated by tabs, not commas)"),
    "a pickle": ("train.txt", b"\x80\x04]\x94.", f":1: not UTF-8 (byte 0x80 at column 1); {UTF8}"),
    "an archive": ("train.txt", b"PK\x03\x04\x14\x00\x00\x00", f":1: 1 column, {THREE}"),
    "escape codes": ("train.txt", b"\x1b]0;x\x07\tr\n", f":1: 2 columns, {THREE}"),
    "packed without saying so": ("train.txt", packed(TRIPLE), f": {PACKED.format('.gz')}"),
    "zstd without saying so": ("train.txt", ZST, f": {PACKED.format('.zst')}"),
    "zlib without saying so": ("train.csv", zlib.compress(TRIPLE), f": {PACKED.format('zlib')}"),
    "packed twice": ("train.txt.gz", packed(packed(TRIPLE)), f": {PACKED.format('.gz')}"),
    "zstd in gzip": ("train.txt.gz", packed(ZST), f": {PACKED.format('.zst')}"),
    "not gzip": ("train.txt.gz", TRIPLE, f": {FIRST.format('.gz')}"),
    "not zstd": ("train.txt.zst", TRIPLE, f": {FIRST.format('.zst')}"),
    "gzip of no bytes": ("train.txt.gz", b"", f": {FIRST.format('.gz')}"),
    "gzip of nothing": ("train.txt.gz", packed(b""), ": the train split has no triples"),
    "gzip with something behind": (
        "train.txt.gz",
        packed(TRIPLE) + b"rubbish",
        f": {CUT} (Not a gzipped file (b'ru'))",
    ),
    "gzip cut off": (
        "train.txt.gz",
        packed(TRIPLE * 99)[:-9],
        f": {CUT} (Compressed file ended before the end-of-stream marker was reached)",
    ),
    "gzip of other bytes": (
        "train.txt.gz",
        packed(TRIPLE)[:-8] + bytes(8),
        f": {CUT} (CRC check failed 0x0 != 0x683ac8e)",
    ),
    "zstd cut off": ("train.txt.zst", ZST[:-6], f": {CUT} (incomplete frame)"),
    "Parquet of two columns": ("train.parquet", parquet(head=["a"], tail=["b"]), f": 2 columns (head, tail), {THREE}"),
    "Parquet of numbers": (
        "train.parquet",
        parquet(head=["a"], relation=[1.5], tail=["b"]),
        ": column 'relation' holds Float64, expected text or whole numbers",
    ),
    "Parquet of lists": (
        "train.parquet",
        parquet(head=["a"], relation=["r"], tail=[["b"]]),
        ": column 'tail' holds List(String), expected text or whole numbers",
    ),
    "Parquet with a gap": (
        "train.parquet",
        parquet(head=["a", "c"], relation=["r", None], tail=["b", "d"]),
        ": row 2: empty relation",
    ),
    "Parquet with an empty label": (
        "train.parquet",
        parquet(head=["a", ""], relation=["r", "r"], tail=["b", "d"]),
        ": row 2: empty head",
    ),
    "Parquet of no rows": (
        "train.parquet",
        parquet(schema=dict.fromkeys(("head", "relation", "tail"), pl.String)),
        ": the train split has no triples",
    ),
    "RDF without schemes": ("train.nt", b"<a> <b> <c> .\n", ":1: not .nt (No scheme found in an absolute IRI)"),
    "RDF without its prefix": ("train.ttl", b"x:a x:b x:c .\n", ":1: not .ttl (The prefix x: has not been declared)"),
}


def message(folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_folder(folder, None, Layout(**options))
    return str(caught.value)


def test_there_are_many():
    assert len(INPUTS) >= 60


@pytest.mark.parametrize("name", INPUTS)
def test_the_line_that_is_said(name, tmp_path):
    file, content, expected, *options = INPUTS[name]
    (tmp_path / file).write_bytes(content)
    assert message(tmp_path, **(options[0] if options else {})) == f"{tmp_path / file}{expected}"


def test_what_is_no_file(tmp_path):
    looked = "looked for train{.txt,.txt.gz,.txt.zst,.tsv,.tsv.gz,.tsv.zst,.csv,.csv.gz,.csv.zst,.parquet,.nt,.nt.gz"
    looked = f"{tmp_path}: no train split; {looked},.ttl,.ttl.gz}}, found"
    assert message(tmp_path) == f"{looked} nothing"
    (tmp_path / "train.txt").mkdir()
    assert message(tmp_path) == f"{looked} train.txt"
    (tmp_path / "train.txt").rmdir()
    os.mkfifo(tmp_path / "train.txt")  # whoever opened it would wait for ever
    assert message(tmp_path) == f"{looked} train.txt"
    (tmp_path / "train.txt").unlink()
    (tmp_path / "train.txt").symlink_to(tmp_path / "train.txt")
    assert message(tmp_path) == f"{looked} train.txt"


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1" * 8, TRIPLE * 9, parquet(head=["a"])[:-30]])
def test_parquet_that_is_none(damage, tmp_path):
    """What is in parentheses is polars' own word."""
    (tmp_path / "train.parquet").write_bytes(damage)
    said = message(tmp_path)
    assert said.startswith(f"{tmp_path}/train.parquet: cannot be read as parquet (")
    assert "\n" not in said


@pytest.mark.parametrize("way", ["plain", "twice"])
def test_no_bomb_comes_in_by_another_name(way, tmp_path, monkeypatch):
    """Nothing is unpacked before it is refused: polars is never asked."""
    bomb = packed(bytes(1 << 24))
    (tmp_path / ("train.txt" if way == "plain" else "train.txt.gz")).write_bytes(
        bomb if way == "plain" else packed(bomb)
    )
    monkeypatch.setattr(lines.pl, "scan_lines", lambda *_, **__: pytest.fail("it was unpacked"))
    assert message(tmp_path).endswith(PACKED.format(".gz"))


def test_what_is_odd_but_good_is_read_whole(tmp_path):
    """No label is changed and no line lost."""
    odd = [("nan", "NA", "null"), ("a\x00", "\x0b", "\u2028"), (" a", "b ", "\ufeff"), ("\u202eb", "{}", "x" * 10_000)]
    (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in odd), newline="")
    assert read_folder(tmp_path).frames["train"].rows() == odd
