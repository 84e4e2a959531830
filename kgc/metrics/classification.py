"""True or false: metrics of scores against labels, thresholds, and calibration, as pure functions and one Metric.

All take [N] scores (higher is more likely true) and [N] bool labels; float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from kgc.metrics.ranks import mean


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """P(a true one scores higher than a false one) + P(they tie)/2: area under the ROC curve; NaN without both.

    Counted in whole numbers (Mann and Whitney 1947), so that the result is rounded once.
    """
    _, place, number = torch.unique(scores.double().cpu(), return_inverse=True, return_counts=True)
    true = torch.bincount(place[labels.cpu()], minlength=len(number))
    false = number - true
    below = false.cumsum(0) - false
    pairs = int(true.sum()) * int(false.sum())
    return (2 * int((true * below).sum()) + int((true * false).sum())) / (2 * pairs) if pairs else math.nan


def pr_auc(scores: Tensor, labels: Tensor) -> float:
    """Average precision, Σ (R_n − R_{n−1}) P_n over the distinct thresholds (no interpolation); NaN without a true one.

    Source: scikit-learn's definition of `average_precision_score`.
    """
    _, place, number = torch.unique(-scores.double().cpu(), return_inverse=True, return_counts=True)
    true = torch.bincount(place[labels.cpu()], minlength=len(number))
    total = int(true.sum())
    precision = true.cumsum(0).double() / number.cumsum(0)
    return math.fsum((true * precision).tolist()) / total if total else math.nan


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Share of [N] predictions that equal the labels."""
    return mean(predicted == labels)


