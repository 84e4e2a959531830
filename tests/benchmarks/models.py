"""Speed of filtered ranking of every model of `conf/model/`, relative to DistMult, on FB15k-237 or another data set.

    python tests/benchmarks/models.py [--models rescal hake …] [--triples 2048] [--rounds 3] [--out models.json]

Random vectors of 256 real numbers an entity, both sides, filtered, on one thread. Rounds rank with the model and with
DistMult in turn; the ratio is that of the best processor times of all rounds, so that other work on the machine counts
little. `--triples` takes a sample of the test split: models that project candidates once for each relation are then
slower relative to DistMult than on the whole split, which is the default. Models of paths and of rules are left out:
their cost is that of the graph.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from omegaconf import OmegaConf
from ranking import both_sides, load

from kgc.data.known import KnownAnswers
from kgc.data.sample import sample_triples
from kgc.models.base import KGEModel
from kgc.paths import config_dir
from kgc.ranking import RankingOptions, is_certified, rank_queries
from kgc.runtime import prepare_process
from kgc.tasks.build import build_model
from kgc.types import Triples

DIM = 256
BASE = "distmult"
OF_THE_GRAPH = ("drum", "nbfnet", "rules")


def make(name: str, graph) -> KGEModel:
    """A model with normally distributed tables, in evaluation mode."""
    file = OmegaConf.load(config_dir() / "model" / f"{name}.yaml")
    cfg = OmegaConf.merge({"model": file}, {"model": {"dim": DIM}})
    model = build_model(cfg, graph.num_entities, graph.num_relations, graph.train)
    with torch.no_grad():
        for table in (model.entity.weight, model.relation.weight):
            table.normal_()
    return model.eval()


class Ranking:
    """The same queries, ranked with any model."""

    def __init__(self, graph, triples: Triples):
        self.queries, self.targets = both_sides(triples)
        splits = Triples.cat([graph.train, graph.valid, graph.test])
        self.known = KnownAnswers(splits, graph.num_entities, graph.num_relations)
        self.options = RankingOptions(compile=True)

    def seconds(self, model: KGEModel) -> float:
        """Of processor time."""
        began = time.process_time()
        with getattr(model, "one_pass", nullcontext)():  # an encoder makes its table once for a split
            rank_queries(model, self.queries, self.targets, self.known, self.options)
        return time.process_time() - began


def main() -> None:
    names = sorted(path.stem for path in (config_dir() / "model").glob("*.yaml") if path.stem not in OF_THE_GRAPH)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fb15k237")
    parser.add_argument("--models", nargs="+", default=[name for name in names if name != BASE], choices=names)
    parser.add_argument("--triples", type=int, help="of the test split, a random sample; all if not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("models.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    prepare_process()  # as the command line does
    graph = load(args.data)
    triples = sample_triples(graph.test, args.triples, 0) if args.triples else graph.test
    ranking = Ranking(graph, triples)
    base = make(BASE, graph)
    ranking.seconds(base)  # compiles, and measures shapes of blocks
    rows = []
    print(f"{'model':10} {'triples/s':>10} {'DistMult':>10} {'times':>6}  ranks")
    for name in args.models:
        model = make(name, graph)
        ranking.seconds(model)
        own, others = [], [ranking.seconds(base)]
        for _ in range(args.rounds):
            own.append(ranking.seconds(model))
            others.append(ranking.seconds(base))
        seconds, base_seconds = min(own), min(others)
        how = "certified" if is_certified(model, ranking.options) else "block"
        rows.append({"model": name, "seconds": seconds, "distmult_seconds": base_seconds, "path": how})
        speeds = (len(triples) / each for each in (seconds, base_seconds))
        print(f"{name:10} {' '.join(f'{s:10,.0f}' for s in speeds)} {seconds / base_seconds:6.2f}  {how}", flush=True)
        args.out.write_text(
            json.dumps({"data": args.data, "triples": len(triples), "dim": DIM, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
