"""Ranks among given candidates: each query's own, where the exact protocol has all entities."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.engine.part import mark_nonfinite
from kgc.models.algebra import without_denormals
from kgc.types import Queries, RankCounts, Scorer

# Numbers of candidate vectors that are compared at once.
_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}


@torch.no_grad()
def rank_among(scorer: Scorer, queries: Queries, targets: Tensor, candidates: Tensor, certified: bool) -> RankCounts:
    """Counts the candidates of each query that score higher than its right answer, and those that tie with it.

    Args:
        scorer: a model, or anything with `score`.
        queries: B questions.
        targets: [B] right answers.
        candidates: [B, K] entity ids; −1 is none.
        certified: scores are those of the float64 order of a certified similarity; else what `score` says.

    Returns:
        Counts; `candidates` are the given ones and the target. `better` is a mark of `kgc.engine.part` where the
        target's score is not finite.
    """
    width = (getattr(scorer, "dim", 1) or 1) * (candidates.shape[1] + 1)
    rows = max(1, _NUMBERS.get(targets.device.type, _NUMBERS["cpu"]) // width)
    parts = []
    table = scorer.candidate_vectors() if certified else None
    for some in torch.arange(len(targets), device=targets.device).split(rows):
        asked, given = queries[some], candidates[some]
        ids = torch.cat([targets[some].unsqueeze(1), given.clamp(min=0)], dim=1)
        if certified:
            query = scorer.exact_query_vectors(asked).unsqueeze(1)
            scores = scorer.similarity.order(query, without_denormals(table[ids]).double())
        else:
            scores = scorer.score(asked, ids)
        own, others = scores[:, :1], scores[:, 1:]
        there, finite = given >= 0, others.isfinite()
        better = ((others > own) & there & finite).sum(1)
        equal = ((others == own) & there & finite).sum(1)
        odd = (there & ~finite).sum(1) + (~own.squeeze(1).isfinite()).long()
        parts.append((mark_nonfinite(better, own.squeeze(1)), equal, 1 + there.sum(1), odd))
    none = [targets.new_empty(0)] * 4
    return RankCounts(*(torch.cat(column) for column in zip(*parts, strict=True))) if parts else RankCounts(*none)
