"""Labels are exactly the text between separators, and every damaged file is named with its line."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgc.data.reader import find_split, locate, read_labels, read_triples
from kgc.errors import UserError

GOOD = "a\tb\tc\n"
# GOOD as the zstd command packs it: this one has a checksum, and no size in its header.
ZST_GOOD = bytes.fromhex("28b52ffd045831000061096209630a1c654df1")


def zst_frame(data: bytes) -> bytes:
    """A valid zstd frame made of raw (stored) blocks, RFC 8878 sections 3.1.1.1 and 3.1.1.2."""
    limit = 1 << 17  # the largest block
    blocks = [data[i : i + limit] for i in range(0, len(data), limit)] or [b""]
    frame = b"\x28\xb5\x2f\xfd" + b"\xa0" + len(data).to_bytes(4, "little")  # single segment, 4-byte content size
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        frame += (len(block) << 3 | last).to_bytes(3, "little") + block
    return frame


PACK = {"": bytes, ".gz": lambda data: gzip.compress(data, mtime=0), ".zst": zst_frame}


def write(path: Path, data: str | bytes) -> Path:
    data = data.encode() if isinstance(data, str) else data
    packed = path.suffix if path.suffix in PACK else ""
    path.write_bytes(PACK[packed](data))
    return path


def message(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


labels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n"), min_size=1)
# A CR before LF is part of the line end; NULs at the start of a file look like UTF-16; a byte-order mark is dropped.
safe = labels.filter(lambda label: not label.endswith("\r") and "\0" not in label and not label.startswith("\ufeff"))
triples = st.lists(st.tuples(safe, safe, safe), min_size=1, max_size=20)


@settings(deadline=None)
@given(
    triples=triples, ending=st.sampled_from([".txt", ".tsv"]), packed=st.sampled_from(list(PACK)), crlf=st.booleans()
)
@example(
    triples=[("nan", "NA", "null"), ("None", '"', "#"), ("\xa0", " a ", "''"), ("-", "\ufeff", "1e5")],
    **{"ending": ".tsv", "packed": ".zst", "crlf": True},
)
@example(
    triples=[("a\u2028b", "\x0b\x0c", "\x85"), ("a\rb", "\x1c", '"x'), (",", "\\N", "\\t")],
    **{"ending": ".txt", "packed": ".gz", "crlf": False},
)
def test_tab_separated_labels_survive(triples, ending, packed, crlf):
    text = "".join("\t".join(triple) + ("\r\n" if crlf else "\n") for triple in triples)
    with tempfile.TemporaryDirectory() as folder:
        assert read_triples(write(Path(folder) / f"train{ending}{packed}", text)).rows() == triples


@settings(deadline=None)
@given(triples=st.lists(st.tuples(labels, labels, labels), min_size=1, max_size=20), packed=st.sampled_from(list(PACK)))
@example(triples=[("a,b", 'say "hi"', "c"), ('""', ",", "nan")], packed=".zst")
def test_quoted_csv_labels_survive(triples, packed):
    triples = [tuple(label.replace("\r", "") or "x" for label in triple) for triple in triples]
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(triples)
    with tempfile.TemporaryDirectory() as folder:
        assert read_triples(write(Path(folder) / f"train.csv{packed}", file.getvalue())).rows() == triples


@settings(deadline=None)
@given(triples=st.lists(st.tuples(labels, labels, labels), min_size=1, max_size=20))
def test_parquet_labels_survive(triples):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.parquet"
        pl.DataFrame(triples, schema=["head", "relation", "tail"], orient="row").write_parquet(path)
        assert read_triples(path).rows() == triples


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize(
    ("ending", "text", "rows"),
    [
        (".txt", "\ufeffa\tb\tc\n", [("a", "b", "c")]),  # byte-order mark
        (".txt", "a\tb\tc", [("a", "b", "c")]),  # no final line end
        (".txt", "a\tb\tc\r\nd\te\tf\r\n\r\n\n", [("a", "b", "c"), ("d", "e", "f")]),  # empty lines at the end
        (".txt", "", []),
        (".tsv", "\n\n", []),
        (".csv", "a,b,c\r\nNA,nan,null\r\n", [("a", "b", "c"), ("NA", "nan", "null")]),
        (".csv", 'a,"b, ""c""",d\n', [("a", 'b, "c"', "d")]),
        (".csv", '"two\nlines",r,t\nx,y,z\n', [("two\nlines", "r", "t"), ("x", "y", "z")]),
        (".csv", "a\rb, c ,d\n", [("a\rb", " c ", "d")]),
    ],
)
def test_accepted_forms(tmp_path, ending, packed, text, rows):
    frame = read_triples(write(tmp_path / f"train{ending}{packed}", text))
    assert frame.columns == ["head", "relation", "tail"]
    assert frame.dtypes == [pl.String] * 3
    assert frame.rows() == rows


