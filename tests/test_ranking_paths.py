"""What must not change a rank: compilation, threads, the sizes of batch and block, memory that runs out on the way."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import oracle
import pytest
import torch
from test_ranking import MODELS, Table, both_sides, build, fill, formula_score, index_of, random_triples, rows
from torch import Tensor

from kgc import ranking
from kgc.data.known import KnownAnswers
from kgc.engine.compiled import can_compile
from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.distmult import DistMult
from kgc.ranking import RankingOptions, describe, planned, rank_queries
from kgc.scorers import TripleScorer
from kgc.sharding import Shard
from kgc.types import Queries, Side, Triples

E, R = 60, 3


def normals_on_axes(model: KGEModel) -> None:
    """TransH's normals along one axis each, so that projections of integers are integers."""
    with torch.no_grad():
        width = model.dim
        model.relation.weight[:, width:] = torch.eye(width)[torch.arange(len(model.relation.weight)) % width]


def integer_model(name: str, seed: int = 1) -> KGEModel:
    """Small integers: every score is exact on every path but RotatE's, and ties abound."""
    model = build(name, E, R, 4)
    fill(model, seed, integers=2)
    if name == "transh":
        normals_on_axes(model)
    return model


def splits(seed: int = 1) -> tuple[list[oracle.Triple], list[oracle.Triple]]:
    draw = random.Random(seed)
    return random_triples(draw, 150, E, R), random_triples(draw, 25, E, R)


# Compilation.


