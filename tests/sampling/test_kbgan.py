"""KBGAN: what the generator draws, and what it learns from it."""

from __future__ import annotations

from functools import partial

import oracle
import pytest
import torch
from draws import LIKELY, asked, generator, graph_of, likelihood, ready

from kgc.errors import UserError
from kgc.losses.pairwise import Margin
from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.transe import TransE
from kgc.objectives import NegativeSampling
from kgc.sampling.kbgan import KBGAN, categorical
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Alternate, Bernoulli, Both
from kgc.types import Negatives, Side

E = 6
TRAIN = [(0, 0, 1), (0, 0, 2), (3, 1, 1), (4, 1, 4), (2, 1, 5)]
GRAPH = graph_of(TRAIN, E)
small = partial(DistMult, dim=4)


def kbgan(device: torch.device | str = "cpu", scale: float = 1.5, graph=GRAPH, make=small, **options) -> KBGAN:
    """A proposal whose generator has an opinion."""
    made = ready(KBGAN(make, **options), graph, device)
    with torch.no_grad():
        for table in made.generator.parameters():
            table.copy_(scale * torch.randn(table.shape, generator=generator(7)))
    return made


def all_entities(made: KBGAN, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool of every query holds each entity once."""

    def pools(queries: int, number: int, generator: torch.Generator) -> torch.Tensor:
        return torch.arange(E, device=generator.device).expand(queries, -1)

    monkeypatch.setattr(made.uniform, "pools", pools)


def shares(made: KBGAN, triple: oracle.Triple, side: Side, known: bool = False) -> list[float]:
    """softmax of the generator's scores over all entities that are not known answers, by the formula."""
    entity, relation = (table.tolist() for table in (made.generator.entity.weight, made.generator.relation.weight))
    scores = []
    for e in range(E):
        head, r, tail = oracle.replaced(triple, side, e)
        left_out = known and (head, r, tail) in TRAIN
        scores.append(-float("inf") if left_out else oracle.distmult(entity[head], relation[r], entity[tail]))
    return oracle.softmax(scores)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("side", [Side.HEAD, Side.TAIL])
def test_negatives_are_drawn_by_the_softmax_of_the_generator(side, number, masked, monkeypatch, device):
    made = kbgan(device)
    all_entities(made, monkeypatch)
    question = asked([(0, 0, 1)] * 8000, side, device, known=GRAPH if masked else None)
    negatives = made.draw(question, number, generator(2, device))
    assert negatives.candidates.shape == (8000, number)
    expected = shares(made, (0, 0, 1), side, masked)
    assert likelihood(negatives.candidates, expected) > LIKELY
    assert likelihood(negatives.candidates, [1 / E] * E) < LIKELY
    drawn = torch.tensor(expected, dtype=torch.float64).log()[negatives.candidates.cpu()]
    torch.testing.assert_close(negatives.log_probability.double().cpu(), drawn, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("share", [1, 4, None])
def test_negatives_come_from_the_pool(share, monkeypatch):
    """From what its uniform candidates are, by the softmax over these alone, repetitions included."""
    made = kbgan(pool_size=5, share=share)
    drawn = []
    original = made.uniform.pools
    monkeypatch.setattr(made.uniform, "pools", lambda *a: drawn.append(original(*a)) or drawn[-1])
    question = asked(TRAIN * 2, torch.tensor([0, 1] * 5))
    negatives = made.draw(question, 2, generator(1))
    (pool,) = drawn
    assert pool.shape == {1: (10, 5), 4: (3, 5), None: (5,)}[share]
    for i, triple in enumerate(TRAIN * 2):
        own = (pool if share is None else pool[i // share]).tolist()
        everything = shares(made, triple, Side(i % 2))
        for candidate, log_probability in zip(
            negatives.candidates[i].tolist(), negatives.log_probability[i].exp().tolist(), strict=True
        ):
            assert candidate in own
            assert log_probability == pytest.approx(everything[candidate] / sum(everything[e] for e in own), rel=1e-4)


def test_a_query_whose_pool_is_all_known_answers_draws_and_is_masked():
    train = [(0, 0, t) for t in range(E)]
    sampler = NegativeSampler(2, Alternate(), KBGAN(small, pool_size=4), mask_known=True)
    sampler.setup(graph_of(train, E), torch.device("cpu"))
    ((_, _, negatives),) = sampler.draw(graph_of(train, E).train, 1, generator(0))  # tails: all are true
    assert negatives.known.all()
    assert negatives.log_probability.isfinite().all()
    loss = sampler.proposal.loss(negatives, torch.full((E, 2), 5.0))
    loss.backward()
    assert all(not table.grad.any() for table in sampler.proposal.generator.parameters())
    assert sampler.proposal.rewards.tolist() == [0, 0]


def test_a_place_without_probability_is_never_drawn(device):
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]], device=device)
    drawn = categorical(probabilities, 5000, generator(0, device))
    assert likelihood(drawn[0], [0, 0.5, 0, 0.5, 0]) > LIKELY
    assert set(drawn[1].tolist()) == {4}


@pytest.mark.parametrize(("point", "place"), [(0.0, 1), (1 - 2.0**-53, 3)])
def test_the_ends_of_a_distribution_are_exact(point, place, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, point, dtype=torch.float64))
    assert categorical(torch.tensor([[0.0, 0.1, 0.7, 0.2, 0.0]]), 1, generator(0)).item() == place


