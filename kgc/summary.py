"""The console's table and the page of a task that is not the ranking of a split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from kgc import page


def plain_table(title: str, metrics: dict[str, float]) -> Table:
    """One row a metric, in the order given."""
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("metric")
    table.add_column("value", justify="right", no_wrap=True)
    for name, value in metrics.items():
        table.add_row(Text(name), number(value))
    return table


def number(value: float) -> str:
    """Counts in full, other numbers with four decimals."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def write_page(
    path: Path, title: str, metrics: dict[str, float], config: str, facts: dict[str, str], parts: Sequence[str] = ()
) -> None:
    """A page of metrics, further sections and what reproduces the run; an earlier one is replaced in one step."""
    rows = [[page.label(name), number(value)] for name, value in metrics.items()]
    sections = [
        f"<header><h1>{page.text(title)}</h1></header>",
        f"<section><h2>Metrics</h2>{page.table(['', 'value'], rows)}</section>",
        *parts,
        "<section><h2>Run</h2>",
        page.table(["fact", "value"], [[page.label(k), page.text(v)] for k, v in facts.items()], kind="facts"),
        f"<details><summary>Resolved config</summary><pre>{page.text(config)}</pre></details></section>",
    ]
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(page.document(title, sections).encode("utf-8", "replace"))
    os.replace(temporary, path)
