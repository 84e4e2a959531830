"""Where negative candidates come from, without learning; see `kbgan` and `cache` for proposals that learn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kgc.data.arrays import counts
from kgc.data.graph import KnowledgeGraph
from kgc.data.hygiene import degrees
from kgc.data.known import KnownAnswers
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Negatives, Queries, Scorer, Side, Triples


@dataclass(frozen=True)
class Asked:
    """The queries of a step that candidates are drawn for, and what a proposal may look at.

    Args:
        queries: B queries.
        target: [B] their right answers.
        known: the answers of train, which must not be negatives; None when they are not masked.
        model: the model in training, for proposals that look at its scores.
        epoch: finished ones.
    """

    queries: Queries
    target: Tensor
    known: KnownAnswers | None = None
    model: Scorer | None = None
    epoch: int = 0

    def contains(self, candidates: Tensor) -> Tensor | None:
        """[B, ·] bool: the candidate is a known answer; None when these are not masked."""
        return None if self.known is None else self.known.contains(self.queries, candidates)


class Proposal(nn.Module):
    """Interface: draws candidates for B queries. Parameters and buffers are trained and saved with the model's."""

    least_batch = 1  # queries without which a batch has no negatives

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        """Takes what it needs from the graph."""
        raise NotImplementedError

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        """`number` candidates for each query, or in each pool. `known` marks what this proposal never counts as
        negative; the sampler adds the answers of train."""
        raise NotImplementedError

    def loss(self, negatives: Negatives, scores: Tensor) -> Tensor | None:
        """What the proposal itself minimises, given the model's [B, K] scores of what it drew; None if nothing."""
        return None


