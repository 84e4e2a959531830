"""Rules in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kgc.models.rules.mining import BODY, BODY_CONSTANT, CONSTANT, HEAD

INNER = "ABCDEFGHIJKLMNOPQRSTUVW"  # variables between X and Y


def atoms(rule: np.ndarray, num_relations: int) -> list[tuple[int, str | int, str | int]]:
    """Head and body of a rule as (relation, first argument, second argument): a variable, or the id of an entity.

    Variables are X and Y at the ends of the head, A, B, … between. A relation read backwards changes its arguments.
    """

    def atom(kind: int, first: str | int, second: str | int) -> tuple[int, str | int, str | int]:
        return (kind, first, second) if kind < num_relations else (kind - num_relations, second, first)

    head, constant, other = int(rule[HEAD]), int(rule[CONSTANT]), int(rule[BODY_CONSTANT])
    body = [int(kind) for kind in rule[BODY:] if kind >= 0]
    if constant < 0:
        places: list[str | int] = ["X", *INNER[: len(body) - 1], "Y"]
        found = [atom(head, "X", "Y")]
    else:
        variable = "X" if head < num_relations else "Y"
        places = [variable, other if other >= 0 else "A"]
        found = [atom(head, variable, constant)]
    return found + [atom(kind, *places[i : i + 2]) for i, kind in enumerate(body)]


def words(
    atom: tuple[int, str | int, str | int],
    entities: Sequence[str],
    relations: Sequence[str],
    values: dict[str, int] | None = None,
) -> str:
    """An atom as text, with the entities that variables stand for where they are given."""
    relation, *ends = atom
    ends = [(values or {}).get(end, end) for end in ends]
    return f"{relations[relation]}({', '.join(end if isinstance(end, str) else entities[end] for end in ends)})"


def text(rule: np.ndarray, entities: Sequence[str], relations: Sequence[str]) -> tuple[str, str]:
    """Head and body of a rule as text; an empty body is `true`."""
    head, *body = (words(atom, entities, relations) for atom in atoms(rule, len(relations)))
    return head, ", ".join(body) or "true"
