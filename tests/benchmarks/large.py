"""A graph of 5 million entities and 20 million triples: loaded, trained for 1,000 steps and ranked, on one thread.

    python tests/benchmarks/large.py [--entities 5000000 --triples 20000000 --dim 64] [--out large.json]

`dataset=synthetic`, DistMult, row-wise Adagrad with sparse gradients, 64 negatives shared by a batch of 2,048, an epoch
that ends after 1,000 steps; then 1,000 queries against all entities, as shares of the machine's rates of products (by
processor time, in the same process): of products that stay in the caches, and of products with the same table.
Training and ranking are processes of their own; memory is the peak of each (`VmHWM`, mapped files included) above the
table and the optimizer's state.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

STEPS, QUERIES = 1000, 1000


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def train(args: argparse.Namespace, folder: Path) -> dict:
    """`python train.py` on the graph, in this process."""
    from hydra import compose, initialize_config_dir

    from kgc.paths import config_dir
    from kgc.tasks import train as task

    marks: dict[str, float] = {}

    def timed(module: object, name: str, mark: str) -> None:
        function = getattr(module, name)

        def wrapped(*arguments: object, **options: object) -> object:
            began = time.process_time()
            result = function(*arguments, **options)
            marks[mark] = marks.get(mark, 0.0) + time.process_time() - began
            marks[f"{mark}_peak_mib"] = status("VmHWM") / 2**20
            print(mark, marks[mark], marks[f"{mark}_peak_mib"], file=sys.stderr, flush=True)
            return result

        setattr(module, name, wrapped)

    build = task.build_trainer
    task.build_trainer = lambda *arguments, **options: build(*arguments, limit_train_batches=STEPS, **options)
    timed(task, "build_graph", "load")
    timed(task, "build_training", "build")
    timed(task, "interruptible", "fit")
    timed(task, "read_weights", "read_best")
    timed(task, "rank_split", "rank")
    words = [
        "dataset=synthetic",
        f"dataset.num_entities={args.entities}",
        "dataset.num_relations=1000",
        f"dataset.num_triples={args.triples}",
        "dataset.num_valid=10",
        f"dataset.num_test={QUERIES // 2}",
        "model=distmult",
        f"model.dim={args.dim}",
        "sampler=shared",
        "sampler.num_negatives=64",
        "optimizer=rowwise_adagrad",
        "optimizer.sparse=true",
        "batch_size=2048",
        "test=false",  # ranked below
        "scheduler=none",
        "trainer=cpu",
        "trainer.max_epochs=1",
        "logger=none",
    ]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=words)
    metrics = task.train(cfg, folder, words)
    return {"valid/mr": metrics["valid/mr"]} | marks


def rank(args: argparse.Namespace, folder: Path) -> dict:
    """The test split of the trained model, as `evaluate.py` ranks it, against products of the same thread."""
    from hydra import compose, initialize_config_dir
    from ranking import both_sides

    from kgc.console import Terminal
    from kgc.data.known import KnownAnswers, relevant
    from kgc.paths import config_dir
    from kgc.ranking import RankingOptions, rank_queries
    from kgc.runtime import prepare_process
    from kgc.tasks.evaluate import load

    prepare_process()
    began = time.process_time()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("evaluate", overrides=[f"checkpoint={folder}/checkpoints/best.ckpt", "trainer=cpu"])
    graph, model, _ = load(cfg, Terminal(active=False))
    loaded = time.process_time() - began
    began = time.process_time()
    sizes = (graph.num_entities, graph.num_relations)
    known = KnownAnswers(relevant([graph.stored(s) for s in ("train", "valid", "test")], graph.test, *sizes), *sizes)
    index = time.process_time() - began
    queries, targets = both_sides(graph.test)
    distinct = len(set(zip(queries.anchor.tolist(), queries.relation.tolist(), queries.side.tolist(), strict=True)))
    options, rates = RankingOptions(compile=args.compile), [gemm_rate(args.dim)]
    if args.compile:
        rank_queries(model.eval(), queries[:100], targets[:100], known, options)
    began = time.process_time()
    rank_queries(model.eval(), queries, targets, known, options)
    seconds = time.process_time() - began
    rates.append(gemm_rate(args.dim))
    streamed = streamed_rate(model.candidate_vectors())
    work = 2.0 * distinct * graph.num_entities * args.dim
    return {
        "load": loaded,
        "index": index,
        "distinct_queries": distinct,
        "rank_seconds": seconds,
        "gemm_gflops": [rate / 1e9 for rate in rates],
        "share_of_gemm": work / seconds / max(rates),
        "streamed_gflops": streamed / 1e9,
        "share_of_streamed": work / seconds / streamed,
    }


def gemm_rate(width: int, columns: int = 2048) -> float:
    """Best rate of fp32 products with so many terms, in multiplications and additions per second of this thread."""
    a, b = torch.randn(1024, width), torch.randn(columns, width)
    out = torch.empty(1024, columns)
    best = float("inf")
    for _ in range(40):
        began = time.process_time()
        torch.mm(a, b.T, out=out)
        best = min(best, time.process_time() - began)
    return 2 * 1024 * columns * width / best


@torch.no_grad()
def streamed_rate(table: torch.Tensor, rows: int = 1024, columns: int = 4096) -> float:
    """The same of products with a whole [E, D] table, read from memory, into blocks of the size that ranking uses."""
    queries, out = torch.randn(rows, table.shape[1]), torch.empty(rows, columns)
    whole = len(table) // columns * columns
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for start in range(0, whole, columns):
            torch.mm(queries, table[start : start + columns].T, out=out)
        best = min(best, time.process_time() - began)
    return 2.0 * rows * whole * table.shape[1] / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=5_000_000)
    parser.add_argument("--triples", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("large.json"))
    parser.add_argument("--folder", type=Path, help="keeps the run there; without it a temporary folder is used")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="of ranking")
    parser.add_argument("--only", choices=("train", "rank"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only:
        result = {"train": train, "rank": rank}[args.only](args, args.folder)
        table = 4 * args.dim * args.entities
        state = 4 * args.entities if args.only == "train" else 0
        print(
            json.dumps(
                result
                | {
                    "peak_mib": status("VmHWM") / 2**20,
                    "table_and_state_mib": (table + state) / 2**20,
                    "above_mib": (status("VmHWM") - table - state) / 2**20,
                    "processor_seconds": time.process_time(),
                }
            )
        )
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary) / "run"
        results = {}
        for part in ("train", "rank"):
            words = [f"--{name}={getattr(args, name)}" for name in ("entities", "triples", "dim")]
            words.append("--compile" if args.compile else "--no-compile")
            command = [sys.executable, __file__, "--only", part, "--folder", str(folder), *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ, check=True)
            results[part] = json.loads(done.stdout.strip().splitlines()[-1])
            print(part, results[part], flush=True)
        args.out.write_text(json.dumps(vars(args) | results, indent=1, default=str))


if __name__ == "__main__":
    main()
