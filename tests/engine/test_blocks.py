"""The block path on tables and batches smaller than a vector register: equal vectors must tie there too."""

from __future__ import annotations

import pytest
import torch

from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.rotate import RotatE
from kgc.models.transe import TransE
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Queries, Side

MODELS = {
    "distmult": lambda e, d: DistMult(e, 2, d),
    "complex": lambda e, d: ComplEx(e, 2, d),
    "transe_l1": lambda e, d: TransE(e, 2, d, norm=1),
    "transe_l2": lambda e, d: TransE(e, 2, d, norm=2),
    "rotate": lambda e, d: RotatE(e, 2, d),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("batch", [1, 3, 1024])
@pytest.mark.parametrize("block", [1, 5, None])
def test_entities_with_equal_vectors_tie_in_the_smallest_tables(make, batch, block):
    options = RankingOptions(precision="block", batch=batch, block=block, compile=False)
    for entities in (1, 2, 3, 5, 11, 15, 17):
        for dim in (30, 256):
            torch.manual_seed(entities)
            model = make(entities, dim)
            with torch.no_grad():
                for table in model.parameters():
                    table.normal_()
                model.entity.weight.copy_(model.entity.weight[:1].expand(entities, -1))
            anchor = torch.arange(entities)
            counts = rank_queries(model, Queries(anchor, anchor % 2, Side.TAIL), anchor.flip(0), options=options)
            assert counts.better.tolist() == [0] * entities
            assert counts.equal.tolist() == [entities - 1] * entities
