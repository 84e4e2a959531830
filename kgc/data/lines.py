"""Lines of plain and compressed text files, read within bounds, and what is wrong with a file that is no text.

A line ends at LF or CRLF only; other characters that Unicode calls line breaks, and a lone CR, belong to the line. One
leading byte-order mark is dropped.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import NoReturn

import polars as pl

from kgc.errors import UserError

COMPRESSIONS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}  # ending: first bytes of such a file

_PACKED = {**COMPRESSIONS, "zlib": (b"x\x01", b"x\x9c", b"x\xda")}
_MAGIC = (*COMPRESSIONS.values(), *_PACKED["zlib"])

# Text of triples shrinks to a tenth or so. What grows a hundredfold and beyond a gibibyte is made to fill a memory.
SAFE_SIZE = 2**30
SAFE_RATIO = 100
# No name is longer than this many bytes; a longer "label" is another file than the user meant.
LONGEST_FIELD = 2**20
LONGEST_LINE = 2**24


def read_lines(path: Path) -> pl.Series:
    """The lines of a plain or compressed text file; empty lines at the end are dropped.

    Raises:
        UserError: no such file, damaged or suspiciously dense compression, an endless line, or not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    packed = path.suffix.lower()
    with path.open("rb") as file:
        first = file.read(4)
    if magic := COMPRESSIONS.get(packed):
        if not first.startswith(magic):
            raise UserError(f"{path}: not a {packed} file (its first bytes differ); is the ending right?")
    else:
        _check_plain(path, first)
    if packed == ".zst":
        _check_zstd(path)
    try:
        source: Path | io.BytesIO = path
        if packed == ".gz":
            content = unpack_gzip(path)
            _check_plain(path, content[:4])
            source = io.BytesIO(content)
        lines = pl.scan_lines(source, name="text", **({} if packed == ".gz" else {"glob": False})).collect()["text"]
    except pl.exceptions.ComputeError:
        _raise_undecodable(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read, it looks damaged or cut off ({error})") from error
    if len(lines):
        sizes = lines.str.len_bytes()
        if sizes.max() > LONGEST_LINE:
            line = sizes.arg_max()
            need = f"a line of triples has at most {LONGEST_LINE:,}"
            raise UserError(f"{path}:{line + 1}: {sizes[line]:,} bytes without a line end; {need}")
        check_utf16(path, lines[0])
        if lines[0].startswith("\ufeff"):
            lines = pl.concat([pl.Series("text", [lines[0][1:]]), lines[1:]])
    filled = (lines != "").arg_true()
    return lines[: filled[-1] + 1] if len(filled) else lines[:0]


def simple_source(path: Path) -> tuple[Path | bytes, int] | None:
    """A text file as polars' parser of tables takes it, and how many bytes it has with a line end after its last line;
    None where `read_lines` must look first: zstd, a byte-order mark, UTF-16, or something else than its name says."""
    source: Path | bytes
    packed = path.suffix.lower()
    if not path.is_file() or packed == ".zst":
        return None
    with path.open("rb") as file:
        first = file.read(4)
        size = file.seek(0, io.SEEK_END)
        last = b""
        if packed != ".gz" and size:
            file.seek(-1, io.SEEK_END)
            last = file.read(1)
    source = path
    if packed == ".gz":
        if not first.startswith(COMPRESSIONS[".gz"]):
            return None
        source = unpack_gzip(path)
        first, size, last = source[:4], len(source), source[-1:]
    if b"\0" in first or first.startswith((b"\xef\xbb\xbf", *_MAGIC)):
        return None
    return source, size + (last != b"\n")


def _check_plain(path: Path, first: bytes) -> None:
    """Refuses what is packed but not named so, or packed twice: polars would unpack it, without a bound."""
    for ending, magic in _PACKED.items():
        if first.startswith(magic):
            raise UserError(f"{path}: packed once more than its name says (by its first bytes: {ending}); unpack it")


def read_records(path: Path, quoted: bool) -> pl.DataFrame:
    """One row a record: `text` without its line end, and the `line` where it begins, from 1.

    Args:
        path: the file.
        quoted: fields may stand in double quotes and hold line breaks; then several lines are one record.
    """
    records = pl.DataFrame({"text": read_lines(path)}).with_columns(line=pl.int_range(1, pl.len() + 1))
    if not quoted:
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


def unpack_gzip(path: Path) -> bytes:
    """The content of a gzip file of one or more members.

    Raises:
        UserError: damaged, cut off, or so dense that it was made to fill the memory.
    """
    limit = max(SAFE_SIZE, SAFE_RATIO * path.stat().st_size)
    parts, size = [], 0
    try:
        with gzip.open(path) as file:
            while part := file.read(1 << 22):
                size += len(part)
                if size > limit:
                    _raise_dense(path, f"more than {limit:,}")
                parts.append(part)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read, it looks damaged or cut off ({error})") from error
    return b"".join(parts)


def _check_zstd(path: Path) -> None:
    """Bounds the size of a zstd file by its block headers: a block unpacks to 128 KiB at most (RFC 8878, 3.1.1.2).

    A file that is damaged is left to the decoder.
    """
    limit = max(SAFE_SIZE, SAFE_RATIO * path.stat().st_size)
    blocks = 0
    with path.open("rb") as file:
        while len(magic := file.read(4)) == 4:
            if 0x184D2A50 <= int.from_bytes(magic, "little") <= 0x184D2A5F:  # a frame to skip
                file.seek(int.from_bytes(file.read(4), "little"), io.SEEK_CUR)
                continue
            if magic != COMPRESSIONS[".zst"] or not (descriptor := file.read(1)):
                return
            flags = descriptor[0]
            single = flags >> 5 & 1
            file.seek(1 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6], io.SEEK_CUR)
            last = False
            while not last:
                if len(raw := file.read(3)) < 3:
                    return
                header = int.from_bytes(raw, "little")
                last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
                blocks += 1
                if blocks * 2**17 > limit:
                    _raise_dense(path, f"up to more than {limit:,}")
                file.seek(1 if kind == 1 else size, io.SEEK_CUR)
            file.seek(4 * (flags >> 2 & 1), io.SEEK_CUR)  # the checksum


def _raise_dense(path: Path, size: str) -> NoReturn:
    raise UserError(
        f"{path}: {path.stat().st_size:,} bytes that unpack to {size}, which no list of triples does; if you trust the "
        "file, unpack it yourself"
    )


def check_utf16(path: Path, first: str) -> None:
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
        check_utf16(path, lines[0])
        line = lines.str.contains("\ufffd", literal=True).arg_max() + 1
        raise UserError(f"{path}:{line}: not UTF-8; convert the file to UTF-8")
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                if line == 1:
                    check_utf16(path, raw.decode(errors="replace"))
                bad = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}"
                raise UserError(f"{path}:{line}: not UTF-8 ({bad}); convert the file to UTF-8") from None
    raise UserError(f"{path}: not UTF-8; convert the file to UTF-8")
