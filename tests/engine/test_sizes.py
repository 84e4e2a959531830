"""Shapes of blocks: how a table is cut, and that the fastest measured shape is used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgc.engine.part import ranges
from kgc.engine.sizes import Sizes, measured_sizes, width

CPU = torch.device("cpu")


@given(st.integers(1, 100_000), st.integers(1, 4096), st.integers(1, 1 << 22))
def test_blocks_cover_the_table_once_with_little_overlap(entities, rows, cells):
    block = width(entities, rows, cells)
    assert 1 <= block <= entities
    pieces = list(ranges(entities, block))
    assert [e for _, start, stop in pieces for e in range(start, stop)] == list(range(entities))
    assert all(stop - low == block for low, _, stop in pieces)
    assert len(pieces) * block - entities < 64 * len(pieces)


def test_a_block_is_never_wider_than_what_fp32_counts():
    assert width(1 << 25, 1, 1 << 30) == 1 << 24
    assert width(1 << 25, 1, 1 << 30, block=1 << 25) == 1 << 24


def test_the_users_sizes_are_taken_as_they_are():
    sizes = Sizes(CPU, 1000, batch=7, block=33)
    assert sizes.settled
    assert sizes.shape() == (7, 33)


def test_every_shape_is_measured_and_the_fastest_is_used(monkeypatch):
    clock = iter(range(10**6))
    sizes = Sizes(CPU, 100_000)
    assert len(sizes.shapes) > 1
    fastest = sizes.shapes[2]
    seen = set()
    while not sizes.settled:
        shape = sizes.shape()
        seen.add(shape)
        began = 1000.0 * next(clock)
        # The fastest makes 1,000 queries a second, the others 500; the first measurement of each is slow (compiling).
        first = not sizes.rates[shape]
        seconds = shape[0] / (10 if first else 1000 if shape == fastest else 500)
        monkeypatch.setattr("time.perf_counter", lambda began=began, seconds=seconds: began + seconds)
        sizes.learn(shape, shape[0], began)
    assert seen == set(sizes.shapes)
    assert sizes.shape() == fastest


def test_the_last_batch_of_few_queries_teaches_nothing():
    sizes = Sizes(CPU, 100_000)
    shape = sizes.shape()
    sizes.learn(shape, shape[0] - 1, 0.0)
    assert not sizes.rates[shape]


def test_what_was_found_is_kept_for_the_same_work_alone():
    sizes = measured_sizes(CPU, 12_345, "a", None, None)
    assert measured_sizes(CPU, 12_345, "a", None, None) is sizes
    assert measured_sizes(CPU, 12_346, "a", None, None) is not sizes
    assert measured_sizes(CPU, 12_345, "b", None, None) is not sizes
    assert measured_sizes(CPU, 12_345, "a", 64, None) is not sizes


@pytest.mark.gpu
def test_the_time_is_taken_when_the_device_is_done():
    sizes = Sizes(torch.device("cuda"), 100_000)
    a = torch.randn(8192, 8192, device="cuda")
    began = sizes.start()
    for _ in range(10):
        a @ a
    assert sizes.start() - began > 1e-3


def test_a_shape_that_memory_does_not_suffice_for_is_not_tried_again():
    sizes = Sizes(CPU, 100_000)
    first = sizes.shape()
    sizes.forbid(first)
    assert first not in sizes.shapes
    for shape in list(sizes.shapes):
        sizes.forbid(shape)
    assert len(sizes.shapes) == 1
