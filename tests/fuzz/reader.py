"""Coverage-guided fuzzing of the reader of triples, for a bounded time.

    pip install -e '.[fuzz]' && python tests/fuzz/reader.py [SECONDS] [FOLDER]

Any bytes end in triples or in a `UserError` of one line. Triples of text files are those of a reader in plain Python:
none is lost, none is made up. What breaks this is written to `crash-…` in the working directory; FOLDER keeps the
inputs that reached new code, for the next time.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=["kgc.data"]):
        from kgc.data.lines import LONGEST_FIELD
        from kgc.data.reader import Layout, read_split
else:
    from kgc.data.lines import LONGEST_FIELD
    from kgc.data.reader import Layout, read_split
from kgc.errors import UserError

ENDINGS = (".txt", ".tsv", ".csv", ".txt.gz", ".csv.gz", ".txt.zst", ".parquet", ".nt", ".ttl")
LAYOUTS = (
    Layout(),
    Layout(order="htr"),
    Layout(order="h-rt"),
    Layout(columns=("a", "b", "c")),
    Layout(extra=("x",)),
    Layout(literals="keep"),
)
SEEDS = (
    b"a\tr\tb\nc\tr\td\n",
    b"\xef\xbb\xbfa\tr\tb\r\n\r\n",
    b'a,"r, ""s""\nt",b\n',
    b"a,b,c,x\n1,2,3,4\n",
    b"_id,_labels,_start,_end,_type\n0,:A,,,\n,,0,1,R\n",
    b":START_ID,:END_ID,:TYPE\n0,1,R\n",
    b"<http://a> <http://r> <http://b> .\n<http://a> <http://r> 'c' .\n",
    b"a\tr\t\nb\n",
    b"\xff\xfea\x00\t\x00",
    b"PAR1",
)


def check(data: bytes, folder: Path) -> None:
    """Reads bytes as the file and with the layout that their first one names.

    Raises:
        AssertionError: something else than triples or one line came of it.
    """
    choice = data[0] if data else 0
    ending, layout = ENDINGS[choice % len(ENDINGS)], LAYOUTS[choice // len(ENDINGS) % len(LAYOUTS)]
    # Half of the packed files are damaged ones: the bytes themselves, behind the right first ones.
    content = data[1:]
    if ending.endswith(".gz"):
        content = gzip.compress(content, 1, mtime=0) if choice < 128 else b"\x1f\x8b" + content
    elif ending.endswith(".zst"):
        content = b"\x28\xb5\x2f\xfd" + content
    path = folder / f"train{ending}"
    path.write_bytes(content)
    try:
        frame, dropped = read_split(path, layout)
    except UserError as error:
        message = str(error)
        assert "\n" not in message, message
        assert message.startswith(str(path)), message
        assert len(message) < 2000, len(message)
        return
    columns = ["head", "relation", "tail", *layout.extra]
    assert frame.columns == columns
    assert frame.null_count().sum_horizontal().sum() == 0
    for column in columns[:3]:
        assert not (frame[column] == "").any()
    if ending in (".txt", ".tsv", ".csv") and not layout.columns and not layout.extra:
        assert dropped == 0
        expected = plain(data[1:], ending, layout)
        assert expected is None or frame.rows() == expected


def plain(data: bytes, ending: str, layout: Layout) -> list[tuple[str, ...]] | None:
    """The triples of a text file without names, by Python alone; None where its own reader means something else."""
    text = data.decode().removeprefix("\ufeff")
    if ending == ".csv":
        if "\r" in text or "_start" in text or ":START_ID" in text:
            return None  # a lone CR ends Python's lines; exports of Neo4j have names
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    else:
        if "_start" in text or ":START_ID" in text:
            return None
        rows = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
        rows = [[] if row == [""] else row for row in rows]
    while rows and not rows[-1]:
        rows.pop()
    places = [layout.order.index(letter) for letter in "hrt"]
    assert all(len(row) == len(layout.order) for row in rows)
    assert all(len(row[place].encode()) <= LONGEST_FIELD for row in rows for place in places)
    return [tuple(row[place] for place in places) for row in rows]


def main(seconds: str = "60", corpus: str | None = None) -> None:
    """Fuzzes for so many seconds; ends with libFuzzer's exit code."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        seeds = Path(corpus or f"{folder}/corpus")
        seeds.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(SEEDS):
            for choice in range(len(ENDINGS) * len(LAYOUTS)):
                (seeds / f"seed-{number}-{choice}").write_bytes(bytes([choice]) + seed)
        arguments = [sys.argv[0], f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", str(seeds)]
        atheris.Setup(arguments, lambda data: check(data, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
