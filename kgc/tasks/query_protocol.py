"""`protocol=query`: one list a question, all its answers in the split relevant."""

from __future__ import annotations

import time

import polars as pl
import torch
from pytorch_lightning import Trainer
from torch import Tensor

from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.metrics.answers import Answers, answer_metrics, first_place, tie_groups
from kgc.metrics.intervals import bootstrap_interval
from kgc.metrics.ranks import mean
from kgc.module import KGEModule
from kgc.tasks.split_ranks import rank_triples, split_triples
from kgc.types import RankCounts, Side, Triples


def rank_lists(
    module: KGEModule, trainer: Trainer, data: KGDataModule, split: str, resamples: int | None, seed: int
) -> tuple[dict[str, float], pl.DataFrame]:
    """Ranks all entities for every distinct question of a split.

    The answers of the other splits of the filter are left out of a question's list; the answers in this split compete
    with each other and are all relevant. Ties count as the mean over their orders.

    Args:
        resamples: of the bootstrap over questions; None for no intervals.
        seed: of the bootstrap.

    Returns:
        Metrics under `SPLIT/query/…`, `SPLIT/query/head/…`, `SPLIT/query/tail/…`, and a row a question.

    Raises:
        UserError: the split is empty, or a right answer has a non-finite score.
    """
    if module.ranking.nonfinite != "error":
        raise UserError("ranking.nonfinite=worst goes with protocol=triple: places in one list are shared")
    began = time.perf_counter()
    graph = module.graph
    triples = _distinct(split_triples(graph, split))
    others = [graph.split(name) for name in module.filter_splits if name != split]
    module.filter_by(_without(Triples.cat(others or [Triples.empty()]), triples))
    counts = rank_triples(module, trainer, data, split, triples)
    questions, answers = answers_by_question(graph, triples, counts)
    values = answer_metrics(answers, module.hits)
    values["first_rank"] = first_place(tie_groups(answers, torch.ones(len(answers.query)).double()), len(questions[0]))
    number = torch.bincount(answers.query, minlength=answers.num_queries)
    metrics = {}
    for prefix, mine in [("", torch.ones_like(number, dtype=torch.bool))] + [
        (f"{side.label}/", questions[0] == side) for side in Side
    ]:
        if not bool(mine.any()):
            continue
        metrics |= {f"{prefix}{name}": mean(value[mine]) for name, value in values.items()}
        metrics |= {f"{prefix}num_queries": int(mine.sum()), f"{prefix}num_answers": int(number[mine].sum())}
        if resamples is not None:
            for name, value in values.items():
                low, high = bootstrap_interval(value[mine], resamples, seed)
                metrics |= {f"{prefix}{name}_low": low, f"{prefix}{name}_high": high}
    metrics["seconds"] = time.perf_counter() - began
    return {f"{split}/query/{key}": value for key, value in metrics.items()}, _frame(graph, questions, number, values)


def answers_by_question(
    graph: KnowledgeGraph, triples: Triples, counts: RankCounts
) -> tuple[tuple[Tensor, Tensor, Tensor], Answers]:
    """The distinct questions of T triples as ([Q] side, relation, anchor), and the 2T answers with their questions."""
    side = torch.tensor(list(Side)).repeat_interleave(len(triples))
    anchor = torch.cat([triples.queries(each).anchor for each in Side])
    relation = triples.relation.repeat(len(Side))
    key = (side * graph.num_relations + relation) * graph.num_entities + anchor
    key, query = torch.unique(key, return_inverse=True)
    pair, anchor = key // graph.num_entities, key % graph.num_entities
    questions = (pair // graph.num_relations, pair % graph.num_relations, anchor)
    return questions, Answers(query, torch.ones_like(query), counts.better, counts.equal, len(key))


def _rows(triples: Triples) -> Tensor:
    return torch.stack([triples.head, triples.relation, triples.tail], dim=1)


def _distinct(triples: Triples) -> Triples:
    return Triples(*torch.unique(_rows(triples), dim=0).T)


def _without(triples: Triples, removed: Triples) -> Triples:
    """Triples that are not among others, which are distinct."""
    rows, number = torch.cat([_rows(removed), _rows(triples)]), len(removed)
    _, place = torch.unique(rows, dim=0, return_inverse=True)
    known = torch.zeros(len(rows), dtype=torch.bool)
    known[place[:number]] = True
    return triples[~known[place[number:]]]


def _frame(
    graph: KnowledgeGraph, questions: tuple[Tensor, Tensor, Tensor], number: Tensor, values: dict[str, Tensor]
) -> pl.DataFrame:
    side, relation, anchor = (column.numpy() for column in questions)
    entities, relations = graph.entities.series, graph.relations.series
    columns = {
        "anchor": entities.gather(anchor),
        "relation": relations.gather(relation),
        "side": pl.Series([each.label for each in Side]).gather(side),
        "answers": number.numpy(),
    }
    return pl.DataFrame(columns | {name: value.numpy() for name, value in values.items()})
