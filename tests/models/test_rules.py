"""Rules: counts, scores and explanations against sets in plain Python."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.models.rules import mining
from kgc.models.rules.language import atoms, text
from kgc.models.rules.model import RuleModel
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Queries, Scorer, Side, Triples

E, R, PC = 6, 2, 5.0  # the last entity is in no triple
Rule = tuple[int, ...]

graphs = st.lists(st.tuples(st.integers(0, E - 2), st.integers(0, R - 1), st.integers(0, E - 2)), max_size=14)


def model_of(graph: list[oracle.Triple], entities: int = E, **options) -> RuleModel:
    options = {"length": 3, "min_support": 1, "min_confidence": 0.0, "pessimism": PC} | options
    model = RuleModel(entities, R, **options)
    model.use_facts(Triples(*torch.tensor(graph, dtype=torch.int64).reshape(-1, 3).T.contiguous()))
    assert model.mine()
    return model


class Sets:
    """What holds, by definition."""

    def __init__(self, graph: list[oracle.Triple]):
        facts = {(h, r, t) for h, r, t in graph if h != t}
        self.holds = facts | {(t, r + R, h) for h, r, t in facts}
        self._pairs: dict[tuple[int, ...], set[tuple[int, int]]] = {}

    def pairs(self, body: tuple[int, ...]) -> set[tuple[int, int]]:
        """The ends of all walks over distinct entities."""
        if body not in self._pairs:
            walks = {(x,) for x in range(E)}
            for kind in body:
                walks = {(*w, t) for w in walks for h, k, t in self.holds if (h, k) == (w[-1], kind) and t not in w}
            self._pairs[body] = {(w[0], w[-1]) for w in walks}
        return self._pairs[body]

    def having(self, kind: int, constant: int) -> set[int]:
        """Entities that a body b(X, c′), b(X, A) (constant -1) is true of."""
        return {h for h, k, t in self.holds if k == kind and constant in (-1, t)}

    def rules(self, length: int, min_support: int, min_confidence: float) -> set[Rule]:
        found = set()

        def add(head: int, constant: int, other: int, support: int, bodies: int, body: tuple[int, ...]) -> None:
            if support >= min_support and support / (bodies + PC) >= min_confidence:
                found.add((head, constant, other, support, bodies, *body, *[-1] * (length - len(body))))

        for size in range(1, length + 1):
            for body in product(range(2 * R), repeat=size):
                pairs = self.pairs(body)
                for head in range(R):
                    if body != (head,):
                        add(head, -1, -1, sum((x, head, y) in self.holds for x, y in pairs), len(pairs), body)
        for head, constant in product(range(2 * R), range(E)):
            answers, asked = self.having(head, constant), self.having(head, -1)
            add(head, constant, -1, len(answers), len(asked), ())
            for kind, other in product(range(2 * R), range(-1, E)):
                body = self.having(kind, other)
                trivial = (kind, other) == (head, constant) or (kind == head and other == -1)
                if not trivial and len(answers & body) / (len(body) + PC) > len(answers) / (len(asked) + PC):
                    add(head, constant, other, len(answers & body), len(body), (kind,))
        return {rule for rule in found if rule[3]}

    def fires(self, rule: Rule, x: int, kind: int, y: int) -> bool:
        """Whether a rule says y in answer to (x, kind, ?)."""
        head, constant, other, _, _, *body = rule
        body = tuple(b for b in body if b >= 0)
        back = (kind + R) % (2 * R)
        if x == y:
            return False
        if constant < 0:
            return (x, y) in self.pairs(body) if head == kind else head == back and (y, x) in self.pairs(body)
        if not body:
            return head == kind and y == constant
        if head == kind and y == constant and x in self.having(body[0], other):
            return True
        return head == back and x == constant and y in self.having(body[0], other)


@pytest.mark.parametrize("walks_at_once", [1 << 22, 3])
@settings(max_examples=15)
@given(graph=graphs, min_support=st.integers(1, 2), min_confidence=st.sampled_from([0.0, 0.15]))
def test_rules_are_those_that_sets_give(walks_at_once, graph, min_support, min_confidence):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mining, "WALKS_AT_ONCE", walks_at_once)
        model = model_of(graph, min_support=min_support, min_confidence=min_confidence)
    got = [tuple(rule) for rule in model.rules.tolist()]
    assert len(set(got)) == len(got)
    assert set(got) == Sets(graph).rules(3, min_support, min_confidence)
    confidence = [rule[3] / (rule[4] + PC) for rule in got]
    assert confidence == sorted(confidence, reverse=True)
    assert model.confidence().tolist() == confidence


def drawn(seed: int, number: int = 14) -> list[oracle.Triple]:
    draw = random.Random(seed)
    return [(draw.randrange(E - 1), draw.randrange(R), draw.randrange(E - 1)) for _ in range(number)]


def every_query() -> Queries:
    cells = torch.tensor(list(product(range(E), range(R), range(2))))
    return Queries(*cells.T.contiguous())


def expected(model: RuleModel, sets: Sets) -> list[list[float]]:
    rules = [tuple(rule) for rule in model.rules.tolist()]
    table = []
    for x, relation, side in product(range(E), range(R), range(2)):
        kind = relation if side == oracle.TAIL else relation + R
        row = []
        for y in range(E):
            fired = sorted((rule[3] / (rule[4] + PC) for rule in rules if sets.fires(rule, x, kind, y)), reverse=True)
            if model.aggregation == "noisy_or":
                row.append(sum(-math.log(1 - c) for c in fired))
            elif model.depth == 1:
                row.append(fired[0] if fired else 0.0)
            else:
                bits = 52 // model.depth
                digits = [math.ceil(c * 2**bits) for c in fired[: model.depth]]
                row.append(sum(digit * 2.0 ** (-bits * (i + 1)) for i, digit in enumerate(digits)))
        table.append(row)
    return table


@pytest.mark.parametrize(
    "options", [{"depth": 1}, {"depth": 4}, {"aggregation": "noisy_or"}, {"constants": False, "depth": 2}], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_rules_that_fire(options, seed):
    graph = drawn(seed)
    model = model_of(graph, **options)
    wanted = torch.tensor(expected(model, Sets(graph)), dtype=torch.float64)
    queries = every_query()
    got = model.score(queries)
    assert got.dtype == torch.float64
    assert wanted.count_nonzero() > 20
    torch.testing.assert_close(got, wanted, rtol=1e-12 if "aggregation" in options else 0, atol=0)
    # Every route, each from a model that has seen no other query.
    own = torch.randint(E, (len(queries), 3), generator=torch.Generator().manual_seed(seed))
    for candidates, cells in (
        (range(2, 5), wanted[:, 2:5]),
        (torch.tensor([5, 0, 0, 3]), wanted[:, [5, 0, 0, 3]]),
        (own, wanted.gather(1, own)),
    ):
        torch.testing.assert_close(model.score(queries, candidates), cells, rtol=1e-12, atol=0)
    for i in (0, 7, len(queries) - 1):
        assert torch.equal(model.score(queries[i : i + 1])[0], got[i])
    assert model.score(queries[:0]).shape == (0, E)
    assert isinstance(model, Scorer)


def test_ranks_are_the_oracles():
    graph = drawn(5)
    model = model_of(graph)
    test = drawn(6, 20)
    ids = Triples(*torch.tensor(test).T.contiguous())
    known = KnownAnswers(Triples(*torch.tensor(graph + test).T.contiguous()), E, R)
    scores = dict(zip(product(range(E), range(R), range(2)), expected(model, Sets(graph)), strict=True))
    for side in Side:

        def score(h: int, r: int, t: int, side: int = side) -> float:
            anchor, answer = (t, h) if side == oracle.HEAD else (h, t)
            return scores[anchor, r, int(side)][answer]

        wanted = [oracle.rank(score, triple, side, graph + test, E) for triple in test]
        for options in (None, RankingOptions(batch=3, block=2)):
            counts = rank_queries(model, ids.queries(side), ids.target(side), known, options)
            assert counts.better.tolist() == [rank.better for rank in wanted]
            assert counts.equal.tolist() == [rank.equal for rank in wanted]


@pytest.mark.parametrize("seed", range(4))
def test_explanations_are_true_and_never_the_triple_itself(seed):
    graph = drawn(seed)
    model, sets = model_of(graph), Sets(graph)
    for h, r, t in {triple for triple in graph if triple[0] != triple[2]}:
        for side in Side:
            anchor, answer = (t, h) if side == Side.HEAD else (h, t)
            query = Queries(torch.tensor([anchor]), torch.tensor([r]), side)
            explained = model.explain(query, answer)
            kind = r if side == Side.TAIL else r + R
            fired = [i for i, rule in enumerate(model.rules.tolist()) if sets.fires(tuple(rule), anchor, kind, answer)]
            assert [rule for rule, _ in explained] == fired
            for rule, values in explained:
                head, *body = (
                    (a[0], *(values.get(end, end) for end in a[1:])) for a in atoms(model.rules[rule].numpy(), R)
                )
                assert head == (r, h, t)
                for relation, x, y in body:
                    assert (x, relation, y) in sets.holds
                    assert (x, relation, y) != (h, r, t)


def test_rules_in_words():
    labels = ["ann", "bob", "cyd"]

    def said(*rule: int) -> str:
        return " <- ".join(text(np.array(rule), labels, ["likes", "knows"]))

    assert said(0, -1, -1, 1, 1, 1, 3, 0) == "likes(X, Y) <- knows(X, A), knows(B, A), likes(B, Y)"
    assert said(0, 2, 1, 1, 1, 3, -1, -1) == "likes(X, cyd) <- knows(bob, X)"
    assert said(2, 2, -1, 1, 1, 1, -1, -1) == "likes(cyd, Y) <- knows(Y, A)"
    assert said(2, 2, -1, 1, 1, -1, -1, -1) == "likes(cyd, Y) <- true"


def test_a_planted_rule_is_found_and_answers_held_out_triples():
    draw = random.Random(0)
    people = 60
    parent = [(child, 0, draw.randrange(people)) for child in range(people)]
    of = {h: t for h, _, t in parent}
    grand = [(h, 1, of[t]) for h, _, t in parent if len({h, t, of[t]}) == 3]
    held_out, kept = grand[:10], grand[10:]
    model = model_of(parent + kept, entities=people, length=2, min_support=5)
    best = next(rule for rule in model.rules.tolist() if rule[0] == 1 and rule[1] < 0)
    assert best == [1, -1, -1, len(kept), len(grand), 0, 0]
    ids = Triples(*torch.tensor(held_out).T.contiguous())
    known = KnownAnswers(Triples(*torch.tensor(parent + grand).T.contiguous()), people, R)
    for side in Side:
        assert rank_queries(model, ids.queries(side), ids.target(side), known).pessimistic.tolist() == [1] * 10


def test_mining_stops_when_time_is_up_with_exact_rules(monkeypatch):
    graph = drawn(1, 30)
    whole = {tuple(rule) for rule in model_of(graph).rules.tolist()}
    before: set[tuple[int, ...]] = set()
    for seconds in (0, 3, 8, 20):
        ticks = iter(range(10**6))
        monkeypatch.setattr(mining.time, "monotonic", lambda ticks=ticks: next(ticks))
        model = RuleModel(E, R, length=3, min_support=1, min_confidence=0.0, seconds=seconds)
        model.use_facts(Triples(*torch.tensor(graph).T.contiguous()))
        assert not model.mine()
        found = {tuple(rule) for rule in model.rules.tolist()}
        assert before <= found < whole
        before = found
    assert before


def test_order_and_repetition_of_triples_change_nothing():
    graph = drawn(3)
    first = model_of(graph)
    shuffled = graph + graph[:4]
    random.Random(1).shuffle(shuffled)
    second = model_of(shuffled)
    assert torch.equal(first.rules, second.rules)
    assert torch.equal(first.score(every_query()), second.score(every_query()))


def test_a_checkpoint_brings_its_rules():
    graph = drawn(2)
    model, other = model_of(graph), RuleModel(E, R, length=3)
    assert list(model.state_dict()) == ["rules"]
    other.load_state_dict(model.state_dict())
    other.use_facts(Triples(*torch.tensor(graph).T.contiguous()))
    assert torch.equal(other.score(every_query()), model.score(every_query()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        RuleModel(E, R, length=2).load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="use_facts"):
        RuleModel(E, R).score(every_query())


def test_a_graph_without_triples_has_no_rules_and_all_scores_tie():
    model = model_of([])
    assert len(model.rules) == 0
    assert model.score(every_query()).count_nonzero() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, r"model\.length=0: .* at least 1"),
        ({"depth": 40}, r"model\.depth=40: must be at most 13"),
        ({"seconds": -1}, r"model\.seconds=-1: .* at least 0"),
        ({"pessimism": "a"}, r"model\.pessimism=a: must be a number"),
        ({"aggregation": "mean"}, r"model\.aggregation=mean: choices are maximum, noisy_or"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        RuleModel(E, R, **options)


def test_a_graph_that_is_too_large_is_refused():
    with pytest.raises(UserError, match="too many"):
        RuleModel(10**9, 10).use_facts(Triples(*torch.tensor([[0], [0], [1]])))
