"""What makes a benchmark easier than it looks, found out and, if asked for, taken out.

Two relations are redundant if most of the entity pairs of each are pairs of the other, the same way round (duplicates)
or the other way round (inverses): Akrami et al., "Realistic re-evaluation of knowledge graph completion methods",
SIGMOD 2020, section 4. A held-out triple whose pair stands in train under a redundant relation can be looked up, as in
WN18 and FB15k (Toutanova and Chen 2015; Dettmers et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.data.arrays import counts
from kgc.data.graph import KnowledgeGraph, graph_of, relation_categories, tails_per_head, unseen_mask
from kgc.data.reader import COLUMNS
from kgc.data.tables import SPLITS, Tables
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

REDUNDANT = 0.8  # the share of common pairs from which Akrami et al. call relations redundant, and one symmetric
DROPS = {
    "duplicates": "repeated triples",
    "leaks": "valid or test triples that train gives away",
    "unseen": "valid or test triples with an entity or relation that train has not",
}


def relation_table(graph: KnowledgeGraph) -> pl.DataFrame:
    """One row a relation, the most frequent first.

    Returns:
        Columns relation (label), train, valid, test (triples, repetitions included), tails_per_head, heads_per_tail,
        category (all of train), symmetric (share of its distinct pairs, over all splits, that it also has the other
        way round), loops (share of its distinct pairs whose ends are one entity).
    """
    number = graph.num_relations
    columns: dict[str, object] = {"relation": graph.relations.labels}
    for split in SPLITS:
        columns[split] = torch.bincount(graph.split(split).relation, minlength=number).numpy()
    tph, hpt = tails_per_head(graph.stored("train"), number)
    columns |= {"tails_per_head": tph.numpy(), "heads_per_tail": hpt.numpy()}
    columns["category"] = relation_categories(graph.stored("train"), number)
    pairs = _pairs(graph)
    sizes = np.bincount(pairs["relation"].to_numpy(), minlength=number)
    backward = pairs.join(pairs, left_on=["relation", "forward"], right_on=["relation", "backward"], how="semi")
    loops = pairs.filter(pl.col("forward") == pl.col("backward"))
    for name, part in (("symmetric", backward), ("loops", loops)):
        found = np.bincount(part["relation"].to_numpy(), minlength=number)
        columns[name] = found / np.maximum(sizes, 1)
    return pl.DataFrame(columns).sort("train", "relation", descending=[True, False])


def redundant_relations(graph: KnowledgeGraph, least: float = REDUNDANT) -> pl.DataFrame:
    """Pairs of different relations with nearly the same entity pairs, over the distinct triples of all splits.

    Args:
        graph: the data.
        least: the smallest share of its pairs that each of the two has in common with the other.

    Returns:
        Columns first, second (relation ids, first < second), kind (`duplicate` or `inverse`), shared (common pairs),
        first_share, second_share; the largest number of common pairs first.
    """
    pairs = _pairs(graph)
    sizes = pairs.group_by("relation").agg(pl.len().alias("size"))
    found = []
    for kind, other in (("duplicate", "forward"), ("inverse", "backward")):
        both = pairs.join(pairs, left_on="forward", right_on=other, suffix="_2")
        both = both.filter(pl.col("relation") < pl.col("relation_2")).group_by("relation", "relation_2")
        found.append(both.agg(shared=pl.len()).with_columns(kind=pl.lit(kind)))
    table = pl.concat(found).rename({"relation": "first", "relation_2": "second"})
    for name in ("first", "second"):
        table = table.join(sizes, left_on=name, right_on="relation").rename({"size": f"{name}_size"})
        table = table.with_columns((pl.col("shared") / pl.col(f"{name}_size")).alias(f"{name}_share"))
    return (
        table.filter((pl.col("first_share") >= least) & (pl.col("second_share") >= least))
        .select("first", "second", "kind", "shared", "first_share", "second_share")
        .sort("shared", "first", "second", "kind", descending=[True, False, False, False])
    )


def leaks(graph: KnowledgeGraph, split: str, redundant: pl.DataFrame | None = None) -> Tensor:
    """[B] bool: the triples of `valid` or `test` that what comes before gives away.

    A triple counts if it stands in train itself (one of test also in valid), or if train has its pair under a
    redundant relation. Symmetric relations do not count: what they give away is what a model should learn of them.

    Args:
        graph: the data.
        split: `valid` or `test`.
        redundant: what `redundant_relations` returned, to spare the search.
    """
    redundant = redundant_relations(graph) if redundant is None else redundant
    held_out, size = graph.split(split), graph.num_entities
    before = graph.train if split == "valid" else Triples.cat([graph.train, graph.valid])
    rules = pl.concat(
        [
            redundant.select(relation="first", told_by="second", kind="kind"),
            redundant.select(relation="second", told_by="first", kind="kind"),
        ]
    )
    rows = _keyed(held_out, size).with_row_index("row")
    told = [rows.join(_keyed(before, size), on=["relation", "forward"], how="semi")["row"]]
    train = _keyed(graph.train, size)
    for kind, pair in (("duplicate", "forward"), ("inverse", "backward")):
        asked = rows.join(rules.filter(pl.col("kind") == kind), on="relation")
        told.append(asked.join(train, left_on=["told_by", pair], right_on=["relation", "forward"], how="semi")["row"])
    mask = torch.zeros(len(held_out), dtype=torch.bool)
    mask[torch.from_numpy(pl.concat(told).cast(pl.Int64).to_numpy().copy())] = True
    return mask


def reversed_in_train(graph: KnowledgeGraph, split: str) -> Tensor:
    """[B] bool: train has the triple the other way round, under the same relation. Loops do not count."""
    size = graph.num_entities
    rows = _keyed(graph.split(split), size).with_row_index("row").filter(pl.col("forward") != pl.col("backward"))
    train = _keyed(graph.train, size)
    told = rows.join(train, left_on=["relation", "backward"], right_on=["relation", "forward"], how="semi")["row"]
    mask = torch.zeros(len(graph.split(split)), dtype=torch.bool)
    mask[torch.from_numpy(told.cast(pl.Int64).to_numpy().copy())] = True
    return mask


def degrees(triples: Triples, num_entities: int) -> tuple[Tensor, Tensor]:
    """How often each entity is a head and a tail: [E] and [E] int64."""
    head, tail = (counts(column, num_entities) for column in (triples.head, triples.tail))
    return head, tail


def cleaned(
    graph: KnowledgeGraph, drop: Sequence[str], entities: Vocabulary | None = None, relations: Vocabulary | None = None
) -> KnowledgeGraph:
    """A graph without what `drop` names, in the order of `DROPS`; `unseen` also shortens the vocabularies.

    Which relations are redundant is found out before anything is taken out.

    Args:
        graph: in its own vocabularies.
        drop: of `DROPS`.
        entities, relations: the vocabularies of a trained model that the result shall have.

    Raises:
        UserError: an unknown name, or a label outside a given vocabulary.
    """
    check_drop(drop)
    parts, dropped = {split: graph.split(split) for split in SPLITS}, dict(graph.dropped)

    def keep(split: str, mask: Tensor, name: str) -> None:
        what = DROPS[name]
        dropped[what] = dropped.get(what, 0) + int((~mask).sum())
        parts[split] = parts[split][mask]

    def current() -> KnowledgeGraph:
        return KnowledgeGraph(graph.name, graph.entities, graph.relations, **parts, dropped=dropped)

    if "duplicates" in drop:
        for split in SPLITS:
            triple = pl.struct("relation", "forward")
            first = _keyed(parts[split], graph.num_entities).select(triple.is_first_distinct()).to_series()
            keep(split, torch.from_numpy(first.to_numpy().copy()), "duplicates")
    if "leaks" in drop:
        before, redundant = current(), redundant_relations(graph)
        for split in ("valid", "test"):
            keep(split, ~leaks(before, split, redundant), "leaks")
    if "unseen" in drop:
        before = current()
        for split in ("valid", "test"):
            keep(split, ~unseen_mask(before, parts[split]), "unseen")
    return graph_of(_tables(current(), "unseen" in drop), graph.name, entities, relations)


def check_drop(drop: Sequence[str]) -> None:
    """Raises a `UserError` unless `drop` is a list of names of `DROPS`."""
    if isinstance(drop, str) or not isinstance(drop, Sequence) or set(drop) - set(DROPS):
        raise UserError(f"dataset.drop={drop}: must be a list of {', '.join(DROPS)}; [] for none")


def _tables(graph: KnowledgeGraph, only_seen: bool) -> Tables:
    """The label triples of a graph; its vocabularies, or the labels that train has."""
    labels = {"head": graph.entities, "relation": graph.relations, "tail": graph.entities}
    series = {column: vocabulary.series for column, vocabulary in labels.items()}
    frames = {
        split: pl.DataFrame({c: series[c].gather(getattr(graph.split(split), c).numpy()) for c in COLUMNS})
        for split in SPLITS
    }
    entities, relations = series["head"], series["relation"]
    if only_seen:
        in_train = [pl.Series(seen.numpy()) for seen in graph.seen]
        entities, relations = entities.filter(in_train[0]), relations.filter(in_train[1])
    where = f"{graph.name}, without what dataset.drop names: "
    return Tables(
        frames,
        lambda split, row: f"{where}triple {row + 1} of {split}",
        entities.to_list(),
        relations.to_list(),
        graph.dropped,
    )


def _keyed(triples: Triples, num_entities: int) -> pl.DataFrame:
    """Columns relation, forward and backward: the pair of ends as one number, either way round."""
    head, tail = triples.head.numpy(), triples.tail.numpy()
    pair = {"forward": head * num_entities + tail, "backward": tail * num_entities + head}
    return pl.DataFrame({"relation": triples.relation.numpy(), **pair})


def _pairs(graph: KnowledgeGraph) -> pl.DataFrame:
    """The distinct triples of all splits, as `_keyed`."""
    return _keyed(Triples.cat([graph.split(split) for split in SPLITS]), graph.num_entities).unique()
