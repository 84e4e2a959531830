"""Batches: everything is drawn, by every number of processes, in an order that only seed and epoch decide."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections import Counter

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgc.data.batches import QueryBatches, TripleBatches, derive_seed, seed_device
from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.types import Side, Triples


def columns(triples) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def epoch(batches: TripleBatches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


# Seeds.


def test_seeds_differ_for_any_two_lists_of_parts_and_are_not_negative():
    parts = [(a, b, c) for a in range(5) for b in range(5) for c in range(5)]
    seeds = [derive_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 2) != derive_seed(2, 1)


def test_seeds_never_change_between_versions():
    # NumPy promises that SeedSequence is stable; a resumed run depends on it.
    assert derive_seed(0, 0) == 15793235383387715774 >> 1


# TripleBatches.


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_one_process_draws_every_triple_exactly_once(number, size, seed):
    batches = TripleBatches(number, size, seed, "cpu")
    drawn = epoch(batches)
    assert sorted(itertools.chain(*drawn)) == list(range(number))
    assert len(drawn) == len(batches) == -(-number // size)
    assert [len(batch) for batch in drawn[:-1]] == [size] * (len(drawn) - 1)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5))
def test_processes_draw_equally_many_batches_and_together_everything(number, size, world):
    parts = [TripleBatches(number, size, 3, "cpu", rank, world) for rank in range(world)]
    drawn = [epoch(part) for part in parts]
    assert {len(part) for part in parts} == {len(part) for part in drawn} == {len(drawn[0])}
    # Equal sizes too: a mean over processes of means over batches is then a mean over triples.
    assert len({tuple(map(len, part)) for part in drawn}) == 1
    count = Counter(itertools.chain(*itertools.chain(*drawn)))
    assert set(count) == set(range(number))
    assert sum(count.values()) - number < world  # only as many repeats as it takes


def test_order_is_a_function_of_seed_and_epoch_only():
    def order(seed: int, number: int) -> list[list[int]]:
        batches = TripleBatches(50, 7, seed, "cpu")
        batches.epoch = number
        return epoch(batches)

    torch.manual_seed(0)
    first = order(1, 0)
    torch.manual_seed(1)
    torch.rand(3)
    assert order(1, 0) == first
    distinct = {str(order(seed, number)) for seed in range(3) for number in range(3)}
    assert len(distinct) == 9


def test_drawing_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    epoch(TripleBatches(20, 4, 0, "cpu"))
    assert torch.equal(torch.get_rng_state(), before)


def test_orders_are_shuffled_without_a_favourite_place():
    # Each of 6 indices stands first in about 1,000 of 6,000 epochs; chi-square with 5 degrees of freedom, p = 0.001.
    first = Counter()
    batches = TripleBatches(6, 1, 9, "cpu")
    for number in range(6000):
        batches.epoch = number
        first[int(next(iter(batches)))] += 1
    assert sum((first[i] - 1000) ** 2 / 1000 for i in range(6)) < 20.52


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stopped_after", [0, 1, 3, 4])
def test_a_run_stopped_inside_an_epoch_goes_on_with_the_next_batch(stopped_after, world):
    def fresh() -> TripleBatches:
        return TripleBatches(23, 5, 2, "cpu", world - 1, world)

    whole = fresh()
    whole.epoch = 4
    expected = epoch(whole)
    assert len(expected) == (5 if world == 1 else 3)
    if stopped_after >= len(expected):
        pytest.skip("a shorter epoch")
    stopped = fresh()
    stopped.epoch = 4
    before = list(itertools.islice(stopped, stopped_after))
    assert [batch.tolist() for batch in before] == expected[:stopped_after]
    resumed = fresh()
    resumed.load_state_dict(stopped.state_dict())
    assert epoch(resumed) == expected[stopped_after:]
    # Only the epoch that was cut is short.
    assert len(epoch(resumed)) == len(expected)


def test_a_state_loaded_and_saved_again_is_the_same():
    # A run that is killed again before its first batch must not start the epoch anew.
    stopped = TripleBatches(23, 5, 2, "cpu")
    stopped.epoch = 1
    iterator = iter(stopped)
    next(iterator)
    next(iterator)
    state = stopped.state_dict()
    again = TripleBatches(23, 5, 2, "cpu")
    again.load_state_dict(state)
    assert again.state_dict() == state


def graph_of(triples) -> KnowledgeGraph:
    entities, relations = Vocabulary([f"e{i}" for i in range(6)]), Vocabulary(["r"])
    return KnowledgeGraph("tiny", entities, relations, columns(triples), Triples.empty(), Triples.empty())


class Recorder(pl.LightningModule):
    """Trains nothing and remembers the batches of every epoch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.epochs: dict[int, list[int]] = {}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.epochs.setdefault(self.current_epoch, []).extend(batch.tolist())
        return self.weight * 0


