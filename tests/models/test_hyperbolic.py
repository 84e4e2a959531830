"""Hyperbolic algebra against the ball's own formulas with 200 digits, and the properties that make it a geometry."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from kgc.models.hyperbolic import SquaredHyperbolic, curvature, log_sinh, mobius_add
from kgc.models.roth import RotH
from kgc.ranking import RankingOptions, is_certified
from kgc.types import Queries, Side


def vectors(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distances(x: Tensor, y: Tensor, c: float) -> Tensor:
    """[B, N] distances of the points of tangent vectors."""
    root = torch.full_like(x[:, :1], c**0.5)
    none = torch.zeros_like
    rows = torch.cat([x, root, none(root)], dim=1)
    return (-SquaredHyperbolic().shared(rows, torch.cat([y, none(y[:, :1])], dim=1))).sqrt()


class Ball:
    """The Poincaré ball of curvature −c in numbers of 200 digits (Ganea et al. 2018, eq. 4 to 6, lemma 2)."""

    def __init__(self, c: float):
        self.c = mpmath.mpf(c)

    def exp0(self, v: list[float]) -> list:
        size = mpmath.sqrt(self.c * sum(mpmath.mpf(x) ** 2 for x in v))
        return [mpmath.tanh(size) * x / size for x in v]

    def log0(self, x: list) -> list:
        size = mpmath.sqrt(self.c * sum(a * a for a in x))
        return [mpmath.atanh(size) * a / size for a in x]

    def add(self, x: list, y: list) -> list:
        xy, xx, yy = (sum(a * b for a, b in zip(p, q, strict=True)) for p, q in ((x, y), (x, x), (y, y)))
        top = [(1 + 2 * self.c * xy + self.c * yy) * a + (1 - self.c * xx) * b for a, b in zip(x, y, strict=True)]
        return [t / (1 + 2 * self.c * xy + self.c**2 * xx * yy) for t in top]

    def distance(self, x: list, y: list):
        gap = self.add([-a for a in x], y)
        return 2 / mpmath.sqrt(self.c) * mpmath.atanh(mpmath.sqrt(self.c * sum(a * a for a in gap)))


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(200):
        yield


SIZES = [(1e-9, 1e-9), (1e-3, 1.0), (1.0, 1.0), (8.0, 0.01), (0.01, 8.0), (8.0, 8.0)]


@pytest.mark.parametrize("c", [0.05, 1.0, 3.0])
@pytest.mark.parametrize(("first", "second"), SIZES)
def test_sums_and_distances_are_those_of_the_ball_with_200_digits(c, first, second):
    """Up to a tangent length of 30, where √c‖exp₀(v)‖ is 1 − 10⁻²⁶ and more."""
    x, y = vectors(6, 3, scale=first), vectors(6, 3, seed=1, scale=second)
    ball = Ball(c)
    left, right = ([ball.exp0(row) for row in table.tolist()] for table in (x, y))
    wanted = [[float(ball.distance(a, b)) for b in right] for a in left]
    torch.testing.assert_close(distances(x, y, c), torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=0)
    total = mobius_add(x, y, torch.full((6, 1), c**0.5, dtype=torch.float64))
    wanted = [[float(a) for a in ball.log0(ball.add(p, q))] for p, q in zip(left, right, strict=True)]
    torch.testing.assert_close(total, torch.tensor(wanted, dtype=torch.float64), rtol=1e-8, atol=1e-9 * first)


def test_float32_keeps_points_apart_where_the_ball_would_not():
    x = torch.tensor([[20.0, 0.0], [21.0, 0.0], [0.0, 20.0]])
    assert torch.equal(x[0].norm().tanh(), x[1].norm().tanh())  # one point of the ball, on its boundary
    # Along one ray, and for right angles at 20 and 21, far out: 2·20 + 2·20 − log 2 and 2·21 + 2·20 − log 2.
    right = 80 - torch.log(torch.tensor(2.0)).item()
    wanted = torch.tensor([[0.0, 2.0, right], [2.0, 0.0, right + 2], [right, right + 2, 0.0]])
    torch.testing.assert_close(distances(x, x, 1.0), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 1.0, 1.5])
def test_adding_from_the_left_moves_all_points_alike(scale):
    x, y, z = (vectors(7, 4, seed=seed, scale=scale) for seed in range(3))
    root = torch.full((7, 1), 1.3**0.5, dtype=torch.float64)
    moved = [mobius_add(x, point, root) for point in (y, z)]
    before, after = distances(y, z, 1.3).diagonal(), distances(*moved, 1.3).diagonal()
    torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(mobius_add(-x, moved[0], root), y, rtol=1e-6, atol=1e-8)


def test_nearly_flat_space_is_euclidean_with_twice_the_distance():
    x, y = vectors(5, 4), vectors(5, 4, seed=1)
    root = curvature(torch.full((5, 1), -100.0, dtype=torch.float64)).sqrt()
    torch.testing.assert_close(mobius_add(x, y, root), x + y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(distances(x, y, float(root[0]) ** 2), 2 * torch.cdist(x, y), rtol=1e-4, atol=1e-6)


def test_log_sinh_from_tiny_to_huge():
    x = torch.tensor([1e-25, 1e-5, 0.3, 5.0, 800.0], dtype=torch.float64)
    wanted = [float(mpmath.log(mpmath.sinh(v))) for v in x.tolist()]
    torch.testing.assert_close(log_sinh(x), torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=0)
    assert log_sinh(torch.zeros(1)).isfinite()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 12.0])
def test_gradients_of_sums_and_distances(scale):
    x, y, z = (vectors(3, 4, seed=seed).requires_grad_() for seed in range(3))
    raw = torch.tensor([[0.2], [-1.0], [1.0]], dtype=torch.float64, requires_grad=True)

    def score(x: Tensor, y: Tensor, z: Tensor, raw: Tensor) -> Tensor:
        root = curvature(raw).sqrt()
        rows = torch.cat([mobius_add(scale * x, scale * y, root), root, 0 * root], dim=1)
        return SquaredHyperbolic().shared(rows, torch.cat([scale * z, 0 * root], dim=1)) / scale**2

    assert torch.autograd.gradcheck(score, (x, y, z, raw), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("other", [[0.0, 0.0], [30.0, 0.0], [-30.0, 0.0], [1e15, 1e15], [1e-20, 0.0]])
def test_the_origin_opposite_and_equal_points_have_finite_sums_distances_and_gradients(other):
    for one in ([0.0, 0.0], [30.0, 0.0], [1e-20, 1e-20]):
        x = torch.tensor([one], requires_grad=True)
        y = torch.tensor([other], requires_grad=True)
        raw = torch.tensor([[0.5]], requires_grad=True)
        root = curvature(raw).sqrt()
        rows = torch.cat([mobius_add(x, y, root), root, torch.zeros(1, 1)], dim=1)
        for candidate in (x, y, rows[:, :2]):
            score = SquaredHyperbolic().shared(rows, torch.cat([candidate, torch.zeros(1, 1)], dim=1))
            assert score.isfinite().all()
            gradients = torch.autograd.grad(score.sum(), (x, y, raw), retain_graph=True, allow_unused=True)
            assert all(g is None or g.isfinite().all() for g in gradients)


def test_a_hyperbolic_model_claims_no_proof_of_its_ranks():
    model = RotH(5, 2, 4, reciprocal=True)
    assert not is_certified(model, RankingOptions(precision="certified"))
    query = Queries(torch.tensor([0]), torch.tensor([1]), Side.TAIL)
    assert model.score(query).shape == (1, 5)


def test_curvatures_start_at_the_papers_value_and_are_learnt_per_relation():
    model = RotH(5, 3, 4, reciprocal=True)
    raw = model.relation.weight[:, -1]
    torch.testing.assert_close(curvature(raw), torch.full((6,), 1.3132617))  # softplus(1)
    model.score(Queries(torch.tensor([0]), torch.tensor([1]), Side.TAIL)).sum().backward()
    assert (model.relation.weight.grad[:, -1] != 0).tolist() == [False, True, False, False, False, False]
