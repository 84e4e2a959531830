"""Tiny graphs, queries of their train split, and a chi-square test."""

from __future__ import annotations

from collections.abc import Sequence

import oracle
import torch

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.data.vocabulary import Vocabulary
from kgc.sampling.proposals import Asked, Proposal
from kgc.types import Queries, Scorer, Side, Triples

LIKELY = 1e-4  # a draw less likely than this is called wrong


def columns(triples: Sequence[oracle.Triple]) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def graph_of(train: Sequence[oracle.Triple], entities: int, relations: int = 2, test=()) -> KnowledgeGraph:
    return KnowledgeGraph(
        "tiny",
        Vocabulary([f"e{i}" for i in range(entities)]),
        Vocabulary([f"r{i}" for i in range(relations)]),
        *(columns(split) for split in (train, (), test)),
    )


def ready(proposal: Proposal, graph: KnowledgeGraph, device: torch.device | str = "cpu") -> Proposal:
    proposal.setup(graph, torch.device(device))
    return proposal


def asked(
    triples: Sequence[oracle.Triple],
    side: Side | torch.Tensor,
    device: torch.device | str = "cpu",
    known: KnowledgeGraph | None = None,
    model: Scorer | None = None,
    epoch: int = 0,
) -> Asked:
    """What asks for the `side` ends of triples; `known` masks the answers of that graph's train split."""
    table = columns(triples)
    asks_head = torch.as_tensor(side).expand(len(table)) == Side.HEAD
    anchor, target = (torch.where(asks_head, a, b) for a, b in ((table.tail, table.head), (table.head, table.tail)))
    index = KnownAnswers(known.train.to(device), known.num_entities, known.num_relations) if known else None
    return Asked(Queries(anchor, table.relation, side).to(device), target.to(device), index, model, epoch)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def likelihood(drawn: torch.Tensor, probabilities: Sequence[float]) -> float:
    """p of Pearson's chi-square test that ids were drawn with these probabilities; 0 if one of none was drawn."""
    counts = torch.bincount(drawn.flatten().cpu(), minlength=len(probabilities)).tolist()
    assert len(counts) == len(probabilities)
    if any(count and not p for count, p in zip(counts, probabilities, strict=True)):
        return 0.0
    kept = [(count, p * sum(counts)) for count, p in zip(counts, probabilities, strict=True) if p]
    statistic = oracle.chi_square(*zip(*kept, strict=True))
    halves = torch.tensor([(len(kept) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(halves[0], halves[1]).item()
