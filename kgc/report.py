"""What a person reads after a run: the console's closing table, and `report.html`, a page that fetches nothing."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from rich import box
from rich.table import Table
from rich.text import Text

from kgc import page, plots
from kgc.annotated import named

# Rows of the table of metrics: their keys, with the column in braces, and their names.
_ROWS = {
    "{}": "both sides",
    "{}_low": "95 % interval, low",  # of what the whole split would give
    "{}_high": "95 % interval, high",
    "{}_se": "standard error",
    "head/{}": "head",
    "tail/{}": "tail",
    "optimistic/{}": "optimistic",
    "pessimistic/{}": "pessimistic",
}
_MISSING = "–"
_ALL_RELATIONS = 40  # up to so many relations are listed in full
_MOST_FREQUENT, _EXTREMES = 20, 10


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


def breakdown_by_relation(ranks: pl.DataFrame) -> pl.DataFrame:
    """Metrics of each relation over both sides, from realistic ranks.

    Args:
        ranks: one row a query, as in `ranks.parquet`; `relation` and `realistic` are read.

    Returns:
        Columns relation, count (queries), mrr, mr, hits@1, hits@3, hits@10; the largest count first.
    """
    rank = pl.col("realistic").cast(pl.Float64)
    return (
        ranks.group_by(pl.col("relation").cast(pl.String), maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            (1 / rank).mean().alias("mrr"),
            rank.mean().alias("mr"),
            *((rank <= k).mean().alias(f"hits@{k}") for k in (1, 3, 10)),
        )
        .sort("count", "relation", descending=[True, False])
    )


def write_report(
    path: Path,
    *,
    title: str,
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    history: list[dict[str, float]],
    config: str,
    facts: dict[str, str],
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
        names: of relations, by label.
        more: further sections, ready HTML.

    Raises:
        OSError: `path` cannot be written.
    """
    splits = ranked_parts(metrics)
    note = _sample_note(metrics, splits)
    figures = _rank_figures(ranks) + _history_figures(history)
    parts = [
        f"<header><h1>{page.text(title)}</h1>{_headline(metrics, splits[0]) if splits else ''}</header>",
        *(_metrics_section(metrics, split) for split in splits),
        f'<section><h2>Curves</h2>{note}<div class="figures">{"".join(figures)}</div></section>' if figures else "",
        _relations_section(breakdown_by_relation(ranks), note, names or {}) if len(ranks) else "",
        *more,
        "<section><h2>Run</h2>",
        page.table(["fact", "value"], [[page.label(k), page.text(v)] for k, v in facts.items()], kind="facts"),
        f"<details><summary>Resolved config</summary><pre>{page.text(config)}</pre></details>",
        "<details><summary>All metrics</summary>",
        page.table(["key", "value"], [[page.label(k), f"{v:.10g}"] for k, v in sorted(metrics.items())]),
        "</details></section>",
    ]
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
    return f'<p class="note">Of the sample: {_what(metrics, prefixes[0])}.</p>'


def _number(column: str, value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.1f}" if column == "mr" else f"{value:.4f}"


def _headline(metrics: dict[str, float], split: str) -> str:
    tiles = {"mrr": "MRR", "hits@1": "Hits@1", "hits@10": "Hits@10", "mr": "Mean rank"}
    cells = [
        f"<div><dt>{name}</dt><dd>{_number(column, metrics[key])}</dd></div>"
        for column, name in tiles.items()
        if (key := f"{split}/{column}") in metrics
    ]
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


