"""Which end of each triple is corrupted."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.data.graph import KnowledgeGraph, tails_per_head
from kgc.types import Side, Triples


class Sides:
    """Interface: the sides asked for in one step; each entry makes one query a triple."""

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        """Takes what it needs from the training triples."""

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side | Tensor]:
        """For B triples: a list of sides, each one for all or [B] int64 values of `Side`."""
        raise NotImplementedError


class Both(Sides):
    """Every triple is asked from both ends in every step."""

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side | Tensor]:
        return [Side.HEAD, Side.TAIL]


class Alternate(Sides):
    """Heads in even steps, tails in odd ones (RotatE's repository)."""

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side | Tensor]:
        return [Side(step % 2)]


class Bernoulli(Sides):
    """The head is corrupted with probability tph / (tph + hpt) of its relation (Wang et al. 2014, TransH).

    tph is the mean number of tails per head, hpt of heads per tail, in train: on a 1-to-N relation the head is replaced
    more often, which gives fewer false negatives.
    """

    def __init__(self) -> None:
        self.head_probability = torch.empty(0)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        tph, hpt = (
            torch.as_tensor(x, dtype=torch.float64) for x in tails_per_head(graph.stored("train"), graph.num_relations)
        )
        self.head_probability = (tph / (tph + hpt)).nan_to_num(0.5).float().to(device)  # [R]

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side | Tensor]:
        coin = torch.rand(len(triples), generator=generator, device=generator.device)
        asks_head = coin < self.head_probability[triples.relation]
        return [torch.where(asks_head, int(Side.HEAD), int(Side.TAIL))]
