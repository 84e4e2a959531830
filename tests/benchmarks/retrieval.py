"""Exact ranks of one relevant document for each of many queries, among all documents, against bare products.

    python tests/benchmarks/retrieval.py [--queries 10000 --documents 1000000 --dim 256] [--out retrieval.json]

`rank_queries` on vectors held in memory, as `task=retrieval` calls it, compiled before, on `OMP_NUM_THREADS` threads.
Time is the processor's, of all threads; so is that of the products, as many multiplications at the best rate of
[1024, dim] x [dim, 4096] into memory that stays in the caches, measured right before and after. Memory is the peak
(`VmHWM`) of the process above its queries and documents.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from large import gemm_rate, status

from kgc.models.similarity import Dot, Euclidean
from kgc.ranking import RankingOptions, rank_queries
from kgc.runtime import prepare_process
from kgc.scorers import VectorScorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--similarity", choices=("dot", "l2"), default="dot")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    prepare_process()
    generator = torch.Generator().manual_seed(0)
    documents = torch.randn(args.documents, args.dim, generator=generator)
    relevant = torch.randint(args.documents, (args.queries,), generator=generator)
    queries = torch.randn(args.queries, args.dim, generator=generator) + 0.2 * documents[relevant]
    scorer = VectorScorer(queries, documents, {"dot": Dot, "l2": Euclidean}[args.similarity]())
    asked = scorer.queries(torch.arange(args.queries))
    options = RankingOptions(compile=True)
    rank_queries(scorer, asked[:100], relevant[:100], None, options)
    rates = [gemm_rate(args.dim, 4096)]
    began, wall = time.process_time(), time.perf_counter()
    counts = rank_queries(scorer, asked, relevant, None, options)
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    rates.append(gemm_rate(args.dim, 4096))
    products = 2.0 * args.queries * args.documents * args.dim / max(rates)
    result = {
        "threads": torch.get_num_threads(),
        "mrr": float((1 / (1 + counts.better + counts.equal / 2)).mean()),
        "seconds": seconds,
        "wall_seconds": wall,
        "gflops": [rate / 1e9 for rate in rates],
        "times_the_products": seconds / products,
        "above_mib": (status("VmHWM") - 4 * args.dim * (args.queries + args.documents)) / 2**20,
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(vars(args) | result, indent=1, default=str))


if __name__ == "__main__":
    main()
