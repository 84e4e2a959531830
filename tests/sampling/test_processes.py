"""Processes that train together: negatives of their own, and one state of what proposals learn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from together import GRAPH, E, small, together
from torch.multiprocessing import spawn

from kgc.losses.pairwise import Logistic
from kgc.module import KGEModule
from kgc.objectives import NegativeSampling
from kgc.sampling.cache import Cache
from kgc.sampling.kbgan import KBGAN
from kgc.sampling.proposals import Degree, Proposal, Typed, Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Both


def seen(module: KGEModule) -> list[torch.Tensor]:
    """The candidates of a step."""
    triples = module.objective.triples[torch.arange(8)]
    model = module.model
    return [n.candidates for _, _, n in module.objective.sampler.draw(triples, 0, module._generator, model)]


def step_of(process: int, epoch: int, batch: int, proposal: Proposal, monkeypatch: pytest.MonkeyPatch) -> list:
    """What one process draws in one step."""
    monkeypatch.setattr(KGEModule, "trainer", None)
    monkeypatch.setattr("kgc.module.data_place", lambda trainer: (process, 2))
    monkeypatch.setattr(KGEModule, "current_epoch", epoch)
    torch.manual_seed(0)
    objective = NegativeSampling(NegativeSampler(6, Both(), proposal), Logistic())
    objective.setup(GRAPH, torch.device("cpu"))
    module = KGEModule(small(num_entities=E, num_relations=2), GRAPH, objective, seed=3)
    module.on_fit_start()
    module.on_train_batch_start(torch.arange(8), batch)
    assert objective.epoch == epoch
    return seen(module)


@pytest.mark.parametrize(
    "make",
    [Uniform, partial(Uniform, None), Degree, Typed, Cache, partial(KBGAN, small)],
    ids=["uniform", "shared", "degree", "typed", "cache", "kbgan"],
)
def test_each_process_and_each_step_draws_its_own(make, monkeypatch):
    steps = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = [torch.cat([x.flatten() for x in step_of(*step, make(), monkeypatch)]) for step in steps]
    again = torch.cat([x.flatten() for x in step_of(*steps[0], make(), monkeypatch)])
    assert torch.equal(drawn[0], again)
    for i, first in enumerate(drawn):
        for second in drawn[:i]:
            assert not torch.equal(first, second)


def test_processes_keep_one_cache_and_one_baseline(tmp_path):
    spawn(together, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f"{process}.pt", weights_only=True) for process in range(2))
    assert torch.equal(first["before"], second["before"])
    assert torch.equal(first["table"], second["table"])
    expected = first["before"].clone()
    for part in (second, first):  # the first process decides about rows that both refreshed
        for row, entities in reversed(list(zip(part["row"].tolist(), part["own"].tolist(), strict=True))):
            expected[row] = torch.tensor(entities, dtype=torch.int32)
    assert torch.equal(first["table"], expected)
    assert not torch.equal(first["table"], first["before"])
    for part in (first, second):
        assert part["rewards"].tolist() == [16.0, 8.0]
