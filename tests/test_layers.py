"""Who may import whom: the imports of every module of `kgc`, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "kgc"

# From left to right; a module imports from layers left of its own, or from its own group. Groups of one layer do not
# import each other. A group is a folder or a file of `kgc`, or several that belong together.
LAYERS: list[list[set[str]]] = [
    [{"types", "errors", "paths", "limits", "signature", "text", "sharding", "checkpoint_folder", "cluster"}],
    [{"data"}],
    [{"models"}, {"sampling"}, {"losses"}],
    [
        {"objectives", "relation_prediction"},
        {"optim"},
        {"schedules"},
        {"ranking", "engine", "scorers"},
        {"metrics"},
        {"foreign", "vectors"},
    ],
    [
        {"module"},
        {"callbacks"},
        {"console"},
        {"telemetry"},
        {"runtime"},
        {"strategy"},
        {"tracking", "dashboard", "workspace", "report", "annotated", "sections", "summary", "page", "plots"},
    ],
    [{"sweeps"}],
    [{"tasks"}],
    [{"cli"}],
]


def modules() -> dict[str, Path]:
    """Dotted names of all modules of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str, source: str, known: set[str]) -> set[str]:
    """Modules among `known` that the source of module `name` imports, also inside functions."""
    package = name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from kgc import page` imports a module, `from kgc.page import write` a name of one.
            found |= {f"{module}.{alias.name}" if f"{module}.{alias.name}" in known else module for alias in node.names}
    return found & known


def place(name: str) -> tuple[int, int]:
    """(layer, group) of a module; LookupError if `LAYERS` does not know it."""
    top = name.split(".")[1]
    for layer, groups in enumerate(LAYERS):
        for group, members in enumerate(groups):
            if top in members:
                return layer, group
    raise LookupError(f"kgc/{top} stands in no layer: add it to LAYERS")


def may_import(importer: str, imported: str) -> bool:
    mine, other = place(importer), place(imported)
    return other[0] < mine[0] or other == mine


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """A path that returns to its start, or None."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for following in sorted(graph[node]):
            if found := visit(following, [*path, node]):
                return found
        done.add(node)
        return None

    return next((found for node in graph if (found := visit(node, []))), None)


GRAPH = {name: imports(name, path.read_text(), set(MODULES)) - {"kgc"} for name, path in MODULES.items()}


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if path.name != "__init__.py"])
def test_modules_import_only_from_layers_to_their_left(name):
    wrong = sorted(imported for imported in GRAPH[name] if not may_import(name, imported))
    assert not wrong, f"{name} may not import {', '.join(wrong)}"


def test_there_is_no_circle_of_imports():
    assert circle(GRAPH) is None


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_package_files_are_empty(path):
    # Re-exports are how import circles grow.
    assert path.read_text().strip() == ""


def test_every_folder_of_modules_is_a_package():
    assert all((path.parent / "__init__.py").exists() for path in MODULES.values())


def test_the_rules_catch_what_they_are_for():
    known = {"kgc.types", "kgc.data.known", "kgc.models.base", "kgc.page", "kgc.report", "kgc.tasks.train"}
    source = "import kgc.types\ndef f():\n    from kgc import page\nfrom ..data.known import KnownAnswers\nimport torch"
    assert imports("kgc.models.base", source, known) == {"kgc.types", "kgc.page", "kgc.data.known"}
    assert may_import("kgc.models.base", "kgc.models.similarity")
    assert may_import("kgc.objectives", "kgc.sampling.sampler")
    assert not may_import("kgc.models.base", "kgc.losses.pairwise")
    assert not may_import("kgc.ranking", "kgc.objectives")
    assert not may_import("kgc.data.known", "kgc.models.base")
    with pytest.raises(LookupError, match="kgc/utils"):
        place("kgc.utils")
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
