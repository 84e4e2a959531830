"""The one interface of every embedding model: a query vector and a similarity.

`score(queries, candidates) = similarity(query(anchor, relation, side), candidate)`. A model file writes `query` on
vectors; look-ups, reciprocal relations, mixed sides and dropout are handled here, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.limits import require_memory
from kgc.models.algebra import without_denormals
from kgc.models.in_parts import InParts
from kgc.models.init import rows_of
from kgc.models.projected import Projected, Stretched
from kgc.models.similarity import Similarity
from kgc.sharding import shard_of
from kgc.types import Queries, Side, Triples

# Numbers of relations that are looked up at once in evaluation, where a relation may be a matrix.
_NUMBERS = 1 << 22


class KGEModel(InParts, nn.Module):
    """Entity and relation tables, and the scores of any queries against any candidates.

    Args:
        num_entities: E.
        num_relations: R. With `reciprocal` the table has 2R rows, the second half for head queries.
        dim: D, real numbers of an entity's vector; a model with `extra` numbers (a bias) stores these behind it.
        similarity: compares query and candidate vectors.
        relation_dim: Dr, real numbers stored per relation; `dim` when None.
        reciprocal: answer (?, r, t) as (t, r + R, ?) with a relation vector of its own (Lacroix et al. 2018). Models
            that are `reciprocal_only` have no formula for head queries.
        margin: γ, the logit of distance 0; added to scores by `logits`, never in ranking (it would only round).
        entity_dropout, relation_dropout: probability that a coordinate is zeroed in training.
        entity_init, relation_init: fill a table in place.

    A model whose candidates depend on the relation sets `projects` and writes `project`, and `lens` where that does not
    need the whole relation vector. Its `similarity` is then a `Projected` one, whose query vectors are [query | lens],
    or [query | number of the lens] in evaluation.

    Below, D counts the `extra` numbers of an entity too; they know no dropout.

    Made inside `kgc.sharding.sharded`, a model holds the rows of one process (`shard`, else None): vectors of ids come
    from wherever they lie, those of a range or of all are of the rows held.
    """

    projects = False  # candidates are compared as `project` makes them
    stretches = False  # `project` multiplies (some of) a candidate's numbers by the lens
    lens_has_sides = True  # `lens` looks at the side
    query_dim: int | None = None  # Dq, numbers that `query` makes, of a model that projects; dim when None
    lens_dim: int | None = None  # Dl, numbers that `lens` makes; Dr when None
    extra = 0  # real numbers stored per entity behind its vector
    reciprocal_only = False  # `query` answers tail queries alone
    shardable = True  # several processes can share the table of entities

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        similarity: Similarity,
        entity_init: Callable[[Tensor], Tensor],
        relation_init: Callable[[Tensor], Tensor],
        relation_dim: int | None = None,
        reciprocal: bool = False,
        margin: float = 0.0,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ):
        super().__init__()
        if dim < 1:
            raise UserError(f"model.dim={dim}: the width of an entity vector must be at least 1")
        if self.reciprocal_only and not reciprocal:
            raise UserError(
                f"model.reciprocal=false: {type(self).__name__} answers tail queries only; choose "
                "model.reciprocal=true, which asks for heads by relations of their own"
            )
        self.num_entities = num_entities
        self.num_relations = num_relations
        self.dim = dim
        self.reciprocal = reciprocal
        self.margin = margin
        self.entity_dropout = entity_dropout
        self.relation_dropout = relation_dropout
        stored = dim + self.extra
        rows, width = num_relations * (2 if reciprocal else 1), dim if relation_dim is None else relation_dim
        self.shard = shard_of(num_entities)
        entities = num_entities if self.shard is None else self.shard.held
        require_memory(4 * (entities * stored + rows * width), f"model.dim={dim}", "the tables")
        self.entity = nn.Embedding(entities, stored, _weight=torch.empty(entities, stored))
        self.relation = nn.Embedding(rows, width, _weight=torch.empty(rows, width))
        self.similarity = similarity
        if self.projects:
            self.query_dim = dim if self.query_dim is None else self.query_dim
            self.lens_dim = width if self.lens_dim is None else self.lens_dim
            kind = Stretched if self.stretches else Projected
            self.similarity = kind(similarity, self.project, self.lens_of, self.query_dim, self.lens_dim)
        with torch.no_grad():
            if self.shard is None:
                entity_init(self.entity.weight)
            else:
                self.entity.weight.copy_(rows_of(entity_init, num_entities, stored, self.shard.first, self.shard.stop))
                self.entity.register_state_dict_post_hook(partial(self._whole_in_state))
                self.entity.register_load_state_dict_pre_hook(partial(self._part_of_state))
            relation_init(self.relation.weight)

    # What a model file writes.

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        """[*, D] anchors and [*, Dr] relations to [*, Dq] query vectors for the `side` end."""
        raise NotImplementedError

    def lens(self, relation: Tensor, side: Side) -> Tensor:
        """[*, Dr] relations to [*, Dl], what `project` needs to see candidates for the `side` end. For `projects`."""
        return relation

    def project(self, vectors: Tensor, lens: Tensor) -> Tensor:
        """[*, D] entities as seen through the lenses [*, Dl], broadcast against them: [*, Dq]. For `projects`."""
        raise NotImplementedError

    def candidate(self, vectors: Tensor) -> Tensor:
        """[*, D] entities as `similarity` compares them with queries: [*, Dc]; the same for all queries."""
        return vectors

    def magnitude(self, vectors: Tensor) -> Tensor:
        """Absolute values that a regularizer penalises: of real numbers, or the moduli of complex ones."""
        return vectors.abs()

    def relation_magnitude(self, vectors: Tensor) -> Tensor:
        """`magnitude` of relation vectors."""
        return self.magnitude(vectors)

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor | None:
        """[*, Dr] v with ⟨v, r⟩ the score of [*, D] answers to tail queries; None where scores are not linear in r."""
        return None

    # What everything else calls.

    def use_facts(self, facts: Triples) -> None:
        """Takes the facts of the graph, those of train; for models that pass messages over it."""

    def tables(self) -> tuple[Tensor, Tensor]:
        """The [E, D] vectors of entities and [R, Dr] (or [2R, Dr]) of relations: stored, or made by an encoder."""
        return self.entity.weight, self.relation.weight

    def one_pass(self) -> contextlib.AbstractContextManager[None]:
        """Inside it the tables are those of one moment: an encoder runs once for all that a step asks."""
        return contextlib.nullcontext()

    def entity_vectors(self, entities: Tensor | range | None = None) -> Tensor:
        """[*] ids to [*, D]; a range to [n, D]; None to the whole [E, D] table."""
        table = self.tables()[0]
        everywhere = self.shard is not None and isinstance(entities, Tensor) and not self.shard.inside
        if everywhere:
            vectors = self.shard.lookup(table, entities, self.entity.sparse)
        elif isinstance(entities, Tensor):
            vectors = F.embedding(entities, table, sparse=self.entity.sparse)
        else:
            vectors = table if entities is None else table[entities.start : entities.stop]
        if not (self.training and self.entity_dropout):
            return vectors
        drop = F.dropout if self.shard is None or everywhere else self.shard.dropout
        dropped = drop(vectors[..., : self.dim], self.entity_dropout)
        return torch.cat([dropped, vectors[..., self.dim :]], dim=-1) if self.extra else dropped

    def relation_vectors(self, relations: Tensor) -> Tensor:
        """[*] ids to [*, Dr]."""
        vectors = F.embedding(relations, self.tables()[1], sparse=self.relation.sparse)
        return F.dropout(vectors, self.relation_dropout, self.training and self.relation_dropout > 0)

    def use_sparse_gradients(self) -> None:
        """Look-ups by id give both tables sparse gradients, of the rows looked up, whatever the tables' size."""
        self.entity.sparse = self.relation.sparse = True

    def relation_rows(self, queries: Queries) -> Tensor:
        """[B] the row of the relation table that answers each query."""
        if not self.reciprocal or queries.side is Side.TAIL:
            return queries.relation
        asks_head = 1 if queries.side is Side.HEAD else (queries.side == Side.HEAD).long()
        return queries.relation + self.num_relations * asks_head

    def query_vectors(self, queries: Queries) -> Tensor:
        """[B, Dq] vectors of the questions; models that project append the lens, or its number in evaluation."""
        if not self._numbers_lenses():
            return self.combine(
                queries, self.entity_vectors(queries.anchor), self.relation_vectors(self.relation_rows(queries))
            )
        at_once = max(1, _NUMBERS // self.relation.embedding_dim)
        if len(queries) > at_once:
            return torch.cat([self.query_vectors(queries[i : i + at_once]) for i in range(0, len(queries), at_once)])
        rows = self.relation_rows(queries)
        anchor, relation = self.entity_vectors(queries.anchor), self.relation_vectors(rows)
        number = (2 * rows + self.asks_head(queries).squeeze(-1) * self.lens_has_sides).to(anchor.dtype)
        return self._seen_through(self._query(anchor, relation, self._side(queries)), number.unsqueeze(-1))

    def _seen_through(self, query: Tensor, lens: Tensor) -> Tensor:
        """[query | lens], or what names the lens."""
        if query.shape[-1] != self.similarity.query_dim:
            made = f"{type(self).__name__}.query makes {query.shape[-1]} numbers"
            raise ValueError(f"{made}: set query_dim to that, before super().__init__")
        return torch.cat([query, lens], dim=-1)

    def _numbers_lenses(self) -> bool:
        """Whether lenses are named rather than copied, which takes memory: without gradients, where numbers suffice."""
        if not self.projects or self.training or torch.is_grad_enabled() or self.lens_dim == 1:
            return False
        return 2 * len(self.relation.weight) * torch.finfo(self.relation.weight.dtype).eps < 1

    def lens_of(self, number: Tensor) -> Tensor:
        """[*] numbers, as `query_vectors` has them, to [*, Dl] lenses. For `projects`."""
        number = number.long()
        relation = self.relation_vectors(number // 2)
        if not self.lens_has_sides:
            return self.lens(relation, Side.TAIL)
        head, tail = (self.lens(relation, side) for side in (Side.HEAD, Side.TAIL))
        return torch.where((number % 2 == 1).unsqueeze(-1), head, tail)

    def combine(self, queries: Queries, anchor: Tensor, relation: Tensor) -> Tensor:
        """[B, Dq] query vectors from [B, D] anchors and [B, Dr] relations already looked up.

        Models that project return [B, Dq + Dl], the lens behind the query.
        """
        side = self._side(queries)
        query = self._query(anchor, relation, side)
        return self._seen_through(query, self._either(self.lens, relation, side=side)) if self.projects else query

    def _side(self, queries: Queries) -> Side | Tensor:
        """The side whose formula answers the queries."""
        return Side.TAIL if self.reciprocal else queries.side

    def ask_back(self, queries: Queries, answer: Tensor, relation: Tensor) -> Tensor:
        """[B, Dq] vectors that ask from [B, D] answers for the anchors, with the relation vectors of the queries.

        For an inner product ⟨combine(queries, a, r), c⟩ = ⟨ask_back(queries, c, r), a⟩.
        """
        side = self._side(queries)
        return self._query(answer, relation, Side(1 - side) if isinstance(side, Side) else 1 - side)

    def _query(self, anchor: Tensor, relation: Tensor, side: Side | Tensor) -> Tensor:
        return self._either(self.query, anchor, relation, side=side)

    def _either(self, formula: Callable[..., Tensor], *vectors: Tensor, side: Side | Tensor) -> Tensor:
        """`formula(*vectors, side)`; of a tensor of sides each row by its own."""
        if isinstance(side, Side):
            return formula(*vectors, side)
        head, tail = (formula(*vectors, each) for each in (Side.HEAD, Side.TAIL))
        return torch.where((side == Side.HEAD).unsqueeze(-1), head, tail)

    def asks_head(self, queries: Queries) -> Tensor:
        """[B, 1] which query vectors are to be of head queries; none with `reciprocal`."""
        side = torch.as_tensor(self._side(queries), device=queries.anchor.device)
        return (side == Side.HEAD).reshape(-1, 1)

    def exact_query_vectors(self, queries: Queries) -> Tensor:
        """[B, Dq] float64 vectors of the questions, computed in float64 from the tables, denormals as 0."""
        entities, relations = self.tables()
        if self.shard is not None:
            entities = self.shard.lookup(entities, queries.anchor)
            queries = Queries(torch.arange(len(queries), device=entities.device), queries.relation, queries.side)
        return self.exact_queries(queries, entities, relations)

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        """`exact_query_vectors` of queries by the rows of given tables, as `tables` has them."""
        anchor, relation = entities[queries.anchor], relations[self.relation_rows(queries)]
        return self.combine(queries, without_denormals(anchor).double(), without_denormals(relation).double())

    def candidate_vectors(self, candidates: Tensor | range | None = None) -> Tensor:
        """[N, Dc] or [B, K, Dc] vectors that `similarity` compares queries with."""
        return self.candidate(self.entity_vectors(candidates))

    def compare(self, query: Tensor, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, n], [B, N] or [B, K] scores of [B, Dq] query vectors.

        Own candidates that are about as many as there are entities are picked from the scores of all: [B, E] scores
        cost less than [B, K] vectors gathered, and their gradients scattered. Not with sparse gradients, which this
        would make dense. Fewer rows of candidates than queries are pools, see `kgc.types.Negatives`: the batch becomes
        [G, S, Dq], compared with [G, N, Dq] at once.
        """
        if self.shard is not None:
            return self._compare_where_they_lie(query, candidates)
        if isinstance(candidates, Tensor) and candidates.dim() == 2:
            if len(candidates) < len(query):
                return self._compare_pools(query, self.candidate_vectors(candidates))
            if 2 * candidates.shape[1] >= self.num_entities and not self.entity.sparse:
                return self.similarity(query, self.candidate_vectors()).gather(1, candidates)
        return self.similarity(query, self.candidate_vectors(candidates))

    def _compare_pools(self, query: Tensor, candidate: Tensor) -> Tensor:
        """[B, N] scores of [B, Dq] queries against the [G, N, Dc] candidates of their pools."""
        pools, size = len(candidate), -(-len(query) // max(1, len(candidate)))
        filled = torch.cat([query, query[-1:].expand(pools * size - len(query), -1)])  # zeros may have no gradient
        return self.similarity(filled.unflatten(0, (pools, size)), candidate).flatten(0, 1)[: len(query)]

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, len(range)], [B, N] or [B, K] scores; see `kgc.types.Scorer` and `compare`."""
        return self.compare(self.query_vectors(queries), candidates)

    def logits(self, scores: Tensor) -> Tensor:
        """Scores as logits: the margin γ plus the (negative) distance; unchanged for a margin of 0."""
        return scores + self.margin if self.margin else scores


def require_even(name: str, dim: int, what: str = "complex numbers") -> None:
    """Models of two halves need an even `model.dim`; `what` says what dim/2 counts."""
    if dim % 2:
        raise UserError(
            f"model.dim={dim}: {name} stores dim/2 {what} per entity, so dim must be even; "
            f"try {max(2, dim - 1)} or {dim + 1}"
        )


def require_quarters(name: str, dim: int, what: str) -> None:
    """Models of four quarters need a `model.dim` divisible by 4; `what` says what dim/4 counts."""
    if dim % 4:
        below = dim - dim % 4
        raise UserError(
            f"model.dim={dim}: {name} stores dim/4 {what} per entity, so dim must be a multiple of 4; "
            f"try {max(4, below)} or {below + 4}"
        )
