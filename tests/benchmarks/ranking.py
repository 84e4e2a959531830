"""Speed of filtered ranking: kgc against its peers, on one machine, in one run.

    python tests/benchmarks/ranking.py [--data fb15k237 wn18rr] [--models distmult complex …] [--out ranking.json]

Random vectors of 256 real numbers an entity, the whole test split, both sides, filtered with train, valid and test, on
whatever device is there. Every cell is a process of its own, so that peak memory is that of the engine; each measures
the machine's fp32 matrix products right before and after, and states its share of that rate over the distinct queries.
Peers rank a sample where a whole split would take hours; each is given several batch sizes and its best is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

DIM = 256
MODELS = ("distmult", "complex", "transe-l2", "transe-l1", "rotate")
ENGINES = ("kgc certified", "kgc block", "kbc's algorithm", "PyKEEN", "TorchKGE")
SAMPLE = {"PyKEEN": 256, "TorchKGE": 128}
BATCHES = {"PyKEEN": (32, 128, 256), "TorchKGE": (16, 64, 128)}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gemm_rate() -> float:
    """Best rate of fp32 products with 256 terms, in multiplications and additions per second."""
    a, b = torch.randn(4096, DIM, device=device()), torch.randn(DIM, 4096, device=device())
    out = torch.empty(4096, 4096, device=device())
    best = float("inf")
    for _ in range(12):
        wait()
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        wait()
        best = min(best, time.perf_counter() - began)
    return 2 * 4096 * 4096 * DIM / best


def load(name: str):
    from kgc.data.catalogue import load_dataset

    return load_dataset(name)


def make_model(name: str, graph):
    from torch.nn.init import normal_

    from kgc.models.complex import ComplEx
    from kgc.models.distmult import DistMult
    from kgc.models.rotate import RotatE
    from kgc.models.transe import TransE

    sizes = (graph.num_entities, graph.num_relations, DIM)
    random = {"entity_init": normal_, "relation_init": normal_}
    return {
        "distmult": lambda: DistMult(*sizes, **random),
        "complex": lambda: ComplEx(*sizes, **random),
        "transe-l2": lambda: TransE(*sizes, norm=2, **random),
        "transe-l1": lambda: TransE(*sizes, norm=1, **random),
        "rotate": lambda: RotatE(*sizes, **random),
    }[name]()


def both_sides(triples):
    """All queries of a split and their targets."""
    from kgc.types import Queries, Side

    parts = [triples.queries(side) for side in Side]
    side = torch.tensor(list(Side), device=triples.head.device).repeat_interleave(len(triples))
    queries = Queries(torch.cat([p.anchor for p in parts]), torch.cat([p.relation for p in parts]), side)
    return queries, torch.cat([triples.target(side) for side in Side])


def run_kgc(graph, name: str, precision: str) -> dict:
    from kgc.data.known import KnownAnswers
    from kgc.ranking import RankingOptions, rank_queries
    from kgc.runtime import prepare_process
    from kgc.types import Triples

    prepare_process()  # as the command line does
    model = make_model(name, graph).to(device()).eval()
    wait()
    began = time.perf_counter()
    triples = Triples.cat([graph.train, graph.valid, graph.test]).to(device())
    known = KnownAnswers(triples, graph.num_entities, graph.num_relations)
    wait()
    index = time.perf_counter() - began
    queries, targets = both_sides(graph.test.to(device()))
    options = RankingOptions(precision=precision, compile=True)
    rank_queries(model, queries, targets, known, options)  # compiles, and measures shapes of blocks
    times = []
    for _ in range(3):
        wait()
        began = time.perf_counter()
        counts = rank_queries(model, queries, targets, known, options)
        wait()
        times.append(time.perf_counter() - began)
    return {"seconds": min(times), "triples": len(graph.test), "index_seconds": index, "mrr": mrr(counts.realistic)}


def mrr(ranks) -> float:
    return float((1 / ranks.double()).mean())


def run_kbc(graph, name: str) -> dict:
    """The algorithm of kbc's evaluation: one product a batch, a Python list of known answers a query, ranks by >=."""
    from kgc.types import Queries, Side

    model = make_model(name, graph).to(device()).eval()
    skip = defaultdict(list)
    for split in (graph.train, graph.valid, graph.test):
        columns = (x.tolist() for x in (split.head, split.relation, split.tail))
        for head, relation, tail in zip(*columns, strict=True):
            skip[Side.TAIL, head, relation].append(tail)
            skip[Side.HEAD, tail, relation].append(head)
    best = float("inf")
    triples = graph.test.to(device())
    for batch in (100, 500, 1000):
        began = time.perf_counter()
        ranks = []
        for side in Side:
            queries, targets = triples.queries(side), triples.target(side)
            for start in range(0, len(triples), batch):
                part: Queries = queries[start : start + batch]
                mine = targets[start : start + batch]
                with torch.no_grad():
                    scores = model.query_vectors(part) @ model.entity.weight.T
                reached = scores.gather(1, mine.unsqueeze(1))
                keys = zip(part.anchor.tolist(), part.relation.tolist(), mine.tolist(), strict=True)
                for i, (anchor, relation, target) in enumerate(keys):
                    scores[i, torch.tensor([*skip[side, anchor, relation], target], device=scores.device)] = -1e6
                ranks.append(1 + (scores >= reached).float().sum(1))
        wait()
        best = min(best, time.perf_counter() - began)
    return {"seconds": best, "triples": len(triples), "mrr": mrr(torch.cat(ranks))}


