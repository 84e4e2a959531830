"""Ranking among candidates, given or drawn, in place of all entities."""

from __future__ import annotations

import logging

import torch
from omegaconf import DictConfig
from torch import Tensor

from kgc.data.candidates import Draw, Types
from kgc.data.catalogue import given_candidates
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.types import Queries, Side, Triples

log = logging.getLogger(__name__)

# Candidates of so many numbers are made at once.
_CELLS = 1 << 22


def use_candidates(module: KGEModule, cfg: DictConfig, whole: Triples, ranked: Triples) -> str:
    """Has a module rank among the candidates of `cfg.ranking.candidates`, and returns what they are, in words.

    Args:
        module: the model and its graph.
        cfg: what `conf/evaluate.yaml` composes to.
        whole: the triples of the split.
        ranked: those that are ranked.

    Raises:
        UserError: the data set gives no candidates, or they are for other triples.
    """
    wanted, graph = cfg.ranking.candidates, module.graph
    if wanted == "given":
        if ranked is not whole:
            raise UserError("ranking.limit with ranking.candidates=given: candidates are given for a whole split")
        sides = given_candidates(graph, cfg.split, str(cfg.dataset.get("name")), cfg.dataset.get("path"))
        number = sides[0].shape[1]

        def given(queries: Queries, targets: Tensor, index: Tensor) -> Tensor:
            place, rows = index.cpu(), torch.empty(len(index), number, dtype=torch.int64)
            for side in Side:
                mine = place // len(whole) == side
                rows[mine] = sides[side][place[mine] - side * len(whole)].long()
            return rows.to(targets.device)

        module.candidates = given
        words = f"{number:,} given"
    else:
        number = int(wanted)
        sizes = (graph.num_entities, graph.num_relations)
        types = Types(graph.stored("train"), *sizes) if cfg.ranking.draw == "typed" else None

        def drawn(queries: Queries, targets: Tensor, index: Tensor) -> Tensor:
            return Draw(number, module.known(), cfg.seed, types)(queries, targets)[0]

        module.candidates = drawn
        words = f"{number:,} {'typed ' if types else ''}drawn (seed {cfg.seed})"
    module.queries_at_once = max(1, _CELLS // max(1, number))
    return f"{words} candidates a query, not all {graph.num_entities:,} entities"


def rivals(module: KGEModule, triples: Triples) -> Tensor:
    """[2T] how many rivals each query of triples has among all entities: those that the filter does not know."""
    known, parts = module.known(), []
    for side in Side:
        queries, target = triples.queries(side), triples.target(side)
        inside = known.contains(queries, target.unsqueeze(1)).squeeze(1).long()
        parts.append(module.graph.num_entities - known.number(queries) - 1 + inside)
    return torch.cat(parts)
