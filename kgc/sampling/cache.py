"""A cache of hard negatives for every train query (Zhang et al. 2019, NSCaching)."""

from __future__ import annotations

import torch
from torch import Tensor

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.limits import require_memory
from kgc.sampling.processes import gathered
from kgc.sampling.proposals import Asked, Proposal
from kgc.types import Negatives


class Cache(Proposal):
    """Negatives drawn uniformly from a query's cache, which then is refreshed.

    A refresh (algorithm 3) takes the cache and N2 uniform entities as one set and draws N1 of it without replacement,
    with probability ∝ exp(score) of the model as it stands: the N1 largest of score + Gumbel noise. Queries of one
    batch that are equal share the refresh of the first. With masking, known answers of train are left out; where fewer
    than N1 entities are left, they are repeated.

    The table [P, N1] int32 lies on the device, 4·P·N1 bytes for P distinct train queries of both ends (FB15k-237: 30
    MB with N1 = 50), and is part of a checkpoint. A refresh holds the [B, N1 + N2, D] vectors that it scores. All
    processes hold the same table: each gets the refreshed rows of the others.

    Args:
        cache_size: N1.
        random_size: N2.
        every: the cache is refreshed in one epoch of so many, the first included; n + 1 for the paper's lazy update
            of n epochs.
    """

    def __init__(self, cache_size: int = 50, random_size: int = 50, every: int = 1):
        super().__init__()
        for name, value in {"cache_size": cache_size, "random_size": random_size, "every": every}.items():
            if value < 1:
                raise UserError(f"sampler.proposal.{name}={value}: must be at least 1")
        self.cache_size = cache_size
        self.random_size = random_size
        self.every = every
        self.num_entities = 0
        self.index: KnownAnswers | None = None
        self.table = torch.empty(0, dtype=torch.int32)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.num_entities = graph.num_entities
        self.index = KnownAnswers(graph.stored("train").to(device), graph.num_entities, graph.num_relations)
        # Like a model's initial values, from the global generator and on the CPU: the same on every device.
        shape = (len(self.index.keys), self.cache_size)
        require_memory(4 * shape[0] * shape[1], f"sampler.proposal.cache_size={self.cache_size}", "the cache")
        self.table = torch.randint(self.num_entities, shape, dtype=torch.int32).to(device)

    # Not a buffer: those are broadcast before every step where processes train together.

    def get_extra_state(self) -> Tensor:
        return self.table

    def set_extra_state(self, state: Tensor) -> None:
        self.table.copy_(state)

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        """For queries of train; a refresh needs `asked.model`."""
        row = self.index.rows(asked.queries)
        cached = self.table[row].long()  # [B, N1]
        shape = (len(row), number)
        place = torch.randint(self.cache_size, shape, generator=generator, device=generator.device)
        if asked.epoch % self.every == 0:
            self.store(row, self.refreshed(asked, cached, generator))
        return Negatives(cached.gather(1, place))

    @torch.no_grad()
    def refreshed(self, asked: Asked, cached: Tensor, generator: torch.Generator) -> Tensor:
        """[B, N1] cached entities to as many of these and of N2 random ones."""
        shape = (len(cached), self.random_size)
        fresh = torch.randint(self.num_entities, shape, generator=generator, device=generator.device)
        union = torch.cat([cached, fresh], dim=1).sort(1).values  # [B, N1 + N2]
        out = torch.zeros_like(union, dtype=torch.bool)
        out[:, 1:] = union[:, 1:] == union[:, :-1]
        known = asked.contains(union)
        if known is not None:
            out |= known
        keys = asked.model.score(asked.queries, union).float() + gumbel(union, generator)
        keys, place = keys.masked_fill(out, -torch.inf).topk(self.cache_size, dim=1)
        left = (keys > -torch.inf).sum(1, keepdim=True).clamp_min(1)  # they stand first
        repeated = torch.arange(self.cache_size, device=place.device) % left
        return union.gather(1, place.gather(1, repeated))

    def store(self, row: Tensor, entities: Tensor) -> None:
        """Writes [B, N1] entities to [B] rows; of equal rows, of all processes, the first decides."""
        row, entities = gathered(row), gathered(entities.to(torch.int32))
        order = row.argsort(stable=True)
        first = order[torch.searchsorted(row[order], row)]
        self.table[row] = entities[first]


def gumbel(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise in the shape of a tensor, fp32."""
    exponential = torch.empty(like.shape, device=generator.device).exponential_(generator=generator)
    return exponential.clamp_min_(torch.finfo(torch.float32).tiny).log_().neg_()
