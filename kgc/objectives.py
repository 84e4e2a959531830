"""What a training step minimises: the only place where sampler, model, loss and regularizer meet.

An objective numbers its training examples 0 … n−1; a batch is [B] of these numbers. Losses are means in nats.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.data.arrays import PART
from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.losses.listwise import BinaryCrossEntropy, CrossEntropy, RowLoss, mean_loss
from kgc.losses.pairwise import PairwiseLoss
from kgc.losses.regularizers import Lp
from kgc.models.base import KGEModel
from kgc.models.path_model import PathModel
from kgc.models.similarity import Dot
from kgc.relation_prediction import relation_cross_entropy
from kgc.sampling.sampler import NegativeSampler
from kgc.types import Negatives, Queries, Side, Triples, rows_of_pools


class Objective(nn.Module):
    """Interface. Parameters that an objective has of its own are trained and saved with the model's.

    Args:
        regularizer: penalty on the rows a batch touched, or None.
    """

    least_batch = 1  # examples without which a batch teaches too little; known after `setup`
    sparse = False  # whether a step looks up only the rows of its batch, so that gradients can be sparse
    epoch = 0  # finished ones; set before each step

    def __init__(self, regularizer: Lp | None = None):
        super().__init__()
        self.regularizer = regularizer

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> int:
        """Prepares tensors on the device; returns the number of training examples."""
        raise NotImplementedError

    def cells(self, model: KGEModel, examples: int) -> int:
        """Pairs of a query and a candidate that so many examples compare."""
        raise NotImplementedError

    def loss(self, model: KGEModel, index: Tensor, step: int, generator: torch.Generator) -> Tensor:
        """Scalar loss of the examples `index` [B]; `step` counts batches, `generator` draws on the model's device."""
        raise NotImplementedError

    def penalty(
        self,
        model: KGEModel,
        anchor: Tensor,
        relation: Tensor,
        answer: Tensor,
        queries: Queries | None = None,
        row: Tensor | None = None,
    ) -> Tensor | float:
        """Regularizer of the [B, ·] vectors of a batch.

        Args:
            model: whose vectors they are.
            anchor, relation: of the B queries.
            answer: [B, D], or [M, D] with several answers a query.
            queries: the B queries, whose sides DURA needs.
            row: [M] the query of each answer; None where each query has one.

        Raises:
            UserError: DURA with a model that does not score by an inner product.
        """
        if self.regularizer is None:
            return 0.0
        if not self.regularizer.of_queries:
            factors = [model.magnitude(anchor), model.relation_magnitude(relation), model.magnitude(answer)]
            return self.regularizer(factors)
        if not isinstance(model.similarity, Dot):
            raise UserError(
                f"regularizer=dura: made for models that score by an inner product, which {type(model).__name__} does "
                "not; choose regularizer=l2 or n3"
            )
        query = model.combine(queries, anchor, relation)
        if row is not None:
            queries, relation = queries[row], relation[row]
        return self.regularizer([anchor, answer, query, model.ask_back(queries, answer, relation)])


