"""Speed of training steps: kgc against its peers, on one machine, in one run.

    python tests/benchmarks/training.py [--models transe rotate complex] [--negatives 64 256] [--out training.json]

FB15k-237 (its triples; values are those of an untrained model), 256 real numbers an entity, batches of 1,024 triples,
Adam, self-adversarial loss for sampled negatives; 1-vs-all with Adagrad. A step is: draw, loss, gradients, optimizer.
Every cell is a process of its own, so that peak memory is that of the engine; each measures the machine's fp32 matrix
products before and after. PyKEEN's step is its own sampler, `score_hrt`, `NSSALoss` and `post_parameter_update`,
without its data loader; kbc's algorithm is written anew: products with all entities, cross-entropy by autograd.
"Own" negatives are drawn for each positive; "shared" ones once for the batch, which is another algorithm. The share of
the matrix-product rate counts a coordinate of a pair as one multiplication and addition in each of three passes
(scores, gradients of queries, gradients of candidates), whatever the distance does with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ranking import DIM, device, gemm_rate, load, peak_bytes, wait

BATCH = 1024
ENGINES = ("kgc own", "kgc shared", "PyKEEN")
ALL_ENGINES = ("kgc 1-vs-all", "kbc's algorithm")
Step = Callable[[torch.Tensor, int], None]


def step_of_kgc(graph, name: str, negatives: int, shared: bool) -> Step:
    from kgc.engine.compiled import compile_training
    from kgc.losses.pairwise import Logistic
    from kgc.models.rotate import RotatE
    from kgc.models.transe import TransE
    from kgc.objectives import NegativeSampling
    from kgc.sampling.proposals import Uniform
    from kgc.sampling.sampler import NegativeSampler
    from kgc.sampling.sides import Alternate

    make = {"transe": TransE, "rotate": RotatE}[name]
    model = make(graph.num_entities, graph.num_relations, DIM, margin=9.0).to(device())
    compile_training(model.similarity, math.inf, DIM, device())  # as the command line does for work this large
    sampler = NegativeSampler(negatives, Alternate(), Uniform(None if shared else 1), temperature=1.0)
    objective = NegativeSampling(sampler, Logistic())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return step_of_objective(graph, model, objective, optimizer)


def step_of_objective(graph, model, objective, optimizer) -> Step:
    from kgc.runtime import prepare_process

    prepare_process()  # as the command line does
    objective.setup(graph, device())
    generator = torch.Generator(device())

    def step(index: torch.Tensor, number: int) -> None:
        loss = objective.loss(model, index, number, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def step_of_one_vs_all(graph) -> Step:
    from kgc.losses.regularizers import Lp
    from kgc.models.complex import ComplEx
    from kgc.objectives import OneVsAll
    from kgc.optim import adagrad, table_groups

    model = ComplEx(graph.num_entities, graph.num_relations, DIM, reciprocal=True).to(device())
    optimizer = adagrad(table_groups(model), lr=0.1)
    return step_of_objective(graph, model, OneVsAll(regularizer=Lp(5e-2, 3)), optimizer)


def step_of_kbc(graph) -> Step:
    """The algorithm of kbc: a triple and its reciprocal, all scores, cross-entropy and N3 by autograd, Adagrad."""
    torch.set_flush_denormal(True)
    rank, entities, relations = DIM // 2, graph.num_entities, graph.num_relations
    tables = [torch.nn.Embedding(n, DIM, sparse=False).to(device()) for n in (entities, 2 * relations)]
    for table in tables:
        table.weight.data *= 1e-3
    optimizer = torch.optim.Adagrad([table.weight for table in tables], lr=0.1)
    head, relation, tail = (x.to(device()) for x in (graph.train.head, graph.train.relation, graph.train.tail))

    def step(index: torch.Tensor, number: int) -> None:
        h, r, t = head[index], relation[index], tail[index]
        anchor, asked, target = torch.cat([h, t]), torch.cat([r, r + relations]), torch.cat([t, h])
        a, b, c = tables[0](anchor), tables[1](asked), tables[0](target)
        (ar, ai), (br, bi), (cr, ci) = ((x[:, :rank], x[:, rank:]) for x in (a, b, c))
        to_real, to_imaginary = tables[0].weight[:, :rank], tables[0].weight[:, rank:]
        scores = (ar * br - ai * bi) @ to_real.T + (ar * bi + ai * br) @ to_imaginary.T
        loss = torch.nn.functional.cross_entropy(scores, target)
        sizes = (torch.sqrt(x**2 + y**2) for x, y in ((ar, ai), (br, bi), (cr, ci)))
        loss = loss + 5e-2 * sum((x**3).sum() for x in sizes) / len(anchor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def step_of_pykeen(graph, name: str, negatives: int) -> Step:
    from pykeen.losses import NSSALoss
    from pykeen.models import RotatE, TransE
    from pykeen.sampling import BasicNegativeSampler
    from pykeen.triples import CoreTriplesFactory

    torch.set_flush_denormal(True)
    mapped = torch.stack([graph.train.head, graph.train.relation, graph.train.tail], dim=1)
    factory = CoreTriplesFactory(mapped, graph.num_entities, graph.num_relations)
    loss = NSSALoss(margin=9.0, adversarial_temperature=1.0)
    if name == "transe":
        model = TransE(triples_factory=factory, embedding_dim=DIM, scoring_fct_norm=1, loss=loss)
    else:
        model = RotatE(triples_factory=factory, embedding_dim=DIM // 2, loss=loss)
    model = model.to(device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    sampler = BasicNegativeSampler(mapped_triples=mapped, num_negs_per_pos=negatives)
    mapped = mapped.to(device())

    def step(index: torch.Tensor, number: int) -> None:
        positive = mapped[index]
        corrupted = sampler.corrupt_batch(positive)
        optimizer.zero_grad()
        right = model.score_hrt(positive)
        wrong = model.score_hrt(corrupted.view(-1, 3)).view(len(positive), negatives)
        model.loss.process_slcwa_scores(right, wrong).backward()
        optimizer.step()
        model.post_parameter_update()

    return step


def one(model: str, engine: str, negatives: int, steps: int) -> dict:
    """One cell of the table, measured in this process: the best of `steps` steps after two to warm up."""
    graph = load("fb15k237")
    before_rate, before_bytes = gemm_rate(), peak_bytes()
    step = {
        "kgc own": lambda: step_of_kgc(graph, model, negatives, shared=False),
        "kgc shared": lambda: step_of_kgc(graph, model, negatives, shared=True),
        "PyKEEN": lambda: step_of_pykeen(graph, model, negatives),
        "kgc 1-vs-all": lambda: step_of_one_vs_all(graph),
        "kbc's algorithm": lambda: step_of_kbc(graph),
    }[engine]()
    best = float("inf")
    generator = torch.Generator().manual_seed(0)
    for number in range(steps + 2):
        index = torch.randint(len(graph.train), (BATCH,), generator=generator).to(device())
        wait()
        began = time.perf_counter()
        step(index, number)
        wait()
        if number >= 2:
            best = min(best, time.perf_counter() - began)
    result = {"triples_per_second": BATCH / best, "peak_mib": (peak_bytes() - before_bytes) / 2**20}
    rate = max(before_rate, gemm_rate())
    # 1-vs-all asks two queries a triple of all entities, an engine of negatives one.
    pairs = BATCH * (2 * graph.num_entities if engine in ALL_ENGINES else 1 + negatives)
    # Three passes: scores, and gradients of queries and of candidates.
    share = 3 * 2 * pairs * DIM / best / rate
    return result | {"share_of_gemm": share, "gemm_gflops": rate / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["transe", "rotate", "complex"])
    parser.add_argument("--negatives", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("training.json"))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one[0], args.one[1], int(args.one[2]), args.steps)))
        return
    cells = [(m, n, e) for m in args.models if m != "complex" for n in args.negatives for e in ENGINES]
    cells += [("complex", 0, engine) for engine in ALL_ENGINES if "complex" in args.models]
    results: list[dict] = []
    for model, negatives, engine in cells:
        command = [sys.executable, __file__, "--steps", str(args.steps), "--one", model, engine, str(negatives)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode:
            print(f"{model} {engine}: {(done.stderr.strip().splitlines() or ['killed'])[-1]}", file=sys.stderr)
            continue
        row = {"model": model, "negatives": negatives, "engine": engine}
        results.append(row | json.loads(done.stdout.strip().splitlines()[-1]))
        rows = {"device": str(device()), "threads": torch.get_num_threads(), "rows": results}
        args.out.write_text(json.dumps(rows, indent=1))
    show(results)


def show(rows: list[dict]) -> None:
    for row in rows:
        peers = [
            r
            for r in rows
            if (r["model"], r["negatives"]) == (row["model"], row["negatives"]) and not r["engine"].startswith("kgc")
        ]
        ratio = row["triples_per_second"] / peers[0]["triples_per_second"] if peers else float("nan")
        print(
            f"{row['model']:8} {row['negatives']:4} {row['engine']:16} {row['triples_per_second']:9,.0f} triples/s"
            f"  {ratio:5.1f}x the peer  {row['share_of_gemm']:6.1%} of {row['gemm_gflops']:,.0f} GFLOP/s"
            f"  {row['peak_mib']:6,.0f} MiB"
        )


if __name__ == "__main__":
    main()
