"""Metrics of lists with many right answers against every order of tied items, trec_eval and scikit-learn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgc.metrics.answers import Answers, answer_metrics, settle

KS = (1, 2, 3, 5, 10)


def answers_of(lists: list[list[tuple[float, int]]], missing: list[list[int]] | None = None) -> Answers:
    """Places of graded answers, counted in lists of (score, grade); `missing` grades are in no list."""
    rows = []
    for q, items in enumerate(lists):
        scores = [score for score, _ in items]
        rows += [(q, g, sum(x > s for x in scores), sum(x == s for x in scores) - 1) for s, g in items]
        rows += [(q, g, -1, 0) for g in (missing[q] if missing else [])]
    columns = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).T
    return Answers(*columns, num_queries=len(lists))


# The definitions, on one list of grades in order.


def defined(grades: list[int], missing: list[int], gain, relevant_from: int = 1) -> dict[str, float]:
    relevant = [g >= relevant_from for g in grades]
    number = sum(relevant) + sum(g >= relevant_from for g in missing)
    places = [i + 1 for i, r in enumerate(relevant) if r]

    def dcg(ordered: list[int], k: float) -> float:
        return sum(gain(max(g, 0)) / math.log2(i + 2) for i, g in enumerate(ordered) if i < k)

    def ndcg(k: float) -> float:
        best = dcg(sorted(grades + missing, reverse=True), k)
        return dcg(grades, k) / best if best else 0.0

    def average_precision(k: float) -> float:
        return sum((i + 1) / p for i, p in enumerate(places) if p <= k) / number if number else 0.0

    values = {
        "mrr": 1 / places[0] if places else 0.0,
        "map": average_precision(math.inf),
        "rprec": sum(p <= number for p in places) / number if number else 0.0,
        "ndcg": ndcg(math.inf),
    }
    for k in KS:
        above = sum(p <= k for p in places)
        precision, recall = above / k, above / number if number else 0.0
        values |= {
            f"mrr@{k}": 1 / places[0] if places and places[0] <= k else 0.0,
            f"hits@{k}": float(above > 0),
            f"precision@{k}": precision,
            f"recall@{k}": recall,
            f"f1@{k}": 2 * precision * recall / (precision + recall) if above else 0.0,
            f"map@{k}": average_precision(k),
            f"ndcg@{k}": ndcg(k),
        }
    return values


def orders(items: list[tuple[float, int]]):
    """All orders of a list that put higher scores first, each as often as ties may fall so."""
    by_score = [
        list(group) for _, group in itertools.groupby(sorted(items, key=lambda item: -item[0]), lambda item: item[0])
    ]
    for parts in itertools.product(*(itertools.permutations(group) for group in by_score)):
        yield [grade for part in parts for _, grade in part]


GAINS = {"linear": float, "exponential": lambda g: 2.0**g - 1}
LISTS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0]), st.integers(-1, 3)), min_size=1, max_size=5)


@settings(max_examples=60)
@given(LISTS, st.lists(st.integers(0, 3), max_size=3), st.sampled_from(list(GAINS)), st.sampled_from([1, 2]))
def test_metrics_under_ties_are_means_over_all_orders_and_their_bounds(items, missing, gain, relevant_from):
    found = [defined(grades, missing, GAINS[gain], relevant_from) for grades in orders(items)]
    answers = answers_of([items], [missing])
    wanted = {
        "expected": {name: sum(values[name] for values in found) / len(found) for name in found[0]},
        "optimistic": {name: max(values[name] for values in found) for name in found[0]},
        "pessimistic": {name: min(values[name] for values in found) for name in found[0]},
    }
    for ties, values in wanted.items():
        got = answer_metrics(answers, KS, ties, gain, relevant_from)
        assert {name: value.item() for name, value in got.items()} == pytest.approx(values, rel=1e-12, abs=1e-13), ties


def test_queries_do_not_disturb_each_other_and_a_query_without_relevant_answers_is_worth_0():
    lists = [[(3.0, 1), (2.0, 0)], [], [(1.0, 0), (1.0, 0)], [(1.0, 0), (0.5, 2), (0.5, 0)]]
    answers = answers_of(lists)
    shuffled = answers[torch.randperm(len(answers.query), generator=torch.Generator().manual_seed(0))]
    got = answer_metrics(shuffled, KS)
    alone = [answer_metrics(answers_of([items]), KS) for items in lists]
    for name, values in got.items():
        assert values.tolist() == [one[name].item() for one in alone], name
    assert got["mrr"].tolist() == [1.0, 0.0, 0.0, pytest.approx((1 / 2 + 1 / 3) / 2)]


def test_ten_thousand_tied_items_have_the_expectations_of_chance():
    # One relevant answer among n equally likely places: E[1/r] = H(n)/n; of m the first: hypergeometric.
    n = 10_000
    answers = Answers(torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), torch.tensor([n - 1]), 1)
    got = answer_metrics(answers, (10,))
    wanted = math.fsum(1 / i for i in range(1, n + 1)) / n
    assert got["mrr"].item() == pytest.approx(wanted, rel=1e-12)
    assert got["map"].item() == pytest.approx(wanted, rel=1e-12)
    assert got["hits@10"].item() == pytest.approx(10 / n, rel=1e-9)
    m = 50
    many = Answers(torch.zeros(m).long(), torch.ones(m), torch.zeros(m).long(), torch.full((m,), n - 1), 1)
    first = [math.comb(n - j, m - 1) / math.comb(n, m) for j in range(1, n - m + 2)]
    got = answer_metrics(many, (10,))
    assert got["mrr"].item() == pytest.approx(math.fsum(p / j for j, p in enumerate(first, 1)), rel=1e-10)
    assert got["hits@10"].item() == pytest.approx(math.fsum(first[:10]), rel=1e-10)
    assert got["precision@10"].item() == pytest.approx(m / n, rel=1e-12)


def test_unknown_choices_are_refused():
    with pytest.raises(ValueError, match="expected, optimistic, pessimistic"):
        answer_metrics(answers_of([[(1.0, 1)]]), ties="trec")
    with pytest.raises(ValueError, match="linear, exponential"):
        answer_metrics(answers_of([[(1.0, 1)]]), gain="cubic")


# Other libraries.


def random_run(seed: int, tied: bool) -> tuple[dict, dict]:
    """Graded judgements and a run over them, with unjudged documents, and relevant ones not retrieved."""
    random = np.random.default_rng(seed)
    qrels, run = {}, {}
    for q in range(40):
        documents = [f"d{i}" for i in random.permutation(200)]
        qrels[f"q{q}"] = {d: int(g) for d, g in zip(documents[:40], random.integers(-1, 4, 40), strict=True)}
        scores = random.integers(0, 12, 120).astype(float) if tied else random.permutation(120) / 8
        run[f"q{q}"] = dict(zip(documents[20:140], map(float, scores), strict=True))
    return qrels, run


@pytest.mark.parametrize("tied", [False, True])
def test_metrics_are_those_of_trec_eval(tied):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec_eval is not installed")
    qrels, run = random_run(7 + tied, tied)
    rows, ahead = [], []
    for q, (name, judged) in enumerate(qrels.items()):
        for document, grade in judged.items():
            scores = run[name]
            own = scores.get(document)
            if own is None:
                rows.append((q, grade, -1, 0))
                ahead.append(0)
                continue
            rivals = [(s, d) for d, s in scores.items() if d != document]
            rows.append((q, grade, sum(s > own for s, _ in rivals), sum(s == own for s, _ in rivals)))
            ahead.append(sum(s == own and d > document for s, d in rivals))
    answers = Answers(*torch.tensor(rows).T, num_queries=len(qrels))
    got = answer_metrics(settle(answers, torch.tensor(ahead)), (5, 10, 100))
    measures = {"recip_rank", "map", "Rprec", "ndcg", "P", "recall", "map_cut", "ndcg_cut", "success"}
    wanted = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    names = {"mrr": "recip_rank", "map": "map", "rprec": "Rprec", "ndcg": "ndcg", "hits@5": "success_5"}
    names |= {
        f"{ours}@{k}": f"{theirs}_{k}"
        for k in (5, 10, 100)
        for ours, theirs in (("precision", "P"), ("recall", "recall"), ("map", "map_cut"), ("ndcg", "ndcg_cut"))
    }
    for ours, theirs in names.items():
        assert got[ours].tolist() == pytest.approx([wanted[q][theirs] for q in qrels], abs=1e-9), ours


def test_expected_ndcg_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(3)
    grades, scores = random.integers(0, 4, (30, 60)), random.integers(0, 15, (30, 60)).astype(float)
    answers = answers_of([list(zip(s, g, strict=True)) for s, g in zip(scores.tolist(), grades.tolist(), strict=True)])
    got = answer_metrics(answers, (3, 10))
    for k in (3, 10):
        wanted = [sklearn.ndcg_score(g[None], s[None], k=k) for g, s in zip(grades, scores, strict=True)]
        assert got[f"ndcg@{k}"].tolist() == pytest.approx(wanted, rel=1e-9)
