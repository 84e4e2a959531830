"""A generator that learns to draw hard negatives from what the trained model scores high (Cai & Wang 2018, KBGAN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.sampling.processes import summed
from kgc.sampling.proposals import Asked, Proposal, Uniform
from kgc.types import Negatives, rows_of_pools


class KBGAN(Proposal):
    """Draws negatives by the softmax of a second model's scores over a pool of uniform candidates.

    The generator is trained by REINFORCE (eq. 5 and algorithm 1): a drawn negative with log-probability log p earns the
    reward r = the trained model's score of it, and the generator descends −(r − b) log p. The baseline b is the mean
    reward of the draws before, over all processes. Its tables are parameters like the model's: one optimizer trains
    both, checkpoints hold both, evaluation reads the model's alone.

    With masking, known answers of train leave the pool before the softmax; a query with nothing else in its pool draws
    from all of it, and the sampler masks what it drew.

    Args:
        generator: makes the generator of `num_entities` and `num_relations`; any model of `kgc.models`.
        pool_size: N, candidates that a query's negatives are drawn from.
        share: queries that share a pool, see `kgc.sampling.proposals.Unconditional`; only the generator is cheaper.
        decay: factor, per draw of a batch, of what rewards weigh in the baseline: 0 takes the batch before alone, as
            algorithm 1 does, 1 all rewards alike.
    """

    def __init__(
        self, generator: Callable[..., nn.Module], pool_size: int = 20, share: int | None = 1, decay: float = 0.9
    ):
        super().__init__()
        if not callable(generator):
            raise UserError("sampler.proposal.generator: name a model by its _target_, with _partial_: true")
        if pool_size < 1:
            raise UserError(f"sampler.proposal.pool_size={pool_size}: at least 1 candidate is needed")
        if not 0 <= decay <= 1:
            raise UserError(f"sampler.proposal.decay={decay}: must be between 0 and 1")
        self.make = generator
        self.pool_size = pool_size
        self.uniform = Uniform(share)
        self.decay = decay
        self.generator: nn.Module | None = None
        self.register_buffer("rewards", torch.zeros(2))  # their decayed sum and number

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        self.uniform.setup(graph, device)
        try:
            self.generator = self.make(num_entities=graph.num_entities, num_relations=graph.num_relations)
        except (UserError, TypeError, ValueError) as error:
            words = str(error)
            where = f".{words.removeprefix('model.')}" if words.startswith("model.") else f": {words}"
            raise UserError(f"sampler.proposal.generator{where}") from error
        if not any(parameter.requires_grad for parameter in self.generator.parameters()):
            raise UserError(
                f"sampler.proposal.generator: {type(self.generator).__name__} has nothing to train; choose another"
            )
        if hasattr(self.generator, "use_facts"):  # messages pass over the graph
            self.generator.use_facts(graph.train)
        self.to(device)

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        pool = self.uniform.pools(len(asked.queries), self.pool_size, generator)
        scores = self.generator.score(asked.queries, pool).float()  # [B, N]
        known = asked.contains(pool)
        if known is not None:
            scores = scores.masked_fill(known & ~known.all(-1, keepdim=True), -torch.inf)
        log_probability = scores.log_softmax(-1)
        place = categorical(log_probability.detach().exp(), number, generator)  # [B, K]
        drawn = rows_of_pools(pool, len(asked.queries)).gather(1, place)
        return Negatives(drawn, log_probability=log_probability.gather(1, place))

    @property
    def baseline(self) -> Tensor:
        """Scalar b, in the unit of the score; 0 before the first reward."""
        return self.rewards[0] / self.rewards[1].clamp_min(torch.finfo(self.rewards.dtype).tiny)

    def loss(self, negatives: Negatives, scores: Tensor) -> Tensor:
        """REINFORCE's gradient as that of a scalar whose value is 0, so that the loss on record is the model's."""
        reward = scores.detach().float()
        known = torch.zeros_like(reward, dtype=torch.bool) if negatives.known is None else negatives.known
        number = (~known).sum()
        terms = ((self.baseline - reward) * negatives.log_probability).masked_fill(known, 0.0)
        surrogate = terms.sum() / number.clamp_min(1)
        totals = torch.stack([reward.masked_fill(known, 0.0).sum(), number.float()])
        self.rewards.mul_(self.decay).add_(summed(totals))
        return surrogate - surrogate.detach()


def categorical(probabilities: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """[B, N] probabilities to [B, number] places, drawn independently; a place of probability 0 is never drawn."""
    cumulative = probabilities.double().cumsum(-1)
    shape = (len(probabilities), number)
    point = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    found = torch.searchsorted(cumulative, point * cumulative[:, -1:], right=True)
    return found.clamp_(max=probabilities.shape[-1] - 1)  # where probabilities are NaN
