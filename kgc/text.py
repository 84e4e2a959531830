"""Text from outside, fit to be shown."""

from __future__ import annotations

import re

# ECMA-48 control sequences (colours, cursor), then operating-system commands such as a window title.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def printable(value: object) -> str:
    """Text without escape codes and control characters other than tabs and line feeds: what a terminal would obey."""
    return _CONTROLS.sub("", _ESCAPES.sub("", str(value)))
