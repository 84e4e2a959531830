"""Growth of ranking with the number of entities, memory at 5 million of them, the index of 20 million triples, UMLS.

    python tests/benchmarks/scaling.py [--out scaling.json]

Random ComplEx vectors, random triples. Every row is a process of its own. Seconds are the best of two runs after one
that compiles and measures shapes of blocks; memory is the peak above that before ranking began: tables and index are
not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from ranking import both_sides, device, gemm_rate, load, make_model, peak_bytes, wait

# Entities, width, test triples.
ROWS = [(14_541, 256, 4096), (40_943, 256, 4096), (200_000, 256, 2048), (1_000_000, 256, 1024), (5_000_000, 64, 256)]
RELATIONS = 100


def rank_random(entities: int, width: int, number: int) -> dict:
    from kgc.data.known import KnownAnswers
    from kgc.models.complex import ComplEx
    from kgc.ranking import RankingOptions, rank_queries
    from kgc.runtime import prepare_process
    from kgc.types import Triples

    prepare_process()
    normal = torch.nn.init.normal_
    model = ComplEx(entities, RELATIONS, width, entity_init=normal, relation_init=normal).to(device()).eval()
    count = 4 * entities

    def random_triples(n: int) -> Triples:
        return Triples(*(torch.randint(high, (n,), device=device()) for high in (entities, RELATIONS, entities)))

    test = random_triples(number)
    known = KnownAnswers(Triples.cat([random_triples(count), test]), entities, RELATIONS)
    queries, targets = both_sides(test)
    rate = gemm_rate()
    before = current_bytes()
    options = RankingOptions(compile=True)
    times = []
    for _ in range(3):
        wait()
        began = time.perf_counter()
        rank_queries(model, queries, targets, known, options)
        wait()
        times.append(time.perf_counter() - began)
    seconds = min(times[1:])
    rate = max(rate, gemm_rate())
    work = 2 * len(queries) * entities * width
    return {
        "triples_per_second": number / seconds,
        "cells_per_second": len(queries) * entities / seconds,
        "share_of_gemm": work / seconds / rate,
        "peak_mib": (peak_bytes() - before) / 2**20,
    }


def current_bytes() -> int:
    """Memory held now; the peak is counted from here on."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    Path("/proc/self/clear_refs").write_text("5")
    return pages * os.sysconf("SC_PAGE_SIZE")


def index(triples: int = 20_000_000, entities: int = 5_000_000, relations: int = 1000) -> dict:
    from kgc.data.known import KnownAnswers
    from kgc.types import Triples

    made = Triples(*(torch.randint(high, (triples,), device=device()) for high in (entities, relations, entities)))
    wait()
    began = time.perf_counter()
    KnownAnswers(made, entities, relations)
    wait()
    return {"seconds": time.perf_counter() - began}


def umls() -> dict:
    """The first ranking after import, as a user's short test is."""
    from kgc.data.known import KnownAnswers
    from kgc.ranking import rank_queries
    from kgc.types import Triples

    graph = load("umls")
    model = make_model("complex", graph).to(device()).eval()
    began = time.perf_counter()
    triples = Triples.cat([graph.train, graph.valid, graph.test]).to(device())
    known = KnownAnswers(triples, graph.num_entities, graph.num_relations)
    rank_queries(model, *both_sides(graph.test.to(device())), known)
    wait()
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scaling.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        job = json.loads(args.one)
        print(json.dumps({"index": index, "umls": umls}[job]() if isinstance(job, str) else rank_random(*job)))
        return
    results = []
    for job in [*ROWS, "index", "umls"]:
        command = [sys.executable, __file__, "--one", json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode:
            print(f"{job}: {(done.stderr.strip().splitlines() or ['killed'])[-1]}", file=sys.stderr)
            continue
        results.append({"job": job} | json.loads(done.stdout.strip().splitlines()[-1]))
        print(results[-1], flush=True)
        args.out.write_text(json.dumps({"device": str(device()), "rows": results}, indent=1))


if __name__ == "__main__":
    main()
