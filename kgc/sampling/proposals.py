"""Where negative candidates come from."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.data.graph import KnowledgeGraph
from kgc.types import Queries


class Proposal:
    """Interface: draws `number` candidates for B queries."""

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        """Takes what it needs from the graph."""
        raise NotImplementedError

    def draw(self, queries: Queries, number: int, generator: torch.Generator) -> Tensor:
        """[B, number] ids of each query's own candidates, or [N] ids shared by all."""
        raise NotImplementedError


class Uniform(Proposal):
    """Each query's own candidates, every entity equally likely, with replacement."""

    def __init__(self) -> None:
        self.num_entities = 0

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.num_entities = graph.num_entities

    def draw(self, queries: Queries, number: int, generator: torch.Generator) -> Tensor:
        shape = (len(queries), number)
        return torch.randint(self.num_entities, shape, generator=generator, device=generator.device)


class SharedUniform(Uniform):
    """One pool of candidates shared by all queries of the batch, scored by one matrix product."""

    def draw(self, queries: Queries, number: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_entities, (number,), generator=generator, device=generator.device)
