"""Config keys against the parameters of the code they are for: unknown names, missing ones, wrong kinds of values."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kgc.errors import UserError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    key: str,
    supplied: Collection[str] = (),
    complete: bool = True,
) -> None:
    """Whether a class or function takes options of these names and kinds; a nested mapping with `_target_` is any kind.

    Args:
        function: what will be called.
        options: by name; names that start with an underscore are Hydra's.
        key: the config key of the options.
        supplied: names of parameters that the program gives.
        complete: False lets needed ones be missing.

    Raises:
        UserError: names the key of an unknown or missing option, or of one with a value of the wrong kind.
    """
    found, more = parameters(function)
    name = getattr(function, "__name__", str(function))
    known = [option for option, (_, kind) in found.items() if option not in supplied and not _is_code(kind)]
    for option, value in options.items():
        if option.startswith("_"):
            continue
        if option in supplied:
            raise UserError(f"{key}.{option}: the program sets it; leave it out")
        if option in found:
            wanted = mismatch(value, found[option][1])
            if wanted:
                raise UserError(f"{key}.{option}={shown(value)}: must be {wanted}")
        elif not more:
            raise UserError(f"{key}.{option}: {name} has no such key; its keys are {', '.join(known) or 'none'}")
    for option, (needed, _) in found.items():
        if complete and needed and option not in options and option not in supplied:
            raise UserError(f"{key}.{option}: missing, and {name} needs it")


def parameters(function: Callable[..., Any]) -> tuple[dict[str, tuple[bool, Any]], bool]:
    """Names of the parameters of a function, or of a class and the classes it hands further options to.

    Returns:
        (whether it has no default, its annotation) by name, and whether still other names are taken.
    """
    makers = [cls.__init__ for cls in inspect.getmro(function)[:-1]] if inspect.isclass(function) else [function]
    found: dict[str, tuple[bool, Any]] = {}
    more = False
    for maker in dict.fromkeys(maker for maker in makers if maker is not object.__init__):
        kinds = _annotations(maker)
        own = inspect.signature(maker).parameters.values()
        for parameter in own:
            if parameter.name != "self" and parameter.kind not in _VARIABLE:
                # What a base class needs is given by the class itself, if it names no such parameter.
                needed = maker is makers[0] and parameter.default is inspect.Parameter.empty
                found.setdefault(parameter.name, (needed, kinds.get(parameter.name, Any)))
        more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own)
        if not more:
            break
    return found, more


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # names that only a type checker imports
        return {}


def mismatch(value: Any, kind: Any) -> str | None:
    """What a value of an annotated parameter must be, in words; None if it is, or if the annotation says little."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    wanted = []
    for choice in choices:
        fits, words = _fits(value, choice)
        if fits:
            return None
        wanted.append(words)
    return " or ".join(wanted)


def _fits(value: Any, kind: Any) -> tuple[bool, str]:
    if kind is type(None):
        return value is None, "null"
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool), _KINDS[float]
    if kind in _KINDS:
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), _KINDS[kind]
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        values = typing.get_args(kind)
        return value in values, "one of " + ", ".join(map(str, values))
    if origin in (list, tuple, collections.abc.Sequence):
        return isinstance(value, list | tuple), "a list"
    if isinstance(kind, type) and kind.__module__.startswith("kgc."):
        return isinstance(value, Mapping) and "_target_" in value, f"a mapping whose _target_ makes a {kind.__name__}"
    return True, ""


def _is_code(kind: Any) -> bool:
    """Whether no value that a command line could write is of this kind."""
    own = isinstance(kind, type) and kind.__module__.startswith("kgc.models.")
    return own or typing.get_origin(kind) is collections.abc.Callable


def shown(value: Any) -> str:
    """A value as the command line writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
