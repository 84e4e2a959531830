"""Mining of rules from the train split: all of them, shortest first, until time is up.

Counts are exact. Of a closed rule r(X, Y) ← b₁(X, A), b₂(A, Y) the body count is the number of pairs (x, y) that a walk
over distinct entities joins, the support the number of these that r joins too. Of a rule with a constant,
r(X, c) ← b(X, c′) or r(X, c) ← b(X, A), both count the x; of r(X, c) ← true all x that have any r. Confidence is
support / (body + pc): AnyBURL's pessimistic estimate (Meilicke et al. 2019, section 4).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kgc.models.rules.edges import WALKS_AT_ONCE, Edges, distinct, extend, ragged, unlike

# Columns of a table of rules before those of the body's relations; -1 stands for what a rule has not.
HEAD, CONSTANT, BODY_CONSTANT, SUPPORT, BODIES, BODY = range(6)


@dataclass
class Miner:
    """Finds the rules of a graph.

    Args:
        edges: of the train split.
        length: the most relations in the body of a closed rule.
        constants: whether to look for rules with constants too.
        min_support, min_confidence: what a rule needs at least.
        pessimism: pc.
        deadline: of `time.monotonic`; what is not finished by then is left out.
    """

    edges: Edges
    length: int
    constants: bool
    min_support: int
    min_confidence: float
    pessimism: float
    deadline: float = math.inf
    complete: bool = field(default=True, init=False)

    def mine(self, progress: Callable[[str], None] = lambda line: None) -> np.ndarray:
        """[n, BODY + length] int64 rules, the most confident first."""
        found = [np.zeros((0, BODY + self.length), dtype=np.int64)]
        steps = [(f"closed rules of length {n}", self._closed(n)) for n in range(1, self.length + 1)]
        if self.constants:
            steps.insert(1, ("rules with constants", self._with_constants()))
        for name, step in steps:
            number = 0
            for rules in step:
                found.append(rules)
                number += len(rules)
                if time.monotonic() > self.deadline:
                    self.complete = False
                    break
            progress(f"{number:,} {name}" + ("" if self.complete else ": time is up"))
            if not self.complete:
                break
        rules = np.concatenate(found)
        # By confidence, then by what they say: the same table whatever order they were found in.
        keys = [rules[:, column] for column in (*range(BODY + self.length)[::-1], SUPPORT)]
        return rules[np.lexsort([*keys, -self.confidence(rules)])]

    def confidence(self, rules: np.ndarray) -> np.ndarray:
        """[n] float64."""
        return rules[:, SUPPORT] / (rules[:, BODIES] + self.pessimism)

    def _table(self, head, support, bodies, body=(), constant=-1, body_constant=-1) -> np.ndarray:
        """The rules that are good enough, from columns or single values."""
        table = np.full((len(support), BODY + self.length), -1, dtype=np.int64)
        columns = (head, constant, body_constant, support, bodies, *body)
        for place, column in enumerate(columns):
            table[:, place] = column
        good = (table[:, SUPPORT] >= self.min_support) & (self.confidence(table) >= self.min_confidence)
        return table[good]

    # Closed rules.

    def _closed(self, length: int) -> Iterator[np.ndarray]:
        edges, number = self.edges, 2 * self.edges.num_relations
        forward = edges.kind < edges.num_relations
        pair = edges.source[forward] * np.int64(edges.num_entities) + edges.target[forward]
        order = np.argsort(pair, kind="stable")
        self._pair, self._head = pair[order], edges.kind[forward][order]  # [T] train pairs and what joins them
        if length == 1:
            everywhere = np.arange(edges.num_entities)
            yield self._count([], [everywhere, everywhere])
            return
        for kind in range(number):
            source, target = edges.of(kind)
            yield from self._longer([kind], [source, source, target], length)

    def _longer(self, prefix: list[int], walks: list[np.ndarray], length: int) -> Iterator[np.ndarray]:
        if not len(walks[0]):
            return
        if time.monotonic() > self.deadline:
            self.complete = False
            return
        if len(prefix) == length - 1:
            yield self._count(prefix, walks)
            return
        for kind in range(2 * self.edges.num_relations):
            yield from self._longer([*prefix, kind], extend(self.edges, walks, kind), length)

    def _count(self, prefix: list[int], walks: list[np.ndarray]) -> np.ndarray:
        """Rules whose bodies are a prefix and any last relation; walks of the prefix are [x, x, a, …] columns."""
        edges, number = self.edges, 2 * self.edges.num_relations
        bodies = np.zeros(number, dtype=np.int64)
        support = np.zeros(number * edges.num_relations, dtype=np.int64)
        for part in _parts(walks[0], edges.degree(walks[-1])):
            which, kind, target = edges.step_anywhere(walks[-1][part])
            some = unlike([kind, *(column[part][which] for column in walks)], target)
            key = distinct(edges.row(some[0], some[1]) * edges.num_entities + some[-1])
            kind, pair = key // edges.num_entities**2, key % edges.num_entities**2
            bodies += np.bincount(kind, minlength=number)
            low = np.searchsorted(self._pair, pair)
            joined = low < len(self._pair)
            joined[joined] = self._pair[low[joined]] == pair[joined]
            kind, pair, low = kind[joined], pair[joined], low[joined]
            which, place = ragged(low, np.searchsorted(self._pair, pair, side="right"))
            support += np.bincount(kind[which] * edges.num_relations + self._head[place], minlength=len(support))
        rule = support.nonzero()[0]
        last, head = rule // edges.num_relations, rule % edges.num_relations
        if not prefix:
            rule, last, head = rule[last != head], last[last != head], head[last != head]  # r(X, Y) ← r(X, Y)
        return self._table(head, support[rule], bodies[last], [*prefix, last])

    # Rules with constants.

    def _with_constants(self) -> Iterator[np.ndarray]:
        """Of every relation and constant at once: both are features of an entity, which occur together."""
        edges = self.edges
        feature = edges.row(edges.kind, edges.target)  # [M] (relation, constant) of the source
        names, feature, count = np.unique(feature, return_inverse=True, return_counts=True)
        frequent = count >= self.min_support
        kind, constant = names // max(1, edges.num_entities), names % max(1, edges.num_entities)
        sources = np.bincount(edges.first_kind, minlength=2 * edges.num_relations)
        yield self._table(kind, count, sources[kind], constant=constant)
        prior = np.where(frequent, count / (sources[kind] + self.pessimism), 0)
        kept = frequent[feature]
        by_feature = np.argsort(feature[kept], kind="stable")
        head, entity = feature[kept][by_feature], edges.source[kept][by_feature]
        by_source = np.argsort(edges.source[kept], kind="stable")
        own = feature[kept][by_source]
        start = np.searchsorted(edges.source[kept][by_source], np.arange(edges.num_entities + 1))

        for part in _parts(head, edges.degree(entity)):
            first, who = head[part], entity[part]
            yield self._dangling(names, first, who, prior, sources)
            which, place = ragged(start[who], start[who + 1])
            pair, support = np.unique(first[which] * np.int64(len(names)) + own[place], return_counts=True)
            enough = support >= self.min_support
            one, other, support = pair[enough] // len(names), pair[enough] % len(names), support[enough]
            enough = (one != other) & (support / (count[other] + self.pessimism) > prior[one])
            one, other, support = one[enough], other[enough], support[enough]
            yield self._table(kind[one], support, count[other], [kind[other]], constant[one], constant[other])

    def _dangling(
        self, names: np.ndarray, feature: np.ndarray, entity: np.ndarray, prior: np.ndarray, sources: np.ndarray
    ) -> np.ndarray:
        """r(X, c) ← b(X, A) from [n] features and the entities that have them."""
        edges, number = self.edges, 2 * self.edges.num_relations
        which, body, _ = edges.step_anywhere(entity)
        some = distinct((feature[which] * np.int64(number) + body) * edges.num_entities + entity[which])
        pair, support = np.unique(some // edges.num_entities, return_counts=True)
        one, body = pair // number, pair % number
        kind, constant = names[one] // edges.num_entities, names[one] % edges.num_entities
        better = (body != kind) & (support / (sources[body] + self.pessimism) > prior[one])
        one, body, kind, constant, support = (x[better] for x in (one, body, kind, constant, support))
        return self._table(kind, support, sources[body], [body], constant)


def _parts(group: np.ndarray, cost: np.ndarray) -> Iterator[slice]:
    """Slices of [n] ascending groups, none cut, that cost about `WALKS_AT_ONCE` each."""
    if not len(group):
        return
    total = np.cumsum(cost)
    ends = np.flatnonzero(np.r_[np.diff(group) != 0, True])  # the last place of each group
    start = 0
    while start < len(group):
        before = total[start - 1] if start else 0
        first, past = np.searchsorted(ends, start), np.searchsorted(total[ends], before + WALKS_AT_ONCE, side="right")
        stop = int(ends[max(first, past - 1)]) + 1
        yield slice(start, stop)
        start = stop