# Learning.


REWARDS = [0.3, -1.0, 2.0, 0.0, -0.5, 1.1]


@pytest.mark.parametrize("baseline", [0.0, 5.0])
@pytest.mark.parametrize("side", [Side.HEAD, Side.TAIL])
def test_reinforce_is_on_average_the_gradient_of_the_expected_reward(side, baseline, monkeypatch):
    """Σ p_i · (gradient when i is drawn) over all candidates i is −∇ Σ p_i r_i, whatever the baseline."""
    made = kbgan(scale=0.8)
    all_entities(made, monkeypatch)
    triple = (0, 0, 1)
    tables = list(made.generator.parameters())
    probabilities = shares(made, triple, side)
    total = [torch.zeros_like(table) for table in tables]
    draws = (made.draw(asked([triple], side), 1, generator(seed)) for seed in range(500))
    firsts = {negatives.candidates.item(): negatives for negatives in draws}
    assert sorted(firsts) == list(range(E))
    for candidate, negatives in firsts.items():
        made.rewards = torch.tensor([2 * baseline, 2.0])
        loss = made.loss(negatives, torch.tensor([[REWARDS[candidate]]], requires_grad=True))
        for sum_, gradient in zip(total, torch.autograd.grad(loss, tables), strict=True):
            sum_ += probabilities[candidate] * gradient

    # Σ p_i r_i as a function of the generator's numbers, and its slopes by finite differences.
    width = tables[0].shape[1]

    def expected(point: list[float]) -> float:
        rows = [point[i : i + width] for i in range(0, len(point), width)]
        entity, relation = rows[:E], rows[E:]
        scores = []
        for e in range(E):
            head, r, tail = oracle.replaced(triple, side, e)
            scores.append(oracle.distmult(entity[head], relation[r], entity[tail]))
        return sum(p * r for p, r in zip(oracle.softmax(scores), REWARDS, strict=True))

    point = [x for table in tables for x in table.flatten().tolist()]
    slopes = oracle.gradient(expected, point)
    got = [-x for sum_ in total for x in sum_.flatten().tolist()]
    assert got == pytest.approx(slopes, rel=1e-4, abs=1e-5)
    assert max(map(abs, slopes)) > 0.1


def test_several_draws_of_a_query_are_averaged_and_masked_ones_left_out():
    made = kbgan()
    made.rewards = torch.tensor([1.0, 2.0])  # baseline 1/2
    log_probability = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    known = torch.tensor([[False, True], [False, False]])
    scores = torch.tensor([[1.5, 100.0], [-0.5, 0.5]])
    loss = made.loss(Negatives(torch.zeros(2, 2), known, log_probability=log_probability), scores)
    assert loss.item() == 0  # the loss on record is the model's
    loss.backward()
    torch.testing.assert_close(log_probability.grad, -torch.tensor([[1.0, 0.0], [-1.0, 0.0]]) / 3)


