"""Exact filtered ranks, in blocks, in bounded memory.

`rank_queries` scores queries against all entities and counts, for every query, the unfiltered rivals that score
strictly higher than the target (`better`) and those that tie with it (`equal`).

Two ways of being exact. `certified` (models that are a query and a similarity): fp32 arithmetic decides what its
proven error bound allows and float64 decides the rest, so that ranks are those of the float64 scores whatever the
machine does; see `kgc.engine.certified`. `block` (any scorer): ranks are those of the scores themselves, all read from
calls of one shape; see `kgc.engine.blocks`. Known answers are set to NaN by index, which no comparison counts.

A table of entities that lies on several processes (`kgc.sharding`) is ranked by all of them together, each counting
among its own entities: they call `rank_queries` with the same queries and get the same counts.

Cost: every distinct (anchor, relation, side) is scored once, U · E · D multiplications for U of them. Memory above the
tables and the index: a few times batch · block floats, and the known answers of one batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.engine.blocks import BlockPart
from kgc.engine.certified import Candidates, CertifiedPart, ExactQueries
from kgc.engine.compiled import compiled_key, compiler_fault, count_compiled, worth_compiling
from kgc.engine.counting import count_eager
from kgc.engine.fused import FusedCandidates, can_fuse
from kgc.engine.given import rank_among
from kgc.engine.part import MINUS_INFINITY, NAN, PLUS_INFINITY, Room, out_of_memory
from kgc.engine.sizes import DEFAULT, Sizes, measured_sizes, width
from kgc.errors import UserError
from kgc.types import Queries, RankCounts, Scorer, Side

# Queries that are ranked together, a row on average: scores of one that is asked more often are made again.
_QUERIES_A_ROW = 8
# Cells from which on work is large enough to measure shapes of blocks on it.
_LARGE = 1 << 27
_PRECISIONS = ("certified", "block")


class NonFiniteScore(UserError):
    """A right answer scored NaN or ±inf; `queries` and `targets` hold the first offending query, `count` how many."""

    def __init__(self, queries: Queries, targets: Tensor, value: float, count: int):
        self.queries, self.targets, self.value, self.count = queries, targets, value, count
        side = Side(int(queries.side)).label
        super().__init__(
            f"{count} right answer(s) have a non-finite score, first: score {value} for {side} {int(targets)} of "
            f"anchor {int(queries.anchor)}, relation {int(queries.relation)}; a diverged model cannot be ranked "
            "(ranking.nonfinite=worst gives such queries the worst rank)"
        )

    def __reduce__(self) -> tuple:
        """Pickled by its parts: processes tell each other."""
        return NonFiniteScore, (self.queries, self.targets, self.value, self.count)


@dataclass(frozen=True)
class RankingOptions:
    """How ranks are computed.

    Args:
        precision: `certified` ranks by float64 scores where the model has an error bound, and by blocks elsewhere;
            `block` ranks by fp32 scores.
        batch, block: distinct queries and entities scored together; None picks 1024 queries and as many entities as
            make 2^21 cells (2^27 on CUDA), and what measures fastest in large certified work.
        compile: True uses `torch.compile`, and on CUDA a fused kernel for certified ranks; False neither; None both for
            large work where a compiler is found.
        nonfinite: `error` raises `NonFiniteScore` when a target's score is not finite; `worst` gives it the worst rank.
    """

    precision: str = "certified"
    batch: int | None = None
    block: int | None = None
    compile: bool | None = None
    nonfinite: str = "error"

    def __post_init__(self) -> None:
        for name in ("batch", "block"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"ranking.{name}={value}: must be a whole number from 1 on, or null for the default")
        if self.compile not in (None, True, False):
            raise UserError(f"ranking.compile={self.compile}: choices are true, false, null")
        if self.precision not in _PRECISIONS:
            raise UserError(f"ranking.precision={self.precision}: choices are {', '.join(_PRECISIONS)}")
        if self.nonfinite not in ("error", "worst"):
            raise UserError(f"ranking.nonfinite={self.nonfinite}: choices are error, worst")

    def shape(self, num_entities: int, device: torch.device, whole_rows: bool = False) -> tuple[int, int]:
        """The (rows, columns) of every block of scores, where they are not measured.

        `whole_rows`: a scorer makes the scores of all entities at once; blocks are as wide, and have fewer rows.
        """
        rows, cells = DEFAULT.get(device.type, DEFAULT["cpu"])
        if whole_rows:
            return self.batch or max(1, min(rows, cells // num_entities)), min(self.block or num_entities, num_entities)
        rows = self.batch or rows
        return rows, width(num_entities, rows, cells, self.block)


@torch.no_grad()
def rank_queries(
    scorer: Scorer,
    queries: Queries,
    targets: Tensor,
    known: KnownAnswers | None = None,
    options: RankingOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> RankCounts:
    """Ranks the right answer of every query among all entities.

    Args:
        scorer: a `KGEModel`, or anything with `num_entities` and `score(queries, candidates)`.
        queries: Q questions, on the scorer's device.
        targets: [Q] the right answers.
        known: answers to leave out of the competition (the target itself always competes); None ranks unfiltered.
        options: sizes and the policy for non-finite scores.
        progress: called after every batch with how many queries it ranked.

    Returns:
        The counts of the Q queries, in their order.

    Raises:
        UserError: ids that are not there, or lists of unlike lengths.
        NonFiniteScore: a target's score is NaN or infinite and `options.nonfinite` is `error`.
        torch.OutOfMemoryError: even one query against one entity does not fit.
    """
    options = options or RankingOptions()
    _check(scorer, queries, targets)
    if getattr(scorer, "training", False):  # dropout has no place in ranks
        scorer.eval()
        try:
            return rank_queries(scorer, queries, targets, known, options, progress)
        finally:
            scorer.train()
    device = targets.device
    side = queries.side if isinstance(queries.side, Tensor) else torch.full_like(targets, int(queries.side))
    rows, row_of_query = _distinct(queries, side)
    known_target = (
        known.contains(queries, targets.unsqueeze(-1)).squeeze(-1) if known else torch.zeros_like(targets, dtype=bool)
    )
    results = [torch.empty_like(targets) for _ in range(4)]
    shape = options.shape(scorer.num_entities, device, getattr(scorer, "whole_rows", False))
    sizes = _sizes(scorer, options, len(rows), device)
    order = torch.argsort(row_of_query, stable=True)
    sorted_rows = row_of_query[order].cpu()
    start = 0
    with exact_arithmetic(device):
        room = Room()
        rank = _method(scorer, options, rows, device, room)
        while start < len(rows):
            began = 0.0
            if sizes is not None:
                shape, began = sizes.shape(), sizes.start()
            batch, block = shape
            stop = min(start + batch, len(rows))
            first, last = torch.searchsorted(sorted_rows, torch.tensor([start, stop])).tolist()
            mine = order[first:last]  # the queries of this batch of rows
            try:
                for some in mine.split(_QUERIES_A_ROW * batch):
                    part = (rows[start:stop], row_of_query[some] - start, targets[some], known_target[some], known)
                    for whole, piece in zip(results, rank(part, batch, block, (start, stop)), strict=True):
                        whole[some] = piece
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or batch * block == 1 or getattr(scorer, "shard", None) is not None:
                    raise
                shape = (batch, -(-block // 2)) if block > 1024 or batch == 1 else (-(-batch // 2), block)
                if sizes is not None:
                    sizes.forbid((batch, block))
                    sizes = None
                room.clear()
                warnings.warn(f"out of memory: now in blocks of {shape[0]} queries x {shape[1]} entities", stacklevel=2)
                continue
            if sizes is not None:
                sizes.learn(shape, stop - start, began)
                if sizes.settled:
                    shape, sizes = sizes.shape(), None
            start = stop
            if progress:
                progress(len(mine))
    return _judge(RankCounts(*results), queries, side, targets, options)


@torch.no_grad()
def rank_candidates(
    scorer: Scorer,
    queries: Queries,
    targets: Tensor,
    candidates: Tensor,
    options: RankingOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> RankCounts:
    """Ranks the right answer of every query among candidates of its own; see `rank_queries` for the other arguments.

    Args:
        candidates: [Q, K] entity ids, −1 for none; what is known is the caller's to leave out.

    Returns:
        Counts whose `candidates` are those given and the right answer: sampled ranks, no estimate of filtered ones.
    """
    options = options or RankingOptions()
    _check(scorer, queries, targets)
    if len(candidates) != len(targets) or (candidates.numel() and int(candidates.max()) >= scorer.num_entities):
        raise UserError(f"candidates must be a row of ids of {scorer.num_entities} entities for each query")
    if getattr(scorer, "training", False):
        scorer.eval()
        try:
            return rank_candidates(scorer, queries, targets, candidates, options, progress)
        finally:
            scorer.train()
    side = queries.side if isinstance(queries.side, Tensor) else torch.full_like(targets, int(queries.side))
    with exact_arithmetic(targets.device):
        counts = rank_among(scorer, queries, targets, candidates, is_certified(scorer, options))
    if progress:
        progress(len(targets))
    return _judge(counts, queries, side, targets, options)


def _check(scorer: Scorer, queries: Queries, targets: Tensor) -> None:
    """Ids must be there: one that is not would be ranked as another."""
    if scorer.num_entities < 1:
        raise UserError(f"num_entities={scorer.num_entities}: there is nothing to rank")
    for name, ids in (("targets", targets), ("anchors", queries.anchor), ("relations", queries.relation)):
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.shape != targets.shape or ids.dim() != 1:
            raise UserError(f"{name} must be a list of int64 ids, as long as that of the targets")
        if not ids.numel():
            continue
        least, largest = (int(x) for x in torch.aminmax(ids))
        if least < 0 or (name != "relations" and largest >= scorer.num_entities):
            raise UserError(
                f"{name}: id {least if least < 0 else largest} is not one of {scorer.num_entities} entities"
            )


def is_certified(scorer: Scorer, options: RankingOptions) -> bool:
    """Whether ranks of this scorer are those of its float64 scores."""
    similarity = getattr(scorer, "similarity", None)
    return options.precision == "certified" and hasattr(scorer, "exact_query_vectors") and similarity.certified


def planned(scorer: Scorer, options: RankingOptions, queries: int, device: torch.device) -> RankingOptions:
    """Options with `compile` decided for so many queries in all, over several calls of `rank_queries`.

    Where ranks are those of the scores themselves each call decides for itself: compiled code may round otherwise.
    """
    if options.compile is not None or not is_certified(scorer, options):
        return options
    return replace(options, compile=_compiles(scorer, options, queries, device))


def describe(scorer: Scorer, queries: Queries, options: RankingOptions | None = None) -> str:
    """How `rank_queries` would rank these queries: by which scores and why, and whether compiled."""
    options = options or RankingOptions()
    if is_certified(scorer, options):
        path = "certified (float64 decides)"
    elif options.precision == "block":
        path = "block (fp32 scores decide: ranking.precision=block)"
    else:
        path = f"block (the scores decide: {type(scorer).__name__} has no error bound)"
    device = queries.anchor.device
    rows, _ = _distinct(queries, torch.as_tensor(queries.side, device=device).expand(len(queries)))
    return f"{path}, {'compiled' if _compiles(scorer, options, len(rows), device) else 'eager'}"


def _distinct(queries: Queries, side: Tensor) -> tuple[Queries, Tensor]:
    """The distinct questions, sorted by relation, then side, and [Q] the place of each query's own."""
    if not len(queries):
        return Queries(queries.anchor, queries.relation, side), queries.anchor
    entities = int(queries.anchor.max()) + 1
    key = (queries.relation * 2 + side) * entities + queries.anchor
    key, row = torch.unique(key, return_inverse=True)
    anchor, key = key % entities, key // entities
    return Queries(anchor, key // 2, key % 2), row


def _sizes(scorer: Scorer, options: RankingOptions, rows: int, device: torch.device) -> Sizes | None:
    """Shapes to measure: for large work whose ranks no shape changes, and which no other process waits for."""
    if getattr(scorer, "shard", None) is not None:
        return None
    if not is_certified(scorer, options) or rows * scorer.num_entities < _LARGE:
        return None
    kind = type(scorer.similarity), getattr(scorer, "dim", None), options.compile
    return measured_sizes(device, scorer.num_entities, kind, options.batch, options.block)


def _method(
    scorer: Scorer, options: RankingOptions, rows: Queries, device: torch.device, room: Room
) -> Callable[..., tuple[Tensor, ...]]:
    """A function from (part, batch, block, the span of the rows that the part asks) to the counts of the part."""
    similarity = getattr(scorer, "similarity", None)
    compiled = _compiles(scorer, options, len(rows), device)
    counter = count_compiled if compiled else count_eager
    fused = compiled and is_certified(scorer, options) and can_fuse(similarity, device)
    key = compiled_key(similarity) if compiled and not fused else None
    if is_certified(scorer, options):
        table = FusedCandidates(scorer, room) if fused else Candidates(scorer, room, counter, key)
        exact = ExactQueries(scorer, rows, table.vectors.shape[-1])
        return lambda part, batch, block, span: CertifiedPart(scorer, *part).rank(table, block, exact.of(*span))
    return lambda part, batch, block, span: BlockPart(scorer, *part).rank(batch, block, counter, key, room)


def _compiles(scorer: Scorer, options: RankingOptions, rows: int, device: torch.device) -> bool:
    """Whether so many distinct queries are ranked by compiled code."""
    if options.compile is not None:
        if options.compile and (fault := compiler_fault(device)):
            raise UserError(f"ranking.compile=true: {fault}; leave it out")
        return options.compile
    similarity = getattr(scorer, "similarity", None)
    # Processes that share a table decide alike: compiled keys round otherwise than eager ones.
    return worth_compiling(similarity, rows, scorer.num_entities, getattr(scorer, "dim", 1), device)


def _judge(counts: RankCounts, queries: Queries, side: Tensor, targets: Tensor, options: RankingOptions) -> RankCounts:
    """Applies the policy for targets without a finite score, which `better` marks."""
    bad = counts.better < 0
    number = int(bad.sum())
    if not number:
        return counts
    if options.nonfinite == "error":
        i = int(bad.nonzero()[0])
        value = {NAN: float("nan"), PLUS_INFINITY: float("inf"), MINUS_INFINITY: float("-inf")}[int(counts.better[i])]
        query = Queries(queries.anchor[i], queries.relation[i], side[i])
        raise NonFiniteScore(query, targets[i], value, number)
    warnings.warn(f"{number} right answer(s) have a non-finite score and get the worst rank", stacklevel=3)
    worst = torch.where(bad, counts.candidates - 1, counts.better)
    return RankCounts(worst, torch.where(bad, 0, counts.equal), counts.candidates, counts.nonfinite)


@contextlib.contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Autocast and TF32 off: ranks are computed in full fp32."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
