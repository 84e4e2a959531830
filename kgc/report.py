"""What a person reads after a run: the console's closing table, and `report.html`, a page that fetches nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from rich import box
from rich.table import Table
from rich.text import Text

from kgc import page, sections

# Rows of the table of metrics: their keys, with the column in braces, and their names.
_ROWS = {
    "{}": "both sides",
    "{}_low": "95 %, from",  # of what all such triples would give
    "{}_high": "95 %, to",
    "{}_se": "standard error",
    "head/{}": "head",
    "tail/{}": "tail",
    "optimistic/{}": "optimistic",
    "pessimistic/{}": "pessimistic",
}
_MISSING = "–"


def metrics_table(metrics: dict[str, float], prefix: str) -> Table:
    """The table that closes the console's output.

    Args:
        metrics: flat metrics, keys such as `test/head/hits@10`; whatever is missing shows as a dash.
        prefix: the split, for example `test`, or `test/sampled`.

    Returns:
        One row each for both sides, head, tail, optimistic and pessimistic (rows without numbers are left out), the
        columns MRR, MR and every Hits@K present, and a caption with AMR, AMRI, counts and seconds. The title of
        a sample says that the numbers are estimates, and two further rows how good.
    """
    names, rows = _metric_rows(metrics, prefix)
    table = Table(
        title=Text(f"{prefix.split('/')[0]}: {_what(metrics, prefix)}"),
        title_justify="left",
        caption=Text(" · ".join(_caption(metrics, prefix))),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for label, cells in rows:
        table.add_row(label, *cells)
    return table


def ranked_parts(metrics: dict[str, float]) -> list[str]:
    """Under which prefixes metrics stand: `test`, `valid`, `train`, and SPLIT/sampled where a sample was ranked."""
    names = [name for split in ("test", "valid", "train") for name in (split, f"{split}/sampled")]
    return [name for name in names if f"{name}/mrr" in metrics]


def write_report(
    path: Path,
    *,
    title: str,
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    history: list[dict[str, float]],
    config: str,
    facts: dict[str, str],
    notes: list[str] | None = None,
    worst: pl.DataFrame | None = None,
    names: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> None:
    """Writes the page of a run; an earlier page at `path` is replaced in one step.

    Args:
        path: the file to write, `report.html`.
        title: the page's heading, for example `rotate on umls`.
        metrics: the content of `metrics.json`.
        ranks: the content of `ranks.parquet`; of `test` if `metrics` has it, else of `valid` or `train`.
        history: one row an epoch with `epoch`, `train/loss` and `valid/mrr`; empty when nothing was trained. Missing
            and non-finite values are left out of the curves and counted under them.
        config: the resolved config as text.
        facts: further lines by name: command, versions, data set, device.
        notes: what a reader should know about the data: repetitions, leaks, unseen entities.
        worst: the worst-ranked queries with the model's answers, see `sections.worst_section`.
        names: of relations, by label.
        more: further sections, ready HTML.

    Raises:
        OSError: `path` cannot be written.
    """
    splits = ranked_parts(metrics)
    about = _sample_note(metrics, splits)
    figures = sections.rank_figures(sections.ranks_by_side(ranks))
    figures += sections.category_figure(metrics, splits[0]) if splits else []
    curves = sections.history_figures(history)
    parts = [
        f"<header><h1>{page.text(title)}</h1>{_headline(metrics, splits[0]) if splits else ''}</header>",
        *(_metrics_section(metrics, split) for split in splits),
        page.section("Data", page.items(notes or [])),
        page.section("Training", page.figures(curves) if curves else ""),
        page.section("Ranks", about, page.figures(figures)) if figures else "",
        sections.relations_section(ranks, about, names or {}),
        *more,
        sections.worst_section(worst),
        page.run_section(facts, config, metrics),
    ]
    replace_page(path, title, parts)


def replace_page(path: Path, title: str, parts: list[str]) -> None:
    """Writes a page of ready parts; an earlier one at `path` is replaced in one step."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(page.document(title, parts).encode("utf-8", "replace"))
    os.replace(temporary, path)


