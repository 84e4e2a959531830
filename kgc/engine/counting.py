"""Counting the cells of a block of scores above and between thresholds: the loop that ranking spends its time in.

A `Counter` answers for P queries, several of which may share a row of scores: how many cells of the row are above
`high`, and which cells lie in [low, high]. The eager form compares whole slices into fp32 buffers, which torch sums
many times faster than bool; `kgc.engine.compiled` has a form that does both in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Count:
    """Counts of one block.

    Args:
        above: [P] int64 cells above the high threshold.
        inside: [P] int64 cells in [low, high].
        query, column: [M] the cells in [low, high] of the queries that have no more than so many of them: place of the
            query among the P, column in the block.
    """

    above: Tensor
    inside: Tensor
    query: Tensor
    column: Tensor


# Rows of a call that are too few to be worth one of their own.
_FEW = 64

Counter = Callable[[Tensor, "RowLayout", Tensor, Tensor, int], Count]
Key = Callable[[Tensor, Tensor], Tensor]
# From (first entity scored, first entity counted, end), the (rows, columns) of known cells, and how many open cells of
# a query are listed at most, to what else is counted.
BlockCounter = Callable[[tuple[int, int, int], tuple[Tensor, Tensor], int], Count]


class RowLayout:
    """Which of U rows each of P queries looks at, arranged so that rows are read where they lie.

    Args:
        row: [P] row of each query.
        rows: U.

    Queries are dealt into turns: the k-th turn holds the k-th query of every row that has one. Rows are numbered anew,
    those with most queries first, so that the rows of a turn are the first n of the block.

    Attributes:
        order: [U] the rows in their new order.
        rank_of_row: [U] the new number of each row.
        turns: for each turn the [n] queries of rows 0 … n−1, in this order.
        rest: queries of the turns too small to be worth a call of their own.
        row: [P] new row number of each query.
    """

    def __init__(self, row: Tensor, rows: int):
        counts = torch.bincount(row, minlength=rows)
        self.order = torch.argsort(counts, descending=True, stable=True)
        self.rank_of_row = torch.empty_like(self.order)
        self.rank_of_row[self.order] = torch.arange(rows, device=row.device)
        self.row = self.rank_of_row[row]
        order = torch.argsort(self.row, stable=True)
        ordered = self.row[order]
        turn = torch.arange(len(row), device=row.device) - torch.searchsorted(ordered, ordered)
        by_turn = order[torch.argsort(turn, stable=True)]
        sizes = torch.bincount(turn).tolist() if len(row) else []
        full = [n for n in sizes if n >= max(_FEW, rows // 8)]
        self.turns = list(by_turn[: sum(full)].split(full)) if full else []
        self.rest = by_turn[sum(full) :]


def count_eager(scores: Tensor, layout: RowLayout, low: Tensor, high: Tensor, listed: int) -> Count:
    """Counts with plain torch calls.

    Args:
        scores: [U, n], rows in the order of `layout`.
        layout: the rows that the P queries look at.
        low, high: [P] thresholds.
        listed: open cells of a query are listed if they are no more than that.
    """
    above, within_counts = (torch.zeros(len(low), dtype=torch.int64, device=low.device) for _ in range(2))
    open_queries, open_columns = [], []
    width = scores.shape[1]
    rest = max(2 * _FEW, len(scores))
    turns = len(layout.turns)
    parts = [*layout.turns, *(queries for queries in layout.rest.split(rest) if len(queries))]
    marks = scores.dtype if scores.dtype == torch.float64 else torch.float32  # half precision cannot count beyond 256
    most = max(map(len, parts), default=0)
    over, within = (scores.new_empty(most, width, dtype=marks) for _ in range(2))
    for i, queries in enumerate(parts):
        size = len(queries)
        rows = scores[:size] if i < turns else scores[layout.row[queries]]
        higher = torch.gt(rows, high[queries].unsqueeze(-1), out=over[:size])
        inside = torch.ge(rows, low[queries].unsqueeze(-1), out=within[:size]).sub_(higher)
        above[queries] = higher.sum(-1).long()
        number = inside.sum(-1).long()
        within_counts[queries] = number
        some = ((number > 0) & (number <= listed)).nonzero().squeeze(-1)
        if len(some):
            at, column = inside[some].nonzero(as_tuple=True)
            open_queries.append(queries[some[at]])
            open_columns.append(column)
    none = layout.row.new_empty(0)
    return Count(
        above,
        within_counts,
        torch.cat(open_queries) if open_queries else none,
        torch.cat(open_columns) if open_columns else none,
    )
