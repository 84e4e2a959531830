"""Classification metrics against scikit-learn and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgc.metrics import classification as ours

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def sample(tied: bool, n: int = 500, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of two overlapping heaps and their labels."""
    random = np.random.default_rng(seed)
    labels = random.random(n) < 0.4
    scores = random.normal(labels * 1.5, 1.0)
    return torch.tensor(np.round(scores * 4) if tied else scores), torch.tensor(labels)


@pytest.mark.parametrize("tied", [False, True])
def test_areas_are_those_of_scikit_learn(tied):
    from sklearn.metrics import accuracy_score, average_precision_score, brier_score_loss, f1_score, roc_auc_score

    scores, labels = sample(tied)
    s, y = scores.numpy(), labels.numpy()
    assert ours.roc_auc(scores, labels) == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert ours.pr_auc(scores, labels) == pytest.approx(average_precision_score(y, s), abs=1e-12)
    guess = scores > 0.5
    assert ours.accuracy(guess, labels) == pytest.approx(accuracy_score(y, guess.numpy()), abs=1e-12)
    assert ours.f1(guess, labels) == pytest.approx(f1_score(y, guess.numpy()), abs=1e-12)
    probability = torch.sigmoid(scores)
    assert ours.brier(probability, labels) == pytest.approx(brier_score_loss(y, probability.numpy()), abs=1e-12)
    metric = ours.Classified(labels)
    for part in torch.randperm(500, generator=torch.Generator().manual_seed(0)).split(64):
        metric.update(part, scores[part])
    assert metric.compute() == {"roc_auc": ours.roc_auc(scores, labels), "pr_auc": ours.pr_auc(scores, labels)}


def test_areas_of_large_scores_do_not_tie():
    # Where a library would squash scores into [0, 1] first, these would all be 1.
    scores, labels = torch.tensor([100.0, 101.0, 102.0, 103.0]), torch.tensor([False, False, True, True])
    assert ours.roc_auc(scores, labels) == 1.0
    assert ours.pr_auc(scores, labels) == 1.0


@pytest.mark.parametrize("labels", [[True, True], [False, False]])
def test_areas_need_both_labels_and_missing_scores_are_an_error(labels):
    assert math.isnan(ours.roc_auc(torch.tensor([0.0, 1.0]), torch.tensor(labels)))
    metric = ours.Classified(torch.tensor(labels))
    metric.update(torch.tensor([0]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="1 of 2 examples"):
        metric.compute()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
def test_the_best_threshold_is_the_best_of_all(rows):
    scores, labels = torch.tensor([float(s) for s, _ in rows]), torch.tensor([y for _, y in rows])
    got = ours.accuracy(scores >= ours.best_threshold(scores, labels), labels)
    assert got == max(ours.accuracy(scores >= t / 2, labels) for t in range(-1, 13))


def test_thresholds_of_groups_without_both_labels_are_that_of_all():
    scores = torch.tensor([1.0, 2.0, 11.0, 12.0, 3.0])
    labels = torch.tensor([False, True, False, True, True])
    group = torch.tensor([0, 0, 1, 1, 2])
    overall = ours.best_threshold(scores, labels)
    got = ours.thresholds_per_group(scores, labels, group, 4)
    assert got.tolist() == [1.5, 11.5, overall, overall]
    assert math.isnan(ours.best_threshold(scores[:0], labels[:0]))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_platt_is_the_logistic_regression_on_smoothed_targets(scale):
    from sklearn.calibration import _SigmoidCalibration

    scores, labels = sample(False)
    peer = _SigmoidCalibration().fit(scores.numpy(), labels.numpy())
    points = torch.linspace(-3, 4, 9).double()
    got = ours.Platt(scores * scale, labels)(points * scale)
    assert got.tolist() == pytest.approx(peer.predict(points.numpy()).tolist(), abs=1e-4)  # its own tolerance
    # At the optimum the gradient of the cross entropy is zero.
    true = int(labels.sum())
    targets = torch.where(labels, (true + 1) / (true + 2), 1 / (len(labels) - true + 2))
    residual = ours.Platt(scores * scale, labels)(scores * scale) - targets
    assert abs(float(residual.sum())) < 1e-6
    assert abs(float((residual * scores).sum())) < 1e-6


def test_platt_of_separable_scores_is_finite():
    scores, labels = torch.arange(10.0), torch.arange(10) >= 5
    got = ours.Platt(scores, labels)(scores)
    assert got.isfinite().all()
    assert (got.diff() > 0).all()


@pytest.mark.parametrize("tied", [False, True])
def test_isotonic_regression_is_that_of_scikit_learn(tied):
    from sklearn.isotonic import IsotonicRegression

    scores, labels = sample(tied)
    peer = IsotonicRegression(out_of_bounds="clip").fit(scores.numpy(), labels.numpy().astype(float))
    points = torch.linspace(float(scores.min()) - 1, float(scores.max()) + 1, 101).double()
    got = ours.Isotonic(scores, labels)(points)
    assert got.tolist() == pytest.approx(peer.predict(points.numpy()).tolist(), abs=1e-9)
    assert ours.Isotonic(torch.tensor([1.0, 1.0]), torch.tensor([True, False]))(torch.tensor([0.0, 5.0])).tolist() == [
        0.5,
        0.5,
    ]


def test_reliability_is_that_of_scikit_learn_and_its_error_that_of_torchmetrics():
    from sklearn.calibration import calibration_curve
    from torchmetrics.functional.classification import binary_calibration_error

    scores, labels = sample(False)
    probability = torch.sigmoid(scores)
    observed, predicted = calibration_curve(labels.numpy(), probability.numpy(), n_bins=10)
    got = ours.reliability(probability, labels, 10)
    assert got["observed"] == pytest.approx(observed.tolist())
    assert got["predicted"] == pytest.approx(predicted.tolist())
    assert sum(got["count"]) == 500
    wanted = binary_calibration_error(probability, labels.long(), n_bins=10)
    assert ours.calibration_error(probability, labels, 10) == pytest.approx(float(wanted), abs=1e-6)
