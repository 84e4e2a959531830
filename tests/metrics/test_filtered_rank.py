"""`FilteredRank` and its like: the same numbers for any order of batches and any number of processes."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path

import oracle
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from kgc.metrics.classification import Classified
from kgc.metrics.filtered_rank import AnswerRanks, FilteredRank
from kgc.types import RankCounts

Q = 26
SIDE = torch.tensor([0, 1]).repeat_interleave(Q // 2)
HITS = (1, 2, 10)


def everything() -> RankCounts:
    generator = torch.Generator().manual_seed(3)
    better, equal, worse = (torch.randint(0, n, (Q,), generator=generator) for n in (15, 4, 30))
    return RankCounts(better, equal, better + equal + worse + 1, torch.randint(0, 2, (Q,), generator=generator))


COUNTS = everything()


def filled(parts: list[torch.Tensor], device: torch.device | str = "cpu") -> FilteredRank:
    metric = FilteredRank(SIDE, HITS).to(device)
    for part in parts:
        counts = RankCounts(*(getattr(COUNTS, name)[part].to(device) for name in vars(COUNTS)))
        metric.update(part.to(device), counts)
    return metric


def others(parts: list[torch.Tensor]) -> list[AnswerRanks | Classified]:
    """The Metrics of lists of answers and of labels, filled with the same batches."""
    answers, scores = AnswerRanks(torch.arange(Q) // 3, torch.arange(Q) % 3, 9, HITS), Classified(SIDE == 0)
    for part in parts:
        answers.update(part, COUNTS[part])
        scores.update(part, COUNTS.better[part])
    return [answers, scores]


def expected() -> dict[str, float]:
    columns = (COUNTS.better, COUNTS.equal, COUNTS.candidates, COUNTS.nonfinite)
    rows = [oracle.Rank(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return oracle.metrics(rows, SIDE.tolist(), HITS)


def test_metrics_equal_the_brute_force(device):
    metrics = filled([torch.arange(Q)], device).compute()
    assert metrics == pytest.approx(expected(), rel=1e-13)
    assert all(type(value) in (int, float) for value in metrics.values())


def test_order_and_size_of_batches_change_no_bit():
    whole = filled([torch.arange(Q)]).compute()
    for seed, size in enumerate((1, 4, 7, 25)):
        order = torch.randperm(Q, generator=torch.Generator().manual_seed(seed))
        assert filled(list(order.split(size))).compute() == whole


def test_a_query_ranked_twice_counts_once():
    again = filled([torch.arange(Q), torch.tensor([3, 0, 20]), torch.tensor([3])])
    assert again.compute() == filled([torch.arange(Q)]).compute()
    assert again.compute()["num_queries"] == Q


@pytest.mark.parametrize("missing", [1, 3, Q])
def test_a_query_never_ranked_is_an_error_with_the_number(missing):
    metric = filled([torch.arange(Q - missing)])
    with pytest.raises(ValueError, match=f"{missing} of {Q} queries"):
        metric.compute()


def test_ranks_are_the_counts_in_the_order_of_queries():
    ranks = filled(list(torch.randperm(Q, generator=torch.Generator().manual_seed(1)).split(5))).ranks()
    for name in vars(COUNTS):
        assert torch.equal(getattr(ranks, name), getattr(COUNTS, name))
    partly = filled([torch.tensor([2, 3])]).ranks()
    assert (partly.better >= 0).nonzero().squeeze(1).tolist() == [2, 3]


def test_the_ranks_handed_out_are_a_copy():
    metric = filled([torch.arange(Q)])
    before = metric.compute()
    metric.ranks().better.fill_(0)
    metric._computed = None  # compute anew, not from the cache
    assert metric.compute() == before


def test_reset_forgets_every_rank():
    metric = filled([torch.arange(Q)])
    metric.compute()
    metric.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # computed before an update
        with pytest.raises(ValueError, match=f"{Q} of {Q}"):
            metric.compute()
    metric.update(torch.arange(Q), COUNTS)
    assert metric.compute() == filled([torch.arange(Q)]).compute()


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, lambda m: m.clone()])
def test_copies_go_on_where_the_original_was_and_apart_from_it(copied):
    first = filled([torch.arange(10)])
    second = copied(first)
    rest = torch.arange(10, Q)
    second.update(rest, COUNTS[rest])
    assert second.compute() == filled([torch.arange(Q)]).compute()
    with pytest.raises(ValueError, match="never ranked"):
        first.compute()


def test_updating_after_a_result_gives_a_new_result():
    metric = filled([torch.arange(Q)])
    before = metric.compute()
    best = RankCounts(*(torch.tensor([x]) for x in (0, 0, 5, 0)))
    metric.update(torch.tensor([int(COUNTS.better.argmax())]), best)
    assert metric.compute()["mrr"] > before["mrr"]


# Processes. Each scenario says which queries each process ranks, in batches.


WORLDS = (2, 3)


def shards(world: int) -> dict[str, list[list[torch.Tensor]]]:
    """Scenario to process to batches."""
    even = [torch.arange(rank, Q, world) for rank in range(world)]
    padded = [torch.arange(rank, rank + world * -(-Q // world), world) % Q for rank in range(world)]
    return {
        "even": [list(part.split(4)) for part in even],
        "padded": [list(part.split(4)) for part in padded],
        "uneven": [
            list(torch.arange(Q)[: Q - world + 1].split(3)),
            *([torch.tensor([Q - r])] for r in range(1, world)),
        ],
        "first has none": [[], *([torch.arange(Q)] for _ in range(1, world))],
        "last has none": [*([torch.arange(Q)] for _ in range(1, world)), []],
        "all have all": [[torch.arange(Q)] for _ in range(world)],
    }


def run_process(rank: int, folder: str) -> None:
    """The scenarios of 2 processes, then of 3, one after the other: a process takes seconds to start."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # computed before an update, where there was none
    for world in WORLDS:
        if rank < world:
            dist.init_process_group("gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world)
            results = {name: exchange(parts[rank]) for name, parts in shards(world).items()}
            incomplete = filled([torch.tensor([rank])])
            try:
                incomplete.compute()
            except ValueError as error:
                results["incomplete"] = str(error)
            Path(folder, f"{world}-{rank}.json").write_text(json.dumps(results))
            dist.destroy_process_group()


def exchange(batches: list[torch.Tensor]) -> dict:
    metric = filled(batches)
    ranks = metric.ranks()
    return {
        "metrics": metric.compute(),
        "again": metric.compute(),
        "better": ranks.better.tolist(),
        "others": [other.compute() for other in others(batches)],
        "own": (metric.better >= 0).nonzero().squeeze(1).tolist(),
    }


def test_any_number_of_processes_gives_the_numbers_of_one_bit_for_bit(tmp_path):
    single = filled([torch.arange(Q)]).compute()
    further = [other.compute() for other in others([torch.arange(Q)])]
    mp.spawn(run_process, (str(tmp_path),), nprocs=max(WORLDS))
    for world, rank in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]:
        results = json.loads((tmp_path / f"{world}-{rank}.json").read_text())
        for name, parts in shards(world).items():
            got = results[name]
            assert got["metrics"] == single, (world, rank, name)
            assert got["others"] == further, (world, rank, name)
            assert got["again"] == single, (world, rank, name)
            assert got["better"] == COUNTS.better.tolist(), (world, rank, name)
            # After the exchange each process holds its own queries again.
            assert got["own"] == sorted({i for part in parts[rank] for i in part.tolist()}), (world, rank, name)
        assert results["incomplete"] == f"{Q - world} of {Q} queries were never ranked"
