"""What is in a data set, and what makes it easier than it looks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import polars as pl
from omegaconf import DictConfig

from kgc import page, plots
from kgc.data.graph import KnowledgeGraph
from kgc.data.hygiene import degrees, redundant_relations, relation_table
from kgc.data.tables import SPLITS
from kgc.errors import UserError
from kgc.tasks.build import build_graph
from kgc.tasks.evaluate import inference_folder
from kgc.tasks.findings import count, findings
from kgc.tasks.output import Session, run_facts, write_answers

LISTED = 60  # relations and pairs of relations in the page; the files have all


def inspect(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Counts what stands in `cfg.dataset` and writes `metrics.json`, `relations.parquet` (one row a relation),
    `redundant.parquet` (one row a pair of redundant relations) and `report.html`.

    Args:
        cfg: what `conf/evaluate.yaml` composes to, with a data set.
        run_dir: the run's folder; made if missing.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: no data set, or a mistake in it.
    """
    if inference_folder(cfg) is not None:
        raise UserError("dataset.inference goes with checkpoint=PATH; task=inspect dataset=folder dataset.path=DIR")
    if cfg.dataset is None:
        raise UserError("task=inspect: dataset=… is needed")
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        graph = build_graph(cfg)
        session.start_logging(cfg)
        for line in graph.lines():
            session.terminal.say(line)
        relations, redundant = relation_table(graph), _with_labels(graph, redundant_relations(graph))
        metrics = count(graph, relations, redundant)
        frames = {"relations": relations, "redundant": redundant.drop("first", "second")}
        odd = _findings_section([*graph.notes, *findings(metrics)])
        parts = [odd, _figures_section(graph, relations), *_tables(relations, redundant)]
        write_answers(cfg, f"data of {graph.name}", metrics, session, frames, run_facts(graph), parts)
        for line in findings(metrics):
            session.terminal.say(f"note: {line}")
        return metrics


def _with_labels(graph: KnowledgeGraph, redundant: pl.DataFrame) -> pl.DataFrame:
    labels = graph.relations.series
    return redundant.with_columns(
        labels.gather(redundant["first"]).alias("first_relation"),
        labels.gather(redundant["second"]).alias("second_relation"),
    )


def _findings_section(lines: list[str]) -> str:
    return page.section("Findings", page.items(lines or ["nothing odd: no repetition, no leak, nothing unseen"]))


def _figures_section(graph: KnowledgeGraph, relations: pl.DataFrame) -> str:
    head, tail = (column.numpy() for column in degrees(graph.stored("train"), graph.num_entities))
    series = {side: values[values > 0] for side, values in (("head", head), ("tail", tail)) if (values > 0).any()}
    histogram = plots.doubling_histogram(
        series,
        x_label="triples of train (each bin doubles)",
        y_label="share of entities",
        alt=f"How many triples of train an entity is the head or the tail of; at most {max(head.max(), tail.max()):,}.",
    )
    share = np.cumsum(relations["train"].to_numpy()) / max(1, relations["train"].sum())
    curve = plots.line_chart(
        np.arange(1, len(share) + 1),
        share,
        x_label="relations, the most frequent first",
        y_label="share of train",
        alt=f"The most frequent of {len(share):,} relations makes {share[0]:.1%} of train.",
    )
    figures = [
        page.figure(histogram, "Entities by how often they are head and tail in train, if ever."),
        page.figure(curve, "Share of train that the most frequent relations make."),
    ]
    return page.section("Entities and relations", page.figures(figures))


def _tables(relations: pl.DataFrame, redundant: pl.DataFrame) -> list[str]:
    rows = [
        [
            page.label(row["relation"]),
            *(f"{row[split]:,}" for split in SPLITS),
            page.text(row["category"]),
            f"{row['tails_per_head']:.2f}",
            f"{row['heads_per_tail']:.2f}",
            f"{row['symmetric']:.0%}",
        ]
        for row in relations.head(LISTED).iter_rows(named=True)
    ]
    header = ["relation", *SPLITS, "category", "tails per head", "heads per tail", "symmetric"]
    sections = [f"<section><h2>Relations{_first(relations)}</h2>{page.table(header, rows, 'relations')}</section>"]
    if len(redundant):
        rows = [
            [
                f"{page.label(row['first_relation'])} / {page.label(row['second_relation'])}",
                page.text(row["kind"]),
                f"{row['shared']:,}",
                f"{row['first_share']:.0%}",
                f"{row['second_share']:.0%}",
            ]
            for row in redundant.head(LISTED).iter_rows(named=True)
        ]
        header = ["relations", "kind", "common pairs", "of the first", "of the second"]
        sections.append(
            f"<section><h2>Redundant relations{_first(redundant)}</h2>{page.table(header, rows, 'relations')}</section>"
        )
    return sections


def _first(frame: pl.DataFrame) -> str:
    return f": the first {LISTED} of {len(frame):,}" if len(frame) > LISTED else ""


if __name__ == "__main__":  # python -m kgc.tasks.inspect dataset=…
    sys.argv.insert(1, "task=inspect")
    importlib.import_module("kgc.cli").evaluate()  # the command line stands above all tasks