def test_zstd_of_another_writer(tmp_path):
    path = tmp_path / "train.txt.zst"
    path.write_bytes(ZST_GOOD)
    assert read_triples(path).rows() == [("a", "b", "c")]


def test_concatenated_gzip_members(tmp_path):
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(b"a\tb\tc\n") + gzip.compress(b"d\te\tf\n"))
    assert read_triples(path).rows() == [("a", "b", "c"), ("d", "e", "f")]


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize(
    ("ending", "data", "expected"),
    [
        (".txt", GOOD + "a\tb\n", ":2: 2 columns, expected 3: head, relation, tail"),
        (".txt", GOOD + "a\tb\tc\td\n" + GOOD, ":2: 4 columns, expected 3: head, relation, tail"),
        (".txt", "a\tb\tc\t\n", ":1: 4 columns, expected 3: head, relation, tail"),
        (".txt", GOOD + "\n" + GOOD, ":2: 0 columns, expected 3: head, relation, tail"),
        (".txt", "a b c\n", ":1: 1 column, expected 3: head, relation, tail (separated by tabs, not spaces)"),
        (".csv", "a\tb\tc\n", ":1: 1 column, expected 3: head, relation, tail (separated by commas, not tabs)"),
        (".csv", "a,b,c\nd,e\n", ":2: 2 columns, expected 3: head, relation, tail"),
        (".csv", '"a\n",b,c\n"d",e\n', ":3: 2 columns, expected 3: head, relation, tail"),
        (".csv", 'a,b,c\n5" disk,e,f\n', ':2: stray double quote; write a label with quotes as "a ""quoted"" word"'),
        (".csv", 'a,b"b",c\n', ':1: stray double quote; write a label with quotes as "a ""quoted"" word"'),
        (".csv", 'a,b,c\nd,"",f\n', ":2: empty relation"),
        (".tsv", GOOD + GOOD + "\tb\tc\n", ":3: empty head"),
        (".txt", GOOD + "a\t\tc\n", ":2: empty relation"),
        (".txt", GOOD + "a\tb\t\r\n", ":2: empty tail"),
        (".txt", GOOD.encode("utf-16"), ":1: looks like UTF-16, convert to UTF-8"),
        (".txt", "\u732b\t\u732b\t\u732b\n".encode("utf-16"), ":1: looks like UTF-16, convert to UTF-8"),
        (".txt", GOOD.encode("utf-16-be"), ":1: looks like UTF-16, convert to UTF-8"),
        (".txt", GOOD.encode("utf-16-le"), ":1: looks like UTF-16, convert to UTF-8"),
    ],
)
def test_wrong_content_is_named_with_its_line(tmp_path, ending, packed, data, expected):
    path = write(tmp_path / f"train{ending}{packed}", data)
    assert message(read_triples, path) == f"{path}{expected}"


@pytest.mark.parametrize("packed", PACK)
def test_bytes_that_are_not_utf8(tmp_path, packed):
    path = write(tmp_path / f"train.txt{packed}", GOOD.encode() * 3 + b"caf\xe9\tb\tc\n")
    where = "" if packed == ".zst" else " (byte 0xe9 at column 4)"
    assert message(read_triples, path) == f"{path}:4: not UTF-8{where}; convert the file to UTF-8"


@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_damaged_compression(tmp_path, packed):
    path = write(tmp_path / f"train.txt{packed}", GOOD * 1000)
    path.write_bytes(path.read_bytes()[:-5])
    assert message(read_triples, path).startswith(f"{path}: cannot be read, it looks damaged or cut off (")
    path.write_bytes(GOOD.encode())
    assert message(read_triples, path) == f"{path}: not a {packed} file (its first bytes differ); is the ending right?"


def test_no_file_and_unknown_ending(tmp_path):
    assert message(read_triples, tmp_path / "train.txt") == f"{tmp_path}/train.txt: no such file"
    assert message(read_triples, tmp_path / "train.parquet") == f"{tmp_path}/train.parquet: no such file"
    path = write(tmp_path / "train.dat", GOOD)
    assert message(read_triples, path).startswith(f"{path}: unknown ending; known are .txt .txt.gz .txt.zst .tsv")