class Unconditional(Proposal):
    """Interface of proposals that do not look at the query, so that queries can share candidates.

    A pool is compared with its queries by one matrix product or distance matrix, where candidates of each query's own
    are gathered one by one.

    Args:
        share: consecutive queries of a batch that share a pool: 1 gives each candidates of its own, None one pool to
            the whole batch. The last pool of a batch may serve fewer.
    """

    def __init__(self, share: int | None = 1):
        super().__init__()
        if share is not None and share < 1:
            raise UserError(f"sampler.proposal.share={share}: must be at least 1, or null for the whole batch")
        self.share = share

    def entities(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Ids of the given shape, drawn independently, with replacement."""
        raise NotImplementedError

    def pools(self, queries: int, number: int, generator: torch.Generator) -> Tensor:
        """[B, number] own candidates, [number] for the whole batch, or [⌈B/share⌉, number] for pools."""
        rows = () if self.share is None else (-(-queries // self.share),)
        return self.entities((*rows, number), generator)

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        return Negatives(self.pools(len(asked.queries), number, generator))


class Uniform(Unconditional):
    """Every entity equally likely."""

    def __init__(self, share: int | None = 1):
        super().__init__(share)
        self.num_entities = 0

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.num_entities = graph.num_entities

    def entities(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_entities, shape, generator=generator, device=generator.device)


class Degree(Unconditional):
    """P(e) ∝ max(degree(e), floor)^power, the degree being the places of e in train, as head or tail.

    With power 0.75 the noise of word2vec (Mikolov et al. 2013b, section 2.2); 1 is proportional, 0 uniform. Drawn by
    binary search in a cumulative table [E] in float64: probabilities are exact to 1e-16.

    Args:
        power: exponent.
        floor: degree that rarer entities count as; with 0 an entity that train never names is never drawn.
        share: see `Unconditional`.
    """

    def __init__(self, power: float = 0.75, floor: float = 1.0, share: int | None = 1):
        super().__init__(share)
        if floor < 0:
            raise UserError(f"sampler.proposal.floor={floor}: the least degree must be 0 or positive")
        self.power = power
        self.floor = floor
        self.cumulative = torch.empty(0, dtype=torch.float64)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        head, tail = degrees(graph.stored("train"), graph.num_entities)
        degree = (head + tail).double().clamp_(min=self.floor)
        weight = torch.where(degree > 0, degree**self.power, 0.0)
        self.cumulative = weight.cumsum(0).to(device)
        if not 0 < float(self.cumulative[-1]) < float("inf"):
            raise UserError(f"sampler.proposal.power={self.power}: degrees to this power are no numbers; try 0 to 1")

    def entities(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        point = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        # The first entity whose cumulative weight exceeds the point, which is below the sum in float64 too: one without
        # weight never is.
        return torch.searchsorted(self.cumulative, point * self.cumulative[-1], right=True)


class InBatch(Proposal):
    """The right answers of the batch's other queries, shared by all.

    An entity is proposed as often as it is an answer in train, and a query's own target never counts against it. Left
    alone, that bias makes a model trained by cross-entropy learn s = log P(e | q) − log P(e), which ranks frequent
    entities too low; `log_q` subtracts log P(e) from the logits in the loss, so that s itself learns log P(e | q) (Yi
    et al. 2019). P(e) is the share of train triples whose asked end e is; both ends count where one batch asks
    for both.

    The pool is the whole batch, or `num_negatives` of its answers, drawn without replacement, if these are fewer. A
    batch of one query, such as the last of an epoch may be, has no others: it gets the right answer of another triple
    of train, drawn at random.

    Args:
        log_q: correct logits for how often an entity is proposed.
    """

    least_batch = 2

    def __init__(self, log_q: bool = False):
        super().__init__()
        self.log_q = log_q
        self.answered = Triples.empty()
        self.frequency: dict[Side | None, Tensor] = {}  # [E] log P(e); None: over both ends

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.answered = graph.stored("train").to(device)
        if self.log_q:
            count = {s: counts(self.answered.target(s), graph.num_entities).double() for s in Side}
            tables = count | {None: count[Side.HEAD] + count[Side.TAIL]}
            self.frequency = {s: (table / table.sum()).log().float().to(device) for s, table in tables.items()}

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        pool, side = asked.target, asked.queries.side
        if len(pool) == 1:
            pool = self.another(side, generator)
        elif number < len(pool):
            pool = pool[torch.randperm(len(pool), generator=generator, device=generator.device)[:number]]
        log_q = self.frequency[side if isinstance(side, Side) else None] if self.log_q else None
        return Negatives(pool, known=pool == asked.target.unsqueeze(1), log_q=log_q)

    def another(self, side: Side | Tensor, generator: torch.Generator) -> Tensor:
        """[1] the right answer of a triple of train at the asked end of a single query."""
        triple = torch.randint(len(self.answered), (1,), generator=generator, device=generator.device)
        if isinstance(side, Side):
            return self.answered.target(side)[triple].long()
        return torch.where(side == Side.HEAD, self.answered.head[triple], self.answered.tail[triple]).long()


class Typed(Proposal):
    """Each query's own candidates among the entities that its relation has at the asked end in train, equally likely
    (local closed world, Krompaß et al. 2015).

    A (relation, end) with a single such entity has nothing but right answers to offer; its queries draw from all
    entities instead. With masking, a query that all entities of its type answer has no negatives. The table holds each
    entity once for every (relation, end) it occurs with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_entities = self.num_relations = 0
        self.members = self.offsets = torch.empty(0, dtype=torch.int64)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.num_entities, self.num_relations = graph.num_entities, graph.num_relations
        train = graph.stored("train").to(device)
        groups = torch.cat([side * graph.num_relations + train.relation.long() for side in Side])
        cells = torch.unique(groups.mul_(graph.num_entities).add_(torch.cat([train.target(side) for side in Side])))
        self.members = cells % graph.num_entities  # [M] by group
        counts = torch.bincount(cells // graph.num_entities, minlength=len(Side) * graph.num_relations)
        self.offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # [2R + 1]

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        group = asked.queries.side * self.num_relations + asked.queries.relation
        start = self.offsets[group].unsqueeze(1)
        count = self.offsets[group + 1].unsqueeze(1) - start  # [B, 1]
        typed = count > 1
        size = torch.where(typed, count, self.num_entities)
        shape = (len(group), number)
        point = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        place = (point * size).long()
        member = self.members[torch.where(typed, start + place, 0)]
        return Negatives(torch.where(typed, member, place))


class SameType(Proposal):
    """Each query's own candidates among the entities of its right answer's types (`annotations.entity_types`).

    For each candidate one of the answer's types is drawn, all alike, then one of the entities that have it, all alike,
    whether train names them or not: a type constraint by known types (Xie et al. 2016), where `Typed` infers them from
    train. An answer without a type, and a type of one entity, draw from all
    entities.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_entities = 0
        self.types = self.types_from = torch.empty(0, dtype=torch.int64)
        self.members = self.members_from = torch.empty(0, dtype=torch.int64)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        table = graph.annotations.types
        if table.is_empty():
            raise UserError("sampler=same_type: no entity has a type; give annotations.entity_types=FILE")
        self.num_entities = graph.num_entities
        entity = torch.tensor(table["entity"].to_numpy(), device=device)
        kind = Vocabulary.from_labels(table["type"]).index(table["type"]).to(device)
        by_entity, by_type = entity.argsort(stable=True), kind.argsort(stable=True)
        self.types, self.members = kind[by_entity], entity[by_type]  # [M] by entity, [M] by type
        self.types_from, self.members_from = (
            torch.cat([counts.new_zeros(1), counts.cumsum(0)])  # [E + 1], [number of types + 1]
            for counts in (torch.bincount(entity, minlength=graph.num_entities), torch.bincount(kind))
        )

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        target = asked.target.unsqueeze(1)
        shape = (len(target), number)
        which, whom = (
            torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64) for _ in range(2)
        )
        start, count = self.types_from[target], self.types_from[target + 1] - self.types_from[target]
        place = torch.where(count > 0, start + (which * count).long(), 0)
        kind = self.types[place]  # [B, K]
        start, size = self.members_from[kind], self.members_from[kind + 1] - self.members_from[kind]
        typed = (count > 0) & (size > 1)
        member = self.members[torch.where(typed, start + (whom * size).long(), 0)]
        return Negatives(torch.where(typed, member, (whom * self.num_entities).long()))
