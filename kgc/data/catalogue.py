"""Data sets by name: bundled, found in `$KGC_DATA`, or downloaded once; and folders of the user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pooch

from kgc.data.graph import KnowledgeGraph, graph_of, load_graph
from kgc.data.reader import Layout
from kgc.data.splitting import SplitRule, split_table
from kgc.data.tables import SPLITS
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A known data set.

    Args:
        entities, relations, train, valid, test: the published counts; every copy is checked against them.
        url: with `{split}` in it; empty for a bundled set.
        sha256: of the downloaded train, valid and test file.
    """

    entities: int
    relations: int
    train: int
    valid: int
    test: int
    url: str = ""
    sha256: tuple[str, str, str] = ("", "", "")


_GITHUB = "https://raw.githubusercontent.com"

# Licences and citations stand in the data set's file in conf/dataset, and in bundled/README.md.
CATALOGUE = {
    "nations": Entry(14, 55, 1_592, 199, 201),
    "umls": Entry(135, 46, 5_216, 652, 661),
    "kinship": Entry(104, 25, 8_544, 1_068, 1_074),
    "codex_s": Entry(
        *(2_034, 42, 32_888, 1_827, 1_828),
        url=f"{_GITHUB}/tsafavi/codex/master/data/triples/codex-s/{{split}}.txt",
        sha256=(
            "64f93b7f314f3936a6f65739721429db3f6a7c8f5a1e1104ec3bb544f7434f59",
            "3831c0e57daef03c3a18cdd1a72e370b496f696c5218883d35c7d2ab8a6a772c",
            "27127fcb34688c4778e88a39ef3c9b540807da846021e9d9685660ac1838aca1",
        ),
    ),
    "fb15k237": Entry(
        *(14_541, 237, 272_115, 17_535, 20_466),
        url=f"{_GITHUB}/villmow/datasets_knowledge_embedding/master/FB15k-237/{{split}}.txt",
        sha256=(
            "61099230e4439f90885ca9767739e31e8e32f54736fa1c35952b27997bc7c08a",
            "749cbe9d923bac7b9354da5614ecfed2e0220256d442c3e04a6b303db1f273d9",
            "e2e35e8e6113de220140b6f44dc71a5207b0fc6872d575e874aefe13259b655b",
        ),
    ),
    "wn18rr": Entry(
        *(40_943, 11, 86_835, 3_034, 3_134),
        url=f"{_GITHUB}/DeepGraphLearning/KnowledgeGraphEmbedding/master/data/wn18rr/{{split}}.txt",
        sha256=(
            "038612e783c215ee5f3ca9fbfca27b8d0739be1028fe4ee7c174aecf0b83d5df",
            "453ce7202afa58094a04d2b1560ee2b02660f1c260b32ce6651c8ccedd1028ab",
            "0383bceaaa1096cf3c03ec021ed0048068e2355dbfc0239b292cefdac821cec5",
        ),
    ),
}


def load_dataset(name: str, entities: Vocabulary | None = None, relations: Vocabulary | None = None) -> KnowledgeGraph:
    """A data set by name, from the first place that has it: `$KGC_DATA/<name>`, the package, the cache, the network.

    Args:
        name: of the catalogue, or of any folder in `$KGC_DATA`.
        entities, relations: the vocabularies of a trained model, see `load_graph`.

    Raises:
        UserError: unknown name, failed download, counts that differ from the published ones, or unreadable data.
    """
    entry = CATALOGUE.get(name)
    own = Path(os.environ["KGC_DATA"]).expanduser() if os.environ.get("KGC_DATA") else None
    if own and (own / name).is_dir():
        folder = own / name
    elif entry is None:
        looked = f" and {own} has no folder of this name" if own else ""
        known = ", ".join(sorted(CATALOGUE))
        raise UserError(
            f"dataset {name!r} is not in the catalogue ({known}){looked}; "
            "for files of your own use dataset=folder dataset.path=DIR"
        )
    elif not entry.url:
        with resources.as_file(resources.files("kgc.data").joinpath("bundled", name)) as folder:
            return _load_checked(folder, name, entry, entities, relations)
    else:
        folder = _download(name, entry)
    return _load_checked(folder, name, entry, entities, relations)


def load_folder(
    path: str,
    name: str | None = None,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    order: str = "hrt",
    literals: str = "drop",
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """The user's own files: `train`, `valid` and `test` in a folder, see `load_graph`.

    Args:
        path: of the folder.
        name: of the data set; None takes the folder's.
        format: a key of `formats.FORMATS`; None finds out.
        columns, order, literals: see `reader.Layout`.
    """
    folder = Path(str(path)).expanduser()
    layout = Layout(columns, order, literals=literals)
    return load_graph(folder, name or folder.resolve().name, entities, relations, format, layout)


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
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
) -> KnowledgeGraph:
    """The user's own file with all triples in it, split by a column of it or here.

    Args:
        path: of the file.
        name: of the data set; None takes the file's.
        columns, order, literals: see `reader.Layout`.
        split, split_column, time_column, fractions, seed: see `splitting.split_table`.
    """
    file = Path(str(path)).expanduser()
    rule = SplitRule(split, split_column, time_column, fractions, seed)
    tables = split_table(file, Layout(columns, order, rule.extra, literals), rule)
    return graph_of(tables, name or file.name.split(".")[0], entities, relations)


def _load_checked(
    folder: Path, name: str, entry: Entry | None, entities: Vocabulary | None, relations: Vocabulary | None
) -> KnowledgeGraph:
    graph = load_graph(folder, name, entities, relations)
    if entry is None:
        return graph
    counts = {f"{split} triples": (len(graph.split(split)), getattr(entry, split)) for split in SPLITS}
    if entities is None:  # a model may know more entities than the data set
        counts["entities"] = (graph.num_entities, entry.entities)
    if relations is None:
        counts["relations"] = (graph.num_relations, entry.relations)
    for what, (found, expected) in counts.items():
        if found != expected:
            raise UserError(
                f"{folder}: {found:,} {what}, but {name} has {expected:,}; "
                "get a complete copy, or use dataset=folder for a variant of it"
            )
    return graph


def _download(name: str, entry: Entry) -> Path:
    """The cache folder of a data set; files that it lacks are fetched, and all are checked."""
    folder = pooch.os_cache("kgc") / name
    for split, sha256 in zip(SPLITS, entry.sha256, strict=True):
        url = entry.url.format(split=split)
        try:
            pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=f"{split}.txt", path=folder)
        except (OSError, ValueError) as error:  # no network, no such page, or another file than expected
            offline = type(error).__module__.startswith("requests") and getattr(error, "response", None) is None
            reason = "no connection" if offline else str(error).splitlines()[0]
            raise UserError(
                f"cannot download {name} from {url} ({reason}); put its files in a folder {name} and set KGC_DATA to "
                "the folder above, or use dataset=folder dataset.path=DIR"
            ) from error
    return folder
