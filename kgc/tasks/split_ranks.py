"""The ranks of a split, their metrics and the rows of `ranks.parquet`."""

from __future__ import annotations

import logging
import math
import time

import numpy as np
import polars as pl
import torch
from pytorch_lightning import Trainer

from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph, relation_categories, unseen_mask
from kgc.data.hygiene import degrees
from kgc.errors import UserError
from kgc.metrics.breakdown import DEGREES, degree_buckets, grouped_metrics, macro
from kgc.metrics.intervals import mean_rank_estimate, sample_intervals, standard_errors
from kgc.module import KGEModule
from kgc.ranking import NonFiniteScore, describe, is_certified
from kgc.tasks.build import interruptible
from kgc.tasks.sampled import rivals
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
    module: KGEModule,
    trainer: Trainer,
    data: KGDataModule,
    split: str,
    sample: Triples | None = None,
    drawn_evenly: bool = False,
) -> tuple[dict[str, float], pl.DataFrame]:
    """Ranks both queries of every triple of a split, or of a sample of it.

    Args:
        sample: the triples that are ranked; None: all.
        drawn_evenly: the module's candidates are drawn evenly from all rivals, so that the mean rank among all can be
            estimated.

    Returns:
        Metrics under `SPLIT/…` with `SPLIT/num_unseen` (queries of triples with an entity or relation never seen in
        train), `SPLIT/seconds` and the intervals of `kgc.metrics.intervals`, and the rows of `ranks.parquet`. The same
        on every process. Those of a sample stand under `SPLIT/sampled/…`, with `num_triples` and `split_triples`; so
        do ranks among candidates, with `num_candidates` and standard errors.

    Raises:
        UserError: the split is empty, or a right answer has a non-finite score.
    """
    graph = module.graph
    whole = split_triples(graph, split)
    triples = whole if sample is None else sample
    name = split if sample is None and module.candidates is None else f"{split}/sampled"
    began = time.perf_counter()
    counts = rank_triples(module, trainer, data, split, triples)
    metrics = module.ranks.compute() | breakdowns(graph, triples, counts, module.hits)
    if sample is not None or module.candidates is None:  # the whole split is a sample too, of what triples might be
        metrics |= sample_intervals(counts, math.inf if sample is None else len(whole), module.hits)
    if sample is not None or module.candidates is not None:
        metrics |= {"num_triples": len(triples), "split_triples": len(whole)}
    if module.candidates is not None:
        metrics |= {"num_candidates": int(counts.candidates.max()) - 1} | standard_errors(counts, module.hits)
        if drawn_evenly:
            metrics |= mean_rank_estimate(counts, rivals(module, triples))
    metrics["num_unseen"] = 2 * int(unseen_mask(graph, triples).sum())
    metrics["seconds"] = time.perf_counter() - began
    return {f"{name}/{key}": value for key, value in metrics.items()}, ranks_frame(graph, triples, counts)


def rank_triples(module: KGEModule, trainer: Trainer, data: KGDataModule, split: str, triples: Triples) -> RankCounts:
    """Counts of all head queries, then of all tail queries, against the filter of the module; over all processes.

    Raises:
        UserError: a right answer has a non-finite score.
    """
    module.to(trainer.strategy.root_device)
    module.start_ranking(triples)
    data.trainer = trainer
    batches = data.query_batches(triples)
    how = describe(module.model, next(iter(batches))[0], module.ranking)
    if module.candidates is not None:
        how = f"among candidates, by {'float64' if is_certified(module.model, module.ranking) else 'the'} scores"
    log.info("ranking    %s: %s", split, how)
    try:
        interruptible(trainer.test, module, dataloaders=batches, verbose=False)
    except NonFiniteScore as error:
        raise UserError(describe_nonfinite(error, module.graph)) from error
    return module.ranks.ranks()


def breakdowns(graph: KnowledgeGraph, triples: Triples, counts: RankCounts, hits: tuple[int, ...]) -> dict[str, float]:
    """`macro/…`, the mean over relations of their means; `category/1-N/…` by relation category in train, both sides and
    `category/1-N/head/…`; `degree/10-99/…` by how many train triples hold the answer.
    """
    relation = triples.relation.repeat(len(Side))
    side = torch.tensor(list(Side)).repeat_interleave(len(triples))
    answer = torch.cat([triples.target(each) for each in Side])
    ranks = counts.realistic
    values = {"macro/mrr": macro(1 / ranks, relation), "macro/mr": macro(ranks, relation)}
    values |= {f"macro/hits@{k}": macro((ranks <= k).double(), relation) for k in hits}
    categories = ("1-1", "1-N", "N-1", "N-N")
    of_relation = [categories.index(name) for name in relation_categories(graph.stored("train"), graph.num_relations)]
    category = torch.tensor(of_relation)[relation]
    values |= grouped_metrics(counts, category, [f"category/{name}" for name in categories], hits)
    both = [f"category/{name}/{each.label}" for name in categories for each in Side]
    values |= grouped_metrics(counts, len(Side) * category + side, both, hits)
    degree = sum(degrees(graph.stored("train"), graph.num_entities))
    names = [f"degree/{name}" for name in DEGREES.values()]
    return values | grouped_metrics(counts, degree_buckets(degree[answer]), names, hits)


def ranks_frame(
    graph: KnowledgeGraph, triples: Triples | None = None, counts: RankCounts | None = None
) -> pl.DataFrame:
    """One row a query, first all that ask for the head, then all that ask for the tail; none without triples."""
    if triples is None or counts is None:
        triples = Triples.empty()
        counts = RankCounts(*[triples.head] * 4)
    entities, relations = graph.entities.series, graph.relations.series

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
