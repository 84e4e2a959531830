"""One of two processes that draw and learn together; starts without the packages of training."""

from __future__ import annotations

from pathlib import Path

import torch
from draws import asked, generator, graph_of, ready

from kgc.models.distmult import DistMult
from kgc.sampling.cache import Cache
from kgc.sampling.kbgan import KBGAN
from kgc.types import Negatives, Side

E = 20
TRAIN = [(i % 7, i % 2, (5 * i + 1) % E) for i in range(12)]
GRAPH = graph_of(TRAIN, E)
BATCHES = ([0, 1, 2, 3], [2, 3, 4, 5])  # of each process; two triples are in both
REWARDS = ([1.0, 2.0, 3.0, 6.0], [-1.0, 0.0, 0.0, 5.0])


def small(**sizes: int) -> DistMult:
    return DistMult(**sizes, dim=4)


def together(process: int, folder: Path) -> None:
    """Draws once, and saves the state that this leads to."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=process, world_size=2)
    try:
        torch.manual_seed(0)
        cache = ready(Cache(cache_size=3, random_size=4), GRAPH)
        model = small(num_entities=E, num_relations=2)
        before = cache.table.clone()
        question = asked([TRAIN[i] for i in BATCHES[process]], Side.TAIL, model=model)
        row = cache.index.rows(question.queries)
        cache.draw(question, 2, generator(process))
        # The same draws, made here again.
        draws = generator(process)
        torch.randint(3, (4, 2), generator=draws)
        own = cache.refreshed(question, before[row].long(), draws)
        kbgan = ready(KBGAN(small), GRAPH)
        rewards = torch.tensor(REWARDS[process]).unsqueeze(1)
        kbgan.loss(Negatives(torch.zeros(4, 1), log_probability=torch.zeros(4, 1)), rewards)
        state = {"before": before, "table": cache.table, "row": row, "own": own, "rewards": kbgan.rewards}
        torch.save(state, folder / f"{process}.pt")
    finally:
        torch.distributed.destroy_process_group()
