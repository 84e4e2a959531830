"""Models whose query vectors are made by a neural network, and compared with entities by inner product."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kgc.errors import UserError
from kgc.models.algebra import without_denormals
from kgc.models.base import KGEModel
from kgc.models.similarity import Dot
from kgc.types import Queries, Side

# Queries of one float64 call, which bounds its memory.
_ROWS = 256


class NetworkModel(KGEModel):
    """⟨network(anchor, relation), candidate⟩, plus the candidate's bias where entities store one (`extra`).

    The network answers tail queries only. Batch normalisation and dropout are those of training while the model is in
    training mode; in evaluation mode a score depends on nothing but its triple. Ranks are certified: those of the
    network computed in float64, in evaluation mode, from the stored parameters: it must be made of `kgc.models.layers`
    and of what treats each number by itself, or the vectors would depend on the batch.

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
        parts = []
        for ids in torch.stack([queries.anchor, self.relation_rows(queries)]).split(_ROWS, dim=1):
            anchor, relation = entities[ids[0]][:, : self.dim], relations[ids[1]]
            parts.append(exact(without_denormals(anchor).double(), without_denormals(relation).double()))
        return self._with_bias(torch.cat(parts))

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
