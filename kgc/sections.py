"""The parts that reports are put together from: what a page says of ranks, of training and of relations.

Each function returns ready HTML, or nothing where there is nothing to show; every label is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from kgc import page, plots
from kgc.annotated import named

_ALL_RELATIONS = 40  # up to so many relations are listed in full
_MOST_FREQUENT, _EXTREMES = 20, 10
_POINTS = 400  # of a curve: a screen has no room for more
_CURVES = {"train/loss": "Training loss", "valid/mrr": "Validation MRR", "train/lr": "Learning rate"}
_CATEGORIES = ("1-1", "1-N", "N-1", "N-N")
_SIDES = ("head", "tail")


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


def category_table(metrics: Mapping[str, float], prefix: str) -> pl.DataFrame:
    """The metrics under `PREFIX/category/…` as rows.

    Returns:
        Columns category (1-1, 1-N, N-1, N-N, those that occur), side (both, head, tail), queries, mrr, mr, hits@K.
    """
    rows = []
    for category in _CATEGORIES:
        for side in ("both", *_SIDES):
            place = f"{prefix}/category/{category}/" + ("" if side == "both" else f"{side}/")
            own = {key[len(place) :]: value for key, value in metrics.items() if key.startswith(place)}
            own = {key: value for key, value in own.items() if "/" not in key}
            if own:
                row = {"category": category, "side": side, "queries": int(own.pop("num_queries"))}
                rows.append(row | {key: float(value) for key, value in own.items()})
    return pl.DataFrame(rows)


def rank_figures(series: Mapping[str, np.ndarray]) -> list[str]:
    """Histogram of ranks and Hits@K for all K, a colour for each series.

    Args:
        series: realistic ranks [n] >= 1 by name; empty ones are left out.
    """
    series = {name: values for name, values in series.items() if len(values)}
    if not series:
        return []
    first = ", ".join(f"{np.mean(v < 2):.1%} of {name} queries" for name, v in series.items())
    median = ", ".join(f"{np.median(v):,.1f} for {name}" for name, v in series.items())
    tenth = ", ".join(f"{np.mean(v <= 10):.1%} for {name}" for name, v in series.items())
    histogram = plots.rank_histogram(series, alt=f"Histogram of ranks. Below 2: {first}. Median rank: {median}.")
    curve = plots.hits_curve(series, alt=f"Hits at K for every K, rising to 100%. Hits@10: {tenth}.")
    return [
        page.figure(histogram, page.text(f"Ranks, a bin doubling the one before. Median: {median}.")),
        page.figure(curve, page.text(f"Hits@K for every K. At K = 10: {tenth}.")),
    ]


def ranks_by_side(ranks: pl.DataFrame) -> dict[str, np.ndarray]:
    """Realistic ranks [n] of `tail` and of `head` queries."""
    side = pl.col("side").cast(pl.String)
    return {name: ranks.filter(side == name)["realistic"].cast(pl.Float64).to_numpy() for name in reversed(_SIDES)}


def history_figures(history: list[dict[str, float]]) -> list[str]:
    """Loss, valid MRR and, where it changes, the learning rate over epochs.

    Args:
        history: one row an epoch; missing and non-finite values are left out and counted.
    """
    figures = []
    for key, name in _CURVES.items():
        points = [(row.get("epoch", index), row[key]) for index, row in enumerate(history) if row.get(key) is not None]
        finite = np.array([point for point in points if all(map(math.isfinite, point))], dtype=np.float64)
        lost = len(points) - len(finite)
        left_out = f" {lost} non-finite {'value is' if lost == 1 else 'values are'} left out." if lost else ""
        if not len(finite):
            if lost:
                figures.append(f'<figure><figcaption class="note">{name}: no picture.{left_out}</figcaption></figure>')
            continue
        x, y = finite.T
        if key == "train/lr" and len(np.unique(y)) == 1:
            continue
        best = int(np.argmax(y)) if key == "valid/mrr" else None
        # The best and the last point always stay.
        kept = np.unique(np.r_[np.arange(0, len(x), 1 + len(x) // _POINTS), len(x) - 1, [] if best is None else best])
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
        figures.append(page.figure(svg, f"{name} over epochs.{top}{left_out}"))
    return figures


def category_figure(metrics: Mapping[str, float], prefix: str) -> list[str]:
    """Bars of MRR by relation category and by the side asked for."""
    rows = category_table(metrics, prefix).to_dicts()
    values: dict[str, dict[str, float]] = {}
    notes = {}
    for row in rows:
        if row["side"] == "both":
            notes[row["category"]] = f"{row['queries']:,} queries"
        else:
            values.setdefault(row["category"], {})[row["side"]] = row["mrr"]
    if not values:
        return []
    said = "; ".join(
        f"{category}: " + ", ".join(f"{side} {value:.4f}" for side, value in sides.items())
        for category, sides in values.items()
    )
    svg = plots.grouped_bars(values, y_label="MRR", alt=f"MRR by relation category and side. {said}.", notes=notes)
    return [
        page.figure(
            svg,
            "MRR by relation category in train and by the side asked for. 1-N: a head has many tails (1.5 or more on "
            "average), so that asking for the tail is the harder side.",
        )
    ]


def relations_section(ranks: pl.DataFrame, about: str = "", names: Mapping[str, str] | None = None) -> str:
    """The MRR of every relation, the best first, or of the most frequent, the worst and the best of many.

    Args:
        ranks: as `ranks.parquet`.
        about: ready HTML under the heading.
        names: of relations, by label.
    """
    if not len(ranks):
        return ""
    relations = breakdown_by_relation(ranks)
    total = len(relations)
    # Among equals the relation with more queries says more.
    lowest = relations.sort("mrr", "count", "relation", descending=[False, True, False])
    highest = relations.sort("mrr", "count", "relation", descending=[True, True, False])
    if total <= _ALL_RELATIONS:
        return page.section("Relations", about, page.note("The best first."), _relation_table(highest, names or {}))
    cut = (
        ("Highest MRR", highest.head(_EXTREMES)),
        ("Lowest MRR", lowest.head(_EXTREMES)),
        ("Most frequent", relations.head(_MOST_FREQUENT)),
    )
    tables = "".join(f"<h3>{name}</h3>{_relation_table(rows, names or {})}" for name, rows in cut)
    shown = pl.concat([rows["relation"] for _, rows in cut]).n_unique()
    more = f"{total:,} relations; {shown} are shown, {total - shown:,} more can be computed from ranks.parquet."
    return page.section("Relations", about, page.note(more), tables)


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


def worst_section(worst: pl.DataFrame | None) -> str:
    """The queries whose right answer came last, and what the model answered instead.

    Args:
        worst: columns head, relation, tail, side, realistic, score (of the right answer), answers and answer_scores
            (lists, the best first); None or empty shows nothing.
    """
    if worst is None or worst.is_empty():
        return ""
    rows = []
    for row in worst.iter_rows(named=True):
        ends = {end: page.label(row[end], 80) for end in ("head", "tail")}
        ends[row["side"]] = f"<strong>{ends[row['side']]}</strong>"
        answers = "<br>".join(
            f"{page.label(answer, 80)} ({score:.4g})"
            for answer, score in zip(row["answers"], row["answer_scores"], strict=True)
        )
        question = f"{ends['head']} · {page.label(row['relation'], 80)} · {ends['tail']}"
        rows.append([question, f"{row['realistic']:,.10g}", f"{row['score']:.4g}", answers or "–"])
    about = (
        "The end in bold was asked for; rank and score are its own. Beside it the model's first answers with their "
        "scores, less those that are known to be right too."
    )
    return page.section(
        "Worst-ranked triples",
        page.note(about),
        page.table(["triple", "rank", "score", "answered instead"], rows, kind="answers"),
    )
