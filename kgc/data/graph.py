"""A knowledge graph with its three splits, and what is worth knowing about it before training."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from kgc.data.annotations import Annotations
from kgc.data.arrays import PART, drop_repeated, int64_bytes, num_shared, occurring
from kgc.data.formats import read_folder
from kgc.data.reader import COLUMNS, PLAIN, Layout
from kgc.data.tables import SPLITS, Tables
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

MANY = 1.5  # from this mean on, a side of a relation counts as N (Bordes et al. 2013)


@dataclass(frozen=True)
class Findings:
    """What is found out about a graph by going through all of its triples.

    Args:
        digest: see `KnowledgeGraph.digest`.
        duplicates, overlap, unseen_entities, unseen_relations: see `GraphReport`.
    """

    digest: str
    duplicates: dict[str, int]
    overlap: dict[str, int]
    unseen_entities: int
    unseen_relations: int


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


class KnowledgeGraph:
    """Triples of three splits as ids into two vocabularies.

    Ids are kept as int32 where they fit, possibly in a file that is mapped into memory; `split` widens them.

    Args:
        name: of the data set.
        entities, relations: E and R labels.
        train, valid, test: columns of ids on the CPU; valid and test may be empty.
        dropped: how much of the files was left out, by what it was.
        known: what an earlier reading found out about the same triples.
        annotations: what files beside the triples say of entities and relations.
    """

    def __init__(
        self,
        name: str,
        entities: Vocabulary,
        relations: Vocabulary,
        train: Triples,
        valid: Triples,
        test: Triples,
        dropped: Mapping[str, int] | None = None,
        known: Findings | None = None,
        annotations: Annotations | None = None,
    ):
        self.name = name
        self.entities = entities
        self.relations = relations
        self.dropped = dict(dropped or {})
        self.annotations = annotations or Annotations()
        self.notes: list[str] = []  # what is odd in the files
        fits = max(len(entities), len(relations)) <= 2**31
        self._stored = {s: _narrow(t) if fits else t for s, t in zip(SPLITS, (train, valid, test), strict=True)}
        self._wide = {split: self._stored[split].long() for split in ("valid", "test")}
        self._known = known

    def noted(self, notes: Sequence[str]) -> KnowledgeGraph:
        """The same graph with other notes."""
        other = copy.copy(self)
        other.notes = list(notes)
        return other

    def annotated(self, annotations: Annotations) -> KnowledgeGraph:
        """The same graph with other annotations."""
        other = copy.copy(self)
        other.annotations = annotations
        return other

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        return len(self.relations)

    @property
    def train(self) -> Triples:
        """int64 ids: of a large split a copy made by every call, see `stored`."""
        return self.split("train")

    @property
    def valid(self) -> Triples:
        return self.split("valid")

    @property
    def test(self) -> Triples:
        return self.split("test")

    def split(self, name: str) -> Triples:
        """The triples of `train`, `valid` or `test` with int64 ids.

        Raises:
            UserError: another name.
        """
        if name not in SPLITS:
            raise UserError(f"unknown split {name!r}; choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
        return self._wide[name] if name in self._wide else self._stored[name].long()

    def stored(self, name: str) -> Triples:
        """The triples of a split as they are kept, with int32 or int64 ids, for work that goes through them in parts;
        products of ids do not fit into int32."""
        return self._stored[name]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the labels and the triples: equal for any order of the lines or of the vocabularies."""
        return self.findings.digest

    @cached_property
    def report(self) -> GraphReport:
        found = self.findings
        return GraphReport(
            entities=self.num_entities,
            relations=self.num_relations,
            sizes={split: len(self.stored(split)) for split in SPLITS},
            duplicates=found.duplicates,
            overlap=found.overlap,
            unseen_entities=found.unseen_entities,
            unseen_relations=found.unseen_relations,
            dropped=self.dropped,
        )

    def lines(self) -> list[str]:
        """What the console says of the data."""
        return [*self.report.lines(), *self.notes, *self.annotations.lines]

    @cached_property
    def findings(self) -> Findings:
        """What goes through all triples to be found out, which is done once."""
        if self._known is not None:
            return self._known
        sha = hashlib.sha256()
        for vocabulary in (self.entities, self.relations):
            labels = vocabulary.series if vocabulary.series.is_sorted() else vocabulary.series.sort()
            # lengths go first, so that no two lists of labels join to the same bytes
            sha.update(int64_bytes(np.array([len(labels)])) + int64_bytes(labels.str.len_bytes().to_numpy()))
            for part in labels.to_frame("label").iter_slices(PART):
                sha.update("".join(part["label"]).encode())
        distinct, duplicates = {}, {}
        for split, key in self._keys().items():
            sha.update(int64_bytes(np.array([key.size])))
            for start in range(0, key.size, PART):
                sha.update(int64_bytes(key[start : start + PART]))
            distinct[split] = drop_repeated(key)
            duplicates[split] = len(self.stored(split)) - distinct[split].size
        entities, relations = self.seen
        held_out = [self.valid, self.test]
        unseen_entities = occurring([c for t in held_out for c in (t.head, t.tail)], self.num_entities) & ~entities
        unseen_relations = occurring([t.relation for t in held_out], self.num_relations) & ~relations
        return Findings(
            digest=sha.hexdigest(),
            duplicates=duplicates,
            overlap={f"{a}/{b}": num_shared(distinct[a], distinct[b]) for a, b in combinations(SPLITS, 2)},
            unseen_entities=int(unseen_entities.sum()),
            unseen_relations=int(unseen_relations.sum()),
        )

    @cached_property
    def seen(self) -> tuple[Tensor, Tensor]:
        """[E] and [R] bool: the entities and the relations that occur in train."""
        train = self.stored("train")
        return occurring([train.head, train.tail], self.num_entities), occurring([train.relation], self.num_relations)

    def _keys(self) -> dict[str, np.ndarray]:
        """One int64 per triple of each split, ascending; equal keys are equal triples, in every split.

        Ids are first replaced by their place among the sorted labels, so that keys depend on labels only.
        """
        entity, relation = _places(self.entities), _places(self.relations)

        def column(triples: Triples, name: str) -> np.ndarray:
            ids = getattr(triples, name).numpy()
            place = relation if name == "relation" else entity
            return ids.astype(np.int64) if place is None else place[ids]

        pairs, tails = {}, {}
        for split in SPLITS:
            triples = self.stored(split)
            pairs[split] = column(triples, "head")
            pairs[split] *= self.num_relations
            pairs[split] += column(triples, "relation")
            tails[split] = column(triples, "tail")
        if self.num_entities**2 * self.num_relations >= 2**63:  # number the pairs that occur, to stay within int64
            together = np.unique(np.concatenate(list(pairs.values())), return_inverse=True)[1]
            pairs = dict(zip(SPLITS, np.split(together, np.cumsum([p.size for p in pairs.values()])[:-1]), strict=True))
        for split in SPLITS:
            pairs[split] *= self.num_entities
            pairs[split] += tails.pop(split)
            pairs[split].sort()
        return pairs


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