def run_pykeen(graph, name: str) -> dict:
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx, DistMult, RotatE, TransE
    from pykeen.triples import CoreTriplesFactory

    def mapped(triples):
        return torch.stack([triples.head, triples.relation, triples.tail], dim=1)

    factory = CoreTriplesFactory(mapped(graph.train), graph.num_entities, graph.num_relations)
    make = {
        "distmult": lambda: DistMult(triples_factory=factory, embedding_dim=DIM),
        "complex": lambda: ComplEx(triples_factory=factory, embedding_dim=DIM // 2),
        "transe-l2": lambda: TransE(triples_factory=factory, embedding_dim=DIM, scoring_fct_norm=2),
        "transe-l1": lambda: TransE(triples_factory=factory, embedding_dim=DIM, scoring_fct_norm=1),
        "rotate": lambda: RotatE(triples_factory=factory, embedding_dim=DIM // 2),
    }
    model = make[name]().to(device())
    size = min(SAMPLE["PyKEEN"], len(graph.test))
    sample = mapped(graph.test)[torch.randperm(len(graph.test), generator=torch.Generator().manual_seed(0))[:size]]
    best = float("inf")
    for batch in BATCHES["PyKEEN"]:
        began = time.perf_counter()
        RankBasedEvaluator(filtered=True).evaluate(
            model,
            mapped_triples=sample,
            additional_filter_triples=[mapped(graph.train), mapped(graph.valid), mapped(graph.test)],
            batch_size=batch,
            use_tqdm=False,
        )
        best = min(best, time.perf_counter() - began)
    return {"seconds": best, "triples": size}


def run_torchkge(graph, name: str) -> dict:
    from torchkge.data_structures import KnowledgeGraph
    from torchkge.evaluation import LinkPredictionEvaluator
    from torchkge.models import ComplExModel, DistMultModel, TransEModel

    make = {
        "distmult": lambda: DistMultModel(DIM, graph.num_entities, graph.num_relations),
        "complex": lambda: ComplExModel(DIM // 2, graph.num_entities, graph.num_relations),
        "transe-l2": lambda: TransEModel(DIM, graph.num_entities, graph.num_relations, dissimilarity_type="L2"),
        "transe-l1": lambda: TransEModel(DIM, graph.num_entities, graph.num_relations, dissimilarity_type="L1"),
    }
    answers = {"heads": defaultdict(set), "tails": defaultdict(set)}
    for split in (graph.train, graph.valid, graph.test):
        columns = (x.tolist() for x in (split.head, split.relation, split.tail))
        for head, relation, tail in zip(*columns, strict=True):
            answers["heads"][tail, relation].add(head)
            answers["tails"][head, relation].add(tail)
    size = min(SAMPLE["TorchKGE"], len(graph.test))
    sample = graph.test[torch.randperm(len(graph.test), generator=torch.Generator().manual_seed(0))[:size]]
    kg = KnowledgeGraph(
        kg={"heads": sample.head, "tails": sample.tail, "relations": sample.relation},
        ent2ix={label: i for i, label in enumerate(graph.entities.labels)},
        rel2ix={label: i for i, label in enumerate(graph.relations.labels)},
        dict_of_heads=answers["heads"],
        dict_of_tails=answers["tails"],
        dict_of_rels=defaultdict(set),
    )
    model = make[name]().to(device())
    best = float("inf")
    for batch in BATCHES["TorchKGE"]:
        began = time.perf_counter()
        LinkPredictionEvaluator(model, kg).evaluate(b_size=batch, verbose=False)
        best = min(best, time.perf_counter() - began)
    return {"seconds": best, "triples": size}


def peak_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def one(data: str, model: str, engine: str) -> dict:
    """One cell of the table, measured in this process."""
    graph = load(data)
    before_rate, before_bytes = gemm_rate(), peak_bytes()
    run = {
        "kgc certified": lambda: run_kgc(graph, model, "certified"),
        "kgc block": lambda: run_kgc(graph, model, "block"),
        "kbc's algorithm": lambda: run_kbc(graph, model),
        "PyKEEN": lambda: run_pykeen(graph, model),
        "TorchKGE": lambda: run_torchkge(graph, model),
    }[engine]
    result = run()
    result["peak_mib"] = (peak_bytes() - before_bytes) / 2**20
    rate = max(before_rate, gemm_rate())
    queries, _ = both_sides(graph.test)
    key = (queries.side * graph.num_relations + queries.relation) * graph.num_entities + queries.anchor
    flops = 2 * len(key.unique()) * graph.num_entities * DIM * result["triples"] / len(graph.test)
    result |= {"triples_per_second": result["triples"] / result["seconds"], "gemm_gflops": rate / 1e9}
    result["share_of_gemm"] = flops / result["seconds"] / rate
    return result


def possible(model: str, engine: str) -> bool:
    if engine == "kbc's algorithm":
        return model in ("distmult", "complex")
    return not (engine == "TorchKGE" and model == "rotate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["fb15k237", "wn18rr"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--out", type=Path, default=Path("ranking.json"))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(*args.one)))
        return
    results = []
    for data in args.data:
        for model in args.models:
            for engine in filter(lambda e: possible(model, e), args.engines):
                command = [sys.executable, __file__, "--one", data, model, engine]
                done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
                if done.returncode:
                    last = (done.stderr.strip().splitlines() or ["killed"])[-1]
                    print(f"{data} {model} {engine}: {last}", file=sys.stderr)
                    continue
                results.append({"data": data, "model": model, "engine": engine, **json.loads(done.stdout)})
                show(results[-1], results)
                rows = {"device": str(device()), "threads": torch.get_num_threads(), "rows": results}
                args.out.write_text(json.dumps(rows, indent=1))


def show(row: dict, rows: list[dict]) -> None:
    base = [r for r in rows if (r["data"], r["model"]) == (row["data"], row["model"]) and r["engine"].startswith("kgc")]
    ratio = (
        ""
        if row in base or not base
        else f"   kgc is {base[0]['triples_per_second'] / row['triples_per_second']:,.1f}x"
    )
    print(
        f"{row['data']:9} {row['model']:10} {row['engine']:16} {row['triples_per_second']:10,.0f} triples/s"
        f"  {row['share_of_gemm']:6.1%} of {row['gemm_gflops']:,.0f} GFLOP/s  {row['peak_mib']:7,.0f} MiB{ratio}",
        flush=True,
    )


if __name__ == "__main__":
    main()
