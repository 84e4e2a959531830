"""NBFNet: sums over paths, what training hides, ranks, and a graph of entities that it never saw."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path

import oracle
import pytest
import runs
import torch
from test_contract import some_facts
from torch import Tensor

from kgc.data.known import KnownAnswers
from kgc.errors import UserError
from kgc.losses.pairwise import Logistic
from kgc.losses.regularizers import Lp
from kgc.models.nbfnet import PNA, NBFNet, Sum, multiplication, rotation, translation
from kgc.objectives import KVsAll, NegativeSampling, OneVsAll
from kgc.ranking import RankingOptions, rank_queries
from kgc.sampling.proposals import Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Both
from kgc.types import Negatives, Queries, Side, Triples

E, R, DIM = 9, 2, 4
FACTS = some_facts(E, R)
VARIANTS = {
    "sum": partial(NBFNet),
    "pna": partial(NBFNet, aggregation=PNA()),
    "translation": partial(NBFNet, message=translation, dependent=False),
    "rotation": partial(NBFNet, message=rotation, aggregation=PNA(), layer_norm=False),
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def build(name: str = "sum", facts: Triples = FACTS, **more) -> NBFNet:
    torch.manual_seed(3)
    model = VARIANTS[name](E, R, DIM, layers=3, **more).double()
    model.use_facts(facts)
    return model.eval()


def edges_of(facts: Triples) -> set[tuple[int, int, int]]:
    rows = set(zip(facts.head.tolist(), facts.relation.tolist(), facts.tail.tolist(), strict=True))
    return rows | {(t, r + R, h) for h, r, t in rows}


def questions(number: int = 14) -> Queries:
    generator = torch.Generator().manual_seed(4)
    anchor, relation, side = (torch.randint(n, (number,), generator=generator) for n in (E, R, 2))
    return Queries(anchor, relation, side)


# The iteration.


def test_states_are_sums_over_paths_of_products_of_relations():
    # W = [0 | 1], no normalisation, no short cut, positive relations: relu changes nothing (theorem 1 of the paper).
    layers = 4
    model = NBFNet(E, R, DIM, layers=layers, dependent=False, layer_norm=False, short_cut=False).double()
    model.use_facts(FACTS)
    relation = torch.rand(2 * R, DIM, dtype=torch.float64) + 0.5
    with torch.no_grad():
        for layer in model.layers:
            layer.relation.weight.copy_(relation)
            layer.linear.weight.copy_(torch.cat([torch.zeros(DIM, DIM), torch.eye(DIM)], dim=1))
            layer.linear.bias.zero_()
    query, edges = torch.rand(E, DIM, dtype=torch.float64), edges_of(FACTS)

    def paths(start: int, steps: int) -> list[tuple[int, list[int]]]:
        """(end, relations) of all walks of at most so many steps."""
        found = [(start, [])]
        if steps:
            found += [(end, [r, *more]) for u, r, v in edges if u == start for end, more in paths(v, steps - 1)]
        return found

    states = model.states(query, torch.arange(E), model.graph)  # [E, B, d]
    for anchor in range(E):
        wanted = torch.zeros(E, DIM, dtype=torch.float64)
        for end, relations in paths(anchor, layers):
            wanted[end] += query[anchor] * math.prod((relation[r] for r in relations), start=torch.ones(()).double())
        torch.testing.assert_close(states[:, anchor], wanted, rtol=1e-10, atol=1e-10)


def by_hand(model: NBFNet, anchor: int, relation: int, facts: Triples) -> Tensor:
    """[E] scores of one query, a node and an edge at a time."""
    edges = sorted(edges_of(facts))
    q = model.relation.weight[relation]
    start = [q if v == anchor else torch.zeros_like(q) for v in range(E)]
    state = list(start)
    degrees = torch.tensor([1.0 + sum(edge[2] == v for edge in edges) for v in range(E)], dtype=torch.float64)
    delta = degrees.log() / degrees.log().mean()
    for layer in model.layers:
        w = layer.relation(q).view(2 * R, DIM) if isinstance(layer.relation, torch.nn.Linear) else layer.relation.weight
        new = []
        for v in range(E):
            messages = torch.stack([*(model.message(state[u], w[r]) for u, r, t in edges if t == v), start[v]])
            around = messages.sum(0)
            if isinstance(model.aggregation, PNA):
                deviation = messages.var(0, correction=0).clamp_min(1e-6).sqrt()
                kinds = torch.cat([messages.mean(0), messages.amax(0), messages.amin(0), deviation])
                around = torch.cat([kinds, kinds * delta[v], kinds / delta[v].clamp_min(1e-2)])
            made = layer.norm(layer.linear(torch.cat([state[v], around]))).relu()
            new.append(made + state[v])
        state = new
    return torch.stack([model.head(torch.cat([h, q])).squeeze(-1) for h in state])


@every_variant
def test_scores_are_the_paper_one_edge_at_a_time(name):
    model, queries = build(name), questions()
    got = model.score(queries)
    for i, (a, r, s) in enumerate(
        zip(*(x.tolist() for x in (queries.anchor, queries.relation, queries.side)), strict=True)
    ):
        wanted = by_hand(model, a, r + R * (s == Side.HEAD), FACTS)
        torch.testing.assert_close(got[i], wanted, rtol=1e-9, atol=1e-9)


@every_variant
def test_training_scores_are_those_of_a_graph_without_the_batch(name):
    model, batch = build(name).train(), FACTS[:5]
    rest = edges_of(FACTS) - edges_of(batch)
    left = torch.tensor([edge for edge in sorted(rest) if edge[1] < R]).T
    queries = batch.queries(Side.TAIL)
    got = model.score_without(queries, batch)
    torch.testing.assert_close(got, build(name, Triples(*left)).score(queries), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(got, model.score(queries))
    far = build(name, one_hop=False)
    ends = {frozenset(pair) for pair in zip(batch.head.tolist(), batch.tail.tolist(), strict=True)}
    left = torch.tensor([(u, r, v) for u, r, v in sorted(rest) if r < R and frozenset((u, v)) not in ends]).T
    torch.testing.assert_close(
        far.score_without(queries, batch), build(name, Triples(*left)).score(queries), rtol=1e-10, atol=1e-10
    )


@every_variant
def test_gradients_are_those_of_finite_differences(name):
    model = VARIANTS[name](E, R, 2, layers=2).double()
    model.use_facts(FACTS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.2, 1.0)  # away from the kinks of relu
    query = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    relation = torch.rand(2 * R, 2, 2, dtype=torch.float64, requires_grad=True)
    state = torch.rand(E, 2, 2, dtype=torch.float64, requires_grad=True)
    fast = {"fast_mode": True}  # along random directions
    assert torch.autograd.gradcheck(lambda q: model.states(q, torch.tensor([1, 3]), model.graph), query, **fast)
    assert torch.autograd.gradcheck(lambda s, w: model._aggregated(s, s, w, model.graph), (state, relation), **fast)


def test_messages_made_anew_in_the_backward_pass_have_the_same_gradients(monkeypatch):
    def gradients() -> list[Tensor]:
        model = build("pna")
        model.score_without(FACTS.queries(Side.TAIL), FACTS[:3]).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    kept = gradients()
    monkeypatch.setattr("kgc.models.nbfnet._KEPT", {"cpu": 0})
    for mine, other in zip(gradients(), kept, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


# Ranks.


@pytest.mark.parametrize("name", ["sum", "pna"])
@pytest.mark.parametrize("options", [None, RankingOptions(batch=3), RankingOptions(batch=4, block=4)])
def test_ranks_are_those_of_the_scores(name, options):
    model = build(name)
    unknown = Triples(*(torch.tensor(column) for column in ([0, 4, 8], [0, 1, 0], [5, 5, 1])))
    triples = Triples.cat([FACTS[:6], unknown])
    side = torch.arange(2).repeat_interleave(len(triples))
    queries = Queries(torch.cat([triples.tail, triples.head]), triples.relation.repeat(2), side)
    targets = torch.cat([triples.head, triples.tail])
    counts = rank_queries(model, queries, targets, KnownAnswers(FACTS, E, R), options)
    known = {edge for edge in edges_of(FACTS) if edge[1] < R}
    for i, (a, r, s, target) in enumerate(
        zip(*(x.tolist() for x in (queries.anchor, queries.relation, queries.side, targets)), strict=True)
    ):
        row = by_hand(model, a, r + R * (s == Side.HEAD), FACTS).tolist()
        triple = (target, r, a) if s == oracle.HEAD else (a, r, target)
        wanted = oracle.rank(lambda h, _, t, s=s, row=row: row[h if s == oracle.HEAD else t], triple, s, known, E)
        assert (counts.better[i], counts.candidates[i]) == (wanted.better, wanted.candidates)


def test_each_distinct_query_walks_once_and_scores_do_not_depend_on_their_number(monkeypatch):
    model = build().float()
    queries = questions()
    monkeypatch.setattr("kgc.models.path_model._BLOCK", {"cpu": 4 * len(model.graph.source) * DIM})
    walks = []
    model.register_forward_hook(lambda _, given, __: walks.append(len(given[0])))
    with torch.no_grad():
        whole = model.score(queries)
        distinct = len(set(zip(*(x.tolist() for x in (queries.anchor, queries.relation, queries.side)), strict=True)))
        assert walks == [4] * -(-distinct // 4)
        for i in range(len(queries)):
            assert torch.equal(model.score(queries[i : i + 1])[0], whole[i])
        walks.clear()
        rank_queries(model, queries, torch.zeros(len(queries), dtype=torch.int64))
        assert walks == [4] * -(-distinct // 4)


# Objectives.


def test_one_vs_all_is_the_cross_entropy_over_the_graph_without_the_batch():
    model, objective = build(), OneVsAll()
    objective.triples = FACTS
    index = torch.tensor([0, 3, 7])
    batch, wanted = FACTS[index], []
    for side in Side:
        scores = model.score_without(batch.queries(side), batch).tolist()
        wanted += [oracle.log_sum_exp(row) - row[t] for row, t in zip(scores, batch.target(side).tolist(), strict=True)]
    loss = objective.loss(model, index, 0, torch.Generator())
    assert loss.item() == pytest.approx(sum(wanted) / len(wanted), rel=1e-5)


def test_negatives_are_scored_over_the_graph_without_the_batch(monkeypatch):
    model, batch = build(), FACTS[:3]
    objective = NegativeSampling(NegativeSampler(2, Both(), Uniform()), Logistic())
    objective.triples = FACTS
    candidates = torch.tensor([[0, 1], [2, 3], [8, 8]])
    drawn = (batch.queries(Side.TAIL), batch.tail, Negatives(candidates))
    monkeypatch.setattr(objective.sampler, "draw", lambda *_: [drawn])
    loss = objective.loss(model, torch.arange(3), 0, torch.Generator())
    scores = model.score_without(batch.queries(Side.TAIL), batch).tolist()
    rows = zip(scores, batch.tail.tolist(), candidates.tolist(), strict=True)
    wanted = [oracle.logistic(row[t], [row[c] for c in own], [0.5, 0.5]) for row, t, own in rows]
    assert loss.item() == pytest.approx(sum(wanted) / 3, rel=1e-5)


def test_what_cannot_be_trained_is_refused_with_the_cure():
    model, index, generator = build(), torch.tensor([0]), torch.Generator()
    with pytest.raises(UserError, match=r"objective=k_vs_all: NBFNet .* objective=one_vs_all or negative_sampling"):
        KVsAll().loss(model, index, 0, generator)
    for objective, words in (
        (OneVsAll(regularizer=Lp(1e-3, 2)), r"regularizer: .* NBFNet has not; choose regularizer=none"),
        (OneVsAll(relation_weight=0.1), r"objective\.relation_weight=0\.1: NBFNet .* set it to 0"),
    ):
        objective.triples = FACTS
        with pytest.raises(UserError, match=words):
            objective.loss(model, index, 0, generator)
    with pytest.raises(UserError, match=r"optimizer\.sparse=true: NBFNet"):
        model.use_sparse_gradients()
    with pytest.raises(UserError, match=r"NBFNet has no graph"):
        NBFNet(E, R, DIM).score(questions())
    with pytest.raises(UserError, match=r"model\.dim=5: NBFNet with rotation .* even"):
        NBFNet(E, R, 5, message=rotation)
    with pytest.raises(UserError, match=r"model\.dim=0"):
        NBFNet(E, R, 0)
    assert isinstance(NBFNet(E, R, DIM).aggregation, Sum)
    assert NBFNet(E, R, DIM).message is multiplication


# Another graph.


def composed_graph(folder: Path, size: int, seed: int, prefix: str) -> Path:
    """c = a then b, where a and b are random one-to-one maps; a fifth of c in valid, a fifth in test."""
    draw = random.Random(seed)
    names = [f"{prefix}{i}" for i in range(size)]
    a, b = (dict(zip(names, draw.sample(names, size), strict=True)) for _ in range(2))
    facts = [(x, "a", y) for x, y in a.items()] + [(x, "b", y) for x, y in b.items()]
    third = [(x, "c", b[a[x]]) for x in draw.sample(names, size)]
    fifth = size // 5
    splits = {"train": facts + third[2 * fifth :], "valid": third[:fifth], "test": third[fifth : 2 * fifth]}
    return runs.write_splits(folder, **splits)


def test_a_graph_of_unseen_entities_is_ranked_ten_times_better_than_by_chance(tmp_path):
    first = composed_graph(tmp_path / "first", 60, seed=0, prefix="x")
    second = composed_graph(tmp_path / "second", 150, seed=1, prefix="y")
    words = ["dataset=folder", f"dataset.path='{first}'", "model=nbfnet", "model.layers=3", "model.dim=16"]
    words += ["objective=one_vs_all", "batch_size=16", "trainer.max_epochs=5", "trainer.val_every=5", "test=false"]
    runs.train(tmp_path / "run", *(word for word in runs.TINY if not word.startswith("dataset")), *words)
    checkpoint = f"checkpoint='{tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}'"
    runs.evaluate(tmp_path / "unseen", checkpoint, f"dataset.inference='{second}'")
    metrics = runs.metrics(tmp_path / "unseen")
    ranks = runs.ranks(tmp_path / "unseen")
    chance = sum(sum(1 / k for k in range(1, n + 1)) / n for n in ranks["candidates"]) / len(ranks)
    assert metrics["test/num_queries"] == 2 * 30
    assert metrics["test/num_unseen"] == 0  # they occur in the facts of their own graph
    assert chance < 0.05
    assert metrics["test/mrr"] > 10 * chance
    # The filter is that graph's: all of c's other answers are wrong, and none is left out but for the query's own.
    assert set(ranks["candidates"]) == {150}
    odd = runs.write_splits(tmp_path / "odd", train=[("p", "z", "q")], test=[("p", "a", "q")])
    with pytest.raises(UserError, match=r"train\.txt:1: relation 'z' is not among the model's 3 relations"):
        runs.evaluate(tmp_path / "refused", checkpoint, f"dataset.inference='{odd}'")
    with pytest.raises(UserError, match="nowhere: no such folder"):
        runs.evaluate(tmp_path / "lost", checkpoint, "dataset.inference=nowhere")
    with pytest.raises(UserError, match=r"dataset\.inference=.* choose one"):
        runs.evaluate(tmp_path / "both", checkpoint, "dataset=umls", f"dataset.inference='{second}'")


def test_models_with_a_vector_for_each_entity_refuse_others_with_the_cure(tmp_path):
    runs.train(tmp_path / "run", "trainer.max_epochs=1", "test=false")
    second = composed_graph(tmp_path / "second", 10, seed=1, prefix="y")
    checkpoint = f"checkpoint='{tmp_path / 'run' / 'checkpoints' / 'best.ckpt'}'"
    with pytest.raises(UserError, match=r"dataset\.inference=.*RotatE has a vector for each entity.*model=nbfnet"):
        runs.evaluate(tmp_path / "refused", checkpoint, f"dataset.inference='{second}'")
