"""Scoring and counting in one kernel, for CUDA: no score is ever written to memory.

The kernel (`kgc.engine.kernel`, in Triton) scores a tile of queries × candidates in registers, as the similarity's
`ranking_key` does, in full fp32, and compares it with the thresholds of every query that asks the tile's rows. Its keys
need not round like those of any other kernel, nor like its own in another tile: they serve the certified path, whose
bands hold for any order of additions.

A row is asked by as many queries as it has right answers. The rows are dealt into slots of at most `TURNS` queries, so
that a tile of slots is compared with about as many thresholds in each row; a row with more queries is scored again for
each further slot. Known answers are hidden by one bit a cell.

Memory of a block of n candidates: rows · n bits, 8 bytes an open cell, and for elementwise distances a transposed copy
of the n vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from kgc.engine.certified import Candidates
from kgc.engine.counting import BlockCounter, Count, RowLayout
from kgc.models.similarity import ComplexModulus, Dot, Elementwise, Euclidean, Manhattan, Similarity

# Most queries of one row that share a score: comparing with so many thresholds costs less than a score.
TURNS = 32
# Times the usual number of open cells that the kernel still lists.
_MANY = 16


@dataclass(frozen=True)
class Tile:
    """What one program scores, and with which means.

    Args:
        rows, columns: queries and candidates, powers of two; columns below 2^15, so that counts of a row fit 16 bits.
        depth: coordinates of a step of a matrix product.
        warps: groups of 32 threads.
        registers: most registers of a thread, or None. More leave room for fewer programs side by side.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    registers: int | None = None


# By the compiler's output for sm_90: inner loops without spilled registers. Elementwise tiles are wide because a thread
# then holds many rows of few columns, and the queries' coordinates are loaded once for all threads.
TILES: dict[type[Similarity], Tile] = {
    Dot: Tile(64, 128, 16, warps=4),
    Euclidean: Tile(64, 128, 16, warps=4),
    Manhattan: Tile(16, 512, 1, warps=4, registers=168),
    ComplexModulus: Tile(16, 512, 1, warps=4, registers=168),
}


def can_fuse(similarity: Similarity, device: torch.device) -> bool:
    """Whether the kernel has this similarity's formula and this device: NVIDIA's, from compute capability 8.0 on."""
    if type(similarity) not in TILES or device.type != "cuda" or torch.version.cuda is None:
        return False
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)


class FusedCandidates(Candidates):
    """The candidates of the certified path, counted by the fused kernel."""

    def counting(self, query: Tensor, layout: RowLayout, low: Tensor, high: Tensor) -> BlockCounter:
        scanner = Scanner(self.similarity, query, layout, low, high)
        usual = 16 * len(low)

        by_blocks = super().counting(query, layout, low, high)

        def count(span: tuple[int, int, int], known: tuple[Tensor, Tensor], listed: int) -> Count:
            first, start, stop = span
            terms = None if self.terms is None else self.terms[start:stop]
            scan = scanner.scan(self.vectors[start:stop], terms, known, usual)
            if scan.total > _MANY * usual:  # a table of equal vectors: counted, not listed
                return by_blocks(span, known, listed)
            if scan.total > usual:
                scan = scanner.scan(self.vectors[start:stop], terms, known, scan.total)
            inside = torch.bincount(scan.query, minlength=len(low))
            kept = inside[scan.query] <= listed
            return Count(scan.above, inside, scan.query[kept], scan.column[kept] + (start - first))

        return count


@dataclass(frozen=True)
class Scan:
    """What the kernel found in one block.

    Args:
        above: [P] int64 cells above the high threshold.
        query, column: [M] int64 cells in [low, high], in any order.
        total: how many cells there are in [low, high]; more than M if the buffer was too small for all.
    """

    above: Tensor
    query: Tensor
    column: Tensor
    total: int


