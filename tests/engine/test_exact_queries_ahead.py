"""Exact query vectors made for many batches at a time."""

from __future__ import annotations

import pytest
import torch

from kgc.engine import certified
from kgc.engine.certified import ExactQueries
from kgc.types import Queries, Side


class Counted:
    """A scorer whose query vectors are the anchors, and the sizes of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def exact_query_vectors(self, queries: Queries) -> torch.Tensor:
        self.asked.append(len(queries))
        return queries.anchor.double().unsqueeze(1)


@pytest.mark.parametrize(
    ("spans", "asked"),
    [
        ([(0, 4), (4, 8), (8, 12), (12, 16)], [10, 10]),
        ([(0, 4), (0, 4), (4, 10)], [10]),
        ([(0, 10), (10, 20)], [10, 10]),
        ([(0, 15), (15, 20)], [15, 5]),  # a batch larger than what is made ahead
        ([(8, 16), (0, 8), (2, 3)], [10, 10]),  # back, as after memory ran out
        ([(19, 20)], [1]),
    ],
)
def test_vectors_are_those_of_the_span_whatever_came_before(spans, asked, monkeypatch):
    monkeypatch.setattr(certified, "_AHEAD", 30)
    index = torch.arange(20)
    scorer = Counted()
    exact = ExactQueries(scorer, Queries(index, torch.zeros_like(index), Side.TAIL), 3)
    for start, stop in spans:
        assert exact.of(start, stop).squeeze(1).tolist() == list(range(start, stop))
    assert scorer.asked == asked