def _rank_figures(ranks: pl.DataFrame) -> list[str]:
    values = {
        side: rows["realistic"].cast(pl.Float64).to_numpy()
        for side in ("tail", "head")
        if len(rows := ranks.filter(pl.col("side").cast(pl.String) == side))
    }
    if not values:
        return []
    first = ", ".join(f"{np.mean(v < 2):.1%} of {side} queries" for side, v in values.items())
    median = ", ".join(f"{np.median(v):,.1f} for {side}" for side, v in values.items())
    tenth = ", ".join(f"{np.mean(v <= 10):.1%} for {side}" for side, v in values.items())
    histogram = plots.rank_histogram(values, alt=f"Histogram of ranks. Below 2: {first}. Median rank: {median}.")
    curve = plots.hits_curve(values, alt=f"Hits at K for every K, rising to 100%. Hits@10: {tenth}.")
    return [
        _figure(histogram, f"Ranks by side asked for. Median: {median}."),
        _figure(curve, f"Hits@K for every K. At K = 10: {tenth}."),
    ]


def _history_figures(history: list[dict[str, float]]) -> list[str]:
    figures = []
    for key, name in (("train/loss", "Training loss"), ("valid/mrr", "Validation MRR")):
        points = [(row.get("epoch", index), row[key]) for index, row in enumerate(history) if row.get(key) is not None]
        finite = np.array([point for point in points if all(map(math.isfinite, point))], dtype=np.float64)
        lost = len(points) - len(finite)
        left_out = f" {lost} non-finite {'value is' if lost == 1 else 'values are'} left out." if lost else ""
        if not len(finite):
            if lost:
                figures.append(f'<figure><figcaption class="note">{name}: no picture.{left_out}</figcaption></figure>')
            continue
        x, y = finite.T
        best = int(np.argmax(y)) if key == "valid/mrr" else None
        # A screen has no room for more points; the best and the last one always stay.
        kept = np.unique(np.r_[np.arange(0, len(x), 1 + len(x) // 400), len(x) - 1, [] if best is None else best])
        kept = kept.astype(np.int64)
        ends = f"from {y[0]:.4g} at epoch {x[0]:.0f} to {y[-1]:.4g} at epoch {x[-1]:.0f}"
        top = "" if best is None else f" Best: {y[best]:.4f} at epoch {x[best]:.0f}."
        svg = plots.line_chart(
            x[kept],
            y[kept],
            x_label="epoch",
            y_label=name,
            alt=f"{name} over epochs, {ends}.{top}",
            best=None if best is None else int(np.searchsorted(kept, best)),
        )
        figures.append(_figure(svg, f"{name} over epochs.{top}{left_out}"))
    return figures


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _relations_section(relations: pl.DataFrame, about: str, names: Mapping[str, str]) -> str:
    total = len(relations)
    if total <= _ALL_RELATIONS:
        return f"<section><h2>Relations</h2>{about}{_relation_table(relations, names)}</section>"
    # Among equals the relation with more queries says more.
    lowest = relations.sort("mrr", "count", "relation", descending=[False, True, False])
    highest = relations.sort("mrr", "count", "relation", descending=[True, True, False])
    cut = (
        ("Most frequent", relations.head(_MOST_FREQUENT)),
        ("Lowest MRR", lowest.head(_EXTREMES)),
        ("Highest MRR", highest.head(_EXTREMES)),
    )
    tables = "".join(f"<h3>{name}</h3>{_relation_table(rows, names)}" for name, rows in cut)
    shown = pl.concat([rows["relation"] for _, rows in cut]).n_unique()
    note = f"{total:,} relations; {shown} are shown, {total - shown:,} more can be computed from ranks.parquet."
    return f'<section><h2>Relations</h2>{about}<p class="note">{note}</p>{tables}</section>'


def _relation_table(relations: pl.DataFrame, names: Mapping[str, str]) -> str:
    rows = [
        [
            page.label(named(row["relation"], names)),
            f"{row['count']:,}",
            f'<span class="bar" style="--share:{row["mrr"]:.3f}"></span>{row["mrr"]:.4f}',
            f"{row['hits@10']:.4f}",
        ]
        for row in relations.iter_rows(named=True)
    ]
    return page.table(["relation", "queries", "MRR", "Hits@10"], rows, kind="relations")
