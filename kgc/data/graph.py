"""A knowledge graph with its three splits, and what is worth knowing about it before training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.data.annotations import Annotations
from kgc.data.formats import read_folder
from kgc.data.reader import COLUMNS, PLAIN, Layout
from kgc.data.tables import SPLITS, Tables
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

MANY = 1.5  # from this mean on, a side of a relation counts as N (Bordes et al. 2013)


@dataclass(frozen=True)
class GraphReport:
    """Counts that tell whether a data set is what it seems to be.

    Args:
        entities, relations: sizes of the vocabularies.
        sizes: triples of each split, repetitions included.
        duplicates: triples of each split that repeat one of the same split.
        overlap: distinct triples that two splits share, under `train/valid`, `train/test`, `valid/test`.
        unseen_entities, unseen_relations: those of valid or test that never occur in train.
        dropped: how much of the files was left out, by what it was.
    """

    entities: int
    relations: int
    sizes: dict[str, int]
    duplicates: dict[str, int]
    overlap: dict[str, int]
    unseen_entities: int
    unseen_relations: int
    dropped: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Short lines for the console; what is zero is left out."""
        sizes = ", ".join(f"{size:,} {split}" for split, size in self.sizes.items())
        lines = [f"{self.entities:,} entities, {self.relations:,} relations; triples: {sizes}"]
        if dropped := [f"{n:,} {what}" for what, n in self.dropped.items() if n]:
            lines.append(f"left out: {', '.join(dropped)}")
        if duplicates := [f"{n:,} in {split}" for split, n in self.duplicates.items() if n]:
            lines.append(f"repeated triples: {', '.join(duplicates)}")
        if overlap := [f"{n:,} in {pair.replace('/', ' and ')}" for pair, n in self.overlap.items() if n]:
            lines.append(f"triples in two splits: {', '.join(overlap)}")
        unseen = {"entities": self.unseen_entities, "relations": self.unseen_relations}
        if unseen := [f"{n:,} {what}" for what, n in unseen.items() if n]:
            lines.append(f"in valid or test but never in train: {', '.join(unseen)}")
        return lines


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples of three splits as ids into two vocabularies.

    Args:
        name: of the data set.
        entities, relations: E and R labels.
        train, valid, test: int64 columns on the CPU; valid and test may be empty.
        dropped: how much of the files was left out, by what it was.
        annotations: what files beside the triples say of entities and relations.
    """

    name: str
    entities: Vocabulary
    relations: Vocabulary
    train: Triples
    valid: Triples
    test: Triples
    dropped: dict[str, int] = field(default_factory=dict)
    annotations: Annotations = field(default_factory=Annotations)

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        return len(self.relations)

    def split(self, name: str) -> Triples:
        """The triples of `train`, `valid` or `test`.

        Raises:
            UserError: another name.
        """
        if name not in SPLITS:
            raise UserError(f"unknown split {name!r}; choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
        return getattr(self, name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the labels and the triples: equal for any order of the lines or of the vocabularies."""
        sha = hashlib.sha256()
        for vocabulary in (self.entities, self.relations):
            labels = pl.Series(vocabulary.labels, dtype=pl.String).sort()
            # lengths go first, so that no two lists of labels join to the same bytes
            sha.update(_int64_bytes(np.array([len(labels)])) + _int64_bytes(labels.str.len_bytes().to_numpy()))
            sha.update("".join(labels).encode())
        for split in SPLITS:
            sha.update(_int64_bytes(np.array([self._keys[split].size])) + _int64_bytes(self._keys[split]))
        return sha.hexdigest()

    @cached_property
    def report(self) -> GraphReport:
        keys = {split: key[np.diff(key, prepend=-1) > 0] for split, key in self._keys.items()}  # distinct
        entities, relations = self.seen
        held_out = Triples.cat([self.valid, self.test])
        return GraphReport(
            entities=self.num_entities,
            relations=self.num_relations,
            sizes={split: len(self.split(split)) for split in SPLITS},
            duplicates={split: len(self.split(split)) - keys[split].size for split in SPLITS},
            overlap={f"{a}/{b}": _num_shared(keys[a], keys[b]) for a, b in combinations(SPLITS, 2)},
            unseen_entities=int((_occurring([held_out.head, held_out.tail], self.num_entities) & ~entities).sum()),
            unseen_relations=int((_occurring([held_out.relation], self.num_relations) & ~relations).sum()),
            dropped=self.dropped,
        )

    def lines(self) -> list[str]:
        """What the console says of the data."""
        return [*self.report.lines(), *self.annotations.lines]

    @cached_property
    def seen(self) -> tuple[Tensor, Tensor]:
        """[E] and [R] bool: the entities and the relations that occur in train."""
        entities = _occurring([self.train.head, self.train.tail], self.num_entities)
        return entities, _occurring([self.train.relation], self.num_relations)

    @cached_property
    def _keys(self) -> dict[str, np.ndarray]:
        """One int64 per triple of each split, ascending; equal keys are equal triples, in every split.

        Ids are first replaced by their place among the sorted labels, so that keys depend on labels only.
        """
        entity, relation = _places(self.entities), _places(self.relations)
        pairs, tails = [], []
        for split in SPLITS:
            triples = self.split(split)
            pairs.append(entity[triples.head.numpy()] * self.num_relations + relation[triples.relation.numpy()])
            tails.append(entity[triples.tail.numpy()])
        pair, tail = np.concatenate(pairs), np.concatenate(tails)
        if self.num_entities**2 * self.num_relations >= 2**63:  # number the pairs that occur, to stay within int64
            pair = np.unique(pair, return_inverse=True)[1]
        ends = np.cumsum([column.size for column in tails])[:-1]
        keys = np.split(pair * self.num_entities + tail, ends)
        return {split: np.sort(key) for split, key in zip(SPLITS, keys, strict=True)}


