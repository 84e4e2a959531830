"""Models whose entities lie on 1 to 4 processes: losses, gradients, steps and ranks, for `test_sharding.py`.

    python sharding_work.py FOLDER

writes FOLDER/found.pt: by the number of processes, what each of them found; under 0 what a model that is whole finds.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.tensor  # before the forks
from forks import together
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from small import SMALL

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.data.vocabulary import Vocabulary
from kgc.metrics.filtered_rank import FilteredRank
from kgc.optim import coalesce_gradients, table_groups
from kgc.paths import config_dir
from kgc.ranking import RankingOptions, rank_queries
from kgc.sharding import sharded
from kgc.types import Queries, Side, Triples

E, R, D, T = 23, 3, 8, 60
TRAINED = ("distmult", "rotate", "transh", "rote", "ermlp", "conve", "toruse")
CASES = {
    "own": ["sampler=adversarial", "sampler.num_negatives=5", "regularizer=l2"],
    "many": ["sampler=uniform", "sampler.num_negatives=20"],
    "pools": ["sampler=shared", "sampler.num_negatives=7", "sampler.proposal.share=4"],
    "pool": ["sampler=shared", "sampler.num_negatives=7"],
    "batch": ["sampler=in_batch", "sampler.num_negatives=64"],
    "one": ["sampler=uniform", "sampler.num_negatives=1"],
    "cache": ["sampler=cache", "sampler.num_negatives=3", "sampler.proposal.cache_size=5"],
    "kbgan": ["sampler=kbgan", "sampler.proposal.pool_size=8", "sampler.proposal.generator.dim=4"],
    "one_vs_all": ["objective=one_vs_all", "objective.label_smoothing=0.1"],
    "sharp": ["objective=one_vs_all", "objective.relation_weight=0.5"],
    "k_vs_all": ["objective=k_vs_all", "regularizer=l2"],
    "plain": ["objective=k_vs_all", "objective.label_smoothing=0"],
}
ONLY_DOT = {"n3": ["objective=one_vs_all", "regularizer=n3"], "dura": ["objective=one_vs_all", "regularizer=dura"]}


def triples(number: int, seed: int) -> Triples:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(n, (number,), generator=generator) for n in (E, R, E)]
    return Triples(*rows)


@functools.cache  # made before the forks: Polars has threads
def graph() -> KnowledgeGraph:
    entities, relations = (Vocabulary([f"{x}{i:02}" for i in range(n)]) for x, n in (("e", E), ("r", R)))
    return KnowledgeGraph("drawn", entities, relations, triples(T, 0), Triples.empty(), Triples.empty())


@functools.cache
def config(*words: str) -> Any:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("train", overrides=list(words))


def made(layout: tuple[int, int] | None, name: str, words: list[str]) -> tuple[Any, Any, Any]:
    """A model and an objective, set up, and the config."""
    small = [f"model.{key}={value}" for key, value in SMALL.get(name, {}).items()]
    if name == "conve":
        small += [f"model.{part}_dropout=0" for part in ("input", "feature", "hidden")]
    cfg = config(f"model={name}", f"model.dim={D}", *small, *words)
    torch.manual_seed(1)
    with sharded(layout):
        model = instantiate(cfg.model, _convert_="all", num_entities=E, num_relations=R)
    if layout is not None:
        connect(model, layout[1])
    objective = instantiate(cfg.objective, _convert_="all")
    objective.setup(graph(), torch.device("cpu"))
    return model.train(), objective, cfg


def connect(model: Any, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    model.shard.connect(init_device_mesh("cpu", (size,)))


def loss(model: Any, objective: Any, step: int) -> torch.Tensor:
    torch.manual_seed(step)
    index = torch.arange(11) if hasattr(objective, "triples") else torch.arange(9)
    return objective.loss(model, index, step, torch.Generator().manual_seed(step))


def whole(model: Any, table: torch.Tensor) -> torch.Tensor:
    """The rows of all processes, in order."""
    shard = model.shard
    if shard is None:
        return table
    padded = torch.zeros(shard.most, *table.shape[1:]).index_copy(0, torch.arange(len(table)), table)
    return shard.gathered(padded).flatten(0, 1)[: shard.rows]


def trained(layout: tuple[int, int] | None) -> dict[str, Any]:
    """Loss and gradients of each model and objective, and what rows are after steps of row-wise optimizers."""
    found: dict[str, Any] = {}
    for name in TRAINED:
        for case, words in (CASES | (ONLY_DOT if name == "distmult" else {})).items():
            if case == "sharp" and name == "conve":
                continue  # a network for each pair of a triple and a relation
            model, objective, _ = made(layout, name, words)
            value = loss(model, objective, 3)
            value.backward()
            gradients = {n: p.grad for n, p in model.named_parameters()}
            gradients["entity.weight"] = whole(model, gradients["entity.weight"])
            found[f"{name}/{case}"] = {"loss": value.detach(), **gradients}
    for optimizer in ("adam", "adagrad", "rowwise_adagrad", "sgd"):
        words = [*CASES["own"], f"optimizer={optimizer}", "optimizer.sparse=true", "optimizer.lr=0.1"]
        model, objective, cfg = made(layout, "transe", words)
        model.use_sparse_gradients()
        steps = instantiate(cfg.optimizer, _convert_="all")(table_groups(model, objective))
        for step in range(3):
            steps.zero_grad()
            loss(model, objective, step).backward()
            coalesce_gradients(steps)
            steps.step()
        found[f"sparse/{optimizer}"] = {"entity.weight": whole(model, model.entity.weight.detach())}
    model, objective, _ = made(layout, "complex", ["objective=one_vs_all", "model.entity_dropout=0.5"])
    found["dropout"] = {"loss": loss(model, objective, 3).detach(), "next": torch.rand(2)}
    return found


def asked(number: int, seed: int) -> tuple[Queries, torch.Tensor]:
    drawn = triples(number, seed)
    side = torch.randint(2, (number,), generator=torch.Generator().manual_seed(seed))
    anchor = torch.where(side == Side.HEAD, drawn.tail, drawn.head)
    return Queries(anchor, drawn.relation, side), torch.where(side == Side.HEAD, drawn.head, drawn.tail)


RANKED = ("distmult", "rotate", "transe", "transh", "rote", "roth", "ermlp", "conve")


def ranked(layout: tuple[int, int] | None) -> dict[str, Any]:
    """Counts of 1, 2 and 37 queries by each model and path, with ties, with a vector that is no number, and bytes."""
    found: dict[str, Any] = {}
    known = KnownAnswers(triples(T, 0), E, R)
    for name in RANKED:
        model, _, _ = made(layout, name, [])
        model.eval()
        rows = slice(0, E) if layout is None else slice(model.shard.first, model.shard.stop)
        table = torch.randn(E, model.entity.embedding_dim, generator=torch.Generator().manual_seed(5))
        table[[9, 17, 22]] = table[2].clone()
        broken = table.clone()
        broken[13], broken[4, 0] = torch.nan, torch.inf
        for kind, vectors in (("", table), ("broken ", broken)):
            model.entity.weight.data = vectors[rows].clone()
            for precision in ("certified", "block"):
                for block in (None, 16):
                    options = RankingOptions(precision, block=block, nonfinite="worst" if kind else "error")
                    for number in (1, 2, 37):
                        counts = rank_queries(model, *asked(number, number), known, options)
                        columns = (counts.better, counts.equal, counts.candidates, counts.nonfinite)
                        found[f"{kind}{name}/{precision}/{block}/{number}"] = torch.stack(columns)
    return found


def sent(layout: tuple[int, int]) -> dict[str, Any]:
    """Bytes that a process gives to collective calls in an evaluation of 37 queries, and those of query vectors."""
    bytes_sent = []

    def counted(function: Any, argument: int) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            tensor = arguments[argument]
            bytes_sent.append(tensor.numel() * tensor.element_size())
            return function(*arguments, **options)

        return call

    original = torch.distributed.all_reduce, torch.distributed.all_gather
    torch.distributed.all_reduce, torch.distributed.all_gather = counted(original[0], 0), counted(original[1], 1)
    found = {}
    try:
        for name in RANKED:
            for precision in ("certified", "block"):
                model, _, _ = made(layout, name, [])
                queries, targets = asked(37, 37)
                ranks = FilteredRank(queries.side)
                bytes_sent.clear()
                counts = rank_queries(model.eval(), queries, targets, None, RankingOptions(precision))
                ranks.update(torch.arange(37), counts)
                ranks.compute()
                vectors = 4 * model.entity.embedding_dim * len(queries.anchor.unique())
                found[f"{name}/{precision}"] = (sum(bytes_sent), vectors)
    finally:
        torch.distributed.all_reduce, torch.distributed.all_gather = original
    return found


def work(processes: int) -> dict[str, Any]:
    layout = (torch.distributed.get_rank(), processes)
    found = {"ranked": ranked(layout)}
    if processes == 3:
        found |= {"trained": trained(layout), "sent": sent(layout)}
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {0: [{"trained": trained(None), "ranked": ranked(None)}]}
    for processes in (1, 2, 3, 4):
        found[processes] = together(folder / str(processes), processes, work, processes)
    torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
