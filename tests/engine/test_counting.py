"""Both ways of counting cells against plain comparisons, one query at a time."""

from __future__ import annotations

import pytest
import torch

from kgc.engine import compiled
from kgc.engine.compiled import can_compile, count_compiled
from kgc.engine.counting import Count, RowLayout, count_eager

WAYS = [
    count_eager,
    pytest.param(
        count_compiled,
        marks=pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler"),
    ),
]


def one_by_one(scores: torch.Tensor, row: torch.Tensor, low: torch.Tensor, high: torch.Tensor, listed: int) -> list:
    """above, inside and the listed columns of every query."""
    found = []
    for r, least, most in zip(row.tolist(), low.tolist(), high.tolist(), strict=True):
        cells = scores[r].tolist()
        inside = [column for column, cell in enumerate(cells) if least <= cell <= most]
        found.append((sum(cell > most for cell in cells), len(inside), inside if len(inside) <= listed else []))
    return found


def as_lists(count: Count) -> list:
    columns: list[list[int]] = [[] for _ in count.above]
    for query, column in zip(count.query.tolist(), count.column.tolist(), strict=True):
        columns[query].append(column)
    return list(zip(count.above.tolist(), count.inside.tolist(), map(sorted, columns), strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, on its first use
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 15, 63, 64, 65, 200, 1024, 1061])
@pytest.mark.parametrize("listed", [0, 3, 2000])
def test_counts_are_those_of_plain_comparisons(way, width, listed, monkeypatch):
    monkeypatch.setattr(compiled, "_WIDEST", 256)  # several pieces
    generator = torch.Generator().manual_seed(width)
    scores = torch.randint(-6, 7, (9, width), generator=generator).float()
    scores[torch.rand(9, width, generator=generator) < 0.1] = torch.nan
    scores[0], scores[1] = 2.0, torch.inf
    row = torch.randint(9, (23,), generator=generator)
    low = torch.randint(-7, 7, (23,), generator=generator).float()
    high = low + torch.randint(0, 3, (23,), generator=generator)
    low[0], high[0] = torch.nan, torch.nan
    row[1], low[1], high[1] = 0, -torch.inf, torch.inf
    layout = RowLayout(row, 9)
    found = way(scores[layout.order].contiguous(), layout, low, high, listed)
    assert as_lists(found) == one_by_one(scores, row, low, high, listed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, on its first use
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("height", ["above", "inside"])
def test_a_row_of_one_kind_is_counted_to_the_last_cell(way, height):
    """As many cells as the sums hold at most, and more."""
    width = compiled._WIDEST + 64 * 3 + 5
    scores = torch.full((2, width), 1.0)
    layout = RowLayout(torch.tensor([0, 1]), 2)
    low, high = (torch.zeros(2), torch.zeros(2)) if height == "above" else (torch.zeros(2), torch.ones(2))
    found = way(scores, layout, low, high, 7)
    assert getattr(found, height).tolist() == [width, width]
    assert len(found.query) == 0
