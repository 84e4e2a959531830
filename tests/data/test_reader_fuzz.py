"""What the fuzzer of `tests/fuzz/reader.py` asks of the reader, for its seeds and for bytes of Hypothesis."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import runs
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(runs.REPOSITORY) / "tests" / "fuzz"))
import reader as fuzz

CHOICES = len(fuzz.ENDINGS) * len(fuzz.LAYOUTS)


@pytest.mark.parametrize("seed", range(len(fuzz.SEEDS)))
def test_seeds(seed, tmp_path):
    for choice in range(CHOICES):
        fuzz.check(bytes([choice]) + fuzz.SEEDS[seed], tmp_path)


PIECES = [b"a", b"\t", b",", b'"', b"\n", b"\r\n", b"\r", b"\x00", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xff", b" "]
pieces = st.sampled_from(PIECES)


@settings(max_examples=300)
@given(choice=st.integers(0, 255), data=st.one_of(st.lists(pieces, max_size=25).map(b"".join), st.binary(max_size=60)))
def test_any_bytes(choice, data):
    with tempfile.TemporaryDirectory() as folder:
        fuzz.check(bytes([choice]) + data, Path(folder))


def test_a_fault_would_be_found(tmp_path, monkeypatch):
    """A reader that drops a line silently, and one that lets another exception through."""
    whole = fuzz.read_split
    monkeypatch.setattr(fuzz, "read_split", lambda *a: (whole(*a)[0][:-1], 0))
    with pytest.raises(AssertionError):
        fuzz.check(b"\x00a\tr\tb\n", tmp_path)
    monkeypatch.setattr(fuzz, "read_split", lambda *a: {}["a"])
    with pytest.raises(KeyError):
        fuzz.check(b"\x00a\tr\tb\n", tmp_path)
