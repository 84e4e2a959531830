"""Rules as a scorer: mined from the train split, not trained (AnyBURL, Meilicke et al. 2019 and 2024)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kgc.errors import UserError
from kgc.models.rules.edges import Edges, distinct
from kgc.models.rules.firing import Firing
from kgc.models.rules.mining import BODIES, BODY, SUPPORT, Miner
from kgc.types import Queries, Side, Triples

_QUESTIONS_AT_ONCE = 32
_BITS = 52  # of a float64's fraction
_AGGREGATIONS = ("maximum", "noisy_or")


class RuleModel(nn.Module):
    """Scores an answer by the confidences of the rules that predict it.

    `aggregation=maximum`: answers are compared by their best rule, then by their second best, and so on through `depth`
    rules (AnyBURL's order). In one number, exactly: c₁ + c₂ 2⁻ᵇ + c₃ 2⁻²ᵇ + …, each confidence rounded up to b = 52 /
    depth binary digits; with `depth=1` the score is the best confidence. `aggregation=noisy_or`: −Σ log(1 − c) over all
    rules, which ranks like the probability 1 − Π (1 − c). No rule is 0.

    The state is one integer tensor, `rules` [n, 5 + length] (see `kgc.models.rules.mining`); they are applied to the
    facts given by `use_facts`. An answer is never the anchor itself, and an edge between anchor and answer is never
    part of a body, so that no triple explains itself.

    Args:
        num_entities, num_relations: E, R.
        length: the most relations in the body of a closed rule.
        constants: mine rules with constants too.
        seconds: mining ends after so many, with the rules found by then; None: when all are found.
        min_support, min_confidence: what a rule needs at least.
        pessimism: pc, added to the number of body groundings.
        aggregation: `maximum` or `noisy_or`.
        depth: how many rules decide, of `maximum`.
    """

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        *,
        length: int = 2,
        constants: bool = True,
        seconds: float | None = None,
        min_support: int = 2,
        min_confidence: float = 0.01,
        pessimism: float = 5.0,
        aggregation: str = "maximum",
        depth: int = 5,
    ):
        super().__init__()
        for name, value, least in (("length", length, 1), ("min_support", min_support, 1), ("depth", depth, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"model.{name}={value}: must be a whole number, at least {least}")
        for name, value in (("pessimism", pessimism), ("min_confidence", min_confidence), ("seconds", seconds)):
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
            if not number and not (name == "seconds" and value is None):
                raise UserError(f"model.{name}={value}: must be a number, at least 0")
        if depth > _BITS // 4:
            raise UserError(f"model.depth={depth}: must be at most {_BITS // 4}; a score has {_BITS} binary digits")
        if aggregation not in _AGGREGATIONS:
            raise UserError(f"model.aggregation={aggregation}: choices are {', '.join(_AGGREGATIONS)}")
        self.num_entities, self.num_relations = num_entities, num_relations
        self.length, self.constants, self.seconds = length, constants, seconds
        self.min_support, self.min_confidence, self.pessimism = min_support, min_confidence, pessimism
        self.aggregation, self.depth = aggregation, depth
        self.register_buffer("rules", torch.empty(0, BODY + length, dtype=torch.int64))
        self._edges: Edges | None = None
        self._firing: Firing | None = None
        self._last: tuple[Queries, np.ndarray, np.ndarray] | None = None

    def use_facts(self, facts: Triples) -> None:
        """Takes the facts that rules are mined from and applied to, those of train.

        Raises:
            UserError: the graph is too large for 63-bit numbers of its edges.
        """
        self._edges = Edges(facts, self.num_entities, self.num_relations)
        self._firing = self._last = None

    def mine(self, progress: Callable[[str], None] = lambda line: None) -> bool:
        """Finds the rules of the facts; returns whether it found all of them before time was up.

        Args:
            progress: is told how many rules of each kind were found.
        """
        deadline = float("inf") if self.seconds is None else time.monotonic() + self.seconds
        limits = (self.length, self.constants, self.min_support, self.min_confidence, self.pessimism)
        miner = Miner(self.edges, *limits, deadline)
        self.rules = torch.from_numpy(miner.mine(progress))
        self._firing = self._last = None
        return miner.complete

    @property
    def edges(self) -> Edges:
        """The facts.

        Raises:
            RuntimeError: `use_facts` has not been called.
        """
        if self._edges is None:
            raise RuntimeError("rules need facts to be applied to: call use_facts(triples)")
        return self._edges

    def confidence(self) -> Tensor:
        """[n] float64 confidences of the rules, descending."""
        return self.rules[:, SUPPORT] / (self.rules[:, BODIES].double() + self.pessimism)

    def logits(self, scores: Tensor) -> Tensor:
        """Scores as logits of the probability of an answer, that of its best rule or of all (`noisy_or`)."""
        likely = scores if self.aggregation == "maximum" else -torch.expm1(-scores)
        return torch.logit(likely.clamp(1e-9, 1 - 1e-9))

    def score(self, queries: Queries, candidates: Tensor | range | None = None) -> Tensor:
        """[B, E], [B, len(range)], [B, N] or [B, K] float64 scores; see `kgc.types.Scorer`."""
        cell, value = self._cells(queries)
        device, number = queries.anchor.device, len(queries)
        row, entity = cell // max(1, self.num_entities), cell % max(1, self.num_entities)
        if not isinstance(candidates, Tensor):
            ids = range(self.num_entities) if candidates is None else candidates
            inside = (entity >= ids.start) & (entity < ids.stop)
            scores = np.zeros((number, len(ids)))
            scores[row[inside], entity[inside] - ids.start] = value[inside]
            return torch.from_numpy(scores).to(device)
        wanted = candidates.cpu().numpy()
        scores = np.zeros((number, wanted.shape[-1]))
        whole = np.zeros(self.num_entities)
        bounds = np.searchsorted(row, np.arange(number + 1))
        for i in range(number):
            mine = slice(bounds[i], bounds[i + 1])
            whole[entity[mine]] = value[mine]
            scores[i] = whole[wanted if wanted.ndim == 1 else wanted[i]]
            whole[entity[mine]] = 0
        return torch.from_numpy(scores).to(device)

    def explain(self, query: Queries, answer: int) -> list[tuple[int, dict[str, int]]]:
        """The rules that predict an answer, the best first, each with the entities its variables stand for.

        Args:
            query: one question.
            answer: the entity.
        """
        found = [rule[answers == answer] for _, answers, rule in self.fired(query)]
        anchor = int(query.anchor)
        head, tail = (answer, anchor) if int(query.side) == Side.HEAD else (anchor, answer)
        return [(rule, self.firing.grounding(rule, head, tail)) for part in found for rule in part.tolist()]

    def fired(self, queries: Queries) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """[m] queries, [m] answers and [m] rules, the best first for each answer, in parts of some queries each."""
        firing = self.firing
        relation = queries.relation.cpu().numpy()
        side = torch.as_tensor(queries.side).expand(len(queries)).cpu().numpy()
        kind = relation + self.num_relations * (side == Side.HEAD)
        anchor = queries.anchor.cpu().numpy()
        order = np.argsort(kind, kind="stable")
        wide, many = np.int64(self.num_entities), np.int64(max(1, len(self.rules)))
        for same in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
            for start in range(0, len(same), _QUESTIONS_AT_ONCE):
                part = same[start : start + _QUESTIONS_AT_ONCE]
                which, answer, rule = firing.fire(anchor[part], int(kind[part[0]]))
                key = distinct((which * wide + answer) * many + rule)
                cell = key // many
                yield part[cell // wide], cell % wide, key % many

    @property
    def firing(self) -> Firing:
        """The rules, ready to be applied."""
        if self._firing is None:
            self._firing = Firing(self.edges, self.rules.cpu().numpy())
        return self._firing

    def _cells(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Ascending places query · E + answer of the answers that some rule predicts, and their scores.

        Those of the last queries are kept: blocks of entities are asked for one after the other.
        """
        if self._last is not None and _same(self._last[0], queries):
            return self._last[1:]
        confidence = self.confidence().cpu().numpy()
        cells, values = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        for question, answer, rule in self.fired(queries):
            cell = question * np.int64(self.num_entities) + answer
            first = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]][: len(cell)])
            cells.append(cell[first])
            values.append(self._aggregate(confidence[rule], first))
        cell, value = np.concatenate(cells), np.concatenate(values)
        order = np.argsort(cell)
        self._last = queries, cell[order], value[order]
        return self._last[1:]

    def _aggregate(self, confidence: np.ndarray, first: np.ndarray) -> np.ndarray:
        """[k] scores of answers from the [m] confidences of their rules, descending; `first` is where each begins."""
        if not len(first):
            return np.zeros(0)
        if self.aggregation == "noisy_or":
            return np.add.reduceat(-np.log1p(-np.minimum(confidence, 1 - 2.0**-_BITS)), first)
        if self.depth == 1:
            return confidence[first]
        bits = _BITS // self.depth
        place = np.arange(len(confidence)) - np.repeat(first, np.diff(np.r_[first, len(confidence)]))
        digit = np.minimum(np.ceil(confidence * 2.0**bits), 2**bits - 1)
        weight = np.where(place < self.depth, 2.0 ** (-bits * np.minimum(place + 1, self.depth)), 0.0)
        return np.add.reduceat(digit * weight, first)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
        """A checkpoint says how many rules there are."""
        rules = state.get(prefix + "rules")
        if rules is not None and rules.shape[1:] == self.rules.shape[1:]:
            self.rules = torch.empty_like(rules, device=self.rules.device)
        super()._load_from_state_dict(state, prefix, *others)
        self._firing = self._last = None


def _same(one: Queries, other: Queries) -> bool:
    """Whether two batches ask the same."""
    if one is other:
        return True
    if len(one) != len(other) or one.anchor.device != other.anchor.device:
        return False
    sides = (torch.as_tensor(x.side, device=x.anchor.device).expand(len(x)) for x in (one, other))
    return torch.equal(one.anchor, other.anchor) and torch.equal(one.relation, other.relation) and torch.equal(*sides)
