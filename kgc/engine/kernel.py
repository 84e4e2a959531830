"""The Triton kernel of `kgc.engine.fused`: scores a tile and counts it in registers.

Imported only where the kernel is about to run. `TRITON_INTERPRET=1`, set before Triton is first imported, runs it on
CPU tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kgc.models.similarity import ComplexModulus, Dot, Euclidean, Manhattan


@triton.jit
def _products(
    query,
    table,
    slot,
    column,
    slots,
    columns,
    width,
    query_step,
    table_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """[ROWS, COLUMNS] inner products of row-major [slots, width] queries and [columns, width] candidates."""
    keys = tl.zeros([ROWS, COLUMNS], tl.float32)
    query_row = query + slot.to(tl.int64)[:, None] * width
    table_row = table + column.to(tl.int64)[None, :] * width
    for start in range(0, width, DEPTH):
        at = start + tl.arange(0, DEPTH)
        inside = at < width
        left = tl.load(query_row + at[None, :], mask=(slot < slots)[:, None] & inside[None, :], other=0.0)
        right = tl.load(table_row + at[:, None], mask=(column < columns)[None, :] & inside[:, None], other=0.0)
        keys = tl.dot(left, right, keys, input_precision="ieee")
    return keys


@triton.jit
def _manhattan(
    query,
    table,
    slot,
    column,
    slots,
    columns,
    width,
    query_step,
    table_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """[ROWS, COLUMNS] negative L1 distances of column-major, padded queries and candidates."""
    keys = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(width):
        place = tl.cast(at, tl.int64)
        left = tl.load(query + place * query_step + slot)
        right = tl.load(table + place * table_step + column)
        keys -= tl.abs(left[:, None] - right[None, :])
    return keys


@triton.jit
def _moduli(
    query,
    table,
    slot,
    column,
    slots,
    columns,
    width,
    query_step,
    table_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """[ROWS, COLUMNS] negative sums of complex moduli of column-major, padded [real half | imaginary half] vectors."""
    keys = tl.zeros([ROWS, COLUMNS], tl.float32)
    half = width // 2
    for at in range(half):
        place = tl.cast(at, tl.int64)
        left = tl.load(query + place * query_step + slot)
        right = tl.load(table + place * table_step + column)
        real = left[:, None] - right[None, :]
        place += half
        left = tl.load(query + place * query_step + slot)
        right = tl.load(table + place * table_step + column)
        imaginary = left[:, None] - right[None, :]
        # Clamped as in `ComplexModulus.terms`. The root is off by a few units in the last place, which `band` allows.
        squared = real * real + imaginary * imaginary
        keys -= tl.sqrt(tl.maximum(squared, 1.1754943508222875e-38, propagate_nan=tl.PropagateNan.ALL))
    return keys


KEYS = {Dot: _products, Euclidean: _products, Manhattan: _manhattan, ComplexModulus: _moduli}


# The pointer steps of the table are kept from Triton's knowledge of alignment: it would load wide pieces and then move
# them between threads at every coordinate.
@triton.jit(do_not_specialize=["slots", "columns", "words", "capacity"], do_not_specialize_on_alignment=["table_step"])
def count_tile(
    query,  # [slots, width], or padded and column-major [width, query_step]
    table,  # [columns, width], or padded and column-major [width, table_step]
    terms,  # [columns] what the key subtracts, or None
    known,  # [rows, words] bits of the known cells; no words if there are none
    row_of_slot,  # [slots]
    first_of_slot,  # [slots] first of the thresholds of the slot's queries
    turns_of_slot,  # [slots] how many they are
    low,  # [P]
    high,  # [P]
    above,  # [P] out: keys above high
    open_cells,  # [capacity] out: the cells in [low, high], 2³² · query + column
    found,  # [1] out: how many of them there are, written or not
    slots,
    columns,
    width,
    query_step,
    table_step,
    words,
    capacity,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of ROWS slots and COLUMNS candidates; neighbouring programs share their candidates."""
    row_tiles = tl.cdiv(slots, ROWS)
    slot = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) // row_tiles * COLUMNS + tl.arange(0, COLUMNS)
    keys = KEYS(query, table, slot, column, slots, columns, width, query_step, table_step, ROWS, COLUMNS, DEPTH)
    if terms is not None:
        keys -= tl.load(terms + column, mask=column < columns, other=0.0)[None, :]

    # NaN is what no comparison counts.
    asked = slot < slots
    keys = tl.where(asked[:, None] & (column < columns)[None, :], keys, float("nan"))
    # Known cells, word by word: a tensor of words as large as the tile would move the keys to another register layout.
    row = tl.load(row_of_slot + slot, mask=asked, other=0).to(tl.int64)
    group = tl.program_id(0) // row_tiles * COLUMNS // 32
    for part in range(group, tl.minimum(group + (COLUMNS + 31) // 32, words)):
        word = tl.load(known + row * words + part, mask=asked, other=0)
        hidden = (word[:, None] >> (column % 32)[None, :]) & (column // 32 == part).to(tl.int32)[None, :]
        keys = tl.where(hidden == 1, float("nan"), keys)

    first = tl.load(first_of_slot + slot, mask=asked, other=0)
    turns = tl.load(turns_of_slot + slot, mask=asked, other=0)
    for turn in range(tl.max(turns)):
        at = first + turn
        below = tl.load(low + at, mask=turn < turns, other=float("nan"))[:, None]
        over = tl.load(high + at, mask=turn < turns, other=float("nan"))[:, None]
        # Both counts of a row in one sum: keys above `high` in the upper half, keys in [low, high] in the lower.
        packed = tl.sum(tl.where(keys > over, 65536, tl.where(keys >= below, 1, 0)), axis=1)
        higher, inside = packed >> 16, packed & 65535
        tl.atomic_add(above + at, higher, mask=higher > 0, sem="relaxed")
        number = tl.sum(inside)
        if number > 0:
            start = tl.atomic_add(found, number.to(tl.int64), sem="relaxed")
            if start < capacity:
                is_open = (keys >= below) & (keys <= over)
                place = tl.cumsum(is_open.to(tl.int32), axis=1) - 1 + (tl.cumsum(inside) - inside)[:, None]
                cell = (at.to(tl.int64) << 32)[:, None] | column[None, :]
                tl.store(open_cells + start + place, cell, mask=is_open & (place < capacity - start))
