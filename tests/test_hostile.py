"""Data files of strangers: bombs, endless lines, and labels that would be obeyed by a page or a terminal."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import runs

from kgc.data import lines
from kgc.data.reader import read_triples
from kgc.errors import UserError
from kgc.text import printable

COLOUR, TITLE, CLEAR = "\x1b[31m", "\x1b]0;gone\x07", "\x1b[2J"
LABELS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    f"{COLOUR}red",
    f"{TITLE}title",
    f"{CLEAR}clear\x9b2J",
    "bell\x07 back\x08space",
    "{{7*7}} ${HOME} `id` $(id)",
    "[red]markup[/red]",
    "\u202egnirts",
    "=cmd()",
]


def message(call, *args) -> str:
    with pytest.raises(UserError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def no_codes(text: str) -> bool:
    return not set(text) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160))}


def hostile_graph(folder: Path) -> Path:
    triples = [(head, relation, "b") for head in LABELS for relation in LABELS[:4]]
    return runs.write_splits(folder, train=triples, valid=triples[:2], test=[("b", LABELS[0], LABELS[2])])


def test_labels_are_shown_not_obeyed(tmp_path, capsys):
    """In a report, in the log, on the console; for a training run and for `task=inspect`."""
    data = hostile_graph(tmp_path / "data")
    words = ["dataset=folder", f"dataset.path={data}"]
    tiny = ["model.dim=4", "trainer=cpu", "trainer.max_epochs=1", "sampler.num_negatives=2", "logger=none"]
    trained = runs.command(capsys, tmp_path, "train", *words, *tiny, f"hydra.run.dir='{tmp_path}/run'")
    inspected = runs.command(capsys, tmp_path, "evaluate", "task=inspect", *words, f"hydra.run.dir='{tmp_path}/looked'")
    for outcome, folder, log in ((trained, "run", "train.log"), (inspected, "looked", "evaluate.log")):
        assert outcome.code == 0, outcome.err
        page = (tmp_path / folder / "report.html").read_text()
        assert "<script" not in page
        assert "<img" not in page
        assert "&lt;script&gt;" in page
        assert "Content-Security-Policy" in page
        for text in (page, outcome.out, outcome.err, (tmp_path / folder / log).read_text()):
            assert no_codes(text)


@pytest.mark.parametrize("label", LABELS)
def test_labels_in_messages(label, tmp_path, capsys):
    """A triple that a model does not know is named with its label."""
    data = runs.write_splits(tmp_path / "data", train=[("a", "r", "b")])
    runs.train(tmp_path / "run", "dataset=folder", f"dataset.path={data}", "trainer.max_epochs=1", "model.dim=4")
    runs.write_splits(tmp_path / "data", train=[("a", "r", "b"), ("a", "r", label)])
    word = f"checkpoint='{tmp_path}/run/checkpoints/last.ckpt'"
    said = runs.command(capsys, tmp_path, "evaluate", word, "trainer=cpu").mistake()
    assert said.startswith(f"{data}/train.txt:2: entity {label!r} is not among the model's 2 entities; ")
    assert no_codes(said)


def test_file_names_in_messages(tmp_path, capsys):
    folder = tmp_path / f"{COLOUR}red"
    said = runs.command(capsys, tmp_path, "train", "dataset=folder", f"dataset.path='{folder}'").mistake()
    assert said == f"{tmp_path}/red: no such folder"


def test_what_is_printable():
    assert printable(f"a{COLOUR}b{TITLE}c{CLEAR}d\x9be\x07\x00f\ng\th") == "abcdef\ng\th"
    assert printable("café 猫 ∀") == "café 猫 ∀"


# Bombs.


def test_gzip_bomb(tmp_path, monkeypatch):
    """With the limit lowered to 64 KiB, so that the bomb need not be a gibibyte."""
    monkeypatch.setattr(lines, "SAFE_SIZE", 1 << 16)
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    size = path.stat().st_size
    expected = f"{path}: {size:,} bytes that unpack to more than {100 * size:,}, which no list of triples does; "
    assert message(read_triples, path) == f"{expected}if you trust the file, unpack it yourself"


def test_dense_but_small_is_read(tmp_path):
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(b"a\tb\tc\n" * 100_000))
    assert path.stat().st_size * 100 < 600_000
    assert len(read_triples(path)) == 100_000


def rle_bomb(blocks: int) -> bytes:
    """A zstd frame of blocks that repeat one byte 2^17 times (RFC 8878, section 3.1.1.2.2), without a size."""
    block = [(1 << 17 << 3 | 1 << 1 | (i == blocks - 1)).to_bytes(3, "little") + b"a" for i in range(blocks)]
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x58" + b"".join(block)  # a window of 2 MiB


def test_zstd_bomb(tmp_path):
    """64 GiB in 2 MiB: refused by the headers of its blocks, nothing is unpacked."""
    path = tmp_path / "train.txt.zst"
    path.write_bytes(rle_bomb(2**19))
    limit = f"{2**30:,}"
    expected = f"{path}: 2,097,158 bytes that unpack to up to more than {limit}, which no list of triples does; "
    assert message(read_triples, path) == f"{expected}if you trust the file, unpack it yourself"


def test_the_frame_of_the_bomb_is_good(tmp_path):
    """A small one is unpacked by the reader: what is refused above is refused for its size."""
    path = tmp_path / "train.txt.zst"
    path.write_bytes(rle_bomb(2))
    assert message(read_triples, path) == f"{path}:1: 1 column, expected 3: head, relation, tail"


def test_zstd_frames_to_skip_and_several_frames(tmp_path):
    frame = bytes.fromhex("28b52ffd045831000061096209630a1c654df1")  # "a b c" by the zstd command, with a checksum
    path = tmp_path / "train.txt.zst"
    path.write_bytes(frame + frame)
    assert read_triples(path).rows() == [("a", "b", "c")] * 2


def test_a_line_of_200_megabytes(tmp_path):
    path = tmp_path / "train.txt"
    size = 200_000_000
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    expected = f"{path}:1: {size:,} bytes without a line end; a line of triples has at most 16,777,216"
    assert message(read_triples, path) == expected


def test_a_label_of_a_mebibyte(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(b"a\tr\t" + b"b" * 2**20 + b"\n")
    assert len(read_triples(path)["tail"][0]) == 2**20
    path.write_bytes(b"a\tr\tb\na\tr\t" + b"b" * (2**20 + 1) + b"\n")
    assert message(read_triples, path) == f"{path}:2: tail of 1,048,577 bytes; a label has at most 1,048,576"


def test_a_checkpoint_does_not_say_where_to_fetch_from(tmp_path, monkeypatch):
    """The address in a stranger's file is not asked: the catalogue knows the data set by its name."""
    import torch

    runs.train(tmp_path / "run", "trainer.max_epochs=1", "test=false")
    content = runs.content(tmp_path / "run" / "checkpoints" / "last.ckpt")
    source = {"files": [{"name": "train.txt", "url": "http://127.0.0.1:9/evil.txt", "sha256": None}]}
    content["kgc"]["config"]["dataset"]["source"] = source
    path = tmp_path / "stranger.ckpt"
    torch.save(content, path)
    monkeypatch.delenv("KGC_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("a download"))
    assert runs.evaluate(tmp_path / "evaluated", f"checkpoint={path}")["test/num_queries"] == 402