@pytest.mark.parametrize("name", [*MODELS, "boxe", "mure"])
def test_compiled_and_eager_counting_give_the_same_integers(name, device):
    if not can_compile(device):
        pytest.skip("no compiler here")
    train, test = splits()
    queries, targets = both_sides(test, device)
    for model in (integer_model(name), build(name, E, R, 6)):
        known = index_of([train, test], model, device)
        model = model.to(device)
        for batch, block in ((64, 60), (7, 25)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch.compile's own making
                eager, compiled = (
                    rank_queries(model, queries, targets, known, RankingOptions(batch=batch, block=block, compile=flag))
                    for flag in (False, True)
                )
            assert rows(compiled) == rows(eager)


# Threads, batch, block.


@pytest.mark.parametrize("precision", ["certified", "block"])
@pytest.mark.parametrize("name", [*MODELS, "transh"])
def test_threads_batch_and_block_change_no_rank(name, precision):
    if name == "rotate" and precision == "block":
        pytest.skip("cosines round: fp32 scores tie or not by their last bit")
    train, test = splits()
    model = integer_model(name)
    known = index_of([train, test], model)
    queries, targets = both_sides(test)
    score = formula_score(name, model)
    expected = None
    threads = torch.get_num_threads()
    try:
        for batch, block in ((None, None), (1, 60), (9, 1), (16, 7), (200, 59)):
            for number in (1, 2):
                torch.set_num_threads(number)
                options = RankingOptions(batch=batch, block=block, precision=precision)
                got = rows(rank_queries(model, queries, targets, known, options))
                expected = expected or got
                assert got == expected, (number, batch, block)
    finally:
        torch.set_num_threads(threads)
    if name != "rotate":
        # Roots of equal integers are equal once the digits that rounding made are cut off.
        brute = oracle.ranks(lambda h, r, t: round(score(h, r, t), 9), test, [train, test], E)
        assert expected == brute


# Memory.


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("method", ["ranking_key", "order"])
@pytest.mark.parametrize("name", ["distmult", "transe_l1", "transe_l2"])
def test_memory_that_runs_out_in_the_middle_changes_no_certified_rank(name, method, at, monkeypatch):
    train, test = splits()
    model = integer_model(name)
    known = index_of([train, test], model)
    queries, targets = both_sides(test)
    plain, calls = getattr(model.similarity, method), []

    def scarce(*arguments: Tensor) -> Tensor:
        calls.append(arguments)
        if len(calls) in (at + 1, at + 2):  # the first try, and the next with half of it
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return plain(*arguments)

    monkeypatch.setattr(model.similarity, method, scarce)
    with pytest.warns(UserWarning, match="out of memory: now in blocks of") as said:
        counts = rank_queries(model, queries, targets, known, RankingOptions(batch=16, block=60))
    assert [str(w.message) for w in said] == [
        f"out of memory: now in blocks of {batch} queries x 60 entities" for batch in (8, 4)
    ]
    score = formula_score(name, model)
    assert rows(counts) == oracle.ranks(lambda h, r, t: round(score(h, r, t), 9), test, [train, test], E)


# The wanted counts in small blocks, then the same under a limit on the memory of the process.
SCARCE = """
import os, resource, warnings
import torch
from kgc.data.known import KnownAnswers
from kgc.models.distmult import DistMult
from kgc.models.transe import TransE
from kgc.models.transh import TransH
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Side, Triples

torch.manual_seed(0)
entities, number = 20_000, 1000
models = [DistMult(entities, 2, 8), TransE(entities, 2, 8), TransH(entities, 2, 8)]
for model in models:
    for table in model.parameters():
        table.data = torch.randint(-3, 4, table.shape).float()
models[-1].relation.weight.data[:, 8:] = torch.eye(8)[:2]
triples = Triples(*(torch.randint(n, (number,)) for n in (entities, 2, entities)))
known, queries, target = KnownAnswers(triples, entities, 2), triples.queries(Side.TAIL), triples.tail
wanted = [rank_queries(m, queries, target, known, RankingOptions(batch=128, block=2000)) for m in models]
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)
for model, want in zip(models, wanted):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = rank_queries(model, queries, target, known, RankingOptions(batch=number, block=entities))
    assert any("out of memory" in str(w.message) for w in said)
    for field in ("better", "equal", "candidates", "nonfinite"):
        assert torch.equal(getattr(got, field), getattr(want, field)), (model, field)
print("same")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the memory of a process as Linux does")
def test_a_process_that_may_have_no_more_memory_ranks_in_smaller_blocks():
    """One block would be 80 MB of scores, and each of its comparisons as much again; 40 MiB are left."""
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SCARCE],
        env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr[-2000:]


# What is said of the path.


def described(scorer, options: RankingOptions | None = None, side: Side | Tensor = Side.TAIL) -> str:
    return describe(scorer, Queries(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]), side), options)


def test_the_path_and_its_reason_are_described():
    model = DistMult(5, 1, 4)
    assert described(model) == "certified (float64 decides), eager"
    assert described(model, RankingOptions(compile=True)) == "certified (float64 decides), compiled"
    assert described(model, RankingOptions(precision="block")) == (
        "block (fp32 scores decide: ranking.precision=block), eager"
    )
    transh = build("transh", 5, 1, 4)
    assert described(transh) == "block (the scores decide: TransH has no error bound), eager"
    table = Table(torch.zeros(5, 1, 5))
    assert "Table has no error bound" in described(table, side=torch.tensor([0, 1, 0]))
    assert "TripleScorer has no error bound" in described(TripleScorer(lambda h, r, t: h.float(), 5))


@pytest.mark.parametrize("large", [False, True])
def test_what_is_described_is_what_is_done(large, monkeypatch):
    asked, used = [], []

    def worth(similarity: object, queries: int, *sizes: object) -> bool:
        asked.append(queries)
        return large

    plain = ranking.count_eager
    monkeypatch.setattr(ranking, "worth_compiling", worth)
    monkeypatch.setattr(ranking, "compiled_key", lambda similarity: None)
    monkeypatch.setattr(ranking, "count_compiled", lambda *arguments: used.append("compiled") or plain(*arguments))
    monkeypatch.setattr(ranking, "count_eager", lambda *arguments: used.append("eager") or plain(*arguments))
    word = described(DistMult(5, 1, 4)).split(", ")[1]
    queries = Queries(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]), Side.TAIL)
    rank_queries(DistMult(5, 1, 4), queries, torch.tensor([1, 2, 3]))
    assert set(used) == {word} == {"compiled" if large else "eager"}
    assert asked == [2, 2]  # distinct questions


def test_processes_that_share_a_table_decide_alike_on_compiling(monkeypatch):
    """By the size of the whole table: their parts differ, and compiled keys of uncertified models round otherwise."""
    seen = []
    monkeypatch.setattr(ranking, "worth_compiling", lambda similarity, queries, entities, *rest: seen.append(entities))
    for rank in (0, 1):
        model = build("transh", 7, 1, 4)
        model.shard = Shard(rank, 2, 7)
        describe(model, Queries(torch.tensor([0]), torch.tensor([0]), Side.TAIL))
    assert seen == [7, 7]


def test_progress_counts_every_query_once():
    model = integer_model("distmult")
    _, test = splits()
    queries, targets = both_sides(test)
    told: list[int] = []
    rank_queries(model, queries, targets, None, RankingOptions(batch=7), told.append)
    assert sum(told) == len(targets) == 50
    asked = torch.stack([queries.anchor, queries.relation, queries.side]).unique(dim=1).shape[1]
    assert len(told) == -(-asked // 7)


def test_many_small_calls_are_planned_as_one_large_one(monkeypatch):
    """A split is ranked in steps, and validation comes again and again: what pays is decided on the whole."""
    monkeypatch.setattr(ranking, "worth_compiling", lambda similarity, queries, *sizes: queries > 1000)
    cpu = torch.device("cpu")
    assert planned(DistMult(5, 1, 4), RankingOptions(), 1001, cpu).compile is True
    assert planned(DistMult(5, 1, 4), RankingOptions(), 1000, cpu).compile is False
    assert planned(DistMult(5, 1, 4), RankingOptions(compile=False), 1001, cpu).compile is False
    # fp32 scores may round otherwise in compiled code: the choice must not depend on the rest of a run
    assert planned(DistMult(5, 1, 4), RankingOptions(precision="block"), 1001, cpu).compile is None
    assert planned(build("transh", 5, 1, 4), RankingOptions(), 1001, cpu).compile is None


@pytest.mark.parametrize("precision", ["certified", "block"])
def test_dropout_has_no_place_in_ranks(precision):
    model = DistMult(50, 1, 8, entity_dropout=0.5)
    queries, targets = Queries(torch.arange(9), torch.zeros(9, dtype=torch.int64), Side.TAIL), torch.arange(9) + 20
    options = RankingOptions(precision=precision)
    trained = rank_queries(model, queries, targets, options=options)
    assert model.training  # left as it was
    assert torch.equal(trained.better, rank_queries(model.eval(), queries, targets, options=options).better)


@pytest.mark.parametrize(
    ("anchor", "target", "word"),
    [([0], [5], "targets: id 5"), ([0], [-1], "targets: id -1"), ([7], [0], "anchors: id 7"), ([0, 1], [0], "anchors")],
)
def test_ids_that_are_not_there_are_refused(anchor, target, word):
    anchor, target = torch.tensor(anchor), torch.tensor(target)
    for scorer in (DistMult(5, 1, 4), TripleScorer(lambda h, r, t: (h + t).float(), 5)):
        with pytest.raises(UserError, match=word):
            rank_queries(scorer, Queries(anchor, torch.zeros_like(anchor), Side.TAIL), target)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_scores_that_are_no_floats_are_filtered_too(dtype):
    known = KnownAnswers(Triples(torch.tensor([0]), torch.tensor([0]), torch.tensor([1])), 3, 1)
    queries, target = Queries(torch.tensor([0]), torch.tensor([0]), Side.TAIL), torch.tensor([2])
    scorer = TripleScorer(lambda h, r, t: (t > 0).to(dtype), 3)
    counts = rank_queries(scorer, queries, target, known)
    assert (counts.better.item(), counts.equal.item()) == (0, 0)
