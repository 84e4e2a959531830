"""Graphs of any size whose degrees follow a power law, made from a seed: to try out how training and ranking grow."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.random import Generator

from kgc.data.arrays import PART, drop_repeated
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.types import Triples

_GROUPS = 64  # of entities: a relation leads from each to another
_ROUNDS = 20  # of drawing anew what came twice


def make_graph(
    name: str, entities: int, relations: int, triples: int, exponent: float, seed: int, valid: int, test: int
) -> KnowledgeGraph:
    """A graph of distinct triples whose entities have power-law degrees.

    The k-th most frequent entity is an end of a triple with a probability in proportion to k^(−1 / (exponent − 1)), so
    that the share of entities of degree d falls as d^−exponent (Chung and Lu 2002); relations are drawn like 1/k. So
    that there is something to learn, entities belong to 64 groups, and a relation leads from each group to one other.
    The same arguments give the same graph.

    Args:
        name: of the graph.
        entities, relations, triples: how many; entities and relations that no triple has are in the vocabularies too.
        exponent: of the degrees, above 1.
        seed: of all that is drawn.
        valid, test: how many of the triples are held out, drawn evenly.

    Raises:
        UserError: sizes that cannot be.
    """
    _check(entities, relations, triples, exponent, valid, test)
    random = np.random.default_rng(seed)
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_ROUNDS):
        missing = triples - keys.size
        drawn = _drawn(random, missing + missing // 8 + 16, entities, relations, exponent)
        keys = np.concatenate([keys, drawn])
        del drawn
        keys.sort()
        keys = drop_repeated(keys)
        if keys.size >= triples:
            break
    else:
        raise UserError(
            f"dataset.num_triples={triples}: {entities:,} entities and {relations:,} relations gave {keys.size:,} "
            "distinct ones; raise dataset.num_entities or dataset.num_relations, or lower dataset.num_triples"
        )
    surplus = keys.size - triples
    held = random.choice(keys.size, surplus + valid + test, replace=False, shuffle=True)
    train = np.ones(keys.size, dtype=bool)
    train[held] = False
    places = random.permutation(entities).astype(np.int32)  # the most frequent entities have any ids
    parts = {
        "train": _columns(keys[train], entities, places),
        "valid": _columns(keys[held[surplus : surplus + valid]], entities, places),
        "test": _columns(keys[held[surplus + valid :]], entities, places),
    }
    vocabularies = (_labels("e", entities), _labels("r", relations))
    return KnowledgeGraph(name, *vocabularies, **parts)


def _check(entities: int, relations: int, triples: int, exponent: float, valid: int, test: int) -> None:
    for key, value, least in (
        ("entities", entities, 2),
        ("relations", relations, 1),
        ("triples", triples, 1),
        ("valid", valid, 0),
        ("test", test, 0),
    ):
        if value < least:
            raise UserError(f"dataset.num_{key}={value}: must be at least {least}")
    if not exponent > 1:
        raise UserError(f"dataset.exponent={exponent}: the exponent of a power law of degrees must be above 1")
    if valid + test >= triples:
        raise UserError(
            f"dataset.num_valid={valid}, dataset.num_test={test}: none of {triples:,} triples is left for train"
        )
    if relations * entities**2 >= 2**63:
        raise UserError(
            f"dataset.num_entities={entities}: with {relations:,} relations a triple is no number of 63 bits; lower it"
        )


def _drawn(random: Generator, number: int, entities: int, relations: int, exponent: float) -> np.ndarray:
    """[number] triples as (relation · E + head) · E + tail, entities by how frequent they are."""
    relation = _ranks(random, number, relations, 1.0)
    head = _ranks(random, number, entities, 1 / (exponent - 1))
    keys = relation * entities
    keys += head
    groups = min(_GROUPS, entities)
    head %= groups
    head += 1 + relation
    head %= groups  # the group of the tail
    del relation
    tail = _ranks(random, number, entities, 1 / (exponent - 1))
    tail -= tail % groups
    tail += head
    np.minimum(tail, entities - 1, out=tail)
    keys *= entities
    keys += tail
    return keys


def _ranks(random: Generator, number: int, size: int, power: float) -> np.ndarray:
    """[number] int64 from 0 to size − 1, k in proportion to about (k + 1)^−power: the density x^−power on
    [1, size + 1), rounded down."""
    x = random.random(number)
    if abs(1 - power) < 1e-9:
        np.multiply(x, np.log(size + 1), out=x)
        np.exp(x, out=x)
    else:
        x *= (size + 1.0) ** (1 - power) - 1
        x += 1
        np.power(x, 1 / (1 - power), out=x)
    x -= 1
    return x.astype(np.int64).clip(0, size - 1)


def _columns(keys: np.ndarray, entities: int, places: np.ndarray) -> Triples:
    """Triples of ids from numbers of triples."""
    columns = [np.empty(keys.size, dtype=np.int32) for _ in range(3)]
    for start in range(0, keys.size, PART):
        span = slice(start, start + PART)
        rest, tail = np.divmod(keys[span], entities)
        relation, head = np.divmod(rest, entities)
        columns[0][span], columns[1][span], columns[2][span] = places[head], relation, places[tail]
    return Triples(*map(torch.from_numpy, columns))


def _labels(letter: str, size: int) -> Vocabulary:
    """`e000` …, in the order of their ids."""
    numbers = pl.int_range(size, eager=True).cast(pl.String).str.zfill(len(str(size - 1)))
    return Vocabulary.of_distinct(letter + numbers)
