"""Query vectors in float64: those of the definition, whatever other queries they are made with."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contract import CASES, E, R, mixed_queries, spread

from kgc.models.algebra import circular_convolution, circular_correlation, row_by_row
from kgc.models.encoded import EncodedModel
from kgc.models.exact import bilinear_queries, exact_product
from kgc.models.similarity import Dot
from kgc.types import Queries, Side

DOTS = [case for case in CASES if type(case.build().similarity) is Dot]


@pytest.mark.parametrize("case", DOTS, ids=str)
def test_a_query_vector_does_not_depend_on_its_company(case):
    model = spread(case.build(dim=64)).eval()
    queries = mixed_queries(50)
    together = model.exact_query_vectors(queries)
    assert together.dtype == torch.float64
    for i in range(50):
        alone = model.exact_query_vectors(queries[i : i + 1])
        assert torch.equal(alone[0], together[i])
    for side in Side:  # a side for the whole batch
        mine = (queries.side == side).nonzero().squeeze(1)
        part = Queries(queries.anchor[mine], queries.relation[mine], side)
        assert torch.equal(model.exact_query_vectors(part), together[mine])


@pytest.mark.parametrize("case", [case for case in CASES if case.build().similarity.certified], ids=str)
def test_exact_query_vectors_are_query_vectors(case):
    model = spread(case.build()).eval()
    queries = mixed_queries(40)
    exact = model.exact_query_vectors(queries)
    near = 1e-5 if isinstance(model, EncodedModel) else 1e-12  # an encoder's table is rounded to fp32
    torch.testing.assert_close(exact, model.double().query_vectors(queries), rtol=near, atol=near)
    assert len(exact) == 40
    assert int(queries.anchor.max()) < E
    assert int(queries.relation.max()) < R


def test_bilinear_queries_are_sums_over_the_matrix_of_the_relation():
    draw = torch.Generator().manual_seed(0)
    vector, matrix = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((9, 5), (3, 5, 5)))
    place, head = torch.randint(3, (9,), generator=draw), torch.tensor([[True], [False], [True]] * 3)
    got = bilinear_queries(vector, lambda i: matrix[i], place, head)
    for b in range(9):
        m = matrix[place[b]].T if head[b] else matrix[place[b]]
        for j in range(5):
            wanted = math.fsum(vector[b, i].item() * m[i, j].item() for i in range(5))
            assert got[b, j].item() == pytest.approx(wanted, rel=1e-13, abs=1e-15)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 30]))
@settings(max_examples=60)
def test_exact_products_depend_on_the_numbers_alone(terms, seed, spread_of_sizes):
    """Any order of the terms, any company, whole or in parts: the same bits; and the sums of exact fractions."""
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((7, terms), (terms, 5)))
    a *= torch.exp2(torch.randint(-spread_of_sizes, spread_of_sizes + 1, a.shape, generator=draw).double())
    b *= torch.exp2(torch.randint(-spread_of_sizes, spread_of_sizes + 1, b.shape, generator=draw).double())
    a, b = a.float().double(), b.float().double()
    whole = exact_product(a, b)
    order = torch.randperm(terms, generator=draw)
    assert torch.equal(exact_product(a[:, order], b[order]), whole)
    assert torch.equal(exact_product(a[2:3], b), whole[2:3])
    assert torch.equal(exact_product(a, b[:, 3:4].contiguous()), whole[:, 3:4])
    assert torch.equal(exact_product(b.T, a.T), whole.T)
    most = a.abs().amax(1, keepdim=True) * b.abs().amax(0)
    for i in range(7):
        for j in range(5):
            wanted = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            assert abs(Fraction(whole[i, j].item()) - wanted) <= terms * Fraction(most[i, j].item()) / 2**52


def test_exact_products_of_nothing_but_zeros_of_whole_numbers_and_of_what_is_not_finite():
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(
        exact_product(zeros, torch.ones(3, 4, dtype=torch.float64)), torch.zeros(2, 4, dtype=torch.float64)
    )
    a, b = (torch.randint(-1000, 1000, size).double() for size in ((3, 50), (50, 4)))
    assert torch.equal(exact_product(a, b), a @ b)
    tiny = torch.full((1, 2), 2.0**-149, dtype=torch.float64)
    assert exact_product(tiny, tiny.T).item() == 2.0**-297
    a[1, 7] = torch.inf
    b[3, 2] = torch.nan
    product = exact_product(a, b)
    assert product.isnan().tolist() == [[False, False, True, False], [True] * 4, [False, False, True, False]]


@pytest.mark.parametrize("width", [1, 2, 7])
def test_circular_products_in_float64_are_their_sums(width):
    draw = torch.Generator().manual_seed(width)
    a, b = (torch.randn(3, width, generator=draw, dtype=torch.float64) for _ in range(2))
    for product, sign in ((circular_convolution, -1), (circular_correlation, 1)):
        got = product(a, b)
        for row in range(3):
            for k in range(width):
                terms = [a[row, i].item() * b[row, (k + sign * i) % width].item() for i in range(width)]
                assert got[row, k].item() == pytest.approx(math.fsum(terms), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("width", [1, 5, 10, 34, 40])
def test_products_row_by_row_do_not_depend_on_the_number_of_rows(width):
    draw = torch.Generator().manual_seed(0)
    vectors, matrix = torch.randn(70, 24, generator=draw), torch.randn(24, width, generator=draw)
    whole = row_by_row(vectors, matrix, 32)
    torch.testing.assert_close(whole, (vectors.double() @ matrix.double()).float(), rtol=1e-5, atol=1e-5)
    for number in (1, 5, 32, 33, 70):
        assert torch.equal(row_by_row(vectors[:number], matrix, 32), whole[:number])
    alike = vectors[:1].expand(70, -1)
    assert len(row_by_row(alike, matrix, 32).unique(dim=0)) == 1
