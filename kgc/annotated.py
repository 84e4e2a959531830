"""What annotations add to a page and to tables: names beside labels, and ranks by the answer's types and numbers."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kgc import page
from kgc.data.annotations import Annotations
from kgc.data.vocabulary import Vocabulary

LISTED = 40  # types and attributes in a page, those with the most queries


def named(label: str, names: Mapping[str, str]) -> str:
    """A label behind its name, or alone where it has none or is it."""
    name = names.get(label, label)
    return label if name == label else f"{name} ({label})"


def with_names(frame: pl.DataFrame, annotations: Annotations) -> pl.DataFrame:
    """A table of triples with `head_name`, `relation_name` and `tail_name` where there are such names at all; what has
    no name is called by its label."""
    both = {"entity": annotations.entity_names, "relation": annotations.relation_names}
    for column in ("head", "relation", "tail"):
        names = both["relation" if column == "relation" else "entity"]
        if names:
            frame = frame.with_columns(pl.col(column).replace(dict(names)).alias(f"{column}_name"))
    return frame


def ranks_by_type(ranks: pl.DataFrame, annotations: Annotations, entities: Vocabulary) -> pl.DataFrame:
    """One row a type, the one with the most queries first.

    Args:
        ranks: one row a query, as in `ranks.parquet`.
        annotations: their `types`; a query counts under every type of its answer.
        entities: of the graph.

    Returns:
        Columns type, entities (that have it), queries, mrr, hits@10 (realistic ranks).
    """
    sizes = annotations.types.group_by("type").agg(pl.len().alias("entities"))
    answers = _answers(ranks, entities).join(annotations.types, on="entity")
    return (
        answers.group_by("type")
        .agg(pl.len().alias("queries"), (1 / pl.col("rank")).mean().alias("mrr"), _HITS)
        .join(sizes, on="type")
        .select("type", "entities", "queries", "mrr", "hits@10")
        .sort("queries", "type", descending=[True, False])
    )


def ranks_by_number(ranks: pl.DataFrame, annotations: Annotations, entities: Vocabulary) -> pl.DataFrame:
    """One row an attribute, the one with the most queries first.

    Returns:
        Columns attribute, entities (that have it), least, median, largest, queries (whose answer has it; of several
        numbers of one entity the mean counts), and the MRR of those whose number is `below` the median of the entities,
        and of those whose is not (`above`); null where there are none.
    """
    own = annotations.numbers.group_by("attribute", "entity").agg(pl.col("number").mean())
    sizes = own.group_by("attribute").agg(
        pl.len().alias("entities"),
        pl.col("number").min().alias("least"),
        pl.col("number").median().alias("median"),
        pl.col("number").max().alias("largest"),
    )
    reciprocal, is_low = 1 / pl.col("rank"), pl.col("number") < pl.col("median")
    return (
        _answers(ranks, entities)
        .join(own, on="entity")
        .join(sizes, on="attribute")
        .group_by("attribute", "entities", "least", "median", "largest")
        .agg(
            pl.len().alias("queries"),
            reciprocal.filter(is_low).mean().alias("below"),
            reciprocal.filter(~is_low).mean().alias("above"),
        )
        .sort("queries", "attribute", descending=[True, False])
    )


def sections(ranks: pl.DataFrame, annotations: Annotations, entities: Vocabulary) -> list[str]:
    """The page's parts on types and numbers, ready HTML; none where there are none."""
    parts = []
    if len(annotations.types):
        table = ranks_by_type(ranks, annotations, entities)
        rows = [
            [page.label(kind), f"{size:,}", f"{queries:,}", f"{mrr:.4f}", f"{hits:.4f}"]
            for kind, size, queries, mrr, hits in table.head(LISTED).iter_rows()
        ]
        header = ["type of the answer", "entities", "queries", "MRR", "Hits@10"]
        note = "A query counts under every type of its answer."
        parts.append(_section("Types", table, note, page.table(header, rows, "relations")))
    if len(annotations.numbers):
        table = ranks_by_number(ranks, annotations, entities)
        rows = [
            [
                page.label(row["attribute"]),
                f"{row['entities']:,}",
                *(f"{row[name]:.6g}" for name in ("least", "median", "largest")),
                f"{row['queries']:,}",
                *("–" if row[half] is None else f"{row[half]:.4f}" for half in ("below", "above")),
            ]
            for row in table.head(LISTED).iter_rows(named=True)
        ]
        header = ["number of the answer", "entities", "least", "median", "largest", "queries"]
        header += ["MRR below the median", "from it on"]
        note = "Queries whose answer has the number, cut at the median of the entities."
        parts.append(_section("Numbers", table, note, page.table(header, rows, "relations")))
    return parts


_HITS = (pl.col("rank") <= 10).mean().alias("hits@10")


def _answers(ranks: pl.DataFrame, entities: Vocabulary) -> pl.DataFrame:
    """Columns entity (id) and rank of the answers of all queries."""
    side = pl.col("side").cast(pl.String)
    answer = pl.when(side == "head").then(pl.col("head").cast(pl.String)).otherwise(pl.col("tail").cast(pl.String))
    frame = ranks.select(answer.alias("answer"), pl.col("realistic").cast(pl.Float64).alias("rank"))
    return frame.select(pl.Series("entity", entities.index(frame["answer"]).numpy()), "rank")


def _section(heading: str, table: pl.DataFrame, note: str, body: str) -> str:
    cut = f" The first {LISTED} of {len(table):,}." if len(table) > LISTED else ""
    return f'<section><h2>{heading}</h2><p class="note">{note}{cut}</p>{body}</section>'