def test_every_epoch_of_a_training_run_has_an_order_of_its_own(tmp_path):
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    data = KGDataModule(graph_of([(0, 0, 1)]), num_examples=30, batch_size=8, query_batch_size=8, seed=0)
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and logging
        trainer = pl.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(recorder, datamodule=data)
    orders = [recorder.epochs[i] for i in range(3)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


# QueryBatches.

triples_strategy = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5)), max_size=30)


@given(triples_strategy, st.integers(1, 9), st.integers(1, 4))
def test_every_query_of_both_sides_is_asked_by_some_process(triples, size, world):
    number = len(triples)
    parts = [QueryBatches(columns(triples), size, rank, world) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    asked = set()
    for part in parts:
        assert part.num_queries == 2 * number
        assert len(list(part)) == len(part)
        for queries, targets, index in part:
            assert isinstance(queries.side, Side)
            for i, anchor, relation, answer in zip(
                *(x.tolist() for x in (index, queries.anchor, queries.relation, targets)), strict=True
            ):
                # Triple i is number i when its head is asked for, and T + i when its tail is.
                head, rel, tail = triples[i % number]
                assert queries.side == (Side.HEAD if i < number else Side.TAIL)
                assert relation == rel
                assert (answer, anchor) == ((head, tail) if i < number else (tail, head))
                asked.add(i)
    assert asked == set(range(2 * number))


@given(triples_strategy, st.integers(1, 9))
def test_one_process_asks_every_query_once_and_cuts_no_group_of_equal_ones(triples, size):
    batches = list(QueryBatches(columns(triples), size))
    indices = [i for _, _, index in batches for i in index.tolist()]
    assert sorted(indices) == list(range(2 * len(triples)))
    home = {}
    for number, (queries, _, index) in enumerate(batches):
        assert len(index) > 0
        for anchor, relation in zip(queries.anchor.tolist(), queries.relation.tolist(), strict=True):
            assert home.setdefault((queries.side, relation, anchor), number) == number
        pairs = list(zip(queries.relation.tolist(), queries.anchor.tolist(), strict=True))
        assert pairs == sorted(pairs)


@pytest.mark.parametrize("size", [3, 10])
def test_batches_are_about_as_large_as_wanted(size):
    # 30 different questions: nothing has to stay together.
    triples = [(i % 6, i // 6, i % 6) for i in range(30)]
    sizes = [len(index) for _, _, index in QueryBatches(columns(triples), size)]
    assert sizes == [size] * (60 // size)


def test_a_group_larger_than_a_batch_is_one_batch():
    triples = [(0, 0, i) for i in range(6)]
    tails = [index.tolist() for queries, _, index in QueryBatches(columns(triples), 2) if queries.side is Side.TAIL]
    assert [sorted(index) for index in tails] == [[6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize("world", [1, 3])
def test_no_triples_give_no_batches(world):
    batches = QueryBatches(Triples.empty(), 4, world - 1, world)
    assert (len(batches), list(batches), batches.num_queries) == (0, [], 0)


def test_more_processes_than_batches_repeat_some():
    parts = [list(QueryBatches(columns([(0, 0, 1)]), 8, rank, 5)) for rank in range(5)]
    assert [len(part) for part in parts] == [1] * 5
    assert {i for part in parts for _, _, index in part for i in index.tolist()} == {0, 1}


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_a_device_is_seeded_as_torch_does_it(seed, device):
    torch.manual_seed(seed)
    wanted = [torch.rand(3, device=device), torch.rand(3)]
    torch.rand(5, device=device)
    seed_device(device, seed)
    assert [table.tolist() for table in (torch.rand(3, device=device), torch.rand(3))] == [w.tolist() for w in wanted]
