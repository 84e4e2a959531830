"""NSCaching: what is drawn from the cache, and what a refresh keeps."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import oracle
import pytest
import torch
from draws import LIKELY, asked, generator, graph_of, likelihood, ready

from kgc.errors import UserError
from kgc.losses.pairwise import Margin
from kgc.models.distmult import DistMult
from kgc.models.rotate import RotatE
from kgc.objectives import NegativeSampling
from kgc.sampling.cache import Cache
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Alternate, Bernoulli, Both
from kgc.types import Queries, Side

E = 5
TRAIN = [(0, 0, 1), (0, 0, 2), (3, 1, 1), (4, 1, 4), (0, 0, 1)]
# (?, 0, 1) (?, 0, 2) (?, 1, 1) (?, 1, 4) (0, 0, ?) (3, 1, ?) (4, 1, ?)
DISTINCT = 7
GRAPH = graph_of(TRAIN, E)
LOGITS = [0.0, 1.5, -0.5, 0.7, 1.0]


class Fixed:
    """A model whose scores depend on the candidate alone."""

    num_entities = E

    def __init__(self, device: torch.device | str = "cpu"):
        self.logits = torch.tensor(LOGITS, device=device)

    def score(self, queries: Queries, candidates: torch.Tensor) -> torch.Tensor:
        return self.logits[candidates]


def cache(device: torch.device | str = "cpu", graph=GRAPH, **options) -> Cache:
    return ready(Cache(**({"cache_size": 2, "random_size": 1} | options)), graph, device)


def many(number: int, device: torch.device | str = "cpu", **options):
    """The same tail query, (0, 0, ?), many times."""
    return asked([(0, 0, 1)] * number, Side.TAIL, device, model=Fixed(device), **options)


def test_every_distinct_query_of_train_has_a_row_of_entities(device):
    made = cache(device, cache_size=3)
    assert made.table.shape == (DISTINCT, 3)
    assert made.table.dtype == torch.int32
    questions = [asked(TRAIN, side, device).queries for side in Side]
    rows = {row for queries in questions for row in made.index.rows(queries).tolist()}
    assert rows == set(range(DISTINCT))
    torch.manual_seed(0)
    first = cache(cache_size=20000).table
    assert likelihood(first[0].long(), [1 / E] * E) > LIKELY


def test_negatives_are_drawn_uniformly_from_the_querys_cache(device):
    made = cache(device, cache_size=4)
    question = many(3000, device)
    row = made.index.rows(question.queries)[0]
    made.table[row] = torch.tensor([4, 0, 0, 2], dtype=torch.int32, device=device)
    drawn = made.draw(question, 3, generator(0, device)).candidates
    assert drawn.shape == (3000, 3)
    assert likelihood(drawn, [0.5, 0, 0.25, 0, 0.25]) > LIKELY


def kept(weights: dict[int, float], number: int) -> Counter:
    """Probability of each set of `number` entities drawn one after the other, each ∝ its weight among those left."""
    chances: Counter = Counter()
    for order in permutations(weights, number):
        chance, left = 1.0, sum(weights.values())
        for entity in order:
            chance *= weights[entity] / left
            left -= weights[entity]
        chances[frozenset(order)] += chance
    return chances


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("cached", "random"), [([0, 3], 1), ([1, 4], 2), ([0, 0], 3)])
def test_a_refresh_draws_without_replacement_by_the_softmax_of_scores(cached, random, masked, device):
    """Against the exact probability of every set, over all random entities that may join the cached ones. In the third
    case the cache holds an entity twice, which counts once; where a single entity is left, it fills the cache."""
    known = {1, 2} if masked else set()
    chances: Counter = Counter()
    for fresh in range(E**random):
        union = set(cached) | {fresh // E**i % E for i in range(random)}
        weights = {e: torch.tensor(LOGITS[e]).exp().item() for e in union - known}
        for group, chance in kept(weights, min(2, len(weights))).items():
            chances[group] += chance / E**random
    assert sum(chances.values()) == pytest.approx(1)
    made, number = cache(device, random_size=random), 20000
    question = many(number, device, known=GRAPH if masked else None)  # tails 1 and 2 are known
    got = made.refreshed(question, torch.tensor(cached, device=device).expand(number, -1), generator(1, device))
    assert got.shape == (number, 2)
    groups = sorted(chances, key=sorted)
    places = torch.tensor([groups.index(frozenset(row)) for row in got.tolist()])
    assert likelihood(places, [chances[group] for group in groups]) > LIKELY


def test_refreshed_again_and_again_a_cache_holds_entities_by_the_softmax_of_their_scores():
    """One cached entity s and one random rival c, kept with e^f(s) / (e^f(s) + e^f(c)): Barker's chain, whose limit is
    the softmax. High scores are kept more often."""
    made = cache(cache_size=1)
    question, draws = many(5000), generator(2)
    cached = torch.zeros(5000, 1, dtype=torch.int64)
    for _ in range(60):
        cached = made.refreshed(question, cached, draws)
    assert likelihood(cached, oracle.softmax(LOGITS)) > LIKELY


def test_a_query_with_known_answers_only_keeps_some_entities_and_is_masked():
    train = [(0, 0, t) for t in range(E)]
    sampler = NegativeSampler(3, Alternate(), Cache(cache_size=2, random_size=2), mask_known=True)
    graph = graph_of(train, E)
    sampler.setup(graph, torch.device("cpu"))
    for epoch in range(3):
        ((_, _, negatives),) = sampler.draw(graph.train, 1, generator(epoch), Fixed(), epoch)
        assert negatives.known.all()
    assert int(sampler.proposal.table.min()) >= 0
    assert int(sampler.proposal.table.max()) < E


def test_a_batch_draws_from_the_old_cache_and_writes_the_new_one_to_its_own_rows():
    made = cache()
    question = asked(TRAIN[:3], Side.TAIL, model=Fixed())  # (0, 0, ?) twice, (3, 1, ?)
    rows = made.index.rows(question.queries)
    before = made.table.clone()
    negatives = made.draw(question, 40, generator(3))
    for row, drawn in zip(rows.tolist(), negatives.candidates.tolist(), strict=True):
        assert set(drawn) == set(before[row].tolist())
    changed = (made.table != before).any(1).nonzero().flatten().tolist()
    assert changed
    assert set(changed) <= set(rows.tolist())


def test_of_equal_queries_the_first_decides(device):
    made = cache(device)
    before = made.table.clone()
    row = torch.tensor([4, 2, 4, 0, 2, 4], device=device)
    entities = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 1], [0, 0], [3, 3]], device=device)
    made.store(row, entities)
    assert made.table[[4, 2, 0]].tolist() == [[0, 1], [2, 3], [1, 1]]
    others = [1, 3, 5, 6]
    assert torch.equal(made.table[others], before[others])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_cache_is_refreshed_in_one_epoch_of_so_many(every):
    made = cache(every=every, cache_size=3, random_size=3)
    refreshed = []
    for epoch in range(7):
        before = made.table.clone()
        for seed in range(5):
            question = asked(TRAIN, Side.HEAD, model=Fixed(), epoch=epoch)
            made.draw(question, 1, generator(100 * epoch + seed))
        refreshed.append(not torch.equal(made.table, before))
    assert refreshed == [epoch % every == 0 for epoch in range(7)]


@pytest.mark.parametrize("sides", [Both(), Alternate(), Bernoulli()], ids=lambda sides: type(sides).__name__)
def test_training_fills_the_cache_with_hard_negatives(sides, device):
    """Rows hold entities that the model scores above the mean of all, and no known answer where others are left."""
    entities = 30
    train = [(i % 10, 0, (3 * i) % entities) for i in range(60)]
    graph = graph_of(train, entities)
    torch.manual_seed(0)
    model = RotatE(entities, 2, 8, margin=3.0).to(device)
    objective = NegativeSampling(
        NegativeSampler(2, sides, Cache(cache_size=4, random_size=8), mask_known=True, temperature=1.0), Margin()
    )
    index = torch.arange(objective.setup(graph, device), device=device)
    made = objective.sampler.proposal
    for step in range(8):
        loss = objective.loss(model, index, step, generator(step, device))
    loss.backward()
    assert all(table.grad.isfinite().all() for table in model.parameters())
    scores, means = [], []
    for side in Side:
        question = asked(sorted(set(train)), side, device, known=graph)
        cached = made.table[made.index.rows(question.queries)].long()
        assert not question.contains(cached).any()
        with torch.no_grad():
            everything = model.score(question.queries)
        scores.append(everything.gather(1, cached).mean().item())
        means.append(everything.mean().item())
    assert sum(scores) > sum(means)


def test_the_cache_is_part_of_the_state(device):
    def objective() -> NegativeSampling:
        made = NegativeSampling(NegativeSampler(1, Both(), Cache(cache_size=4)), Margin())
        made.setup(GRAPH, device)
        return made

    first, second = objective(), objective()
    second.sampler.proposal.table.fill_(0)
    second.load_state_dict({name: value.cpu() for name, value in first.state_dict().items()})
    assert torch.equal(first.sampler.proposal.table, second.sampler.proposal.table)
    assert second.sampler.proposal.table.device.type == device.type
    # It is no parameter, and no buffer that processes would send to each other before every step.
    assert not list(first.parameters())
    assert not list(first.buffers())


def test_scoring_the_cache_leaves_the_model_alone():
    torch.manual_seed(0)
    model = DistMult(E, 2, 4)
    made = cache(cache_size=3)
    drawn = made.draw(asked(TRAIN, Side.TAIL, model=model), 1, generator(0))
    assert drawn.log_probability is None
    assert all(table.grad is None for table in model.parameters())
    assert not made.table.requires_grad


@pytest.mark.parametrize("key", ["cache_size", "random_size", "every"])
def test_settings_that_make_no_sense_are_refused_by_name(key):
    with pytest.raises(UserError, match=rf"sampler\.proposal\.{key}=0"):
        Cache(**{key: 0})
