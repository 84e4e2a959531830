"""Filtered link prediction: ranks of a split, their metrics, and the files they go to."""

from __future__ import annotations

import logging
import time

import numpy as np
import polars as pl
import torch
from pytorch_lightning import Trainer

from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph, unseen_mask
from kgc.errors import UserError
from kgc.metrics.intervals import sample_intervals
from kgc.module import KGEModule
from kgc.ranking import NonFiniteScore, describe
from kgc.tasks.build import interruptible
from kgc.types import RankCounts, Side, Triples

log = logging.getLogger(__name__)

# Queries ranked per validation step: large enough that equal queries meet, small enough that progress shows.
QUERIES_A_STEP = 8192


def split_triples(graph: KnowledgeGraph, split: str) -> Triples:
    """The triples of a split that is to be ranked.

    Raises:
        UserError: there are none.
    """
    triples = graph.split(split)
    if not len(triples):
        raise UserError(f"the {split} split of {graph.name} is empty: there is nothing to rank")
    return triples


def rank_split(
    module: KGEModule, trainer: Trainer, data: KGDataModule, split: str, sample: Triples | None = None
) -> tuple[dict[str, float], pl.DataFrame]:
    """Ranks both queries of every triple of a split, or of a sample of it.

    Returns:
        Metrics under `SPLIT/…` with `SPLIT/num_unseen` (queries of triples with an entity or relation never seen in
        train) and `SPLIT/seconds`, and the rows of `ranks.parquet`. The same on every process. Those of a sample stand
        under `SPLIT/sampled/…`, with the intervals of `kgc.metrics.intervals`, `num_triples` and `split_triples`.

    Raises:
        UserError: the split is empty, or a right answer has a non-finite score.
    """
    graph = module.graph
    whole = split_triples(graph, split)
    triples = whole if sample is None else sample
    name = split if sample is None else f"{split}/sampled"
    began = time.perf_counter()
    module.to(trainer.strategy.root_device)
    module.start_ranking(triples)
    data.trainer = trainer
    batches = data.query_batches(triples)
    log.info("ranking    %s: %s", split, describe(module.model, next(iter(batches))[0], module.ranking))
    try:
        interruptible(trainer.test, module, dataloaders=batches, verbose=False)
    except NonFiniteScore as error:
        raise UserError(describe_nonfinite(error, graph)) from error
    counts = module.ranks.ranks()
    metrics = module.ranks.compute()
    if sample is not None:
        metrics |= sample_intervals(counts, len(whole), module.hits)
        metrics |= {"num_triples": len(triples), "split_triples": len(whole)}
    metrics["num_unseen"] = 2 * int(unseen_mask(graph, triples).sum())
    metrics["seconds"] = time.perf_counter() - began
    return {f"{name}/{key}": value for key, value in metrics.items()}, ranks_frame(graph, triples, counts)


def ranks_frame(
    graph: KnowledgeGraph, triples: Triples | None = None, counts: RankCounts | None = None
) -> pl.DataFrame:
    """One row a query, first all that ask for the head, then all that ask for the tail; none without triples."""
    if triples is None or counts is None:
        triples = Triples.empty()
        counts = RankCounts(*[triples.head] * 4)
    entities, relations = (pl.Series(v.labels, dtype=pl.String) for v in (graph.entities, graph.relations))

    def labels(vocabulary: pl.Series, ids: torch.Tensor) -> pl.Series:
        return vocabulary.gather(np.tile(ids.numpy(), len(Side)))

    return pl.DataFrame(
        {
            "head": labels(entities, triples.head),
            "relation": labels(relations, triples.relation),
            "tail": labels(entities, triples.tail),
            "side": pl.Series([side.label for side in Side]).gather(np.repeat(np.arange(len(Side)), len(triples))),
            "optimistic": counts.optimistic.numpy(),
            "pessimistic": counts.pessimistic.numpy(),
            "realistic": counts.realistic.numpy(),
            "candidates": counts.candidates.numpy(),
        }
    )


def describe_nonfinite(error: NonFiniteScore, graph: KnowledgeGraph) -> str:
    """The message of a non-finite score with labels in place of ids."""
    anchor, target = graph.entities[int(error.queries.anchor)], graph.entities[int(error.targets)]
    head, tail = (target, anchor) if int(error.queries.side) == Side.HEAD else (anchor, target)
    relation = graph.relations[int(error.queries.relation)]
    return (
        f"the model scores the right answer of at least {error.count} quer{'y' if error.count == 1 else 'ies'} as "
        f"{error.value}, first for the triple ({head!r}, {relation!r}, {tail!r}): it has diverged (lower optimizer.lr) "
        "or its vectors are damaged; ranking.nonfinite=worst ranks such queries last instead"
    )