def _metric_rows(metrics: dict[str, float], prefix: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Column names, and (label, formatted cells) of every row that has a number."""
    pattern = re.compile(rf"{re.escape(prefix)}/(?:\w+/)?hits@(\d+)")
    ks = sorted({int(match[1]) for key in metrics if (match := pattern.fullmatch(key))})
    columns = {"mrr": "MRR", "mr": "MR"} | {f"hits@{k}": f"Hits@{k}" for k in ks}
    rows = []
    for pattern, label in _ROWS.items():
        values = [metrics.get(f"{prefix}/{pattern.format(column)}") for column in columns]
        if any(value is not None for value in values):
            rows.append((label, [_number(column, value) for column, value in zip(columns, values, strict=True)]))
    return list(columns.values()), rows


def _caption(metrics: dict[str, float], prefix: str) -> list[str]:
    wordings = {
        "amr": "AMR {:.4f}",
        "amri": "AMRI {:.4f}",
        "mr_estimate": "mean rank among all entities, estimated {:,.1f}",
        "mr_estimate_se": "± {:,.1f} (standard error)",
        "num_queries": "{:,.0f} queries",
        "num_tied": "{:,.0f} tied",
        "num_unseen": "{:,.0f} unseen",
        "seconds": "{:,.2f} s",
    }
    return [words.format(metrics[key]) for name, words in wordings.items() if (key := f"{prefix}/{name}") in metrics]


def _what(metrics: dict[str, float], prefix: str) -> str:
    """What the numbers under a prefix are."""
    if not prefix.endswith("/sampled"):
        return "filtered ranks"
    drawn, whole = metrics[f"{prefix}/num_triples"], metrics[f"{prefix}/split_triples"]
    rivals = metrics.get(f"{prefix}/num_candidates")
    kind = "filtered ranks" if rivals is None else f"sampled ranks, among {rivals:,.0f} candidates a query"
    return (
        kind if drawn == whole and rivals is not None else f"estimate from {drawn:,.0f} of {whole:,.0f} triples, {kind}"
    )


def _sample_note(metrics: dict[str, float], prefixes: list[str]) -> str:
    """A paragraph for what is drawn from `ranks.parquet`, where that is a sample."""
    if not prefixes or not prefixes[0].endswith("/sampled"):
        return ""
    return page.note(f"Of the sample: {_what(metrics, prefixes[0])}.")


def _number(column: str, value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.1f}" if column == "mr" else f"{value:.4f}"


def _headline(metrics: dict[str, float], split: str) -> str:
    tiles = {"mrr": "MRR", "hits@1": "Hits@1", "hits@10": "Hits@10", "mr": "Mean rank"}
    cells = []
    for column, name in tiles.items():
        if (key := f"{split}/{column}") in metrics:
            low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
            within = "" if low is None or high is None else f"<small>95 %: {low:.4f} to {high:.4f}</small>"
            cells.append(f"<div><dt>{name}</dt><dd>{_number(column, metrics[key])}{within}</dd></div>")
    what = _what(metrics, split)
    words = f"{what[0].upper()}{what[1:]} on the {split.split('/')[0]} split, both sides"
    return f'<p class="note">{words}</p><dl class="tiles">{"".join(cells)}</dl>'


def _metrics_section(metrics: dict[str, float], split: str) -> str:
    names, rows = _metric_rows(metrics, split)
    table = page.table(["", *names], [[label, *cells] for label, cells in rows])
    notes = [" · ".join(_caption(metrics, split))]
    queries, tied = metrics.get(f"{split}/num_queries"), metrics.get(f"{split}/num_tied")
    if queries and tied is not None:
        notes.append(
            f"{tied / queries:.2%} of the queries tie with a rival. A tie counts as the mean of the best and the worst "
            "rank it allows (realistic); in the optimistic row the answer wins every tie, in the pessimistic row it "
            "loses."
        )
    if unseen := metrics.get(f"{split}/num_unseen"):
        notes.append(
            f"{unseen:,.0f} queries come from triples with an entity or relation never seen in train; they count too."
        )
    paragraphs = "".join(f'<p class="note">{note}</p>' for note in notes if note)
    heading = split.split("/")[0] + (f", {_what(metrics, split)}" if split.endswith("/sampled") else "")
    return f"<section><h2>Metrics: {heading}</h2>{table}{paragraphs}</section>"