def in_vocabularies(graph: KnowledgeGraph, entities: Vocabulary | None, relations: Vocabulary | None) -> KnowledgeGraph:
    """A graph in its own vocabularies as a graph in those of a trained model; None leaves one as it is.

    Raises:
        UserError: a label that a triple has is not in the model's vocabulary.
    """
    wanted = {"head": entities, "relation": relations, "tail": entities}
    own = {"head": graph.entities, "relation": graph.relations, "tail": graph.entities}
    if all(new is None or new == own[column] for column, new in wanted.items()):
        return graph
    place = {c: None if new is None else new.index(own[c].series).numpy() for c, new in wanted.items()}
    parts = {}
    for split in SPLITS:
        columns = {}
        for column in COLUMNS:
            ids = getattr(graph.stored(split), column).numpy()
            columns[column] = torch.from_numpy(ids if place[column] is None else place[column][ids])
            lost = np.flatnonzero(columns[column].numpy() < 0)
            if lost.size:
                label = own[column][int(ids[lost[0]])]
                raise UserError(
                    _not_known(f"{graph.name}: triple {lost[0] + 1} of {split}", column, label, len(wanted[column]))
                )
        parts[split] = Triples(**columns)
    known = (entities or graph.entities, relations or graph.relations)
    return KnowledgeGraph(graph.name, *known, **parts, dropped=graph.dropped)


