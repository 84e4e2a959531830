"""Ranks among given candidates: against a brute force, OGB's Evaluator, and the ranks among all entities."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch

from kgc.data.candidates import Draw
from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.metrics.intervals import mean_rank_estimate
from kgc.metrics.ranks import hits_at, mean_reciprocal_rank
from kgc.models.complex import ComplEx
from kgc.models.init import Normal
from kgc.models.transh import TransH
from kgc.ranking import NonFiniteScore, RankingOptions, rank_candidates, rank_queries
from kgc.scorers import TripleScorer
from kgc.types import Queries, RankCounts, Side, Triples

E, R = 60, 4


def asked(number: int = 30) -> tuple[Queries, torch.Tensor, KnownAnswers]:
    generator = torch.Generator().manual_seed(0)
    triples = Triples(*(torch.randint(size, (number,), generator=generator) for size in (E, R, E)))
    side = torch.tensor(list(Side)).repeat_interleave(number)
    queries = Queries(torch.cat([triples.tail, triples.head]), triples.relation.repeat(2), side)
    return queries, torch.cat([triples.head, triples.tail]), KnownAnswers(triples, E, R)


def models() -> list:
    torch.manual_seed(0)
    coarse = ComplEx(E, R, 8, entity_init=Normal(1.0), relation_init=Normal(1.0))
    coarse.entity.weight.data.round_()  # ties
    return [coarse, TransH(E, R, 6), TripleScorer(lambda h, r, t: ((h * 7 + r + t) % 5).float(), E)]


@pytest.mark.parametrize("scorer", models(), ids=lambda scorer: type(scorer).__name__)
def test_against_a_brute_force(scorer):
    queries, targets, _ = asked()
    generator = torch.Generator().manual_seed(1)
    candidates = torch.randint(-1, E, (len(targets), 11), generator=generator)
    counts = rank_candidates(scorer, queries, targets, candidates)
    with torch.no_grad():
        if hasattr(scorer, "eval"):
            scorer.eval()
        scores = scorer.score(queries, torch.arange(E).expand(len(targets), -1)).double()
    for i, row in enumerate(candidates.tolist()):
        own = scores[i, targets[i]]
        rivals = [scores[i, e] for e in row if e >= 0]
        assert int(counts.candidates[i]) == 1 + len(rivals)
        assert int(counts.better[i]) == sum(int(s > own) for s in rivals)
        assert int(counts.equal[i]) == sum(int(s == own) for s in rivals)


@pytest.mark.parametrize("scorer", models(), ids=lambda scorer: type(scorer).__name__)
def test_among_all_rivals_ranks_are_the_filtered_ones(scorer):
    queries, targets, known = asked()
    candidates = Draw(E, known, seed=0)(queries, targets)[0]
    some, whole = rank_candidates(scorer, queries, targets, candidates), rank_queries(scorer, queries, targets, known)
    for name in ("better", "equal", "candidates"):
        assert torch.equal(getattr(some, name), getattr(whole, name))


@pytest.fixture(scope="module")
def evaluator():
    os.environ["OUTDATED_IGNORE"] = "1"  # ogb would ask the network for a newer version of itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.linkproppred import Evaluator

        return {name: Evaluator(name) for name in ("ogbl-biokg", "ogbl-wikikg2")}


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-wikikg2"])
def test_equal_to_ogbs_evaluator_on_the_same_scores(evaluator, name):
    """Scores of few values, so that many tie."""
    generator = torch.Generator().manual_seed(2)
    number, rivals = 300, 500
    scores = torch.randint(0, 40, (number, 1 + rivals), generator=generator).float()
    said = evaluator[name].eval({"y_pred_pos": scores[:, 0], "y_pred_neg": scores[:, 1:]})

    class Table:
        num_entities = 1 + rivals

        def score(self, queries, candidates=None):
            return scores[queries.anchor].gather(1, candidates)

    queries = Queries(torch.arange(number), torch.zeros(number, dtype=torch.int64), Side.TAIL)
    candidates = torch.arange(1, 1 + rivals).expand(number, -1)
    counts = rank_candidates(Table(), queries, torch.zeros(number, dtype=torch.int64), candidates)
    ranks = counts.realistic
    assert torch.allclose(1 / ranks, said["mrr_list"].double(), rtol=1e-6)
    assert mean_reciprocal_rank(ranks) == pytest.approx(float(said["mrr_list"].mean()), rel=1e-6)
    for k in (1, 3, 10):
        assert hits_at(ranks, k) == pytest.approx(float(said[f"hits@{k}_list"].mean()), rel=1e-6)


def test_scores_that_are_no_numbers():
    queries, targets, _ = asked(2)
    model = models()[0]
    with torch.no_grad():
        model.entity.weight[7] = torch.nan
        given = torch.tensor([[7, 8, 9]] * 4)
        targets = torch.where(targets == 7, 8, targets)
        queries = Queries(torch.where(queries.anchor == 7, 8, queries.anchor), queries.relation, queries.side)
        counts = rank_candidates(model, queries, targets, given)
        assert counts.nonfinite.tolist() == [1] * 4
        assert counts.candidates.tolist() == [4] * 4
        model.entity.weight[targets[1]] = torch.inf
        with pytest.raises(NonFiniteScore):
            rank_candidates(model, queries, targets, given)
        with pytest.warns(UserWarning, match="get the worst rank"):
            worst = rank_candidates(model, queries, targets, given, RankingOptions(nonfinite="worst"))
    assert int(worst.optimistic[1]) == 4


def test_ids_that_are_not_there():
    queries, targets, _ = asked(2)
    for wrong in (torch.full((4, 2), E), torch.zeros(3, 2, dtype=torch.int64)):
        with pytest.raises(UserError, match="a row of ids of 60 entities for each query"):
            rank_candidates(models()[0], queries, targets, wrong)


def test_the_estimate_of_the_mean_rank_and_its_error():
    """Over 400 seeds: the mean is the true mean rank, and the spread is what each draw says of itself."""
    queries, targets, known = asked()
    model = models()[0]
    whole = rank_queries(model, queries, targets, known)
    truth = float(whole.realistic.mean())
    rivals = whole.candidates - 1
    estimates, errors = [], []
    for seed in range(400):
        candidates = Draw(8, known, seed)(queries, targets)[0]
        found = mean_rank_estimate(rank_candidates(model, queries, targets, candidates), rivals)
        estimates.append(found["mr_estimate"])
        errors.append(found["mr_estimate_se"])
    spread = np.std(estimates)
    assert abs(np.mean(estimates) - truth) < 4 * spread / np.sqrt(400)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(spread, rel=0.15)
    everyone = mean_rank_estimate(whole, rivals)
    assert everyone == {"mr_estimate": pytest.approx(truth), "mr_estimate_se": 0.0}
    one = RankCounts(*(torch.tensor([x]) for x in (0, 0, 2, 0)))
    assert mean_rank_estimate(one, torch.tensor([5])) == {"mr_estimate": 1.0}
