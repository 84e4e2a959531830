"""Relation prediction as an auxiliary objective of training (Chen et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kgc.models.base import KGEModel
from kgc.types import Queries, Side, Triples

# Elements of the [B, r, D] query vectors of one chunk of relations.
_TEMPORARY = {"cpu": 1 << 20, "cuda": 1 << 26}


def relation_cross_entropy(model: KGEModel, triples: Triples) -> Tensor:
    """Mean of −log P(r | h, t) over B triples, nats: softmax over the scores of (h, ·, t) for all R relations.

    The third term of Chen et al. 2021's objective, log P(t | h, r) + log P(h | r, t) + λ log P(r | h, t). A model with
    reciprocal relations scores a triple twice, once a direction, and the mean of both is taken.
    """
    sides = (Side.TAIL, Side.HEAD) if model.reciprocal else (Side.TAIL,)
    losses = [F.cross_entropy(relation_logits(model, triples, side).float(), triples.relation) for side in sides]
    return sum(losses) / len(losses)


def relation_logits(model: KGEModel, triples: Triples, side: Side) -> Tensor:
    """[B, R] logits of all relations between the ends of B triples, by the formula of `side` queries.

    Where scores are linear in the relation this is one matrix product. Elsewhere memory is that of one chunk of query
    vectors, made anew in the backward pass.
    """
    anchor = model.entity_vectors(triples.queries(side).anchor)  # [B, D]
    answer = model.candidate_vectors(triples.target(side).unsqueeze(-1))  # [B, 1, Dq]
    every = Queries(triples.head[:0], torch.arange(model.num_relations, device=triples.relation.device), side)
    relations = model.relation_vectors(model.relation_rows(every))  # [R, Dr]
    if side is Side.TAIL or model.reciprocal:
        direct = model.relation_query(anchor, answer.squeeze(1))
        if direct is not None:
            return model.logits(direct @ relations.T)

    def scores(anchor: Tensor, answer: Tensor, part: Tensor) -> Tensor:
        shape = (len(anchor), len(part))
        anchors = anchor.unsqueeze(1).expand(*shape, -1).flatten(0, 1)  # [B r, D]
        rows = part.unsqueeze(0).expand(*shape, -1).flatten(0, 1)  # [B r, Dr]
        query = model.combine(every, anchors, rows)
        own = answer.unsqueeze(1).expand(*shape, -1, -1).flatten(0, 1)  # [B r, 1, Dq]
        return model.similarity(query, own).view(shape)

    elements = _TEMPORARY.get(anchor.device.type, _TEMPORARY["cpu"])
    size = max(1, elements // max(1, anchor.numel()))
    parts = [
        checkpoint(scores, anchor, answer, part, use_reentrant=False, preserve_rng_state=False)
        for part in relations.split(size)
    ]
    return model.logits(torch.cat(parts, dim=1))