class NegativeSampling(Objective):
    """Right answers against sampled negatives; an example is a triple.

    Args:
        sampler: sides, candidates, mask and weights.
        loss: a pairwise loss.
        subsampling: weigh a triple by `subsampling_weights`, rare queries more.
        regularizer: see `Objective`.
    """

    sparse = True

    def __init__(
        self,
        sampler: NegativeSampler,
        loss: PairwiseLoss,
        subsampling: bool = False,
        regularizer: Lp | None = None,
    ):
        super().__init__(regularizer)
        self.sampler = sampler
        self.pairwise = loss
        self.subsampling = subsampling
        self.triples = Triples.empty()
        self.triple_weights: Tensor | None = None

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> int:
        self.triples = sorted_triples(graph.stored("train")).to(device)
        self.sampler.setup(graph, device)
        self.least_batch = self.sampler.proposal.least_batch
        if self.subsampling:
            self.triple_weights = subsampling_weights(self.triples, graph.num_entities)
        return len(self.triples)

    def cells(self, model: KGEModel, examples: int) -> int:
        return len(Side) * examples * (1 + self.sampler.num_negatives)

    def loss(self, model: KGEModel, index: Tensor, step: int, generator: torch.Generator) -> Tensor:
        triples = self.triples[index].long()
        triple_weights = None if self.triple_weights is None else self.triple_weights[index]
        total = torch.zeros((), device=index.device)
        sides = 0
        for queries, target, negatives in self.sampler.draw(triples, step, generator, model, self.epoch):
            positive, scores, penalty = self._contrast(model, triples, queries, target, negatives)
            positive, negative = model.logits(positive), model.logits(scores)
            if negatives.log_q is not None:
                positive = positive - negatives.log_q[target]
                negative = negative - negatives.log_q[negatives.candidates]
            weights = self.sampler.weights(negative, negatives.known)
            losses = self.pairwise(positive, negative, weights, negatives.known)  # [B]
            total = total + weighted_mean(losses, triple_weights)
            total = total + penalty
            learning = self.sampler.proposal.loss(negatives, scores)
            if learning is not None:
                total = total + learning
            sides += 1
        return total / sides

    def _contrast(
        self, model: KGEModel | PathModel, triples: Triples, queries: Queries, target: Tensor, negatives: Negatives
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """[B] scores of the targets, [B, K] or [B, N] of the negatives, and the penalty of the vectors."""
        if isinstance(model, PathModel):
            refuse_penalty(self.regularizer, model)
            scores = model.score_without(queries, triples)  # [B, E]
            candidates = rows_of_pools(negatives.candidates, len(queries))
            return scores.gather(1, target.unsqueeze(-1)).squeeze(-1), scores.gather(1, candidates), 0.0
        anchor = model.entity_vectors(queries.anchor)  # [B, D]
        relation = model.relation_vectors(model.relation_rows(queries))  # [B, Dr]
        answer = model.entity_vectors(target.unsqueeze(-1))  # [B, 1, D]
        query = model.combine(queries, anchor, relation)  # [B, Dq]
        positive = model.similarity(query, model.candidate(answer)).squeeze(-1)  # [B]
        scores = model.compare(query, negatives.candidates)  # [B, K] or [B, N]
        return positive, scores, self.penalty(model, anchor, relation, answer.squeeze(1), queries)


class OneVsAll(Objective):
    """Softmax cross-entropy of the right answer among all entities, from both ends; an example is a triple.

    Args:
        label_smoothing: share of the target's probability spread over all entities.
        regularizer: see `Objective`.
        relation_weight: λ of `kgc.relation_prediction.relation_cross_entropy`, added to the mean of both ends.
    """

    def __init__(self, label_smoothing: float = 0.0, regularizer: Lp | None = None, relation_weight: float = 0.0):
        super().__init__(regularizer)
        self.label_smoothing = checked_smoothing(label_smoothing)
        self.relation_weight = relation_weight
        self.triples = Triples.empty()

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> int:
        self.triples = sorted_triples(graph.stored("train")).to(device)
        return len(self.triples)

    def cells(self, model: KGEModel, examples: int) -> int:
        return len(Side) * examples * model.num_entities

    def loss(self, model: KGEModel, index: Tensor, step: int, generator: torch.Generator) -> Tensor:
        triples = self.triples[index].long()
        if isinstance(model, PathModel):
            return self._path_loss(model, triples)
        vectors, targets, penalty = [], [], 0.0
        for side in Side:
            queries, target = triples.queries(side), triples.target(side)
            anchor = model.entity_vectors(queries.anchor)
            relation = model.relation_vectors(model.relation_rows(queries))
            vectors.append(model.combine(queries, anchor, relation))  # [B, Dq]
            targets.append(target)
            if self.regularizer is not None:
                penalty = penalty + self.penalty(model, anchor, relation, model.entity_vectors(target), queries)
        rule = CrossEntropy(torch.cat(targets), self.label_smoothing, model.shard)
        loss = loss_over_entities(model, torch.cat(vectors), rule)
        loss = loss + penalty / len(Side)
        if self.relation_weight:
            loss = loss + self.relation_weight * relation_cross_entropy(model, triples)
        return loss

    def _path_loss(self, model: PathModel, triples: Triples) -> Tensor:
        refuse_penalty(self.regularizer, model)
        if self.relation_weight:
            raise UserError(
                f"objective.relation_weight={self.relation_weight}: {type(model).__name__} would walk the graph once "
                "for each pair of a triple and a relation; set it to 0"
            )
        side = torch.tensor(list(Side), device=triples.head.device).repeat_interleave(len(triples))
        queries = Queries(torch.cat([triples.tail, triples.head]), triples.relation.repeat(2), side)
        scores = model.score_without(queries, triples).float()
        target = torch.cat([triples.head, triples.tail])
        return F.cross_entropy(scores, target, label_smoothing=self.label_smoothing)


class KVsAll(Objective):
    """Binary cross-entropy of all entities against all right answers at once; an example is a distinct train query.

    Args:
        label_smoothing: ε of `kgc.losses.listwise.BinaryCrossEntropy`.
        regularizer: see `Objective`; penalises the anchors and relations of the batch, and the answers.
    """

    def __init__(self, label_smoothing: float = 0.1, regularizer: Lp | None = None):
        super().__init__(regularizer)
        self.label_smoothing = checked_smoothing(label_smoothing)
        self.known: KnownAnswers | None = None
        self.queries = Queries(torch.empty(0), torch.empty(0), Side.TAIL)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> int:
        train = graph.train.to(device)
        self.known = KnownAnswers(train, graph.num_entities, graph.num_relations)
        parts = []
        for side in Side:
            queries = train.queries(side)
            parts.append(torch.stack([torch.full_like(queries.anchor, int(side)), queries.relation, queries.anchor]))
        side, relation, anchor = torch.unique(torch.cat(parts, dim=1), dim=1)
        self.queries = Queries(anchor, relation, side)
        return len(anchor)

    def cells(self, model: KGEModel, examples: int) -> int:
        return examples * model.num_entities

    def loss(self, model: KGEModel, index: Tensor, step: int, generator: torch.Generator) -> Tensor:
        if isinstance(model, PathModel):
            raise UserError(
                f"objective=k_vs_all: {type(model).__name__} would have to find all answers of a query on a graph "
                "without any of them; choose objective=one_vs_all or negative_sampling"
            )
        queries = self.queries[index]
        row, answer = self.known.answers(queries)  # [M], [M]
        anchor = model.entity_vectors(queries.anchor)
        relation = model.relation_vectors(model.relation_rows(queries))
        query = model.combine(queries, anchor, relation)  # [B, Dq]
        rule = BinaryCrossEntropy(row, answer, len(queries), self.label_smoothing, model.shard)
        loss = loss_over_entities(model, query, rule)
        if self.regularizer is not None:
            loss = loss + self.penalty(model, anchor, relation, model.entity_vectors(answer), queries, row)
        return loss


def loss_over_entities(model: KGEModel, query: Tensor, rule: RowLoss) -> Tensor:
    """Mean loss of [B, Dq] query vectors over all entities, wherever they lie."""
    with contextlib.nullcontext() if model.shard is None else model.shard.region(model):
        candidates = model.candidate_vectors()
    return mean_loss(model.similarity, query, candidates, model.margin, rule, model.shard)


def refuse_penalty(regularizer: Lp | None, model: PathModel) -> None:
    if regularizer is not None:
        raise UserError(
            f"regularizer: it penalises vectors of entities, which {type(model).__name__} has not; choose "
            "regularizer=none (optimizer.weight_decay holds its weights down)"
        )


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of [B] losses, weighted by [B] weights normalised over the batch."""
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


def sorted_triples(triples: Triples) -> Triples:
    """Triples on the CPU by relation, head, tail, with ids of the same kind: training does not depend on the order of
    lines in a file.

    Sorted as numbers in one list of 8 bytes a triple; where ids are too large for that, column by column.
    """
    sizes = [1 + int(column.max()) if len(column) else 1 for column in (triples.relation, triples.head, triples.tail)]
    if math.prod(sizes) < 2**63:
        keys = triples.relation.numpy().astype(np.int64)
        for column, size in ((triples.head, sizes[1]), (triples.tail, sizes[2])):
            keys *= size
            keys += column.numpy()
        keys.sort()
        columns = [torch.empty_like(column) for column in (triples.head, triples.relation, triples.tail)]
        for start in range(0, keys.size, PART):
            rest, tail = np.divmod(keys[start : start + PART], sizes[2])
            relation, head = np.divmod(rest, sizes[1])
            for column, part in zip(columns, (head, relation, tail), strict=True):
                column[start : start + PART] = torch.from_numpy(part)
        return Triples(*columns)
    order = torch.argsort(triples.tail, stable=True)
    for column in (triples.head, triples.relation):
        order = order[torch.argsort(column[order], stable=True)]
    return triples[order]


def subsampling_weights(train: Triples, num_entities: int) -> Tensor:
    """[T] weights 1/√(#(h, r) + #(r, t)), each count of train triples starting at 3 (RotatE's repository)."""
    total = torch.zeros(len(train), device=train.head.device)
    for side in Side:
        queries = train.queries(side)
        _, row, count = torch.unique(
            queries.relation.long() * num_entities + queries.anchor, return_inverse=True, return_counts=True
        )
        total += count[row] + 3
    return total.rsqrt()


def checked_smoothing(value: float) -> float:
    if not 0 <= value < 1:
        raise UserError(f"objective.label_smoothing={value}: must be at least 0 and less than 1")
    return value
