"""The table that ends a sweep: on the terminal, `sweep.csv` and `sweep.html`, its trials by valid MRR."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kgc import page
from kgc.sweeps.records import Trial, trials
from kgc.text import printable

_OBJECTIVE = "valid/mrr"
_HEADLINE = (_OBJECTIVE, "test/mrr", "test/mr", "test/hits@1", "test/hits@3", "test/hits@10")
_SHOWN = (_OBJECTIVE, "test/mrr", "test/hits@1", "test/hits@10")  # on the terminal, which is narrow
_NAMES = {
    _OBJECTIVE: "valid MRR",
    "test/mrr": "test MRR",
    "test/mr": "test MR",
    "test/hits@1": "Hits@1",
    "test/hits@3": "Hits@3",
    "test/hits@10": "Hits@10",
}
_OTHERS = 5  # columns of metrics where a task has none of these


def write_tables(sweep_dir: Path) -> list[Trial]:
    """Writes `sweep.csv` and `sweep.html` anew, each in one step; returns the trials in their order."""
    rows = ranked(trials(sweep_dir))
    if rows:
        _write(sweep_dir / "sweep.csv", csv_of(rows, sweep_dir))
        _write(sweep_dir / "sweep.html", html_of(rows, sweep_dir))
    return rows


def show(rows: Sequence[Trial], sweep_dir: Path) -> None:
    """Prints the table: with lines and colours on a terminal, one plain line a trial elsewhere."""
    screen = Console(highlight=False)
    if screen.is_terminal:
        screen.print(_table(rows, sweep_dir, plain=False))
    else:
        text = io.StringIO()
        Console(file=text, width=100_000).print(_table(rows, sweep_dir, plain=True))
        print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
    print(printable(f"{_counts(rows)}; written to {sweep_dir}: sweep.csv, sweep.html"), flush=True)


def ranked(rows: Sequence[Trial]) -> list[Trial]:
    """Trials by valid MRR, the best first; those without one last, in the order of the sweep."""
    return sorted(rows, key=lambda trial: -trial.metrics.get(_OBJECTIVE, float("-inf")))


def overrides(trial: Trial) -> dict[str, str]:
    """The words of a trial by key."""
    pairs = (word.partition("=") for word in trial.words)
    return {key.lstrip("+"): _unquoted(value) for key, _, value in pairs}


def csv_of(rows: Sequence[Trial], sweep_dir: Path) -> str:
    """One row a trial: number, status, metrics, seconds, folder (within the sweep's), each override, the reason."""
    names, keys = _metrics(rows, _HEADLINE), _keys(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    more = [name for name in ("train/epochs", "train/seconds") if any(name in row.metrics for row in rows)]
    writer.writerow(["trial", "status", *names, *more, "seconds", "folder", *keys, "reason"])
    for row in rows:
        values = overrides(row)
        writer.writerow(
            [
                "" if row.number is None else row.number,
                row.state,
                *(row.metrics.get(name, "") for name in [*names, *more]),
                f"{row.seconds:.2f}",
                _place(row, sweep_dir),
                *(values.get(key, "") for key in keys),
                printable(row.reason),
            ]
        )
    return text.getvalue()


def html_of(rows: Sequence[Trial], sweep_dir: Path) -> str:
    """A self-contained page: the best trial, the table, and what all trials share."""
    names, (varied, shared) = _metrics(rows, _HEADLINE), _split(rows)
    best = next((row for row in rows if row.state == "finished" and _OBJECTIVE in row.metrics), None)
    measured = [page.text(_NAMES.get(name, name)) for name in names]
    header = ["trial", *map(page.label, varied), *measured, "time", "status"]
    cells = []
    for row in rows:
        values = overrides(row)
        cells.append(
            [
                _link(row, sweep_dir),
                *(page.label(values.get(key, "")) for key in varied),
                *(_number(row.metrics.get(name), name) for name in names),
                _duration(row),
                page.label(f"{row.state}: {row.reason}" if row.reason else row.state, longest=400),
            ]
        )
    title = f"Sweep {sweep_dir.resolve().name}"
    parts = [f"<header><h1>{page.text(title)}</h1><p class='note'>{page.text(_counts(rows))}</p></header>"]
    if best:
        tiles = [("best trial", _link(best, sweep_dir))]
        tiles += [(_NAMES[n], _number(best.metrics.get(n), n)) for n in _SHOWN if n in best.metrics]
        parts.append(f'<dl class="tiles">{"".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in tiles)}</dl>')
    parts += ["<section><h2>Trials, by valid MRR</h2>", page.table(header, cells), "</section>"]
    if shared:
        facts = [[page.label(key), page.text(value)] for key, value in shared.items()]
        parts += ["<section><h2>What all trials share</h2>", page.table(["key", "value"], facts, "facts"), "</section>"]
    return page.document(title, parts)


def _table(rows: Sequence[Trial], sweep_dir: Path, plain: bool) -> Table:
    names, (varied, _) = _metrics(rows, _SHOWN), _split(rows)
    table = Table(box=None if plain else box.SIMPLE_HEAD, pad_edge=False)
    wrap = {"no_wrap": plain, "overflow": "ignore" if plain else "fold"}
    table.add_column("trial", justify="right", no_wrap=True)
    for key in varied:
        table.add_column(Text(printable(key)), **wrap)
    for name in names:
        table.add_column(_NAMES.get(name, name), justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("folder, or reason", **wrap)
    for row in rows:
        values = overrides(row)
        style = {"failed": "red", "finished": "", "pruned": "dim"}.get(row.state, "yellow")
        cells = [
            "–" if row.number is None else str(row.number),
            *(values.get(key, "") for key in varied),
            *(_number(row.metrics.get(name), name) for name in names),
            _duration(row),
            row.state,
            row.reason or _place(row, sweep_dir),
        ]
        table.add_row(*(Text(printable(cell), style=style) for cell in cells))
    return table


def _counts(rows: Sequence[Trial]) -> str:
    states = [row.state for row in rows]
    named = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(rows)} trial{'s' * (len(rows) != 1)}: {', '.join(named)}"


def _metrics(rows: Sequence[Trial], wanted: Sequence[str]) -> list[str]:
    """Names of the metrics that trials have: the usual ones, or the first of another task's."""
    there = list(dict.fromkeys(name for row in rows for name in row.metrics))
    usual = [name for name in wanted if name in there]
    return usual or there[:_OTHERS]


def _keys(rows: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in overrides(row)))


def _split(rows: Sequence[Trial]) -> tuple[list[str], dict[str, str]]:
    """Keys of overrides that differ between trials, and those that all share with their values."""
    values = [overrides(row) for row in rows]
    keys = _keys(rows)
    shared = {key: values[0][key] for key in keys if all(key in v and v[key] == values[0].get(key) for v in values)}
    return [key for key in keys if key not in shared], shared


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if name.endswith("/mr") else f"{value:.4f}"


def _duration(trial: Trial) -> str:
    """Seconds of training (those before a resume included), or of a trial that did not finish it."""
    seconds = trial.metrics.get("train/seconds", trial.seconds)
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _place(trial: Trial, sweep_dir: Path) -> str:
    """The trial's folder, as seen from the sweep's."""
    return "" if trial.folder is None else os.path.relpath(trial.folder, sweep_dir)


def _link(trial: Trial, sweep_dir: Path) -> str:
    number = "–" if trial.number is None else str(trial.number)
    if trial.folder is None or not (trial.folder / "report.html").exists():
        return number
    return f'<a href="{page.text(quote(_place(trial, sweep_dir)))}/report.html">{number}</a>'


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _write(path: Path, content: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content.encode("utf-8", "replace"))
    os.replace(part, path)
