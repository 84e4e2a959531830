"""Data sets by name: bundled, found in `$KGC_DATA`, or downloaded once; and folders of the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import pooch
import yaml
from torch import Tensor

from kgc.data.cache import are_large, cached_graph
from kgc.data.download import fetch_files
from kgc.data.formats import read_folder, source_files
from kgc.data.graph import KnowledgeGraph, graph_of, in_vocabularies
from kgc.data.hygiene import check_drop, cleaned
from kgc.data.oddities import folder_notes, header_notes
from kgc.data.ogb import read_candidates
from kgc.data.parts import graph_in_parts
from kgc.data.reader import PLAIN, Layout, find_split
from kgc.data.splitting import SplitRule, split_table
from kgc.data.synthetic import make_graph
from kgc.data.tables import SPLITS
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.paths import config_dir

CHOICES = config_dir() / "dataset"


def described(name: str) -> dict[str, Any] | None:
    """What `conf/dataset/NAME.yaml` says of a data set of the catalogue; None for another name."""
    path = CHOICES / f"{name}.yaml"
    if Path(name).name != name or not path.is_file():
        return None
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content if "expected" in content else None


def catalogue() -> list[str]:
    """The names of all data sets of the catalogue."""
    return [path.stem for path in sorted(CHOICES.glob("*.yaml")) if described(path.stem)]


def load_dataset(
    name: str,
    source: Mapping[str, Any] | None = None,
    expected: Mapping[str, Any] | None = None,
    check: bool = True,
    drop: Sequence[str] = (),
    cache: bool | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """A data set by name, from the first place that has it: `$KGC_DATA/<name>`, the package, the cache, the network.

    Args:
        name: of the catalogue, or of any folder in `$KGC_DATA`.
        source: where it comes from and how its files are read, see conf/dataset; None takes the catalogue's.
        expected: counts and digest that a copy must have; None takes the catalogue's.
        check: False takes a copy with other counts.
        drop: what is taken out, see `hygiene.cleaned`; after the check.
        cache: see `cache.cached_graph`.
        entities, relations: the vocabularies of a trained model, see `graph_of`.

    Raises:
        UserError: unknown name, failed download, counts that differ from the published ones, or unreadable data.
    """
    check_drop(drop)
    known = described(name)
    own = Path(os.environ["KGC_DATA"]).expanduser() if os.environ.get("KGC_DATA") else None
    ready = bool(own and Path(name).name == name and (own / name).is_dir())
    if known is None and not ready:
        looked = f" and {own} has no folder of this name" if own else ""
        raise UserError(
            f"dataset {name!r} is not in the catalogue ({', '.join(catalogue())}){looked}; "
            "for files of your own use dataset=folder dataset.path=DIR"
        )
    if known is None:
        return _without(_folder(own / name, name, cache=cache), drop, entities, relations)
    source = known["source"] if source is None else source
    expected = known["expected"] if expected is None else expected
    if not ready and not source.get("files"):
        with resources.as_file(resources.files("kgc.data").joinpath("bundled", name)) as folder:
            load = _folder(folder, name, cache=cache)
            return _checked(load, folder, expected if check else {}, drop, entities, relations)
    folder = own / name if ready else Path(pooch.os_cache("kgc")) / name
    if not ready:
        folder = fetch_files(folder, name, source["files"], source.get("archive"))
    layout, files = Layout(source.get("columns"), source.get("order", "hrt")), source.get("files")
    if ready and not _as_published(folder, source):
        load = _folder(folder, name, cache=cache)
    elif len(files) == 1:
        load = _file(folder / files[0]["name"], name, layout, SplitRule(), cache)
    else:
        load = _folder(folder, name, source.get("format"), layout, cache)
    return _checked(load, folder, expected if check else {}, drop, entities, relations)


# Reads a graph in given vocabularies, or for None in its own.
Load = Callable[[Vocabulary | None, Vocabulary | None], KnowledgeGraph]


def _folder(
    folder: Path, name: str, format: str | None = None, layout: Layout = PLAIN, cache: bool | None = None
) -> Load:
    """What reads the splits of a folder, or their ids from the cache."""
    how = {"format": format, "layout": asdict(layout)}

    def make(entities: Vocabulary | None, relations: Vocabulary | None) -> KnowledgeGraph:
        files = source_files(folder, format)
        if entities is relations is None and are_large(files) and files == source_files(folder, "splits"):
            paths = {split: find_split(folder, split) for split in SPLITS}
            if (graph := graph_in_parts(paths, layout, name)) is not None:
                return graph
        return graph_of(read_folder(folder, format, layout), name, entities, relations)

    def load(*known: Vocabulary | None) -> KnowledgeGraph:
        graph = cached_graph(name, source_files(folder, format), how, make, cache, *known)
        return graph.noted(folder_notes(graph, folder, format, layout))

    return load


def _file(file: Path, name: str, layout: Layout, rule: SplitRule, cache: bool | None) -> Load:
    """What reads and splits one file, or takes the ids from the cache."""
    how = {"layout": asdict(layout), "rule": asdict(rule)}

    def make(entities: Vocabulary | None, relations: Vocabulary | None) -> KnowledgeGraph:
        return graph_of(split_table(file, layout, rule), name, entities, relations)

    files = [file] if file.is_file() else []

    def load(*known: Vocabulary | None) -> KnowledgeGraph:
        graph = cached_graph(name, files, how, make, cache, *known)
        return graph.noted(header_notes(graph, dict.fromkeys(SPLITS, file), layout))

    return load


def _without(
    load: Load, drop: Sequence[str], entities: Vocabulary | None, relations: Vocabulary | None
) -> KnowledgeGraph:
    """A graph without what `drop` names, in the vocabularies of a model or in its own."""
    check_drop(drop)
    if not drop:
        return load(entities, relations)
    graph = load(None, None)
    return cleaned(graph, drop, entities, relations).noted(graph.notes)


def _checked(
    load: Load,
    folder: Path,
    expected: Mapping[str, Any],
    drop: Sequence[str],
    entities: Vocabulary | None,
    relations: Vocabulary | None,
) -> KnowledgeGraph:
    """`_without` of a graph that is compared with what the catalogue expects, as far as it expects anything."""
    graph = load(None, None) if drop else load(entities, relations)
    if expected:
        _check(graph, folder, expected, bool(drop) or entities is None, bool(drop) or relations is None)
    return cleaned(graph, drop, entities, relations).noted(graph.notes) if drop else graph


def _as_published(folder: Path, source: Mapping[str, Any]) -> bool:
    """A ready copy has three splits of three columns, or else the files as they are published."""
    files = source.get("files") or []
    return not find_split(folder, "train") and bool(files) and all((folder / file["name"]).is_file() for file in files)


def _check(graph: KnowledgeGraph, folder: Path, expected: Mapping[str, Any], entities: bool, relations: bool) -> None:
    """Compares a graph with what the catalogue says of it; counts that it does not know are null.

    Args:
        entities, relations: the vocabulary is the data set's own: that of a model may know more.
    """
    counts = {f"{split} triples": (len(graph.stored(split)), expected.get(split)) for split in SPLITS}
    total = sum(found for found, _ in counts.values()) + sum(graph.dropped.values())
    counts["triples"] = (total, expected.get("triples"))
    if entities:
        counts["entities"] = (graph.num_entities, expected.get("entities"))
    if relations:
        counts["relations"] = (graph.num_relations, expected.get("relations"))
    for what, (found, wanted) in counts.items():
        if wanted is not None and found != wanted:
            raise UserError(
                f"{folder}: {found:,} {what}, but {graph.name} has {wanted:,}; "
                "get a complete copy, or use dataset=folder for a variant of it, or dataset.check=false"
            )
    wanted = expected.get("digest")
    if wanted and entities and relations and graph.digest != wanted:
        raise UserError(
            f"{folder}: as many triples as {graph.name} has, but not the same (digest {graph.digest[:12]}, expected "
            f"{wanted[:12]}); get another copy, or use dataset=folder for a variant of it, or dataset.check=false"
        )


def load_folder(
    path: str,
    name: str | None = None,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    order: str = "hrt",
    literals: str = "drop",
    drop: Sequence[str] = (),
    cache: bool | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """The user's own files: `train`, `valid` and `test` in a folder, see `load_graph`.

    Args:
        path: of the folder.
        name: of the data set; None takes the folder's.
        format: a key of `formats.FORMATS`; None finds out.
        columns, order, literals: see `reader.Layout`.
        drop: what is taken out, see `hygiene.cleaned`.
        cache: see `cache.cached_graph`.
    """
    folder = Path(str(path)).expanduser()
    layout = Layout(columns, order, literals=literals)
    return _without(_folder(folder, name or folder.resolve().name, format, layout, cache), drop, entities, relations)


def companion(name: str, file: str, path: str | None = None) -> Path | None:
    """A file beside the splits, such as `test_negatives`, with any ending of a split; None if there is none.

    Args:
        name: of the data set; it is looked for in `$KGC_DATA/NAME` and in the cache.
        file: without its ending.
        path: the folder of the user's own data set, instead.
    """
    if path is not None:
        folders = [Path(path).expanduser()]
    else:
        own = [Path(os.environ["KGC_DATA"]).expanduser() / name] if os.environ.get("KGC_DATA") else []
        folders = [*own, Path(pooch.os_cache("kgc")) / name]
    return next((found for folder in folders if (found := find_split(folder, file)) is not None), None)


def given_candidates(graph: KnowledgeGraph, split: str, name: str, path: str | None = None) -> tuple[Tensor, Tensor]:
    """The candidates that a data set gives for the heads and the tails of `valid` or `test`, see
    `ogb.read_candidates`; they are looked for where the data set is.

    Raises:
        UserError: this data set gives none.
    """
    homes = [Path(os.environ["KGC_DATA"]).expanduser() / name] if os.environ.get("KGC_DATA") else []
    homes.append(Path(pooch.os_cache("kgc")) / name)
    folder = Path(path).expanduser() if path is not None else next((f for f in homes if f.is_dir()), homes[-1])
    if not (folder / "split").is_dir():
        raise UserError(
            f"ranking.candidates=given: {graph.name} gives no candidates; those of OGB do, such as dataset=ogbl_biokg; "
            "a number draws as many"
        )
    heads, tails = read_candidates(folder, split, graph.entities)
    if len(heads) != len(graph.split(split)):
        raise UserError(
            f"ranking.candidates=given: {folder} has candidates for {len(heads):,} triples of {split}, and "
            f"{len(graph.split(split)):,} are to be ranked; leave dataset.drop out"
        )
    return heads, tails


def load_file(
    path: str,
    name: str | None = None,
    columns: Sequence[str] | None = None,
    order: str = "hrt",
    literals: str = "drop",
    split: str = "transductive",
    split_column: str | None = None,
    time_column: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    drop: Sequence[str] = (),
    cache: bool | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """The user's own file with all triples in it, split by a column of it or here.

    Args:
        path: of the file.
        name: of the data set; None takes the file's.
        columns, order, literals: see `reader.Layout`.
        split, split_column, time_column, fractions, seed: see `splitting.SplitRule`.
        drop: what is taken out after the split, see `hygiene.cleaned`.
        cache: see `cache.cached_graph`.
    """
    file = Path(str(path)).expanduser()
    rule = SplitRule(split, split_column, time_column, fractions, seed)
    layout = Layout(columns, order, rule.extra, literals)
    return _without(_file(file, name or file.name.split(".")[0], layout, rule, cache), drop, entities, relations)


def load_synthetic(
    name: str = "synthetic",
    num_entities: int = 100_000,
    num_relations: int = 100,
    num_triples: int = 1_000_000,
    exponent: float = 2.2,
    num_valid: int = 1000,
    num_test: int = 1000,
    seed: int = 0,
    drop: Sequence[str] = (),
    cache: bool | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """A graph with power-law degrees, made here; see `synthetic.make_graph`.

    Args:
        name: of the data set.
        num_entities, num_relations, num_triples, exponent, seed: see there.
        num_valid, num_test: triples that are held out.
        drop: what is taken out, see `hygiene.cleaned`.
        cache: whether its ids are kept, see `cache.cached_graph`; None: those of 10 million triples or more.
    """
    options = {
        "entities": num_entities,
        "relations": num_relations,
        "triples": num_triples,
        "exponent": exponent,
        "seed": seed,
        "valid": num_valid,
        "test": num_test,
    }

    def make(entities: Vocabulary | None, relations: Vocabulary | None) -> KnowledgeGraph:
        return in_vocabularies(make_graph(name, **options), entities, relations)

    kept = num_triples >= 10_000_000 if cache is None else cache
    how = {"synthetic": options}
    return _without(lambda *known: cached_graph(name, [], how, make, kept, *known), drop, entities, relations)