class Scanner:
    """P queries that ask U rows, ready to be counted against blocks of candidates.

    Args:
        similarity: one of `TILES`.
        query: [U, D] fp32 query vectors in the order of `layout`.
        layout: which row each query asks.
        low, high: [P] fp32 thresholds; nothing is counted for a query whose two are not low ≤ high, as NaN is not.
    """

    def __init__(self, similarity: Similarity, query: Tensor, layout: RowLayout, low: Tensor, high: Tensor):
        from kgc.engine.kernel import KEYS, count_tile

        self.kernel, self.keys = count_tile, KEYS[type(similarity)]
        self.tile = TILES[type(similarity)]
        self.transposed = isinstance(similarity, Elementwise)
        self.layout = layout
        self.asked = torch.argsort(layout.row, stable=True)  # [P] the queries, row by row
        row = layout.row[self.asked]
        turn = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
        first = (turn % TURNS == 0).nonzero().squeeze(-1)  # [S] the slots
        turns = torch.diff(first, append=first.new_tensor([len(row)]))
        order = torch.argsort(turns, descending=True, stable=True)
        row = row[first[order]]
        self.slots = [part.int() for part in (row, first[order], turns[order])]
        self.query = self._arranged(query[row], self.tile.rows)
        lost = ~(low <= high)
        self.thresholds = tuple(bound.masked_fill(lost, torch.nan)[self.asked] for bound in (low, high))

    def scan(self, vectors: Tensor, terms: Tensor | None, known: tuple[Tensor, Tensor], capacity: int) -> Scan:
        """Counts all cells of a block but the known ones.

        Args:
            vectors: [n, D] fp32 candidates.
            terms: [n] their `key_terms`, or None.
            known: [M] rows and [M] columns of distinct cells to leave out; rows as numbered before `layout`.
            capacity: how many open cells there is room for.
        """
        number, width = vectors.shape
        table = self._arranged(vectors, self.tile.columns)
        above = torch.zeros(len(self.asked), dtype=torch.int32, device=vectors.device)
        cells = torch.empty(capacity, dtype=torch.int64, device=vectors.device)
        found = torch.zeros(1, dtype=torch.int64, device=vectors.device)
        slots = len(self.slots[0])
        grid = -(-slots // self.tile.rows) * -(-number // self.tile.columns)
        bits, words = self._bits(known, number)
        options = {} if self.tile.registers is None else {"maxnreg": self.tile.registers}
        with torch.cuda.device_of(vectors):
            self.kernel[(grid,)](
                self.query,
                table,
                terms,
                bits,
                *self.slots,
                *self.thresholds,
                above,
                cells,
                found,
                slots,
                number,
                width,
                self.query.shape[-1],
                table.shape[-1],
                words,
                capacity,
                KEYS=self.keys,
                ROWS=self.tile.rows,
                COLUMNS=self.tile.columns,
                DEPTH=self.tile.depth,
                num_warps=self.tile.warps,
                num_stages=3,
                enable_fp_fusion=True,
                **options,
            )
        total = int(found)
        cells = cells[:total]
        counts = torch.empty_like(self.asked)
        counts[self.asked] = above.long()
        return Scan(counts, self.asked[cells >> 32], cells & 0xFFFFFFFF, total)

    def _arranged(self, vectors: Tensor, multiple: int) -> Tensor:
        """[n, D] as it is, or transposed and padded with zeros to [D, N], N the next multiple."""
        if not self.transposed:
            return vectors.contiguous()
        padding = -len(vectors) % multiple
        return F.pad(vectors.T, (0, padding)).contiguous()

    def _bits(self, known: tuple[Tensor, Tensor], number: int) -> tuple[Tensor, int]:
        """[U · words] int32 whose set bits are the known cells, and the ⌈n/32⌉ words of a row (0 if none is known)."""
        row, column = known
        words = -(-number // 32) if len(row) else 0
        bits = torch.zeros(max(1, len(self.layout.order) * words), dtype=torch.int32, device=row.device)
        # The cells are distinct: the sum of their bits is their union.
        place = self.layout.rank_of_row[row] * words + column // 32
        return bits.index_add_(0, place, (torch.ones_like(column) << column % 32).int()), words
