"""How long it takes from files to a graph with its index of known answers, and the memory that it takes.

    KGC_DATA=DIR python tests/benchmarks/reading.py [--million 20] [--repeats 3] [--folder DIR]

- FB15k-237 from gzip to a ready index of known answers.
- So many million triples, drawn over a million entities and 1,000 relations, from Parquet to a graph and its index, in
  a process of its own, with its peak of memory.
- FB15k-237's train.txt to ids, against PyKEEN's TriplesFactory on the same file (if PyKEEN is installed), in turn.

Seconds are the least of the repeats: of the clock, and of all threads' processor time, which a busy machine changes
less.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from kgc.data.graph import KnowledgeGraph, load_graph
from kgc.data.known import KnownAnswers
from kgc.types import Triples

GIB = 1 << 30


def ready(folder: Path) -> tuple[KnowledgeGraph, KnownAnswers]:
    """A folder's graph and the index of all that it knows."""
    graph = load_graph(folder, "benchmark")
    triples = Triples.cat([graph.train, graph.valid, graph.test])
    return graph, KnownAnswers(triples, graph.num_entities, graph.num_relations)


def timed(function: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the clock, and of processors."""
    clock, processors = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - processors


def least(measured: list[tuple[float, float]]) -> str:
    """The least of each, for the output."""
    return f"{min(m[0] for m in measured):7.2f} s, {min(m[1] for m in measured):7.2f} s of processors"


def write_many(folder: Path, number: int, block: int = 1_000_000) -> None:
    """Triples of made-up labels: squared uniform numbers, so that some entities are frequent and most are rare."""
    import numpy as np

    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)

    def frame(rows: int) -> pl.DataFrame:
        ends = {e: (generator.random(rows) ** 2 * 1_000_000).astype("int32") for e in ("head", "tail")}
        relation = (generator.random(rows) ** 2 * 1_000).astype("int32")
        columns = {"head": ends["head"], "relation": relation, "tail": ends["tail"]}
        return pl.DataFrame(columns).select(
            pl.format("{}{}", pl.lit("P" if name == "relation" else "Q"), pl.col(name)).alias(name) for name in columns
        )

    parts = folder.with_name("parts")
    parts.mkdir()
    for start in range(0, number, block):
        frame(min(block, number - start)).write_parquet(parts / f"{start:012}.parquet")
    pl.scan_parquet(parts / "*.parquet").sink_parquet(folder / "train.parquet")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--million", type=float, default=20)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--folder", type=Path, default=None, help="where the Parquet file is made; unset: temporary")
    options.add_argument("--load", type=Path, default=None, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.load:
        graph = None

        def load() -> None:
            nonlocal graph
            graph, _ = ready(given.load)

        seconds = timed(load)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sizes = {"triples": len(graph.train), "entities": graph.num_entities}
        print(json.dumps({"seconds": seconds, "peak": peak, **sizes}))
        return
    data = Path(os.environ["KGC_DATA"]) / "fb15k237"
    ready(data)  # imports, and the files in the system's cache
    print(f"FB15k-237, gzip to index   {least([timed(lambda: ready(data)) for _ in range(given.repeats)])}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        against_pykeen(data, folder, given.repeats)
        many = (given.folder or folder) / "many"
        if given.million:
            if not many.exists():
                write_many(many, int(given.million * 1e6))
            command = [sys.executable, __file__, "--load", str(many)]
            said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"{said['triples']:,} triples of {said['entities']:,} entities, Parquet to index   "
                f"{least([tuple(said['seconds'])])}, peak {said['peak'] / GIB:.2f} GiB",
                flush=True,
            )


def against_pykeen(data: Path, folder: Path, repeats: int) -> None:
    """FB15k-237's train split from a plain text file to ids."""
    try:
        from pykeen.triples import TriplesFactory
    except ImportError:
        print("PyKEEN is not installed: nothing to compare with")
        return
    plain = folder / "plain"
    plain.mkdir()
    path = plain / "train.txt"
    path.write_bytes(gzip.decompress((data / "train.txt.gz").read_bytes()))
    ours, theirs = load_graph(plain, "ours"), TriplesFactory.from_path(path)
    assert len(ours.train) == theirs.num_triples
    assert (ours.num_entities, ours.num_relations) == (theirs.num_entities, theirs.num_relations)
    measured: dict[str, list[tuple[float, float]]] = {"kgc": [], "PyKEEN": []}
    for _ in range(repeats):
        measured["kgc"].append(timed(lambda: load_graph(plain, "ours")))
        measured["PyKEEN"].append(timed(lambda: TriplesFactory.from_path(path)))
    for name, values in measured.items():
        print(f"train.txt to ids, {name:<8} {least(values)}")
    ratios = [min(m[i] for m in measured["PyKEEN"]) / min(m[i] for m in measured["kgc"]) for i in (0, 1)]
    print(f"PyKEEN's time over kgc's: {ratios[0]:.1f} by the clock, {ratios[1]:.1f} of processors", flush=True)


if __name__ == "__main__":
    main()
