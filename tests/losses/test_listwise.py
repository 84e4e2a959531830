"""Losses over all entities: formulas in Python floats, gradients in closed form, extremes."""

from __future__ import annotations

import math

import oracle
import pytest
import torch

from kgc.losses import listwise
from kgc.losses.listwise import BinaryCrossEntropy, CrossEntropy, mean_loss, softmax_
from kgc.models import similarity
from kgc.models.similarity import ComplexModulus, Dot, Euclidean, Manhattan, Similarity

B, E = 4, 6
GENERATOR = torch.Generator().manual_seed(12)
LOGITS = torch.randn(B, E, generator=GENERATOR, dtype=torch.float64) * 3
TARGET = torch.tensor([0, 5, 2, 2])
LABELS = torch.tensor([[1, 0, 1, 0, 0, 0], [0] * 6, [1] * 6, [0, 0, 0, 0, 0, 1]], dtype=torch.bool)


class Given(Similarity):
    """Takes rows of logits for query vectors: the loss of logits as they are."""

    def shared(self, query, candidate):
        return query.clone()

    def pull_back(self, query, candidate, gradient, of_candidate):
        return gradient


def mean_loss_of(logits: torch.Tensor, rule) -> torch.Tensor:
    return mean_loss(Given(), logits, logits.new_empty(logits.shape[1], 1), 0.0, rule)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    return len(logits) * mean_loss_of(logits, CrossEntropy(target, smoothing))


def binary_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    return len(logits) * mean_loss_of(
        logits, BinaryCrossEntropy(*labels.nonzero(as_tuple=True), len(logits), smoothing)
    )


def soft_target(target: int, smoothing: float) -> list[float]:
    """The target keeps 1 − ε and every entity, the target too, gets ε / E."""
    return [(1 - smoothing) * (e == target) + smoothing / E for e in range(E)]


def slow_cross_entropy(row: list[float], target: int, smoothing: float) -> float:
    normaliser = oracle.log_sum_exp(row)
    return sum(share * (normaliser - logit) for share, logit in zip(soft_target(target, smoothing), row, strict=True))


def soft_labels(labels: list[bool], smoothing: float) -> list[float]:
    """ConvE: (1 − ε) y + 1/E, and plain labels without smoothing."""
    return [(1 - smoothing) * y + 1 / E if smoothing else float(y) for y in labels]


def slow_binary_cross_entropy(row: list[float], labels: list[bool], smoothing: float) -> float:
    terms = zip(soft_labels(labels, smoothing), row, strict=True)
    return sum(y * oracle.softplus(-logit) + (1 - y) * oracle.softplus(logit) for y, logit in terms) / E


SLOW = {
    "cross entropy": (cross_entropy, slow_cross_entropy, TARGET),
    "binary": (binary_cross_entropy, slow_binary_cross_entropy, LABELS),
}
both_losses = pytest.mark.parametrize(("loss", "slow", "truth"), SLOW.values(), ids=SLOW)
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])


def test_values_by_hand():
    logits = torch.tensor([[0.0, math.log(3)]])
    assert cross_entropy(logits, torch.tensor([1])).item() == pytest.approx(math.log(4 / 3))
    # softplus(0) and softplus(−log 3) = log(4/3)
    expected = (math.log(2) + math.log(4 / 3)) / 2
    assert binary_cross_entropy(logits, torch.tensor([[False, True]])).item() == pytest.approx(expected)


@both_losses
@smoothings
def test_values_equal_the_formula(loss, slow, truth, smoothing):
    wanted = [slow(row, t, smoothing) for row, t in zip(LOGITS.tolist(), truth.tolist(), strict=True)]
    for i, value in enumerate(wanted):
        assert loss(LOGITS[i : i + 1], truth[i : i + 1], smoothing).item() == pytest.approx(value, rel=1e-5)
    assert loss(LOGITS, truth, smoothing).item() == pytest.approx(sum(wanted), rel=1e-5)


@both_losses
@smoothings
def test_gradients_equal_finite_differences_of_the_formula(loss, slow, truth, smoothing):
    logits = LOGITS.clone().requires_grad_()
    loss(logits, truth, smoothing).backward()
    for i, t in enumerate(truth.tolist()):
        wanted = oracle.gradient(lambda row, t=t: slow(row, t, smoothing), LOGITS[i].tolist())
        assert logits.grad[i].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@both_losses
