"""Where a model fails: the queries whose right answer came last, and what it answered instead."""

from __future__ import annotations

from contextlib import nullcontext

import polars as pl
import torch
from torch import Tensor

from kgc.module import KGEModule
from kgc.ranking import exact_arithmetic
from kgc.types import Queries, Side

_CELLS = 1 << 22  # numbers compared at once


def worst_answered(module: KGEModule, ranks: pl.DataFrame, number: int = 12, k: int = 3) -> pl.DataFrame:
    """The worst-ranked queries of a split, each question once, with the model's k best answers that are not known.

    Args:
        module: whose model is asked, and whose filter says what is known.
        ranks: as `ranks.parquet`, of the module's graph.
        number: of queries.
        k: answers to each.

    Returns:
        Columns head, relation, tail, side, realistic, score (of the right answer), answers and answer_scores (lists,
        the best first). Scores that are NaN are no answers.
    """
    side = pl.col("side").cast(pl.String)
    anchor = pl.when(side == "head").then(pl.col("tail")).otherwise(pl.col("head"))
    worst = (
        ranks.with_columns(side=side, anchor=anchor)
        .sort("realistic", "head", "relation", "tail", "side", descending=[True, False, False, False, False])
        .unique(["anchor", "relation", "side"], keep="first", maintain_order=True)
        .head(number)
        .select("head", "relation", "tail", "side", "realistic")
    )
    rows: dict[int, tuple[float, list[str], list[float]]] = {}
    for each in Side:
        mine = worst.with_row_index("row").filter(pl.col("side") == each.label)
        for part in mine.iter_slices(max(1, 4 * _CELLS // module.graph.num_entities)):
            rows |= dict(zip(part["row"], _answers(module, part, each, k), strict=True))
    columns = list(zip(*(rows[i] for i in range(len(worst))), strict=True)) or [(), (), ()]
    kinds = {"score": pl.Float64, "answers": pl.List(pl.String), "answer_scores": pl.List(pl.Float64)}
    return worst.with_columns(
        pl.Series(name, list(values), dtype=kind) for (name, kind), values in zip(kinds.items(), columns, strict=True)
    )


def _answers(module: KGEModule, rows: pl.DataFrame, side: Side, k: int) -> list[tuple[float, list[str], list[float]]]:
    """The right answer's score, and the answers that are not known with theirs, of queries of one side."""
    graph, model, known = module.graph, module.model, module.known()
    device = known.pairs.device  # where the ranks were made; Lightning may have moved the model away since
    module.to(device)
    ids = {end: graph.entities.index(rows[end]).to(device) for end in ("head", "tail")}
    anchor, target = (ids["tail"], ids["head"]) if side is Side.HEAD else (ids["head"], ids["tail"])
    queries = Queries(anchor, graph.relations.index(rows["relation"]).to(device), side)
    model.eval()
    with exact_arithmetic(device), torch.no_grad(), getattr(model, "one_pass", nullcontext)():
        scores = _scores(model, queries).double()
    own = scores.gather(1, target.unsqueeze(1)).squeeze(1).tolist()
    scores[known.answers(queries)] = -torch.inf
    scores.scatter_(1, target.unsqueeze(1), -torch.inf)
    best = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(min(k, scores.shape[1]), dim=1)
    found = []
    for score, values, places in zip(own, best.values.tolist(), best.indices.tolist(), strict=True):
        kept = [(graph.entities[p], v) for p, v in zip(places, values, strict=True) if v > float("-inf")]
        found.append((score, [label for label, _ in kept], [value for _, value in kept]))
    return found


def _scores(model: torch.nn.Module, queries: Queries) -> Tensor:
    """[B, E]; of models that compare vectors in blocks, so that memory does not grow with E x D."""
    if not hasattr(model, "similarity"):
        return model.score(queries)
    size = max(1, _CELLS // max(1, len(queries) * model.dim))
    blocks = [range(a, min(a + size, model.num_entities)) for a in range(0, model.num_entities, size)]
    return torch.cat([model.score(queries, block) for block in blocks], dim=1)
