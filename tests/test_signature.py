"""Config keys against signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from kgc.errors import UserError
from kgc.signature import check_options, mismatch, shown
from kgc.types import Side


class Base:
    def __init__(self, given: int, size: int, rate: float = 0.1, make: Callable[[int], int] | None = None):
        pass


class Made(Base):
    def __init__(self, given: int, *, flag: bool = False, names: Sequence[str] = (), **options: Any):
        super().__init__(given, 3, **options)


class Plain:
    pass


def open_ended(lr: float, **options: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Made, {}),
        (Made, {"flag": True, "names": ["a"], "rate": 1, "_target_": "x", "_partial_": True}),
        (Base, {"size": 3}),
        (open_ended, {"lr": 1, "whatever": "x"}),
        (Plain, {}),
    ],
)
def test_what_is_taken(function, options):
    check_options(function, options, "group", ("given",))


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (Made, {"foo": 1}, "group.foo: Made has no such key; its keys are flag, names, size, rate, make"),
        (Plain, {"foo": 1}, "group.foo: Plain has no such key; its keys are none"),
        (Made, {"given": 1}, "group.given: the program sets it; leave it out"),
        (Made, {"flag": 1}, "group.flag=1: must be true or false"),
        (Made, {"flag": None}, "group.flag=null: must be true or false"),
        (Made, {"names": "ab"}, "group.names=ab: must be a list"),
        (Made, {"rate": "high"}, "group.rate=high: must be a number"),
        (Made, {"rate": True}, "group.rate=true: must be a number"),
        (Base, {"size": 2.5}, "group.size=2.5: must be a whole number"),
        (Base, {}, "group.size: missing, and Base needs it"),
        (open_ended, {"whatever": 1}, "group.lr: missing, and open_ended needs it"),
    ],
)
def test_what_is_refused(function, options, message):
    with pytest.raises(UserError) as error:
        check_options(function, options, "group", ("given",))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (None, int | None, None),
        ("x", int | None, "a whole number or null"),
        ("max", Literal["min", "max"], None),
        ("up", Literal["min", "max"], "one of min, max"),
        (3, Side, "a mapping whose _target_ makes a Side"),
        ({"_target_": "x"}, Side, None),
        ("anything", Any, None),
    ],
)
def test_kinds(value, kind, words):
    assert mismatch(value, kind) == words


def test_values_are_shown_as_they_are_written():
    assert [shown(value) for value in (None, True, 1, 1.0, "a")] == ["null", "true", "1", "1.0", "a"]
