"""Entities on several processes: losses, gradients, steps and ranks are those of a model that is whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
import sharding_work as work
import torch

from kgc.errors import UserError
from kgc.models import init
from kgc.sharding import Shard


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("sharding")
    done = runs.process(folder, Path(__file__).with_name("sharding_work.py"), folder, timeout=900)
    assert done.code == 0, done.err
    return torch.load(folder / "found.pt", weights_only=False)


def test_losses_and_gradients_are_those_of_one_process(found):
    whole = found[0][0]["trained"]
    assert len(whole) == 12 * len(work.TRAINED) + 2 - 1 + 4 + 1
    for parts in found[3]:
        for case, values in whole.items():
            if case == "dropout":
                continue
            for name, value in values.items():
                size = value.abs().max()
                torch.testing.assert_close(
                    parts["trained"][case][name], value, atol=2e-6 * float(size) + 1e-6, rtol=1e-5, msg=f"{case} {name}"
                )


def test_gradients_of_what_is_not_sharded_are_the_same_bits(found):
    first, *others = (parts["trained"] for parts in found[3])
    for case, values in first.items():
        for name, value in values.items():
            assert all(torch.equal(other[case][name], value) for other in others), (case, name)


def test_dropout_leaves_the_processes_in_step(found):
    losses = {float(parts["trained"]["dropout"]["loss"]) for parts in found[3]}
    draws = [parts["trained"]["dropout"]["next"] for parts in found[3]]
    assert len(losses) == 1
    assert all(torch.equal(draw, draws[0]) for draw in draws)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_counts_are_those_of_one_process(found, processes):
    whole = found[0][0]["ranked"]
    assert len(whole) == 2 * 2 * 2 * 3 * len(work.RANKED)
    for parts in found[processes]:
        for case, counts in whole.items():
            assert torch.equal(parts["ranked"][case], counts), (case, processes, parts["ranked"][case], counts)
    broken = whole["broken distmult/certified/None/37"]
    assert int(broken[3].sum()) > 0  # some scores are no numbers
    assert int(whole["distmult/certified/None/37"][1].sum()) > 0  # some tie


def test_counts_are_those_of_a_brute_force(found):
    """DistMult, by loops over float64 vectors."""
    torch.manual_seed(1)
    model, _, _ = work.made(None, "distmult", [])
    relations = model.relation.weight.detach().double()
    table = torch.randn(work.E, work.D, generator=torch.Generator().manual_seed(5))
    table[[9, 17, 22]] = table[2].clone()
    table = table.double()
    train = work.triples(work.T, 0)
    facts = set(zip(train.head.tolist(), train.relation.tolist(), train.tail.tolist(), strict=True))
    queries, targets = work.asked(37, 37)
    counts = found[4][0]["ranked"]["distmult/certified/None/37"]
    for i, target in enumerate(targets.tolist()):
        anchor, relation, side = int(queries.anchor[i]), int(queries.relation[i]), int(queries.side[i])
        scores = [float((table[anchor] * relations[relation] * table[e]).sum()) for e in range(work.E)]
        answers = [(e, relation, anchor) if side == 0 else (anchor, relation, e) for e in range(work.E)]
        rivals = [e for e in range(work.E) if e != target and answers[e] not in facts]
        same = {2, 9, 17, 22}
        equal = sum(e in same and target in same for e in rivals)
        better = sum(scores[e] > scores[target] and not (e in same and target in same) for e in rivals)
        assert counts[:3, i].tolist() == [better, equal, len(rivals) + 1]


def test_an_evaluation_sends_few_bytes_a_query(found):
    """Among them the ranks that `FilteredRank` gathers; query vectors count by themselves."""
    for parts in found[3]:
        for case, (total, vectors) in parts["sent"].items():
            assert total > vectors, case
            assert total - vectors <= 64 * 37, (case, (total - vectors) / 37)


@pytest.mark.parametrize(("rows", "size", "blocks"), [(23, 4, [6, 6, 6, 5]), (14, 4, [4, 4, 4, 2]), (5, 5, [1] * 5)])
def test_blocks_are_those_of_dtensor(rows, size, blocks):
    shards = [Shard(rank, size, rows) for rank in range(size)]
    assert [shard.held for shard in shards] == blocks == [len(part) for part in torch.arange(rows).chunk(size)]
    assert torch.cat([torch.arange(shard.first, shard.stop) for shard in shards]).tolist() == list(range(rows))


@pytest.mark.parametrize(("rows", "size"), [(5, 4), (14, 8), (3, 4)])
def test_a_process_without_entities_is_a_mistake(rows, size):
    with pytest.raises(UserError, match=rf"trainer\.shards={size}: {rows} entities"):
        Shard(0, size, rows)


INITS = {
    "uniform": (init.Xavier(), 7),
    "normal": (init.Normal(0.1), 7),
    "columns": (init.Columns((3, init.MarginRange(3.0, 4)), (5, init.Phases()), (2, init.Normal(2.0))), 10),
    "bias": (init.Columns((6, init.Normal(0.1)), (1, init.Constant(0.5))), 7),
    "identity": (init.Identity(2, 5), 10),
    "own": (lambda table: table.copy_(torch.rand(table.shape)), 7),
}


@pytest.mark.parametrize("rows", [14, 2 * init._ROWS + 5])
@pytest.mark.parametrize("name", INITS)
def test_rows_start_as_those_of_a_whole_table(name, rows):
    function, width = INITS[name]
    torch.manual_seed(1)
    table = function(torch.empty(rows, width))
    following = torch.rand(3)
    for first, stop in ((0, rows // 3), (rows // 3, rows)):
        torch.manual_seed(1)
        assert torch.equal(init.rows_of(function, rows, width, first, stop), table[first:stop])
        assert torch.equal(torch.rand(3), following)