# After 4 = 1 + 3, then 21 = 6 + 7 + 8, then −3: sums over numbers, earlier ones times decay and decay².
@pytest.mark.parametrize(
    ("decay", "expected"),
    [(0.0, [4 / 2, 21 / 3, -3 / 3]), (1.0, [4 / 2, 25 / 5, 22 / 8]), (0.5, [4 / 2, 23 / 4, 8.5 / 5])],
)
def test_the_baseline_is_a_running_mean_of_rewards(decay, expected):
    made = kbgan(decay=decay)
    assert made.baseline.item() == 0
    seen = []
    for rewards in ([1.0, 3.0], [6.0, 7.0, 8.0], [-1.0, -1.0, -1.0]):
        drawn = Negatives(torch.zeros(len(rewards), 1), log_probability=torch.zeros(len(rewards), 1))
        made.loss(drawn, torch.tensor(rewards).unsqueeze(1))
        seen.append(made.baseline.item())
    assert seen == pytest.approx(expected)


def test_the_reward_is_the_score_without_the_margin():
    """−distance, as in the paper."""
    model = TransE(E, 2, 4, margin=9.0)
    objective = NegativeSampling(NegativeSampler(2, Both(), KBGAN(small)), Margin())
    objective.setup(GRAPH, torch.device("cpu"))
    objective.loss(model, torch.arange(5), 0, generator(4))
    drawn = NegativeSampler(2, Both(), objective.sampler.proposal).draw(objective.triples, 0, generator(4))
    scores = [model.score(queries, negatives.candidates) for queries, _, negatives in drawn]
    decay = objective.sampler.proposal.decay
    mean = (decay * scores[0].sum() + scores[1].sum()) / (decay * 10 + 10)
    assert objective.sampler.proposal.baseline.item() == pytest.approx(mean.item(), rel=1e-5)


@pytest.mark.parametrize("sides", [Both(), Alternate(), Bernoulli()], ids=lambda sides: type(sides).__name__)
def test_model_and_generator_learn_from_their_own_losses(sides):
    """The generator's gradient does not reach the model, nor the model's the generator."""
    torch.manual_seed(0)
    model = TransE(E, 2, 4)
    objective = NegativeSampling(NegativeSampler(2, sides, KBGAN(small)), Margin())
    objective.setup(GRAPH, torch.device("cpu"))
    proposal = objective.sampler.proposal
    assert [name for name, _ in objective.named_parameters()] == [
        "sampler.proposal.generator.entity.weight",
        "sampler.proposal.generator.relation.weight",
    ]
    loss = objective.loss(model, torch.arange(5), 0, generator(4))
    of_model = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    of_generator = torch.autograd.grad(loss, list(objective.parameters()))
    assert all(gradient.any() for gradient in (*of_model, *of_generator))
    # Without rewards there is no gradient for the generator, and the model's stays what it was.
    proposal.loss = lambda negatives, scores: None
    alone = objective.loss(model, torch.arange(5), 0, generator(4))
    assert alone.item() == loss.item()
    for a, b in zip(of_model, torch.autograd.grad(alone, list(model.parameters())), strict=True):
        assert torch.equal(a, b)


def test_the_generator_finds_what_the_model_scores_high(monkeypatch):
    """With rewards that are the same in every step, it ends up drawing the best candidate."""
    made = kbgan(scale=0.1)
    all_entities(made, monkeypatch)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    question = asked([(0, 0, 1)] * 64, Side.TAIL)
    rewards = torch.tensor(REWARDS)
    for step in range(150):
        negatives = made.draw(question, 1, generator(step))
        optimizer.zero_grad()
        made.loss(negatives, rewards[negatives.candidates]).backward()
        optimizer.step()
    drawn = made.draw(question, 1, generator(0)).candidates
    assert (drawn == 2).float().mean() > 0.9


# Mistakes.


@pytest.mark.parametrize(
    ("options", "key"), [({"pool_size": 0}, "pool_size=0"), ({"decay": 1.5}, r"decay=1\.5"), ({"share": 0}, "share=0")]
)
def test_settings_that_make_no_sense_are_refused_by_name(options, key):
    with pytest.raises(UserError, match=rf"sampler\.proposal\.{key}"):
        KBGAN(small, **options)


@pytest.mark.parametrize(("kind", "options"), [(ComplEx, {"dim": 7}), (DistMult, {"dim": 4, "width": 7})])
def test_a_generator_that_cannot_be_made_is_named(kind, options):
    with pytest.raises(UserError, match=rf"sampler\.proposal\.generator[.:].*{list(options)[-1]}"):
        ready(KBGAN(partial(kind, **options)), GRAPH)
