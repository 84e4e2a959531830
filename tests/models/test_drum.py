"""DRUM against dense matrices in float64, finite differences, and a rule that was planted."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.drum import DRUM, EPSILON
from kgc.objectives import OneVsAll
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Queries, Scorer, Side, Triples

E, R = 7, 2


def triples_of(graph: list[tuple[int, int, int]]) -> Triples:
    return Triples(*torch.tensor(graph, dtype=torch.int64).reshape(-1, 3).T.contiguous())


def drawn(number: int = 16, seed: int = 0) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    return [(draw.randrange(E - 1), draw.randrange(R), draw.randrange(E - 1)) for _ in range(number)]


def built(graph: list[tuple[int, int, int]], entities: int = E, **options) -> DRUM:
    torch.manual_seed(0)
    model = DRUM(entities, R, **{"dim": 5, "rank": 2, "length": 3} | options)
    model.use_facts(triples_of(graph))
    return model


def dense(model: DRUM, graph: list[tuple[int, int, int]]) -> Tensor:
    """[2R, E, E] scores by the paper's formula, with an LSTM written out."""
    facts = set(graph)
    adjacency = torch.zeros(2 * R + 1, E, E, dtype=torch.float64)
    for h, r, t in facts:
        adjacency[r, h, t] = adjacency[r + R, t, h] = 1
    adjacency[-1] = torch.eye(E)
    state = {name: value.double() for name, value in model.state_dict().items()}

    def lstm(chain: int, suffix: str, x: Tensor) -> list[Tensor]:
        w_x, w_h, b_x, b_h = (
            state[f"chains.{chain}.{name}_l0{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden = cell = torch.zeros(len(x), dtype=torch.float64)
        states = []
        for _ in range(model.length):
            i, f, g, o = (w_x @ x + b_x + w_h @ hidden + b_h).chunk(4)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            states.append(hidden)
        return states

    scores = []
    for q in range(2 * R):
        total = torch.zeros(E, E, dtype=torch.float64)
        for chain in range(model.rank):
            x = state["relation.weight"][q]
            forward, backward = lstm(chain, "", x), lstm(chain, "_reverse", x)[::-1]
            walked = torch.eye(E, dtype=torch.float64)
            for pair in zip(forward, backward, strict=True):
                weights = (state["choice.weight"] @ torch.cat(pair) + state["choice.bias"]).softmax(-1)
                walked = walked @ torch.einsum("k,kxy->xy", weights, adjacency)
            total += walked
        scores.append(total)
    return torch.stack(scores)


def every_query() -> Queries:
    return Queries(*torch.tensor(list(product(range(E), range(R), range(2)))).T.contiguous())


def test_scores_are_those_of_dense_matrices():
    graph = drawn()
    model = built(graph + graph[:2]).double()
    table = dense(model, graph)
    queries = every_query()
    kind = queries.relation + R * (queries.side == Side.HEAD)
    wanted = (table[kind, queries.anchor] + EPSILON).log()
    with torch.no_grad():
        got = model.score(queries)
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
        own = torch.randint(E, (len(queries), 3), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(model.score(queries, own), wanted.gather(1, own))
        torch.testing.assert_close(model.score(queries, torch.tensor([6, 0, 0])), wanted[:, [6, 0, 0]])
        torch.testing.assert_close(model.score(queries, range(2, 5)), wanted[:, 2:5])
        for side in Side:
            mine = queries.side == side
            part = Queries(queries.anchor[mine], queries.relation[mine], side)
            torch.testing.assert_close(model.score(part), wanted[mine])
        assert model.score(queries[:0]).shape == (0, E)
    assert isinstance(model, Scorer)


def test_triples_that_are_asked_for_are_not_walked_over():
    graph = list(dict.fromkeys(drawn(20)))
    hidden, kept = graph[:5], graph[5:]
    with torch.no_grad():
        got = built(graph).score_without(every_query(), triples_of(hidden))
        torch.testing.assert_close(got, built(kept).score(every_query()))
        assert not torch.equal(got, built(graph).score(every_query()))


def test_gradients_are_those_of_finite_differences():
    model = built(drawn(), dim=2, length=2).double()
    names, tables = zip(*((n, p.detach().clone().requires_grad_()) for n, p in model.named_parameters()), strict=True)
    queries = Queries(torch.tensor([0, 3, 3]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))

    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return self.model.score(queries)

    def score(*tables: Tensor) -> Tensor:
        return functional_call(Scores(), {f"model.{n}": t for n, t in zip(names, tables, strict=True)})

    assert torch.autograd.gradcheck(score, tables, fast_mode=True)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e9])
def test_zero_and_huge_parameters_have_finite_scores_and_gradients(size):
    model = built(drawn())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    queries = every_query()
    for candidates in (None, torch.tensor([0, E - 1]), queries.anchor.unsqueeze(1)):
        model.zero_grad()
        scores = model.score(queries, candidates)
        assert scores.isfinite().all()
        scores.mean().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.slow
def test_ranks_do_not_depend_on_the_block(monkeypatch):
    graph = drawn()
    model = built(graph)
    ids = triples_of(graph)
    known = KnownAnswers(ids, E, R)
    ranks = []
    for options, at_once in ((None, 1 << 22), (RankingOptions(batch=3, block=2), 1 << 22), (None, 1)):
        monkeypatch.setattr("kgc.models.drum._AT_ONCE", at_once)
        ranks.append([rank_queries(model, ids.queries(s), ids.target(s), known, options).realistic for s in Side])
    for other in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ranks[0], other, strict=True))


