"""Multi-hop questions over a graph: their forms, their answers, their JSON, and a generator.

A question is a nested tuple: ("a", entity), ("p", question, relation) for the tails of its answers, ("i", question, …)
for the intersection and ("u", question, …) for the union of several. A form is the same without entities and relations.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.types import Triples

Question = tuple

_A = ("a",)
_P = ("p", _A)
FORMS: dict[str, Question] = {
    "1p": _P,
    "2p": ("p", _P),
    "3p": ("p", ("p", _P)),
    "2i": ("i", _P, _P),
    "3i": ("i", _P, _P, _P),
    "ip": ("p", ("i", _P, _P)),
    "pi": ("i", ("p", _P), _P),
    "2u": ("u", _P, _P),
    "up": ("p", ("u", _P, _P)),
}
# Draws in a row without a new question after which no more are expected.
_PATIENCE = 20_000
_NAMES = {form: name for name, form in FORMS.items()}


class Links:
    """The edges of some triples, both ways."""

    def __init__(self, triples: Triples):
        self.tails: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.into: dict[int, list[tuple[int, int]]] = defaultdict(list)  # tail to its (head, relation)s
        for head, relation, tail in zip(
            triples.head.tolist(), triples.relation.tolist(), triples.tail.tolist(), strict=True
        ):
            if tail not in self.tails[head, relation]:
                self.tails[head, relation].add(tail)
                self.into[tail].append((head, relation))


def name_of(question: Question) -> str | None:
    """The name of a question's form, in `FORMS`; None if it has none."""

    def form(node: Question) -> Question:
        if node[0] == "a":
            return _A
        return (node[0], form(node[1])) if node[0] == "p" else (node[0], *map(form, node[1:]))

    return _NAMES.get(form(question))


def answers(question: Question, links: Links) -> set[int]:
    """All entities that satisfy a question in a graph."""
    kind = question[0]
    if kind == "a":
        return {question[1]}
    if kind == "p":
        found = [links.tails.get((entity, question[2]), set()) for entity in answers(question[1], links)]
        return set().union(*found)
    parts = [answers(part, links) for part in question[1:]]
    return set.intersection(*parts) if kind == "i" else set.union(*parts)


def sample_questions(
    graph: KnowledgeGraph, split: str, name: str, number: int, seed: int, max_answers: int = 100
) -> list[tuple[Question, set[int], set[int]]]:
    """Distinct questions of one form with their easy and hard answers.

    Easy answers follow from the splits before (train; for test train and valid), hard ones only with the split's own
    triples; a question has at least one. Drawn backwards from a random answer (Ren et al. 2020).

    Raises:
        UserError: the graph does not have so many.
    """
    before = {"valid": ["train"], "test": ["train", "valid"]}[split]
    easy_links = Links(Triples.cat([graph.split(part) for part in before]))
    links = Links(Triples.cat([graph.split(part) for part in (*before, split)]))
    draw = random.Random(f"{seed} {name}")
    targets = sorted(links.into)
    found: dict[Question, tuple[set[int], set[int]]] = {}
    misses = 0
    while len(found) < number and misses < _PATIENCE:
        misses += 1
        question = _drawn(FORMS[name], draw.choice(targets), links, targets, draw)
        if question is None or question in found:
            continue
        everything = answers(question, links)
        easy = answers(question, easy_links)
        if everything - easy and len(everything) <= max_answers:
            found[question] = easy, everything - easy
            misses = 0
    if len(found) < number:
        raise UserError(
            f"queries.sample={name}:{number}: only {len(found)} such questions were found in {graph.name}; ask for "
            "fewer, or raise queries.max_answers"
        )
    return [(question, *both) for question, both in found.items()]


def _drawn(form: Question, target: int, links: Links, targets: list[int], draw: random.Random) -> Question | None:
    """A question of a form that `target` answers; None where the walk backwards ends or parts of it are the same."""
    if form[0] == "a":
        return ("a", target)
    if form[0] == "p":
        edges = links.into.get(target)
        if not edges:
            return None
        head, relation = draw.choice(edges)
        part = _drawn(form[1], head, links, targets, draw)
        return None if part is None else ("p", part, relation)
    ends = [target] + [target if form[0] == "i" else draw.choice(targets) for _ in form[2:]]
    parts = [_drawn(part, end, links, targets, draw) for part, end in zip(form[1:], ends, strict=True)]
    return None if None in parts or len(set(parts)) < len(parts) else (form[0], *parts)


def to_json(question: Question, graph: KnowledgeGraph) -> list:
    """BetaE's nesting by label: [entity, [relation, …]], [question, …] for "and", [question, …, ["u"]] for "or"."""
    if question[0] == "p":
        relations = []
        while question[0] == "p":
            relations.insert(0, graph.relations[question[2]])
            question = question[1]
        inner = graph.entities[question[1]] if question[0] == "a" else to_json(question, graph)
        return [inner, relations]
    return [to_json(part, graph) for part in question[1:]] + ([["u"]] if question[0] == "u" else [])


def from_json(node: Any, entities: dict[str, int], relations: dict[str, int]) -> Question:
    """A question from `to_json`'s nesting.

    Raises:
        ValueError: another nesting, or a label that is not known.
    """
    if not isinstance(node, list) or len(node) < 2:
        raise ValueError(f"{_cut(repr(node))} is no question: [entity, [relation, …]], or a list of questions")
    last = node[-1]
    if len(node) == 2 and isinstance(last, list) and last and all(isinstance(x, str) for x in last):
        question = ("a", label_id(node[0], entities, "entity")) if isinstance(node[0], str) else None
        question = question or from_json(node[0], entities, relations)
        for relation in last:
            question = ("p", question, label_id(relation, relations, "relation"))
        return question
    union = last == ["u"]
    parts = node[:-1] if union else node
    return ("u" if union else "i", *(from_json(part, entities, relations) for part in parts))


def label_id(label: str, ids: dict[str, int], what: str) -> int:
    """The id of a label; a ValueError says what is not known."""
    if label not in ids:
        raise ValueError(f"{what} {_cut(repr(label))} is not known")
    return ids[label]


def _cut(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
