"""Pages about every config group, made from `conf/` and the docstrings of the code that it names.

    python -m kgc.tasks.docs FOLDER

writes a Markdown file for each group, with the keys of each choice, their defaults and what they mean, in which unit;
and one each for the keys of `train.py` and `evaluate.py`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_object

from kgc.paths import config_dir

COMMANDS = ("train", "evaluate")
_NOT_KEYS = ("defaults", "hydra", "source", "expected")  # Hydra's own, and what the catalogue says of a data set


@dataclass(frozen=True)
class Key:
    """A key of a config file.

    Args:
        name: dotted, within the file.
        default: as YAML on one line.
        meaning: the comment beside it, else what the docstring of the code says of it; empty where neither does.
    """

    name: str
    default: str
    meaning: str


def about(path: Path) -> str:
    """What the comment at the beginning of a config file says."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def keys(path: Path) -> list[Key]:
    """The keys of a config file in their order, without Hydra's own."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text)
    return list(_keys(root, text.splitlines(), "", "")) if isinstance(root, yaml.MappingNode) else []


def _keys(node: yaml.MappingNode, lines: list[str], prefix: str, above: str) -> Iterator[Key]:
    """The keys of a mapping; what has no words of its own has those `above` it."""
    target = next((value.value for key, value in node.value if key.value == "_target_"), None)
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if key.value.startswith("_") or name in _NOT_KEYS:
            continue
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from _keys(value, lines, f"{name}.", _comment(lines, key) or above)
            continue
        meaning = _comment(lines, value) or (_of_docstring(target, key.value) if target else "") or above
        yield Key(name, _shown(lines, value), meaning)


def _shown(lines: list[str], node: yaml.Node) -> str:
    """A value as it stands in its file, joined to one line."""
    start, end = node.start_mark, node.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    rows = [lines[start.line][start.column :], *lines[start.line + 1 : end.line], lines[min(end.line, len(lines) - 1)]]
    rows[-1] = rows[-1][: end.column] if end.line < len(lines) else rows[-1]
    return " ".join(" ".join(row.split("  #")[0].split()) for row in rows).strip()


def _comment(lines: list[str], node: yaml.Node) -> str:
    """The comment behind a value and in the indented lines after it."""
    line, column = node.end_mark.line, node.end_mark.column
    if node.end_mark.line > node.start_mark.line and column == 0:
        line -= 1
        column = len(lines[line])
    rest = lines[line][column:].strip().removeprefix(":").strip() if line < len(lines) else ""
    if not rest.startswith("#"):
        return ""
    words = [rest.lstrip("# ")]
    for following in lines[line + 1 :]:
        if not following.startswith(" ") or not following.strip().startswith("#"):
            break
        words.append(following.strip().lstrip("# "))
    return " ".join(words)


def _of_docstring(target: str, name: str) -> str:
    """What the docstring of a class, its bases or a function says of a parameter."""
    function = get_object(target)
    for cls in inspect.getmro(function) if inspect.isclass(function) else [function]:
        text = inspect.cleandoc(cls.__doc__ or "")
        section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
        for entry in re.split(r"\n(?=[ ]{4}\S)", section[1]) if section else ():
            found = re.match(r"\s*([\w`, ]+?)(?:\s*\(.*?\))?:\s*(.*)", entry, re.DOTALL)
            if found and name in re.split(r"[`, ]+", found[1]):
                return " ".join(found[2].split())
    return ""


def group_keys(group: str) -> dict[str, list[Key]]:
    """The keys of each choice of a group; what a file leaves unsaid, another choice says of the key of this name."""
    found = {path.stem: keys(path) for path in sorted((config_dir() / group).glob("*.yaml"))}
    said = {key.name: key.meaning for own in found.values() for key in own if key.meaning}
    return {
        choice: [replace(key, meaning=key.meaning or said.get(key.name, "")) for key in own]
        for choice, own in found.items()
    }


def _facts(content: dict[str, Any]) -> str:
    """What the catalogue says of a data set."""
    source, expected = content.get("source"), content.get("expected")
    if not source or not expected:
        return ""
    counts = ", ".join(f"{n:,} {what}" for what, n in expected.items() if isinstance(n, int))
    return f"\nLicence: {source['licence']}. Citation: {source['citation']}. Expected: {counts}.\n"


def page(group: str) -> str:
    """The page of a config group, or of the keys of `train.py` or `evaluate.py`."""
    if group in COMMANDS:
        path = config_dir() / f"{group}.yaml"
        return f"# Keys of {group}.py\n\n{about(path)}\n\n{_table('', keys(path))}"
    parts = [f"# {group}\n"]
    described = group_keys(group)
    for path in sorted((config_dir() / group).glob("*.yaml")):
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        code = content.get("_target_")
        parts.append(f"## `{group}={path.stem}`\n\n{about(path)}\n{_facts(content)}")
        if code:
            parts.append(f"Code: `{code}`.\n")
        is_global = path.read_text(encoding="utf-8").startswith("# @package _global_")
        if described[path.stem] and group != "experiment":
            parts.append(_table("" if is_global else f"{group}.", described[path.stem]))
    return "\n".join(parts)


def _table(prefix: str, own: list[Key]) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    rows = [f"| `{prefix}{key.name}` | `{cell(key.default)}` | {cell(key.meaning)} |" for key in own]
    return "\n".join(["| key | default | what it means |", "| --- | --- | --- |", *rows]) + "\n"


def groups() -> list[str]:
    """The names of all config groups; `sweep` is none: its files are in W&B's format."""
    found = (path.name for path in config_dir().iterdir() if path.is_dir() and any(path.glob("*.yaml")))
    return sorted(name for name in found if name != "sweep")


def main(folder: str) -> None:
    """Writes all pages into a folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in (*COMMANDS, *groups()):
        (target / f"{name}.md").write_text(page(name), encoding="utf-8")
    print(f"{len(COMMANDS) + len(groups())} pages written to {target}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m kgc.tasks.docs FOLDER")
    main(sys.argv[1])
