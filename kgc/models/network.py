"""Models whose query vectors are made by a neural network, and compared with entities by inner product."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.models.similarity import Dot
from kgc.types import Queries, Side

# Queries of one float64 call: always as many, so that their number changes no product's shape, and so no rounding.
_ROWS = 128


class NetworkModel(KGEModel):
    """⟨network(anchor, relation), candidate⟩, plus the candidate's bias where entities store one (`extra`).

    The network answers tail queries only. Batch normalisation and dropout are those of training while the model is in
    training mode; in evaluation mode a score depends on nothing but its triple. Ranks are certified: those of the
    network computed in float64, in evaluation mode, from the stored parameters.

    Args:
        network: a module from [B, dim] anchors without their biases and [B, Dr] relations to [B, dim].
        options: of `KGEModel`.
    """

    reciprocal_only = True

    def __init__(self, num_entities: int, num_relations: int, dim: int, *, network: nn.Module, **options):
        super().__init__(num_entities, num_relations, dim, similarity=Dot(), **options)
        self.network = network

    def query(self, anchor: Tensor, relation: Tensor, side: Side) -> Tensor:
        return self._with_bias(self.network(anchor[..., : self.dim], relation))

    def exact_queries(self, queries: Queries, entities: Tensor, relations: Tensor) -> Tensor:
        exact = copy.deepcopy(self.network).double().eval()
        ids = torch.stack([queries.anchor, self.relation_rows(queries)])
        parts = []
        for anchor, relation in F.pad(ids, (0, -ids.shape[1] % _ROWS)).split(_ROWS, dim=1):
            vectors = entities[anchor][:, : self.dim]
            parts.append(exact(vectors.double(), relations[relation].double()))
        return self._with_bias(torch.cat(parts)[: ids.shape[1]])

    def _with_bias(self, vectors: Tensor) -> Tensor:
        """[B, dim] to [B, D]: each of the candidate's `extra` numbers is added once."""
        return F.pad(vectors, (0, self.extra), value=1.0)

    def magnitude(self, vectors: Tensor) -> Tensor:
        return vectors[..., : self.dim].abs()

    def ask_back(self, queries: Queries, answer: Tensor, relation: Tensor) -> Tensor:
        raise UserError(
            f"regularizer=dura: made for models that are linear in the anchor, which {type(self).__name__} is not; "
            "choose regularizer=l2 or n3"
        )

    def relation_query(self, anchor: Tensor, answer: Tensor) -> Tensor | None:
        raise UserError(
            f"objective.relation_weight: {type(self).__name__} would run its network once for each pair of a triple "
            "and a relation; set it to 0"
        )


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of [B, D]. In training a batch of one, which has no spread, is taken as in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) > 1 or not self.training:
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(input, mean, var, self.weight, self.bias, training=False, eps=self.eps)
