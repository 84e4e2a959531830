"""Which rules fire for which answers of a query, and what that makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kgc.models.rules.edges import Edges, distinct, extend, ragged, unlike
from kgc.models.rules.language import INNER
from kgc.models.rules.mining import BODY, BODY_CONSTANT, CONSTANT, HEAD


@dataclass
class Node:
    """A prefix of bodies: rules that end with one more relation, and prefixes one relation longer."""

    rules: dict[int, int] = field(default_factory=dict)
    longer: dict[int, Node] = field(default_factory=dict)


class Firing:
    """Rules, ready to be applied to a graph.

    Args:
        edges: of the graph.
        rules: [n, BODY + length] a table of `kgc.models.rules.mining`.

    A question (x, d, ?) has d < R where tails are asked for, and d ≥ R, the inverse relation, where heads are. Four
    kinds of rules answer it: closed rules of d, forwards or backwards; d(X, c) with X = x; d⁻¹(Y, c) with c = x; and
    d(X, c) ← true. An answer is never x itself.
    """

    def __init__(self, edges: Edges, rules: np.ndarray):
        self.edges = edges
        self.rules = rules
        body = rules[:, BODY:]
        last = (body >= 0).sum(1) - 1  # -1 for an empty body
        closed = np.flatnonzero(rules[:, CONSTANT] < 0)
        self.closed: dict[int, Node] = {}
        for rule in closed.tolist():
            path = body[rule, : last[rule] + 1]
            back = edges.inverse(path[::-1])
            head = int(rules[rule, HEAD])
            for kind, way in ((head, path), (head + edges.num_relations, back)):
                node = self.closed.setdefault(kind, Node())
                for step in way[:-1].tolist():
                    node = node.longer.setdefault(step, Node())
                node.rules[int(way[-1])] = rule
        constant = rules[:, CONSTANT] >= 0
        ids = np.arange(len(rules))
        self._kinds, self._names = 2 * edges.num_relations, edges.num_entities + 1
        prior, bound = constant & (last < 0), constant & (last >= 0)
        self._prior = _Index(rules[prior, HEAD], ids[prior])
        of_body = self._body_key(rules[bound, HEAD], body[bound, 0], rules[bound, BODY_CONSTANT])
        self._by_body = _Index(of_body, ids[bound])
        self._by_constant = _Index(edges.row(rules[bound, HEAD], rules[bound, CONSTANT]), ids[bound])

    def _body_key(self, head: np.ndarray | int, kind: np.ndarray, constant: np.ndarray | int) -> np.ndarray:
        return (head * np.int64(self._kinds) + kind) * self._names + constant + 1

    def fire(self, anchor: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All (question, answer, rule) for questions (x, kind, ?); a closed rule once for each of its walks.

        Args:
            anchor: [n] the x.
            kind: d, of 2R.
        """
        question = np.arange(len(anchor))
        found = [*self._from_prior(anchor, kind), *self._from_body(anchor, kind), *self._to_body(anchor, kind)]
        if kind in self.closed:
            found += self._walk(self.closed[kind], [question, anchor])
        which, answer, rule = (np.concatenate(column) for column in zip(*found, strict=True))
        other = answer != anchor[which]
        return which[other], answer[other], rule[other]

    def grounding(self, rule: int, head: int, tail: int) -> dict[str, int]:
        """Entities for the variables of a rule that predicts (head, r, tail): those of the first walk, or target."""
        row = self.rules[rule]
        body = [int(kind) for kind in row[BODY:] if kind >= 0]
        values = {"X": head, "Y": tail}
        if row[CONSTANT] < 0:
            walks = [np.zeros(1, dtype=np.int64), np.array([head])]
            for kind in body:
                walks = extend(self.edges, walks, kind)
            first = int(np.flatnonzero(walks[-1] == tail)[0])
            values |= {name: int(column[first]) for name, column in zip(INNER, walks[2:-1], strict=False)}
        elif body and row[BODY_CONSTANT] < 0:
            own = head if row[HEAD] < self.edges.num_relations else tail
            values["A"] = int(self.edges.step(np.array([own]), body[0])[1][0])
        return values

    def _walk(self, node: Node, walks: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        if not len(walks[0]):
            return []
        found = []
        if node.rules:
            kinds = np.fromiter(node.rules, dtype=np.int64)
            rules = np.fromiter(node.rules.values(), dtype=np.int64)
            number = len(kinds)
            columns = [np.repeat(column, number) for column in walks]
            which, target = self.edges.step(columns[-1], np.tile(kinds, len(walks[0])))
            rule, *columns = unlike([rules[which % number], *(column[which] for column in columns)], target, labels=2)
            found.append((columns[0], columns[-1], rule))
        for kind, longer in node.longer.items():
            found += self._walk(longer, extend(self.edges, walks, kind))
        return found

    def _from_prior(self, anchor: np.ndarray, kind: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """d(X, c) ← true."""
        which, rule = self._prior.find(np.full(len(anchor), kind))
        return [(which, self.rules[rule, CONSTANT], rule)]

    def _from_body(self, anchor: np.ndarray, kind: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """d(X, c) ← b(X, c′) or b(X, A) with X = x."""
        which, body, target = self.edges.step_anywhere(anchor)
        some = distinct(which * np.int64(self._kinds) + body)
        found = []
        for question, own, constant in ((which, body, target), (some // self._kinds, some % self._kinds, -1)):
            place, rule = self._by_body.find(self._body_key(kind, own, constant))
            found.append((question[place], self.rules[rule, CONSTANT], rule))
        return found

    def _to_body(self, anchor: np.ndarray, kind: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """d⁻¹(Y, c) ← b(Y, c′) or b(Y, A) with c = x."""
        head = int(self.edges.inverse(np.array([kind]))[0])
        which, rule = self._by_constant.find(self.edges.row(head, anchor))
        body, constant = self.rules[rule, BODY], self.rules[rule, BODY_CONSTANT]
        bound = constant >= 0
        at, answer = self.edges.step(constant[bound], self.edges.inverse(body[bound]))
        found = [(which[bound][at], answer, rule[bound][at])]
        which, rule, body = which[~bound], rule[~bound], body[~bound]
        at, answer = self.edges.sources(body)
        return [*found, (which[at], answer, rule[at])]


class _Index:
    """Rules by a key; those of a key in their own order."""

    def __init__(self, key: np.ndarray, rule: np.ndarray):
        order = np.argsort(key, kind="stable")
        self.key, self.rule = key[order], rule[order]

    def find(self, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rules of [n] keys: [m] which key, ascending, and [m] rules."""
        which, place = ragged(np.searchsorted(self.key, key), np.searchsorted(self.key, key, side="right"))
        return which, self.rule[place]
