"""Models whose vectors are made from the training graph: an encoder passes messages, a decoder scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.messages import OverFacts
from kgc.types import Queries, Side, Triples

Tables = tuple[Tensor, Tensor]


class EncodedModel(OverFacts, KGEModel):
    """A decoder on the vectors that an encoder makes of two learned tables and the facts given by `use_facts`.

    The encoder runs once for a step of training (`one_pass`) and once for an evaluation: without gradients its tables
    are kept until the next step or another change of parameters. They are none of the state, so that no checkpoint
    holds them. In evaluation mode the encoder is computed in float64 and its tables are rounded to the model's type;
    ranks are the decoder's on these tables, certified where the decoder's are.

    Args:
        decoder: makes the `KGEModel` that scores, from sizes and options; its two tables become the encoder's inputs.
        encoder: a module from ([E, dim], [rows, Dr], graph) to tables of the same sizes.
        edge_dropout: share of the facts that a step of training leaves out of the graph.
        entity_dropout, relation_dropout: of the vectors that the encoder makes.
    """

    shardable = False  # messages pass between any two entities

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        decoder: Callable[..., KGEModel],
        encoder: nn.Module,
        reciprocal: bool = False,
        edge_dropout: float = 0.0,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ):
        made = decoder(num_entities, num_relations, dim, reciprocal=reciprocal)
        self.extra = made.extra
        self.projects, self.stretches, self.lens_has_sides = made.projects, made.stretches, made.lens_has_sides
        self.query_dim, self.lens_dim = made.query_dim, made.lens_dim
        super().__init__(
            num_entities,
            num_relations,
            dim,
            similarity=made.similarity.similarity if made.projects else made.similarity,
            relation_dim=made.relation.embedding_dim,
            reciprocal=reciprocal,
            margin=made.margin,
            entity_dropout=entity_dropout,
            relation_dropout=relation_dropout,
            entity_init=lambda table: table.copy_(made.entity.weight),
            relation_init=lambda table: table.copy_(made.relation.weight),
        )
        del made.entity, made.relation
        self.decoder = made
        self.encoder = encoder
        self.edge_dropout = edge_dropout
        self._kept: tuple[Any, Tables] | None = None
        self._pass: Tables | None = None

    # The encoder's tables.

    def use_facts(self, facts: Triples) -> None:
        super().use_facts(facts)
        self._kept = None

    def tables(self) -> Tables:
        if self._pass is not None:
            return self._pass
        if self.training:
            return self._encoded()
        if torch.is_grad_enabled():
            return self._exactly_encoded()
        key = [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in self._inputs()]
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not both at once
            self._kept = key, self._exactly_encoded()
        return self._kept[1]

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[None]:
        self._pass = self._encoded() if self.training else self.tables()
        try:
            yield
        finally:
            self._pass = None

    def _inputs(self) -> list[Tensor]:
        return [self.entity.weight, self.relation.weight, *self.encoder.parameters(), *self.encoder.buffers()]

    def _encoded(self) -> Tables:
        self._kept = None  # a step of training follows, and fused optimizers change parameters unseen
        graph = self.graph.dropped(self.edge_dropout) if self.edge_dropout else self.graph
        entity, relation = self.entity.weight, self.relation.weight
        with torch.autocast(entity.device.type, enabled=False):
            return self._with_extra(self.encoder(entity[:, : self.dim], relation, graph))

    def _exactly_encoded(self) -> Tables:
        """The tables in float64, rounded to the model's type."""
        entity, relation = self.entity.weight, self.relation.weight
        tensors = dict(self.encoder.named_parameters()) | dict(self.encoder.named_buffers())
        exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        inputs = (entity[:, : self.dim].double(), relation.double(), self.graph)
        with torch.autocast(entity.device.type, enabled=False):
            made = functional_call(self.encoder, exact, inputs)
        return self._with_extra((made[0].to(entity.dtype), made[1].to(relation.dtype)))

    def _with_extra(self, tables: Tables) -> Tables:
        if not self.extra:
            return tables
        return torch.cat([tables[0], self.entity.weight[:, self.dim :]], dim=-1), tables[1]

    def use_sparse_gradients(self) -> None:
        raise UserError(
            f"optimizer.sparse=true: the messages of {type(self).__name__} reach every row in every step; leave it out"
        )

    # The decoder's algebra.

    def _query(self, anchor: Tensor, relation: Tensor, side: Side | Tensor) -> Tensor:
        return self.decoder._query(anchor, relation, side)

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        return self.decoder.lens(relation, side)

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        return self.decoder.project(vectors, lens)

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        return self.decoder.exact_queries(queries, entities, relations)

    def candidate(self, vectors: Tensor) -> Tensor:
        return self.decoder.candidate(vectors)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return self.decoder.magnitude(vectors)

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        return self.decoder.relation_magnitude(vectors)

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor | None:
        return self.decoder.relation_query(anchor, answer)

    def ask_back(self, queries: Queries, answer: Tensor, relation: Tensor) -> Tensor:
        return self.decoder.ask_back(queries, answer, relation)
