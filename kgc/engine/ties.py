"""Ties that are broken by a priority, as trec_eval breaks them by document ids."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.engine.certified import SAFE, Candidates
from kgc.engine.part import Room, ranges
from kgc.engine.sizes import DEFAULT, width
from kgc.types import Queries, Scorer

_CELLS = 1 << 14


@torch.no_grad()
def tied_ahead(scorer: Scorer, queries: Queries, targets: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
    """How many other candidates tie with each target, and how many of these have a higher priority.

    Made for the few targets that tie at all: every query is compared with all candidates again, bounds in fp32 decide
    which cells are looked at in float64 (see `kgc.engine.certified`).

    Args:
        scorer: with a certified similarity.
        queries: B questions.
        targets: [B] candidates.
        priority: [N] int64, all different.

    Returns:
        [B] tied, [B] ahead.
    """
    tied, ahead = torch.zeros_like(targets), torch.zeros_like(targets)
    table = Candidates(scorer, Room())
    rows, cells = DEFAULT.get(targets.device.type, DEFAULT["cpu"])
    block = width(scorer.num_entities, rows, cells)
    for part in torch.arange(len(targets), device=targets.device).split(rows):
        query = scorer.exact_query_vectors(queries[part])
        target = targets[part]
        value = table.similarity.order(query, table.exact(target))
        low, high = table.similarity.band(query, value, table.extent)
        unsafe = ~(torch.maximum(low.abs(), high.abs()) < SAFE)
        unsafe |= ~(query.norm(dim=-1) * table.extent.norm < SAFE) | (table.extent.norm >= 2.0**60)
        low, high = torch.where(unsafe, -torch.inf, low), torch.where(unsafe, torch.inf, high)
        for first, start, stop in ranges(scorer.num_entities, block):
            keys = table.key(query.float(), first, stop)[:, start - first :]
            inside = ~((keys < low.unsqueeze(-1)) | (keys > high.unsqueeze(-1)))
            row, column = inside.nonzero(as_tuple=True)
            column += start
            other = column != target[row]
            row, column = row[other], column[other]
            for some in torch.arange(len(row), device=row.device).split(_CELLS):
                at, entity = row[some], column[some]
                equal = table.similarity.order(query[at], table.exact(entity)) == value[at]
                before = equal & (priority[entity] > priority[target[at]])
                tied.index_add_(0, part[at], equal.long())
                ahead.index_add_(0, part[at], before.long())
    return tied, ahead
