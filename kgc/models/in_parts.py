"""Models whose table of entities lies on several processes: scores put together from all, and their state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kgc.types import rows_of_pools


class InParts:
    """What `KGEModel` does where it has a `shard`."""

    def _compare_where_they_lie(self, query: Tensor, candidates: Tensor | range | None) -> Tensor:
        """`compare` where each process scores the candidates that it holds; the scores are put together, in fp32."""
        shard = self.shard
        if not isinstance(candidates, Tensor):
            wanted = range(self.num_entities) if candidates is None else candidates
            candidates = torch.arange(wanted.start, wanted.stop, device=query.device)
        ids = candidates if candidates.dim() == 2 else candidates.unsqueeze(0)  # [G, N]
        mine = shard.holds(ids)
        row, column = mine.nonzero(as_tuple=True)
        slot = (mine.cumsum(1) - 1).clamp_(min=0)  # the place of each among the pool's own
        width = int(slot[row, column].max()) + 1 if len(row) else 1
        # What fills up is a row that has a gradient anyway.
        own = ids.new_full((len(ids), width), int(ids[row[0], column[0]]) - shard.first if len(row) else 0)
        own[row, slot[row, column]] = ids[row, column] - shard.first
        query = shard.enter(query)
        with shard.region(self), contextlib.nullcontext() if len(row) else self._without_gradients():
            if candidates.dim() == 1:
                scores = self.similarity(query, self.candidate_vectors(own.squeeze(0)))
            elif len(ids) < len(query):
                scores = self._compare_pools(query, self.candidate_vectors(own))
            else:
                scores = self.similarity(query, self.candidate_vectors(own))
        mine, slot = (rows_of_pools(part, len(query)) for part in (mine, slot))
        return shard.put_together(torch.where(mine, scores.float().gather(1, slot), 0.0))

    @contextlib.contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Look-ups give the table of entities no gradient."""
        weight = self.entity.weight
        self.entity._parameters["weight"] = weight.detach()
        try:
            yield
        finally:
            self.entity._parameters["weight"] = weight

    def _whole_in_state(self, module: nn.Module, state: dict, prefix: str, _: dict) -> None:
        """Of a table whose rows lie on several processes the state has a DTensor."""
        if self.shard.mesh is not None:
            state[f"{prefix}weight"] = self.shard.as_dtensor(state[f"{prefix}weight"])

    def _part_of_state(self, module: nn.Module, state: dict, prefix: str, *_: object) -> None:
        """The rows of this process are taken from a DTensor or a whole table."""
        if f"{prefix}weight" in state:
            state[f"{prefix}weight"] = self.shard.part_of(state[f"{prefix}weight"])
