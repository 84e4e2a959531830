"""A negative sampler is four separate choices: sides, proposal, mask of false negatives, and weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.sampling.proposals import Asked, Proposal
from kgc.sampling.sides import Sides
from kgc.types import Negatives, Queries, Scorer, Triples


class NegativeSampler(nn.Module):
    """Draws negatives for a batch of triples and weighs them.

    Args:
        num_negatives: candidates per query (own), or in a pool (shared).
        sides: which end is asked for.
        proposal: where candidates come from.
        mask_known: leave out candidates that answer the query in train (never looks at valid or test).
        temperature: α of the self-adversarial weights, softmax(α · logit) over a query's negatives, without gradient
            (Sun et al. 2019, eq. 4); 0 weighs all alike.
    """

    def __init__(
        self,
        num_negatives: int,
        sides: Sides,
        proposal: Proposal,
        mask_known: bool = False,
        temperature: float = 0.0,
    ):
        super().__init__()
        if num_negatives < 1:
            raise UserError(f"sampler.num_negatives={num_negatives}: at least 1 negative is needed")
        if temperature < 0:
            raise UserError(f"sampler.temperature={temperature}: must be 0 (equal weights) or positive")
        self.num_negatives = num_negatives
        self.sides = sides
        self.proposal = proposal
        self.mask_known = mask_known
        self.temperature = temperature
        self.known: KnownAnswers | None = None

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        """Prepares counts and indices from the training triples, on the device."""
        self.sides.setup(graph, device)
        self.proposal.setup(graph, device)
        if self.mask_known:
            self.known = KnownAnswers(graph.stored("train").to(device), graph.num_entities, graph.num_relations)

    def draw(
        self, triples: Triples, step: int, generator: torch.Generator, model: Scorer | None = None, epoch: int = 0
    ) -> Iterator[tuple[Queries, Tensor, Negatives]]:
        """For each side drawn: the B queries, their [B] right answers, and their negatives.

        Args:
            triples: B triples of train.
            step: batches before this one.
            generator: of everything random.
            model: the model in training, for proposals that look at its scores.
            epoch: finished epochs.
        """
        for side in self.sides.draw(triples, step, generator):
            if isinstance(side, Tensor):
                asks_head = side == 0
                anchor = torch.where(asks_head, triples.tail, triples.head)
                target = torch.where(asks_head, triples.head, triples.tail)
                queries = Queries(anchor, triples.relation, side)
            else:
                queries, target = triples.queries(side), triples.target(side)
            asked = Asked(queries, target, self.known, model, epoch)
            negatives = self.proposal.draw(asked, self.num_negatives, generator)
            known = asked.contains(negatives.candidates)
            if known is not None:
                known = known if negatives.known is None else known | negatives.known
                negatives = replace(negatives, known=known)
            yield queries, target, negatives

    def weights(self, logits: Tensor, known: Tensor | None) -> Tensor:
        """[B, K] logits of negatives to [B, K] weights that sum to 1 a query; 0 where `known`, or where all are."""
        flat = torch.zeros_like(logits, dtype=torch.float32)
        if self.temperature:
            flat = logits.detach().float() * self.temperature
        if known is None:
            return flat.softmax(-1)
        return flat.masked_fill(known, -torch.inf).softmax(-1).nan_to_num(0.0)