def _not_known(where: str, column: str, label: str, size: int) -> str:
    what, kind = ("relation", "relations") if column == "relation" else ("entity", "entities")
    return (
        f"{where}: {what} {label!r} is not among the model's {size:,} {kind}; "
        "use the data set that the model was trained on, or remove the triple"
    )


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
            raise UserError(_not_known(where(row), column, frame[column][row], len(vocabularies[column])))
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
    head, relation, tail = (getattr(triples, column).cpu().numpy() for column in COLUMNS)
    size = 1 + max((int(column.max()) for column in (head, tail)), default=0) if len(triples) else 1
    if (1 + int(relation.max(initial=0))) * size**2 >= 2**63:
        answers, heads, tails = _answers_and_questions(triples, num_relations)
    else:  # one number a triple: memory of two columns
        keys = relation.astype(np.int64)
        for column in (head, tail):
            keys *= size
            keys += column
        keys.sort()
        keys = drop_repeated(keys)
        answers = _count(keys, size**2, num_relations)
        of_tails = (keys // size**2) * size
        of_tails += keys % size
        keys //= size
        heads = _count(drop_repeated(keys), size, num_relations)
        of_tails.sort()
        tails = _count(drop_repeated(of_tails), size, num_relations)
    means = [np.where(known > 0, answers, 1) / np.maximum(known, 1) for known in (heads, tails)]
    return torch.from_numpy(means[0]), torch.from_numpy(means[1])


def _answers_and_questions(triples: Triples, num_relations: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[R] distinct triples, (head, relation) and (relation, tail) of each relation, of ids of any size."""
    distinct = pl.DataFrame({column: getattr(triples, column).cpu().numpy() for column in COLUMNS}).unique()
    tables = [distinct, *(distinct.select("relation", known).unique() for known in ("head", "tail"))]
    answers, heads, tails = (np.bincount(t["relation"].to_numpy(), minlength=num_relations) for t in tables)
    return answers, heads, tails


def _count(keys: np.ndarray, size: int, num_relations: int) -> np.ndarray:
    """[R] how many ascending keys there are of each relation, which is key // size."""
    bounds = np.arange(num_relations + 1, dtype=np.int64) * size
    return np.diff(np.searchsorted(keys, bounds))


def relation_categories(triples: Triples, num_relations: int) -> list[str]:
    """`1-1`, `1-N`, `N-1` or `N-N` for each of R relations (Bordes et al. 2013, section 4.3).

    The right side is N if a (head, relation) has at least 1.5 tails on average, the left side if a (relation, tail)
    has at least 1.5 heads. A relation without triples counts as `1-1`.
    """
    tph, hpt = tails_per_head(triples, num_relations)
    sides = zip((hpt >= MANY).tolist(), (tph >= MANY).tolist(), strict=True)
    return [f"{'N' if heads else '1'}-{'N' if tails else '1'}" for heads, tails in sides]


def _narrow(triples: Triples) -> Triples:
    """The triples with int32 ids."""
    if triples.head.dtype == torch.int32:
        return triples
    return Triples(triples.head.int(), triples.relation.int(), triples.tail.int())


def _places(vocabulary: Vocabulary) -> np.ndarray | None:
    """[n] int64: each id's place among the sorted labels; None for a sorted vocabulary, where it is the id."""
    if vocabulary.series.is_sorted():
        return None
    order = vocabulary.series.arg_sort().to_numpy()
    places = np.empty(len(vocabulary), dtype=np.int64)
    places[order] = np.arange(len(vocabulary))
    return places