def test_a_planted_rule_is_learned_and_answers_held_out_triples():
    draw = random.Random(0)
    people = 40
    of = [draw.randrange(people) for _ in range(people)]
    parent = [(child, 0, of[child]) for child in range(people)]
    grand = [(child, 1, of[of[child]]) for child in range(people)]
    held_out, kept = grand[:8], grand[8:]
    labels = [Vocabulary([f"{kind}{i}" for i in range(n)]) for kind, n in (("e", people), ("r", R))]
    graph = KnowledgeGraph("planted", *labels, triples_of(parent + kept), Triples.empty(), triples_of(held_out))
    model = built(parent + kept, entities=people, dim=16, length=2)
    objective = OneVsAll()
    number = objective.setup(graph, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        optimizer.zero_grad()
        objective.loss(model, torch.randperm(number, generator=generator)[:24], step, generator).backward()
        optimizer.step()
    weight, body = model.learned_rules(1)[0]
    assert body == (0, 0)
    assert weight > 0.5
    assert model.learned_rules(1 + R)[0][1] == (R, R)
    known = KnownAnswers(triples_of(parent + grand), people, R)
    for side in Side:
        counts = rank_queries(model, graph.test.queries(side), graph.test.target(side), known)
        assert counts.pessimistic.tolist() == [1] * 8


def test_weights_of_rules_add_up_to_the_chains():
    model = built(drawn(), length=2)
    rules = model.learned_rules(1, number=1000)
    assert len(rules) == 1 + 2 * R + (2 * R) ** 2
    assert sum(weight for weight, _ in rules) == pytest.approx(model.rank)
    weights = model.attention(torch.tensor([1]))[:, :, 0].double()
    wanted = sum(
        c[0][2] * c[1][4] + c[0][4] * c[1][2] for c in weights.tolist()
    )  # relation 2, then identity, or the other way
    assert {body: weight for weight, body in rules}[(2,)] == pytest.approx(wanted)


@pytest.mark.parametrize("option", ["dim", "rank", "length"])
def test_sizes_that_make_no_sense_are_refused(option):
    with pytest.raises(UserError, match=rf"model\.{option}=0: must be a whole number, at least 1"):
        DRUM(E, R, **{"dim": 4} | {option: 0})


def test_it_says_that_it_needs_facts():
    with pytest.raises(UserError, match="use_facts"):
        DRUM(E, R, 4).score(every_query())
