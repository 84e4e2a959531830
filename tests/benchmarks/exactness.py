"""Certified ranks against a float64 brute force, on whole test splits.

    python tests/benchmarks/exactness.py [--data fb15k237 wn18rr] [--models complex …] [--checkpoint PATH]

Vectors: random; random with 30 % of the entities copies of others; or those of a checkpoint. The brute force scores all
entities in float64 with torch's own products and distances, masks known answers by a loop over a dict of sets, and
compares. Prints how many of all ranks differ, for the certified and for the block path.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from ranking import MODELS, both_sides, load, make_model

from kgc.data.known import KnownAnswers
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Side, Triples


def brute_force(model, name: str, graph) -> tuple[torch.Tensor, torch.Tensor]:
    """[2T] better and equal by float64 scores, heads first."""
    answers = defaultdict(set)
    for split in (graph.train, graph.valid, graph.test):
        columns = (x.tolist() for x in (split.head, split.relation, split.tail))
        for head, relation, tail in zip(*columns, strict=True):
            answers[Side.TAIL, head, relation].add(tail)
            answers[Side.HEAD, tail, relation].add(head)
    table = model.entity.weight.double()
    better, equal = [], []
    for side in Side:
        queries, targets = graph.test.queries(side), graph.test.target(side)
        for start in range(0, len(targets), 256):
            part, mine = queries[start : start + 256], targets[start : start + 256]
            query = model.exact_query_vectors(part)
            scores = float64_scores(name, query, table)
            own = scores.gather(1, mine.unsqueeze(1))
            for i, (anchor, relation) in enumerate(zip(part.anchor.tolist(), part.relation.tolist(), strict=True)):
                scores[i, list(answers[side, anchor, relation])] = -torch.inf
            better.append((scores > own).sum(1))
            equal.append((scores == own).sum(1))
    return torch.cat(better), torch.cat(equal)


def float64_scores(name: str, query: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    if name in ("distmult", "complex"):
        return query @ table.T
    if name == "rotate":
        half = table.shape[1] // 2
        q, c = torch.complex(query[:, :half], query[:, half:]), torch.complex(table[:, :half], table[:, half:])
        return torch.cat([-(row - c).abs().sum(-1, keepdim=True).T for row in q.unsqueeze(1)])
    p = 2.0 if name == "transe-l2" else 1.0
    return -torch.cdist(query, table, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def one_row(model, query, target: torch.Tensor, known: KnownAnswers) -> tuple[int, int]:
    """Better and equal of one query by one elementwise float64 sum a candidate."""
    scores = (model.exact_query_vectors(query) * model.entity.weight.double()).sum(-1)
    own = scores[target].clone()
    scores[known.answers(query)[1]] = -torch.inf
    return int((scores > own).sum()), int((scores == own).sum())


def compare(model, name: str, graph, vectors: str) -> None:
    triples = Triples.cat([graph.train, graph.valid, graph.test])
    known = KnownAnswers(triples, graph.num_entities, graph.num_relations)
    queries, targets = both_sides(graph.test)
    began = time.perf_counter()
    better, equal = brute_force(model, name, graph)
    slow = time.perf_counter() - began
    for precision in ("certified", "block"):
        began = time.perf_counter()
        counts = rank_queries(model, queries, targets, known, RankingOptions(precision=precision))
        seconds = time.perf_counter() - began
        differ = ((counts.better != better) | (counts.equal != equal)).nonzero().squeeze(-1)
        if precision == "certified" and name in ("distmult", "complex"):
            # A float64 product gives equal vectors unequal bits at its edges; one sum a row does not.
            for i in differ.tolist():
                better[i], equal[i] = one_row(model, queries[i : i + 1], targets[i], known)
        wrong = int(((counts.better != better) | (counts.equal != equal)).sum())
        print(
            f"{graph.name:9} {name:10} {vectors:14} {precision:10} {wrong:6,} of {len(better):,} ranks differ  "
            f"({seconds:.1f} s, brute force {slow:.0f} s, {int((equal > 0).sum()):,} tied)",
            flush=True,
        )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["fb15k237", "wn18rr"])
    parser.add_argument("--models", nargs="+", default=["complex", "transe-l2"], choices=MODELS)
    parser.add_argument("--checkpoint")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.checkpoint:
        from kgc.tasks.build import build_graph, build_model, load_weights, read_checkpoint

        checkpoint = read_checkpoint(args.checkpoint)
        graph = build_graph(checkpoint.config, checkpoint.entities, checkpoint.relations)
        model = build_model(checkpoint.config, graph.num_entities, graph.num_relations).eval()
        load_weights(model, checkpoint)
        compare(model, type(model).__name__.lower(), graph, "trained")
        return
    for data in args.data:
        graph = load(data)
        for name in args.models:
            model = make_model(name, graph).eval()
            compare(model, name, graph, "random")
            copies = torch.randperm(graph.num_entities)[: int(0.3 * graph.num_entities)]
            sources = torch.randint(graph.num_entities, (len(copies),))
            model.entity.weight[copies] = model.entity.weight[sources]
            compare(model, name, graph, "30 % duplicates")


if __name__ == "__main__":
    main()
