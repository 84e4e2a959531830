"""The console's table and the page of a task that is not the ranking of a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from kgc import page
from kgc.report import replace_page


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
        page.section("Metrics", page.table(["", "value"], rows)),
        *parts,
        page.run_section(facts, config),
    ]
    replace_page(path, title, sections)
