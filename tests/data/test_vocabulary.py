"""Ids follow the sorted labels, whatever order they came in."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError

labels = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=30)


@settings(deadline=None)
@given(labels=labels, data=st.data())
@example(labels=["b", "B", "é", "e\u0301", "\uffff", "\U00010000", "a"], data=None)
def test_ids_are_places_in_code_point_order(labels, data):
    expected = sorted(set(labels))  # Python compares strings by code point
    shuffled = labels[::-1] if data is None else data.draw(st.permutations(labels))
    vocabulary = Vocabulary.from_labels(shuffled)
    assert vocabulary.labels == expected
    assert vocabulary == Vocabulary.from_labels(pl.Series(labels))
    assert vocabulary.index(pl.Series(labels)).tolist() == [expected.index(label) for label in labels]
    assert [vocabulary[i] for i in range(len(vocabulary))] == expected


def test_given_order_is_kept_and_unknown_labels_are_minus_one():
    vocabulary = Vocabulary(["b", "a"])
    ids = vocabulary.index(pl.Series(["a", "A", "b", "a "]))
    assert ids.dtype == torch.int64
    assert ids.tolist() == [1, -1, 0, -1]
    assert vocabulary != Vocabulary(["a", "b"])
    assert vocabulary.index(pl.Series([], dtype=pl.String)).tolist() == []


def test_repeated_label():
    with pytest.raises(UserError, match=r"^label 'a' occurs more than once; every entity and relation needs"):
        Vocabulary(["a", "b", "a"])


@given(labels=labels)
@example(labels=["é", "", "\U00010000"])
def test_very_many_labels_are_kept_as_bytes(labels):
    vocabulary = Vocabulary(list(dict.fromkeys(labels)))
    assert vocabulary.state() == vocabulary.labels
    assert Vocabulary.from_state(vocabulary.state()) == vocabulary
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgc.data.vocabulary._MANY", 0)
        patch.setattr("kgc.data.vocabulary._PIECE", 4)
        state = vocabulary.state()
        assert state["bytes"].numpy().tobytes() == "".join(vocabulary.labels).encode()
        assert state["sizes"].tolist() == [len(label.encode()) for label in vocabulary.labels]
        again = Vocabulary.from_state(state)
    assert again == vocabulary
    assert again.labels == vocabulary.labels


def test_damaged_bytes_of_labels():
    for sizes in ([1, 1], [4, -1], [2]):
        with pytest.raises(ValueError, match="its labels are damaged"):
            Vocabulary.from_state({"bytes": torch.zeros(3, dtype=torch.uint8), "sizes": torch.tensor(sizes)})
    with pytest.raises(UserError, match="label 'a' occurs more than once"):
        Vocabulary.from_state({"bytes": torch.tensor(list(b"aa"), dtype=torch.uint8), "sizes": torch.tensor([1, 1])})
