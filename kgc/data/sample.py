"""A sample of triples that does not depend on the order of lines in a file."""

from __future__ import annotations

import numpy as np
import torch

from kgc.data.batches import derive_seed
from kgc.types import Triples


def sample_triples(triples: Triples, number: int, seed: int) -> Triples:
    """So many of T triples, drawn uniformly without replacement; all of them where T ≤ `number`.

    Which ones is a function of the triples and the seed alone; they keep their order.
    """
    if number >= len(triples):
        return triples
    columns = (column.cpu().numpy() for column in (triples.tail, triples.head, triples.relation))
    order = torch.from_numpy(np.lexsort(tuple(columns)))
    generator = torch.Generator().manual_seed(derive_seed(seed, len(triples)))
    drawn = torch.randperm(len(triples), generator=generator)[:number]
    return triples[order[drawn].sort().values.to(triples.head.device)]
