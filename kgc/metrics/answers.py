"""Metrics of ranked lists with many right answers, from where the right answers stand.

A list is never needed as such: every metric here follows from the places of the relevant answers, and a place is two
integers, as in `kgc.types.RankCounts`: items scored strictly higher (`better`), and other items of the same score
(`equal`). Ties are therefore handled exactly: as expectations over all orders of tied items, in closed form (McSherry
and Najork 2008, "Computing information retrieval performance measures efficiently in the presence of tied scores"), or
resolved to the best or the worst order first, or by the caller. Float64 throughout.

Conventions, those of trec_eval: an answer is relevant from grade 1 on (`relevant_from`) and gains its grade where that
is positive; DCG discounts the gain at place r by log₂(r + 1); the ideal list holds all judged answers, also those not
found; F1@K is the harmonic mean of Precision@K and Recall@K; R-precision is Precision at the number of relevant
answers; a query without a relevant answer is worth 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kgc.metrics.harmonic import harmonic

TIES = ("expected", "optimistic", "pessimistic")
GAINS = ("linear", "exponential")


@dataclass(frozen=True)
class Answers:
    """The judged answers of Q queries, and where they stand.

    Args:
        query: [M] int64, 0 … Q − 1, in any order.
        grade: [M] float64 or int64 relevance.
        better: [M] int64, items of the query's list scored strictly higher; -1 for an answer that is not in it.
        equal: [M] int64, other items of exactly the same score.
        num_queries: Q.
    """

    query: Tensor
    grade: Tensor
    better: Tensor
    equal: Tensor
    num_queries: int

    def __getitem__(self, index: Tensor) -> Answers:
        return Answers(*(x[index] for x in (self.query, self.grade, self.better, self.equal)), self.num_queries)


@dataclass(frozen=True)
class Groups:
    """Relevant answers of a query that tie, as one: places start + 1 … start + size hold `count` of them.

    Args:
        query, start, size, count: [G] int64, sorted by query and start.
        before: [G] int64, relevant answers of the query at better places.
        gain: [G] float64, what the group's items gain together.
    """

    query: Tensor
    start: Tensor
    size: Tensor
    count: Tensor
    before: Tensor
    gain: Tensor


def answer_metrics(
    answers: Answers,
    cutoffs: Sequence[int] = (1, 3, 10),
    ties: str = "expected",
    gain: str = "linear",
    relevant_from: float = 1,
) -> dict[str, Tensor]:
    """Every metric of every query, [Q] float64 each.

    Args:
        answers: judged answers; those of other grades than relevant count in NDCG only.
        cutoffs: the K.
        ties: `expected` (mean over all orders of tied items), `optimistic`, `pessimistic`.
        gain: of NDCG: `linear` in the grade g, or `exponential`, 2^g − 1 (Burges et al. 2005).
        relevant_from: the least grade that is relevant.

    Returns:
        `mrr` `map` `rprec` `ndcg`, and `mrr@K` `hits@K` `precision@K` `recall@K` `f1@K` `map@K` `ndcg@K`.

    Raises:
        ValueError: an unknown `ties` or `gain`.
    """
    if ties not in TIES or gain not in GAINS:
        raise ValueError(f"ties={ties}, gain={gain}: choices are {', '.join(TIES)} and {', '.join(GAINS)}")
    relevant = answers.grade >= relevant_from
    gains = answers.grade.double().clamp(min=0)
    gains = torch.exp2(gains) - 1 if gain == "exponential" else gains
    found = answers.better >= 0
    number = torch.bincount(answers.query[relevant], minlength=answers.num_queries)  # [Q] relevant answers
    binary = tie_groups(answers[found & relevant], torch.ones_like(gains[found & relevant]), ties)
    graded = found & (gains > 0)
    graded_groups = tie_groups(answers[graded], gains[graded], ties)
    values = {
        "mrr": reciprocal_rank(binary, answers.num_queries),
        "map": average_precision(binary, number),
        "rprec": _share(relevant_above(binary, number), number),
        "ndcg": normalized_gain(graded_groups, answers.query, gains, answers.num_queries),
    }
    for k in cutoffs:
        above = relevant_above(binary, torch.full_like(number, k))
        values |= {
            f"mrr@{k}": reciprocal_rank(binary, answers.num_queries, k),
            f"hits@{k}": hits(binary, answers.num_queries, k),
            f"precision@{k}": above / k,
            f"recall@{k}": _share(above, number),
            f"f1@{k}": torch.where(number > 0, 2 * above / (k + number), 0.0),  # 2PR / (P + R)
            f"map@{k}": average_precision(binary, number, k),
            f"ndcg@{k}": normalized_gain(graded_groups, answers.query, gains, answers.num_queries, k),
        }
    return values


def tie_groups(answers: Answers, gains: Tensor, ties: str = "expected") -> Groups:
    """The groups of [M] found answers, of tied ones where `ties` is `expected`, else of one answer each.

    Args:
        answers: all of them in their lists.
        gains: [M] float64, by which `optimistic` puts tied answers in order: the largest first; `pessimistic` puts them
            behind all other items of their score, the largest last.
    """
    order = _lexsort(answers.query, answers.better, gains if ties == "pessimistic" else -gains)
    answers, gains = answers[order], gains[order]
    _, group = _runs(answers.query, answers.better)
    count = torch.bincount(group)
    first = count.cumsum(0) - count
    query, start, size = answers.query[first], answers.better[first], answers.equal[first] + 1
    if ties == "expected":
        gain = torch.zeros(len(first), dtype=torch.float64).index_add_(0, group, gains)
    else:
        inside = torch.arange(len(group)) - first[group]
        offset = (size - count)[group] if ties == "pessimistic" else 0
        query, start, gain = answers.query, answers.better + inside + offset, gains
        size = count = torch.ones_like(query)
    _, of_query = _runs(query)
    total = count.cumsum(0) - count
    begin = torch.bincount(of_query).cumsum(0) - torch.bincount(of_query)
    return Groups(query, start, size, count, total - total[begin[of_query]], gain)


def reciprocal_rank(groups: Groups, num_queries: int, k: int | None = None) -> Tensor:
    """[Q] 1 / place of the first relevant answer, 0 beyond k; its expectation where the first ones tie."""
    first = groups.before == 0
    query, start = groups.query[first], groups.start[first].double()
    size, count = groups.size[first], groups.count[first]
    value = 1 / (start + 1)
    if k is not None:
        value[groups.start[first] >= k] = 0.0
    for i in (size > count).nonzero().squeeze(-1).tolist():
        place = start[i] + 1 + torch.arange(int(size[i] - count[i]) + 1)
        chance = first_place_chances(int(size[i]), int(count[i]))
        inside = place <= (k or torch.inf)
        value[i] = (chance[inside] / place[inside]).sum()
    return torch.zeros(num_queries, dtype=torch.float64).index_copy_(0, query, value)


def first_place(groups: Groups, num_queries: int) -> Tensor:
    """[Q] the place of the first relevant answer, in expectation where the first ones tie; NaN where there is none."""
    first = groups.before == 0
    place = groups.start[first] + (groups.size[first] + 1).double() / (groups.count[first] + 1)
    return torch.full((num_queries,), torch.nan, dtype=torch.float64).index_copy_(0, groups.query[first], place)


def first_place_chances(size: int, count: int) -> Tensor:
    """[size − count + 1] P(the first of `count` relevant among `size` items in random order is 1st, 2nd, …)."""
    place = torch.arange(size - count, dtype=torch.float64)
    none_yet = ((size - count - place) / (size - place)).cumprod(0)  # P(places 1 … j hold none)
    none_before = torch.cat([none_yet.new_ones(1), none_yet])
    return none_before * count / (size - torch.arange(size - count + 1, dtype=torch.float64))


def hits(groups: Groups, num_queries: int, k: int) -> Tensor:
    """[Q] whether a relevant answer stands among the first k: the chance of it where the first ones tie."""
    first = groups.before == 0
    query, size, count = groups.query[first], groups.size[first], groups.count[first]
    inside = torch.minimum((k - groups.start[first]).clamp(min=0), size)
    none = torch.ones(len(query), dtype=torch.float64)  # P(the first `inside` places of the group hold none)
    for i in range(int(torch.where(size > 1, inside, 0).max()) if len(query) else 0):
        none *= torch.where(i < inside, (size - count - i).clamp(min=0).double() / (size - i).clamp(min=1), 1.0)
    none = torch.where((size == 1) & (inside == 1), 0.0, none)
    return torch.zeros(num_queries, dtype=torch.float64).index_copy_(0, query, 1 - none)


def relevant_above(groups: Groups, k: Tensor) -> Tensor:
    """[Q] how many relevant answers stand among the first [Q] k, in expectation."""
    inside = torch.minimum((k[groups.query] - groups.start).clamp(min=0), groups.size)
    return _per_query(groups.query, groups.count * inside.double() / groups.size, len(k))


def average_precision(groups: Groups, number: Tensor, k: int | None = None) -> Tensor:
    """[Q] mean over the relevant answers of Precision at their places, 0 for those not found or beyond k.

    Where answers tie (McSherry and Najork 2008, section 4.4): place i of a group of n with m relevant is relevant with
    chance m/n, and then i − 1 places before it hold (i − 1)(m − 1)/(n − 1) more in expectation.
    """
    start, size, count = groups.start.double(), groups.size.double(), groups.count.double()
    last = size if k is None else torch.minimum((k - start).clamp(min=0), size)
    reciprocals = harmonic(start + last) - harmonic(start)  # Σ 1 / (start + i)
    others = last - (start + 1) * reciprocals  # Σ (i − 1) / (start + i)
    slope = torch.where(size > 1, (count - 1) / (size - 1).clamp(min=1), 0.0)
    tied = count / size * ((groups.before + 1) * reciprocals + slope * others)
    value = torch.where(size > 1, tied, torch.where(last >= 1, (groups.before + 1) / (start + 1), 0.0))
    return _share(_per_query(groups.query, value, len(number)), number)


def normalized_gain(groups: Groups, query: Tensor, gains: Tensor, num_queries: int, k: int | None = None) -> Tensor:
    """[Q] NDCG: discounted gain over that of the ideal order (Järvelin and Kekäläinen 2002; discount log₂(place + 1)).

    Args:
        groups: of the answers found that gain something.
        query, gains: [M] of all judged answers, which make the ideal list.
        num_queries: Q.
        k: only the first k places count, in the ideal list too.
    """
    stop = groups.start + groups.size
    if k is not None:
        stop = torch.minimum(torch.maximum(stop.clamp(max=k), groups.start), stop)
    tied = groups.size > 1
    reached = int(stop[tied].max()) if bool(tied.any()) else 0
    places = torch.arange(1, reached + 1, dtype=torch.float64)
    discounts = torch.cat([places.new_zeros(1), (1 / (places + 1).log2()).cumsum(0)])
    together = discounts[stop.clamp(max=reached)] - discounts[groups.start.clamp(max=reached)]
    single = torch.where(stop > groups.start, 1 / (groups.start + 2).double().log2(), 0.0)
    value = groups.gain / groups.size * torch.where(tied, together, single)
    found = _per_query(groups.query, value, num_queries)

    order = _lexsort(query, -gains)
    _, run = _runs(query[order])
    count = torch.bincount(run)
    place = torch.arange(len(order)) - (count.cumsum(0) - count)[run]  # from 0
    ideal = gains[order] / (place + 2).double().log2()
    ideal = _per_query(query[order], ideal if k is None else torch.where(place < k, ideal, 0.0), num_queries)
    return torch.where(ideal > 0, found / ideal.clamp(min=1e-300), 0.0)


def settle(answers: Answers, ahead: Tensor) -> Answers:
    """Answers whose ties are decided: [M] `ahead` tied items stand before each."""
    better = torch.where(answers.better >= 0, answers.better + ahead, answers.better)
    return replace(answers, better=better, equal=torch.zeros_like(answers.equal))


def _per_query(query: Tensor, value: Tensor, num_queries: int) -> Tensor:
    return torch.zeros(num_queries, dtype=torch.float64).index_add_(0, query, value.double())


def _share(part: Tensor, number: Tensor) -> Tensor:
    return torch.where(number > 0, part / number.clamp(min=1), 0.0)


def _lexsort(*keys: Tensor) -> Tensor:
    """[M] the order by the first key, then the second, …"""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[torch.argsort(key[order], stable=True)]
    return order


def _runs(*keys: Tensor) -> tuple[Tensor, Tensor]:
    """Of sorted keys: [M] whether a run of equal ones begins, and [M] the number of each one's run."""
    begins = torch.ones(len(keys[0]), dtype=torch.bool)
    if len(begins):
        begins[1:] = torch.stack([key[1:] != key[:-1] for key in keys]).any(0)
    return begins, begins.long().cumsum(0) - 1
