"""What a reader of results on a data set should know about it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from kgc.data.graph import KnowledgeGraph
from kgc.data.hygiene import REDUNDANT, degrees, leaks, redundant_relations, relation_table, reversed_in_train
from kgc.data.tables import SPLITS

_SEARCHED = 1_000_000  # triples up to which a report looks for leaks: about a second


def notes(graph: KnowledgeGraph) -> list[str]:
    """Lines for the report of a run: sizes, and what is odd; of large graphs only what is known without a search."""
    lines = graph.report.lines()
    if sum(graph.report.sizes.values()) > _SEARCHED:
        return [*lines, *graph.notes, "not searched for leaks, being large: evaluate.py task=inspect does"]
    relations, redundant = relation_table(graph), redundant_relations(graph)
    return [lines[0], *graph.notes, *findings(count(graph, relations, redundant))]


def count(graph: KnowledgeGraph, relations: pl.DataFrame, redundant: pl.DataFrame) -> dict[str, float]:
    """The numbers of `metrics.json`, by flat key.

    Args:
        graph: the data.
        relations: of `relation_table`.
        redundant: of `redundant_relations`.
    """
    report = graph.report
    metrics: dict[str, float] = {"data/entities": report.entities, "data/relations": report.relations}
    metrics |= {f"data/{split}": size for split, size in report.sizes.items()}
    metrics |= {f"data/duplicates/{split}": number for split, number in report.duplicates.items()}
    metrics |= {f"data/overlap/{pair.replace('/', '_')}": number for pair, number in report.overlap.items()}
    metrics |= {"data/unseen/entities": report.unseen_entities, "data/unseen/relations": report.unseen_relations}
    head, tail = (column.numpy() for column in degrees(graph.stored("train"), graph.num_entities))
    metrics |= {
        "data/degree/mean": float((head + tail).mean()),
        "data/degree/median": float(np.median(head + tail)),
        "data/degree/max": int((head + tail).max()),
    }
    categories = Counter(relations.filter(pl.col("train") > 0)["category"])
    metrics |= {f"data/relations/{name}": categories[name] for name in ("1-1", "1-N", "N-1", "N-N")}
    metrics["data/relations/symmetric"] = int((relations["symmetric"] >= REDUNDANT).sum())
    for kind in ("duplicate", "inverse"):
        metrics[f"data/redundant/{kind}"] = int((redundant["kind"] == kind).sum())
    for split in SPLITS[1:]:
        metrics[f"data/leaks/{split}"] = int(leaks(graph, split, redundant).sum())
        metrics[f"data/reversed/{split}"] = int(reversed_in_train(graph, split).sum())
    return metrics


def findings(metrics: dict[str, float]) -> list[str]:
    """What a reader of results on these data should know, with the cure; empty where nothing is odd."""
    lines = []
    sizes = {split: metrics[f"data/{split}"] for split in SPLITS}
    if repeated := [f"{metrics[f'data/duplicates/{s}']:,} in {s}" for s in SPLITS if metrics[f"data/duplicates/{s}"]]:
        lines.append(f"repeated triples: {', '.join(repeated)} (dataset.drop=[duplicates] takes them out)")
    told = {split: metrics[f"data/leaks/{split}"] for split in SPLITS[1:]}
    if given := [f"{n:,} of {sizes[s]:,} in {s} ({n / sizes[s]:.1%})" for s, n in told.items() if n]:
        pairs = metrics["data/redundant/inverse"], metrics["data/redundant/duplicate"]
        lines.append(
            f"triples that can be looked up in train: {', '.join(given)}, with {pairs[0]:,} pairs of inverse and "
            f"{pairs[1]:,} of duplicate relations (dataset.drop=[leaks] takes them out)"
        )
    turned = {split: metrics[f"data/reversed/{split}"] for split in SPLITS[1:]}
    if given := [f"{n:,} of {sizes[s]:,} in {s} ({n / sizes[s]:.1%})" for s, n in turned.items() if n]:
        lines.append(f"triples that train has the other way round, under the same relation: {', '.join(given)}")
    unseen = {what: metrics[f"data/unseen/{what}"] for what in ("entities", "relations")}
    if found := [f"{n:,} {what}" for what, n in unseen.items() if n]:
        lines.append(f"in valid or test but never in train: {', '.join(found)} (dataset.drop=[unseen] takes them out)")
    return lines
