"""Harmonic numbers against exact fractions, on both sides of the end of the table."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from kgc.metrics.harmonic import harmonic, harmonic_of_squares

N = [0, 1, 2, 63, 64, 65, 66, 100, 1000]


@pytest.mark.parametrize(("function", "power"), [(harmonic, 1), (harmonic_of_squares, 2)])
def test_harmonic_numbers_equal_exact_sums(function, power):
    wanted = [float(sum((Fraction(1, i**power) for i in range(1, n + 1)), Fraction(0))) for n in N]
    assert function(torch.tensor(N)).tolist() == pytest.approx(wanted, rel=4e-16, abs=0)
    assert function(torch.tensor(N).double()).tolist() == pytest.approx(wanted, rel=4e-16, abs=0)


def test_large_harmonic_numbers_equal_compensated_sums():
    n = 10**6
    for function, power in ((harmonic, 1), (harmonic_of_squares, 2)):
        wanted = math.fsum(1 / i**power for i in range(1, n + 1))
        assert function(torch.tensor(n)).item() == pytest.approx(wanted, rel=4e-16)
