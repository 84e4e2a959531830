"""DRUM: chains of soft choices of relations, learned end to end (Sadeghian et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.path_model import PathModel
from kgc.types import Triples

# What an entity without any path has: it keeps logarithms finite.
EPSILON = 1e-6
# Numbers of a state that are walked at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Hops:
    """Edges of 2R relations as one sparse matrix: what arrives at each (relation, target) from all sources.

    Args:
        num_entities: E.
        key: [M] distinct, ascending (relation · E + target) · E + source.
    """

    num_entities: int
    key: Tensor

    @staticmethod
    def of(facts: Triples, num_entities: int, num_relations: int) -> Hops:
        """Facts and their inverses, relations r + R."""
        relation = torch.cat([facts.relation, facts.relation + num_relations])
        source, target = torch.cat([facts.head, facts.tail]), torch.cat([facts.tail, facts.head])
        return Hops(num_entities, torch.unique((relation * num_entities + target) * num_entities + source))

    def without(self, other: Hops) -> Hops:
        """The edges that are not among others."""
        return Hops(self.num_entities, self.key[~torch.isin(self.key, other.key)])

    def to(self, device: torch.device) -> Hops:
        return self if self.key.device == device else Hops(self.num_entities, self.key.to(device))

    def matrix(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """[P, E] sparse matrix of ones, and [P] relations and [P] targets of its rows."""
        ends, source = self.key // self.num_entities, self.key % self.num_entities
        ends, row = torch.unique_consecutive(ends, return_inverse=True)
        ones = torch.ones(len(row), dtype=dtype, device=row.device)
        size = (len(ends), self.num_entities)
        matrix = torch.sparse_coo_tensor(
            torch.stack([row, source]), ones, size, is_coalesced=True, check_invariants=False
        )
        return matrix, ends // self.num_entities, ends % self.num_entities


class DRUM(PathModel):
    """Score of y for (x, q, ?): log(ε + Σⱼ xᵀ Πᵢ (Σₖ aⱼᵢₖ(q) Aₖ) y), i = 1 … length, j = 1 … rank (eq. 5 and 6).

    Aₖ are the adjacency matrices of all relations, of their inverses, and the identity, which makes shorter rules; aⱼᵢ
    is the softmax of a linear function of the i-th state of a bidirectional LSTM of its own for each j, which reads a
    vector of the query relation `length` times. (?, r, t) is answered as (t, r⁻¹, ?). Logarithms turn the softmax
    cross-entropy of `objective=one_vs_all` into the paper's, of scores divided by their sum. In training, the edges of
    the batch's own triples are taken out of the graph. No entity has parameters.

    B queries cost 2·M·B·rank multiplications a step for M edges, and hold B·rank·(E + P) numbers, P the number of
    distinct (relation, target).

    Args:
        num_entities: E, of the graph that `use_facts` gives.
        num_relations: R.
        dim: width of the vector of a query relation and of the LSTMs' states.
        rank: chains that are added.
        length: the longest rule.
    """

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, rank: int = 3, length: int = 2):
        for name, value in (("dim", dim), ("rank", rank), ("length", length)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"model.{name}={value}: must be a whole number, at least 1")
        super().__init__(num_entities, num_relations)
        self.dim, self.length, self.rank = dim, length, rank
        self.relation = nn.Embedding(2 * num_relations, dim)
        self.chains = nn.ModuleList(nn.LSTM(dim, dim, bidirectional=True) for _ in range(rank))
        self.choice = nn.Linear(2 * dim, 2 * num_relations + 1)

    def use_facts(self, facts: Triples) -> None:
        self._graph = Hops.of(facts, self.num_entities, self.num_relations)

    def hidden(self, triples: Triples) -> Hops:
        return self.graph.without(Hops.of(triples, self.num_entities, self.num_relations))

    def attention(self, relation: Tensor) -> Tensor:
        """[B] query relations, of 2R, to [rank, length, B, 2R + 1] weights that add up to 1; the last is identity."""
        read = self.relation(relation).expand(self.length, -1, -1)
        return torch.stack([self.choice(chain(read)[0]) for chain in self.chains]).softmax(-1)

    def forward(self, anchor: Tensor, relation: Tensor, hops: Hops) -> Tensor:
        """[B] anchors and [B] query relations, of 2R, to [B, E] scores."""
        weights = self.attention(relation)  # [J, L, B, 2R + 1]
        matrix, kind, target = hops.matrix(weights.dtype)
        shape = (self.rank, len(anchor))
        state = weights.new_zeros(self.num_entities, *shape)
        state[anchor, :, torch.arange(len(anchor), device=anchor.device)] = 1.0
        state = state.flatten(1)  # [E, J · B]
        for step in range(self.length):
            chosen = weights[:, step].movedim(-1, 0).flatten(1)  # [2R + 1, J · B]
            arrived = torch.sparse.mm(matrix, state) * chosen[kind]  # [P, J · B]
            state = (state * chosen[-1]).index_add(0, target, arrived)
        return (state.unflatten(1, shape).sum(1).T + EPSILON).log()

    def _block(self) -> int:
        return max(1, _AT_ONCE // max(1, self.rank * max(self.num_entities, len(self.graph.key))))

    @torch.no_grad()
    def learned_rules(self, relation: int, number: int = 20, choices: int = 64) -> list[tuple[float, tuple[int, ...]]]:
        """The bodies of the rules of a query relation, of 2R, with the largest weights, added over the chains.

        Args:
            relation: what is asked for, q.
            number: how many rules.
            choices: of each step only the relations that some chain weighs most are looked at.

        Returns:
            (weight, relations of the body, of 2R), the largest weight first; identities are left out of bodies.
        """
        weights = self.attention(torch.tensor([relation], device=self.relation.weight.device))[:, :, 0].double().cpu()
        best = weights.amax(0).topk(min(choices, weights.shape[-1])).indices.tolist()  # [L][choices]
        total: dict[tuple[int, ...], float] = {}
        for chain in weights.tolist():
            for body in product(*best):
                weight = 1.0
                for step, kind in zip(chain, body, strict=True):
                    weight *= step[kind]
                rule = tuple(kind for kind in body if kind < 2 * self.num_relations)
                total[rule] = total.get(rule, 0.0) + weight
        return sorted(((weight, rule) for rule, weight in total.items()), key=lambda x: (-x[0], x[1]))[:number]