def test_path_with_pattern_characters(tmp_path):
    folder = tmp_path / "a[1]*"
    folder.mkdir()
    assert read_triples(write(folder / "train.txt", GOOD)).rows() == [("a", "b", "c")]


def test_parquet_columns(tmp_path):
    path = tmp_path / "train.parquet"
    pl.DataFrame({"tail": ["c"], "weight": [0.5], "relation": ["b"], "head": ["a"]}).write_parquet(path)
    assert read_triples(path).rows() == [("a", "b", "c")]
    pl.DataFrame({"s": [7], "p": ["b"], "o": [-1], "weight": [0.5]}).write_parquet(path)
    assert read_triples(path).rows() == [("7", "b", "-1")]
    pl.DataFrame({"s": ["a"], "p": ["b"]}).write_parquet(path)
    assert message(read_triples, path) == f"{path}: 2 columns (s, p), expected 3: head, relation, tail"
    pl.DataFrame({"s": ["a"], "p": ["b"], "o": [0.5]}).write_parquet(path)
    assert message(read_triples, path) == f"{path}: column 'o' holds Float64, expected text or whole numbers"
    pl.DataFrame({"s": ["a", "a"], "p": ["b", None], "o": ["c", "c"]}).write_parquet(path)
    assert message(read_triples, path) == f"{path}: row 2: empty relation"
    path.write_bytes(b"PAR1 this is not parquet")
    assert message(read_triples, path).startswith(f"{path}: cannot be read as parquet (")


def test_find_split(tmp_path):
    assert find_split(tmp_path, "train") is None
    write(tmp_path / "train.txt.bak", GOOD)
    write(tmp_path / "train_negatives.txt", GOOD)
    assert find_split(tmp_path, "train") is None
    first = write(tmp_path / "train.tsv.zst", GOOD)
    assert find_split(tmp_path, "train") == first
    write(tmp_path / "train.parquet", GOOD)
    expected = f"{tmp_path}: train.tsv.zst and train.parquet both look like the train split; keep one of them"
    assert message(find_split, tmp_path, "train") == expected


def test_locate_counts_lines_inside_quotes(tmp_path):
    path = write(tmp_path / "train.csv", '"two\nlines",r,t\nx,y,z\n')
    assert locate(path, 1) == f"{path}:3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b\na\nnan\n", ["b", "a", "nan"]),
        ("2\tc\n0\ta\n1\tb b\n\n", ["a", "b b", "c"]),
        ("7\n5\n", ["7", "5"]),
        ("", []),
    ],
)
def test_label_files(tmp_path, text, expected):
    assert read_labels(write(tmp_path / "labels.txt", text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n1\tb\n", ":2: 2 columns; every line must be one label, or every line id<TAB>label"),
        ("0\ta\tx\n", ":1: 3 columns; every line must be one label, or every line id<TAB>label"),
        ("0\ta\nb\n", ":2: 1 column; every line must be one label, or every line id<TAB>label"),
        ("0\ta\n2\tb\n", ":2: id '2', expected each of 0 to 1 once"),
        ("0\ta\n0\tb\n", ":2: id '0', expected each of 0 to 1 once"),
        ("a\t0\nb\t1\n", ":1: id 'a', expected each of 0 to 1 once"),
        ("a\n\nb\n", ":2: empty label"),
        ("1\t\n0\ta\n", ":1: empty label"),
        ("a\nb\na\n", ":3: label 'a' again; line 1 has it too"),
    ],
)
def test_wrong_label_files(tmp_path, text, expected):
    path = write(tmp_path / "labels.txt", text)
    assert message(read_labels, path) == f"{path}{expected}"


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("fault", ["a row", "a byte", "a row too many"])
def test_a_parser_that_loses_something_is_not_believed(tmp_path, monkeypatch, packed, fault):
    """The fast parser's rows are taken only if their bytes are the file's."""
    path = write(tmp_path / f"train.txt{packed}", GOOD * 3)
    whole = read_triples(path)
    assert whole.rows() == [tuple(GOOD.rstrip().split("\t"))] * 3
    parse, asked = pl.read_csv, []

    def lossy(*args, **kwargs):
        asked.append(args)
        frame = parse(*args, **kwargs)
        changed = {
            "a row": frame[:-1],
            "a byte": frame.with_columns(head=pl.col("head") + "x"),
            "a row too many": pl.concat([frame, frame[:1]]),
        }
        return changed[fault]

    monkeypatch.setattr(pl, "read_csv", lossy)
    assert read_triples(path).equals(whole)
    assert asked