@smoothings
def test_extreme_logits_have_finite_values_and_gradients(loss, slow, truth, smoothing):
    extreme = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4, 5.0]]).expand(B, E).clone().requires_grad_()
    values = loss(extreme, truth, smoothing)
    wanted = [slow(row, t, smoothing) for row, t in zip(extreme.tolist(), truth.tolist(), strict=True)]
    assert values.item() == pytest.approx(sum(wanted), rel=1e-5, abs=1e-6)
    values.backward()
    assert extreme.grad.isfinite().all()


@both_losses
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_lifted_to_fp32_first(loss, slow, truth, dtype):
    half = LOGITS.to(dtype)
    got = loss(half, truth, 0.1)
    assert got.dtype == torch.float32
    wanted = [slow(row, t, 0.1) for row, t in zip(half.tolist(), truth.tolist(), strict=True)]
    assert got.item() == pytest.approx(sum(wanted), rel=1e-5)


SIMILARITIES: dict[str, Similarity] = {
    "dot": Dot(),
    "euclidean": Euclidean(),
    "manhattan": Manhattan(),
    "modulus": ComplexModulus(),
}


@pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
@pytest.mark.parametrize("cells", [1, 7, 20, 1000])
@both_losses
@smoothings
def test_blocks_of_queries_give_the_plain_loss_and_its_gradients(
    monkeypatch, similarity, cells, loss, slow, truth, smoothing
):
    """Against softmax and sigmoid of whole rows by torch's autograd; blocks of one query, of some, and of all."""
    monkeypatch.setitem(listwise._CELLS, "cpu", cells)
    generator = torch.Generator().manual_seed(5)
    vectors = [torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (B, E)]
    ours, plain = ([v.clone().requires_grad_() for v in vectors] for _ in range(2))
    if loss is cross_entropy:
        rule = CrossEntropy(truth, smoothing)
    else:
        rule = BinaryCrossEntropy(*truth.nonzero(as_tuple=True), B, smoothing)
    value = mean_loss(similarity, *ours, 0.7, rule)
    logits = similarity.shared(*plain) + 0.7
    if loss is cross_entropy:
        wanted = torch.nn.functional.cross_entropy(logits, truth, label_smoothing=smoothing)
    else:
        soft = (1 - smoothing) * truth.double() + (1 / E if smoothing else 0)
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits, soft)
    assert value.item() == pytest.approx(wanted.item(), rel=1e-5)
    (3 * value).backward()  # a factor of the loss reaches the gradients
    (3 * wanted).backward()
    for a, b in zip(ours, plain, strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_no_block_is_larger_than_the_limit(monkeypatch):
    """Logits of all queries are never held together."""
    monkeypatch.setitem(listwise._CELLS, "cpu", 3 * E)
    seen = []

    class Watched(Dot):
        def write(self, query, candidate, out):
            seen.append(len(query))
            super().write(query, candidate, out)

    query = torch.randn(8, 4, requires_grad=True)
    mean_loss(Watched(), query, torch.randn(E, 4), 0.0, CrossEntropy(torch.zeros(8, dtype=torch.int64))).backward()
    assert seen == [3, 3, 2]


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (40, 33), (9, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_written_in_columns_are_the_scores(sizes, dtype, monkeypatch):
    monkeypatch.setattr(similarity, "_CACHED", 800)
    query, candidate = (torch.randint(-9, 10, (n, 6)).to(dtype) for n in sizes)
    out = torch.full(sizes, float("nan"))
    Dot().write(query, candidate, out)
    assert torch.equal(out.to(dtype), query @ candidate.T)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (5, 16), (2, 1000), (200, 4097)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [slice(None), slice(1, None)], ids=["all", "a view"])
def test_the_softmax_in_place_equals_the_one_beside(sizes, dtype, rows):
    logits = torch.randn(sizes[0] + 1, sizes[1], generator=torch.Generator().manual_seed(0), dtype=dtype)[rows] * 9
    wanted, total = logits.softmax(-1), logits.logsumexp(-1)
    got = softmax_(logits)
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(got, total)