def load_graph(
    folder: Path,
    name: str,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
    format: str | None = None,
    layout: Layout = PLAIN,
) -> KnowledgeGraph:
    """The graph in a folder, see `formats.read_folder` and `graph_of`."""
    return graph_of(read_folder(folder, format, layout), name, entities, relations)


def graph_of(
    tables: Tables, name: str, entities: Vocabulary | None = None, relations: Vocabulary | None = None
) -> KnowledgeGraph:
    """The graph of label triples.

    Args:
        tables: the three splits.
        name: of the data set.
        entities, relations: the vocabularies of a trained model; None takes the sorted labels of all three splits.

    Raises:
        UserError: a label outside a given vocabulary.
    """
    frames = tables.frames
    if entities is None:
        own = pl.concat(frame[end] for frame in frames.values() for end in ("head", "tail"))
        entities = Vocabulary.from_labels(own if tables.entities is None else tables.entities)
    if relations is None:
        own = pl.concat(frame["relation"] for frame in frames.values())
        relations = Vocabulary.from_labels(own if tables.relations is None else tables.relations)
    parts = {split: triples_by_id(frames[split], partial(tables.where, split), entities, relations) for split in SPLITS}
    return KnowledgeGraph(name, entities, relations, **parts, dropped=tables.dropped)


def triples_by_id(
    frame: pl.DataFrame, where: Callable[[int], str], entities: Vocabulary, relations: Vocabulary
) -> Triples:
    """Label triples as ids.

    Args:
        frame: columns head, relation, tail.
        where: the place of a row, for messages.
        entities, relations: whose ids they get.

    Raises:
        UserError: a label is outside its vocabulary.
    """
    vocabularies = {"head": entities, "relation": relations, "tail": entities}
    columns = {column: vocabulary.index(frame[column]) for column, vocabulary in vocabularies.items()}
    for column, ids in columns.items():
        if (ids < 0).any():
            row = int((ids < 0).int().argmax())
            label, size = frame[column][row], len(vocabularies[column])
            what, kind = ("relation", "relations") if column == "relation" else ("entity", "entities")
            raise UserError(
                f"{where(row)}: {what} {label!r} is not among the model's {size:,} {kind}; "
                "use the data set that the model was trained on, or remove the triple"
            )
    return Triples(**columns)


def unseen_mask(graph: KnowledgeGraph, triples: Triples) -> Tensor:
    """[B] bool: the triple has an entity or a relation that never occurs in train."""
    entities, relations = (seen.to(triples.head.device) for seen in graph.seen)
    return ~(entities[triples.head] & relations[triples.relation] & entities[triples.tail])


def tails_per_head(triples: Triples, num_relations: int) -> tuple[Tensor, Tensor]:
    """How many answers a relation has, over distinct triples (Wang et al. 2014, section 3.1).

    Args:
        triples: usually the train split.
        num_relations: R.

    Returns:
        tph: [R] float64, mean number of tails per (head, relation).
        hpt: [R] float64, mean number of heads per (relation, tail).
        Both are 1 for a relation without triples, so that no quotient of them is undefined.
    """
    columns = {column: getattr(triples, column).cpu().numpy() for column in COLUMNS}
    distinct = pl.DataFrame(columns).unique()

    def per_relation(rows: pl.DataFrame) -> np.ndarray:
        return np.bincount(rows["relation"].to_numpy(), minlength=num_relations)

    answers = per_relation(distinct)
    means = []
    for known in ("head", "tail"):
        questions = per_relation(distinct.select("relation", known).unique())
        means.append(torch.from_numpy(np.where(questions > 0, answers, 1) / np.maximum(questions, 1)))
    return means[0], means[1]


def relation_categories(triples: Triples, num_relations: int) -> list[str]:
    """`1-1`, `1-N`, `N-1` or `N-N` for each of R relations (Bordes et al. 2013, section 4.3).

    The right side is N if a (head, relation) has at least 1.5 tails on average, the left side if a (relation, tail)
    has at least 1.5 heads. A relation without triples counts as `1-1`.
    """
    tph, hpt = tails_per_head(triples, num_relations)
    sides = zip((hpt >= MANY).tolist(), (tph >= MANY).tolist(), strict=True)
    return [f"{'N' if heads else '1'}-{'N' if tails else '1'}" for heads, tails in sides]


def _occurring(columns: list[Tensor], size: int) -> Tensor:
    """[size] bool: the ids that occur in any of the columns."""
    occurs = torch.zeros(size, dtype=torch.bool)
    for column in columns:
        occurs[column] = True
    return occurs


def _places(vocabulary: Vocabulary) -> np.ndarray:
    """[n] int64: each id's place among the sorted labels; the identity for a sorted vocabulary."""
    order = pl.Series(vocabulary.labels, dtype=pl.String).arg_sort().to_numpy()
    places = np.empty(len(vocabulary), dtype=np.int64)
    places[order] = np.arange(len(vocabulary))
    return places


def _num_shared(first: np.ndarray, second: np.ndarray) -> int:
    """How many values two ascending arrays of distinct values share."""
    short, long = sorted((first, second), key=len)
    place = np.searchsorted(long, short)
    inside = place < long.size
    return int((long[place[inside]] == short[inside]).sum())


def _int64_bytes(array: np.ndarray) -> bytes:
    return array.astype("<i8").tobytes()
