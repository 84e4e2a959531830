"""The worst-ranked triples and what the model answers to them, against scores in plain Python."""

from __future__ import annotations

import oracle
import polars as pl
import pytest
import torch

from kgc.data.catalogue import load_dataset
from kgc.models.distmult import DistMult
from kgc.module import KGEModule
from kgc.tasks import examples, findings
from kgc.tasks.split_ranks import ranks_frame
from kgc.types import RankCounts


@pytest.fixture
def module() -> KGEModule:
    torch.manual_seed(0)
    graph = load_dataset("nations")
    return KGEModule(DistMult(graph.num_entities, graph.num_relations, 4), graph)


@pytest.fixture
def ranks(module: KGEModule) -> pl.DataFrame:
    """Every query has a rank of its own, the later the worse but for each third one."""
    graph, number = module.graph, 2 * len(module.graph.test)
    better = torch.arange(number)
    better[::3] = 0
    none = torch.zeros(number, dtype=torch.int64)
    return ranks_frame(graph, graph.test, RankCounts(better, none, none + graph.num_entities, none))


def by_hand(module: KGEModule, ranks: pl.DataFrame, number: int, k: int) -> list[tuple]:
    """(head, relation, tail, side, score, answers) of the worst queries."""
    graph = module.graph
    entity = dict(zip(graph.entities.labels, module.model.entity.weight.tolist(), strict=True))
    relation = dict(zip(graph.relations.labels, module.model.relation.weight.tolist(), strict=True))
    known = {
        (graph.entities[h], graph.relations[r], graph.entities[t])
        for split in (graph.train, graph.valid, graph.test)
        for h, r, t in zip(split.head.tolist(), split.relation.tolist(), split.tail.tolist(), strict=True)
    }
    found, asked = [], set()
    for row in sorted(ranks.to_dicts(), key=lambda row: -row["realistic"]):
        h, r, t, side = (row[name] for name in ("head", "relation", "tail", "side"))
        question = (t if side == "head" else h, r, side)
        if question in asked:
            continue
        asked.add(question)
        triples = [(e, r, t) if side == "head" else (h, r, e) for e in entity]
        rivals = [(oracle.distmult(entity[a], relation[r], entity[b]), a, b) for a, _, b in triples]
        rivals = sorted((row for row in rivals if (row[1], r, row[2]) not in known), reverse=True)[:k]
        answers = [a if side == "head" else b for _, a, b in rivals]
        found.append((h, r, t, side, oracle.distmult(entity[h], relation[r], entity[t]), answers))
    return found[:number]


@pytest.mark.parametrize("cells", [1, 1 << 22])
def test_worst_triples_and_answers_are_those_of_a_brute_force(module, ranks, cells, monkeypatch):
    monkeypatch.setattr(examples, "_CELLS", cells)  # blocks of one entity, and all at once
    frame = examples.worst_answered(module, ranks, number=7, k=3)
    wanted = by_hand(module, ranks, 7, 3)
    assert frame.select("head", "relation", "tail", "side").rows() == [row[:4] for row in wanted]
    assert frame["score"].to_list() == pytest.approx([row[4] for row in wanted], abs=1e-6)
    assert frame["answers"].to_list() == [row[5] for row in wanted]
    assert all(scores == sorted(scores, reverse=True) for scores in frame["answer_scores"].to_list())


def test_nan_is_no_answer(module, ranks):
    first = examples.worst_answered(module, ranks, number=1, k=1)
    module.model.entity.weight.data[module.graph.entities.labels.index(first["answers"][0][0])] = torch.nan
    again = examples.worst_answered(module, ranks, number=1, k=14)
    assert first["answers"][0][0] not in again["answers"][0].to_list()
    assert len(again["answers"][0]) > 1


def test_no_ranks_no_examples(module, ranks):
    assert examples.worst_answered(module, ranks.clear()).is_empty()


def test_large_graphs_are_not_searched(module, monkeypatch):
    assert not [line for line in findings.notes(module.graph) if "not searched" in line]
    monkeypatch.setattr(findings, "_SEARCHED", 10)
    assert findings.notes(module.graph)[-1].startswith("not searched for leaks")
    assert findings.notes(module.graph)[0] == module.graph.report.lines()[0]
