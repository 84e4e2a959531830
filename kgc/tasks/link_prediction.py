"""Filtered link prediction: ranks of a split, their metrics, and the files they go to."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import torch
from pytorch_lightning import Trainer

from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph, unseen_mask
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.ranking import NonFiniteScore
from kgc.tasks.build import interruptible
from kgc.types import RankCounts, Side, Triples

# Queries ranked per validation step: large enough that equal queries meet, small enough that progress shows.
QUERIES_A_STEP = 8192


def rank_split(
    module: KGEModule, trainer: Trainer, data: KGDataModule, split: str
) -> tuple[dict[str, float], pl.DataFrame]:
    """Ranks both queries of every triple of a split.

    Returns:
        Metrics under `SPLIT/…` with `SPLIT/num_unseen` (queries of triples with an entity or relation never seen in
        train) and `SPLIT/seconds`, and the rows of `ranks.parquet`. The same on every process.

    Raises:
        UserError: the split is empty, or a right answer has a non-finite score.
    """
    graph = module.graph
    triples = graph.split(split)
    if not len(triples):
        raise UserError(f"the {split} split of {graph.name} is empty: there is nothing to rank")
    began = time.perf_counter()
    module.to(trainer.strategy.root_device)
    module.start_ranking(split)
    data.trainer = trainer
    try:
        interruptible(trainer.test, module, dataloaders=data.query_batches(split), verbose=False)
    except NonFiniteScore as error:
        raise UserError(describe_nonfinite(error, graph)) from error
    counts = module.ranks.ranks()
    metrics = {f"{split}/{name}": value for name, value in module.ranks.compute().items()}
    metrics[f"{split}/num_unseen"] = 2 * int(unseen_mask(graph, triples).sum())
    metrics[f"{split}/seconds"] = time.perf_counter() - began
    return metrics, ranks_frame(graph, split, counts)


def ranks_frame(graph: KnowledgeGraph, split: str | None = None, counts: RankCounts | None = None) -> pl.DataFrame:
    """One row a query, first all that ask for the head, then all that ask for the tail; none without a split."""
    triples = graph.split(split) if split else Triples.empty()
    if counts is None:
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