def f1(predicted: Tensor, labels: Tensor) -> float:
    """2TP / (2TP + FP + FN); 0 where nothing is true or predicted true."""
    positives = int(predicted.sum()) + int(labels.sum())
    return 2 * int((predicted & labels).sum()) / positives if positives else 0.0


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Mean squared difference of probability and label (Brier 1950): 0 is perfect."""
    return mean((probabilities.double() - labels.double()) ** 2)


def best_threshold(scores: Tensor, labels: Tensor) -> float:
    """The t of highest accuracy of `score >= t`.

    Of equally good cuts the one in the middle of their list; between two scores halfway. ±inf cut all or none; NaN
    without scores.
    """
    if not len(scores):
        return math.nan
    values, place, number = torch.unique(scores.double().cpu(), return_inverse=True, return_counts=True)
    true = torch.bincount(place[labels.cpu()], minlength=len(values))
    false = number - true
    # Cut i lets values[i:] pass: right are the false ones below and the true ones from there on.
    right = F.pad(false.cumsum(0), (1, 0)) + true.sum() - F.pad(true.cumsum(0), (1, 0))
    best = (right == right.max()).nonzero().squeeze(-1)
    cut = int(best[(len(best) - 1) // 2])
    if cut == 0:
        return -math.inf
    return math.inf if cut == len(values) else float((values[cut - 1] + values[cut]) / 2)


def thresholds_per_group(scores: Tensor, labels: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """[num_groups] the best threshold of each group's scores; that of all scores for a group without both labels.

    Args:
        scores, labels, group: [N]; group ids from 0.
        num_groups: how many groups there are, seen or not.
    """
    overall = best_threshold(scores, labels)
    thresholds = torch.full((num_groups,), overall, dtype=torch.float64)
    for g in torch.unique(group).tolist():
        mine = group == g
        if bool(labels[mine].any()) and not bool(labels[mine].all()):
            thresholds[g] = best_threshold(scores[mine], labels[mine])
    return thresholds


class Platt:
    """Calibration by a logistic function of the score, 1 / (1 + exp(−(a·s + b))).

    Fitted by Newton's method on the cross entropy with Platt's smoothed targets (Platt 1999; Lin et al. 2007).
    """

    def __init__(self, scores: Tensor, labels: Tensor):
        scores, labels = scores.double().cpu(), labels.cpu()
        true, false = int(labels.sum()), int((~labels).sum())
        targets = torch.where(labels, (true + 1) / (true + 2), 1 / (false + 2))
        # Standardised, so that Newton's steps are well conditioned whatever the scale of scores.
        self.centre = float(scores.mean())
        self.scale = float(scores.std(correction=0)) or 1.0
        columns = torch.stack([(scores - self.centre) / self.scale, torch.ones_like(scores)])  # [2, N]
        self.weights = columns.new_tensor([0.0, math.log((true + 1) / (false + 1))])

        def loss(weights: Tensor) -> Tensor:
            return F.binary_cross_entropy_with_logits(weights @ columns, targets, reduction="sum")

        for _ in range(100):
            probability = torch.sigmoid(self.weights @ columns)
            gradient = columns @ (probability - targets)
            hessian = (columns * probability * (1 - probability)) @ columns.T + 1e-12 * torch.eye(2).double()
            step, size = torch.linalg.solve(hessian, gradient), 1.0
            before = loss(self.weights)
            while size > 1e-10 and loss(self.weights - size * step) > before:
                size /= 2
            self.weights = self.weights - size * step
            if float(gradient.abs().max()) < 1e-9 * len(scores):
                break

    def __call__(self, scores: Tensor) -> Tensor:
        """[N] probabilities."""
        return torch.sigmoid(self.weights[0] * (scores.double().cpu() - self.centre) / self.scale + self.weights[1])


class Isotonic:
    """Calibration by the non-decreasing function of least squares (Zadrozny and Elkan 2002), by pooling adjacent
    violators; linear between the scores it was fitted on and constant beyond them.
    """

    def __init__(self, scores: Tensor, labels: Tensor):
        values, place, number = torch.unique(scores.double().cpu(), return_inverse=True, return_counts=True)
        true = torch.bincount(place[labels.cpu()], minlength=len(values))
        pools: list[list[int]] = []  # [true, all, values] of each pool
        for t, n in zip(true.tolist(), number.tolist(), strict=True):
            pools.append([t, n, 1])
            while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
                last = pools.pop()
                pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
        self.values = values
        shares = torch.tensor([t / n for t, n, _ in pools], dtype=torch.float64)
        self.shares = shares.repeat_interleave(torch.tensor([size for *_, size in pools]))

    def __call__(self, scores: Tensor) -> Tensor:
        """[N] probabilities."""
        scores = scores.double().cpu().clamp(float(self.values[0]), float(self.values[-1]))
        high = torch.searchsorted(self.values, scores).clamp(min=1, max=max(1, len(self.values) - 1))
        if len(self.values) == 1:
            return self.shares.expand(len(scores)).clone()
        low = high - 1
        share = (scores - self.values[low]) / (self.values[high] - self.values[low])
        return self.shares[low] + share * (self.shares[high] - self.shares[low])


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> dict[str, list[float]]:
    """The reliability curve over equally wide bins of probability (DeGroot and Fienberg 1983); empty bins left out.

    Returns:
        `low`, `high` (bounds of the bin), `count`, `predicted` (mean probability), `observed` (share of true ones).
    """
    probabilities, labels = probabilities.double().cpu(), labels.cpu()
    place = (probabilities * bins).long().clamp(max=bins - 1)
    curve: dict[str, list[float]] = {name: [] for name in ("low", "high", "count", "predicted", "observed")}
    for b in range(bins):
        mine = place == b
        if bool(mine.any()):
            row = (b / bins, (b + 1) / bins, int(mine.sum()), mean(probabilities[mine]), mean(labels[mine]))
            for name, value in zip(curve, row, strict=True):
                curve[name].append(value)
    return curve


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Expected calibration error: mean of |predicted − observed| over the bins, weighted by count (Naeini 2015)."""
    curve = reliability(probabilities, labels, bins)
    gaps = zip(curve["count"], curve["predicted"], curve["observed"], strict=True)
    return math.fsum(n * abs(p - o) for n, p, o in gaps) / len(labels)


class Classified(Metric):
    """Scores of N labelled examples under fixed places, NaN where none was given yet.

    Processes are reduced by what any of them has (padded shards count once).

    Args:
        labels: [N] bool.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    scores: Tensor

    def __init__(self, labels: Tensor):
        super().__init__()
        self.labels = labels.cpu()
        nothing = torch.full((len(labels),), torch.nan, dtype=torch.float64)
        self.add_state("scores", nothing, dist_reduce_fx=_first_given)

    def update(self, index: Tensor, scores: Tensor) -> None:
        """Files [B] scores under their [B] places."""
        self.scores[index] = scores.to(self.scores)

    def compute(self) -> dict[str, float]:
        """`roc_auc`, `pr_auc`.

        Raises:
            ValueError: some example has no score, or one that is NaN.
        """
        missing = int(self.scores.isnan().sum())
        if missing:
            raise ValueError(f"{missing} of {len(self.labels)} examples have no score")
        return {"roc_auc": roc_auc(self.scores, self.labels), "pr_auc": pr_auc(self.scores, self.labels)}


def _first_given(gathered: Tensor) -> Tensor:
    """[processes, N] to [N]: the first that is not NaN."""
    given = gathered[0]
    for scores in gathered[1:]:
        given = torch.where(given.isnan(), scores, given)
    return given
