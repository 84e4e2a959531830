"""Where candidates come from: the right probabilities, of the first and the last entity too."""

from __future__ import annotations

import math

import oracle
import polars as pl
import pytest
import torch
from draws import LIKELY, asked, generator, graph_of, likelihood, ready

from kgc.data.annotations import Annotations
from kgc.errors import UserError
from kgc.losses.pairwise import SampledCrossEntropy
from kgc.models.distmult import DistMult
from kgc.objectives import NegativeSampling
from kgc.sampling.proposals import Asked, Degree, InBatch, Proposal, SameType, Typed, Unconditional, Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Alternate, Bernoulli, Both, Sides
from kgc.types import Negatives, Side, Triples

# Degrees, as head or tail: 0 to 5 have 4, 1, 3, 1, 0, 1; 9 has 2; the others 0. Relation 1 has one tail.
TRAIN = [(0, 0, 1), (0, 0, 2), (2, 0, 0), (3, 1, 9), (5, 1, 9), (0, 0, 2)]
DEGREES = [4, 1, 3, 1, 0, 1, 0, 0, 0, 2]
E = 10
GRAPH = graph_of(TRAIN, E)
SHARES = {"own": 1, "pools": 3, "batch": None}
every_share = pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)


def test_the_chi_square_test_knows_its_table():
    # Printed critical values: 3.841 and 16.919 at p = 0.05 for 1 and 9 degrees of freedom.
    half = torch.tensor([0] * 500 + [1] * 500)
    assert likelihood(half, [0.5, 0.5]) == 1
    shifted = torch.tensor([0] * 531 + [1] * 469)  # (62/2)² / 250 = 3.844
    assert likelihood(shifted, [0.5, 0.5]) == pytest.approx(0.05, rel=0.01)
    counts = [100 + x for x in (20, -20, 15, -15, 10, -10, 5, -5, 8, -8)]  # Σ x² / 100 = 16.28
    ten = torch.arange(10).repeat_interleave(torch.tensor(counts))
    assert 0.05 < likelihood(ten, [0.1] * 10) < 0.075
    assert likelihood(half, [1.0, 0.0]) == 0


@every_share
@pytest.mark.parametrize("entities", [2, 10])
def test_uniform_candidates(entities, share, device):
    proposal = ready(Uniform(share), graph_of([], entities), device)
    drawn = proposal.draw(asked(TRAIN, Side.TAIL, device), 5000, generator(3, device)).candidates
    assert drawn.device.type == device.type
    assert likelihood(drawn, [1 / entities] * entities) > LIKELY


@every_share
@pytest.mark.parametrize("floor", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("power", [0.75, 1.0, 0.0, -0.5])
def test_candidates_by_degree(power, floor, share, device):
    proposal = ready(Degree(power, floor, share), GRAPH, device)
    drawn = proposal.draw(asked(TRAIN, Side.HEAD, device), 20000, generator(5, device)).candidates
    weights = [max(degree, floor) ** power if max(degree, floor) else 0.0 for degree in DEGREES]
    assert likelihood(drawn, [weight / sum(weights) for weight in weights]) > LIKELY


@pytest.mark.parametrize(("point", "degree", "typed"), [(0.0, (1, 0), 1), (1 - 2.0**-53, (2, 3), 3)])
def test_the_ends_of_a_table_are_exact(point, degree, typed, monkeypatch):
    """The smallest and the largest number that a generator gives. Degrees: 0, 1, 1, 0 of four entities."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, point, dtype=torch.float64))
    for floor, expected in zip((0.0, 1.0), degree, strict=True):
        for power in (1.0, 0.75, 0.1):
            proposal = ready(Degree(power, floor), graph_of([(1, 0, 2)], 4))
            assert proposal.entities((1,), generator(0)).item() == expected
    proposal = ready(Typed(), graph_of([(1, 0, 0), (2, 0, 0), (3, 0, 1)], 4))
    assert proposal.draw(asked([(1, 0, 0)], Side.HEAD), 1, generator(0)).candidates.item() == typed


def test_each_query_has_candidates_of_its_own_that_are_independent():
    drawn = ready(Uniform(), graph_of([], 10)).draw(asked([(0, 0, 0)] * 5000, Side.TAIL), 2, generator(4)).candidates
    assert drawn.shape == (5000, 2)
    equal = drawn[:, 0] == drawn[:, 1]  # with replacement: one in ten
    neighbours = drawn[:-1, 0] == drawn[1:, 0]
    for same in (equal, neighbours):
        assert likelihood(same.long(), [0.9, 0.1]) > LIKELY


@pytest.mark.parametrize("kind", [Uniform, Degree])
@pytest.mark.parametrize(
    ("share", "queries", "shape"),
    [(None, 7, (4,)), (1, 7, (7, 4)), (3, 7, (3, 4)), (7, 7, (1, 4)), (50, 7, (1, 4)), (2, 8, (4, 4)), (1, 1, (1, 4))],
)
def test_shapes_of_pools(kind, share, queries, shape):
    proposal = ready(kind(share=share), GRAPH)
    assert proposal.draw(asked([(0, 0, 1)] * queries, Side.TAIL), 4, generator(0)).candidates.shape == shape


PROPOSALS = {
    "uniform": lambda: Uniform(),
    "shared": lambda: Uniform(None),
    "degree": lambda: Degree(),
    "in batch": lambda: InBatch(),
    "typed": lambda: Typed(),
    "same type": lambda: SameType(),
}
# Entity 0 has both types, 1 and 2 the first, 3 the second, 4 one that it alone has; the others have none.
KINDS = pl.DataFrame({"entity": [0, 0, 1, 2, 3, 4], "type": ["a", "b", "a", "a", "b", "c"]})


@pytest.mark.parametrize("make", PROPOSALS.values(), ids=PROPOSALS)
def test_draws_are_decided_by_the_generator(make):
    train = [(i % 50, 0, (7 * i) % 50) for i in range(200)]
    proposal = ready(make(), graph_of(train, 50).annotated(Annotations(types=KINDS)))
    first, again, other = (proposal.draw(asked(train, Side.TAIL), 30, generator(s)).candidates for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# All kinds of sides.


class Mixed(Sides):
    """Head, tail, head, tail, …"""

    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list:
        return [torch.arange(len(triples), device=triples.head.device) % 2]


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("sides", [Both(), Alternate(), Bernoulli(), Mixed()], ids=lambda sides: type(sides).__name__)
@pytest.mark.parametrize("make", PROPOSALS.values(), ids=PROPOSALS)
def test_every_proposal_serves_all_sides_and_masks_train_only(make, sides, mask, device):
    graph = graph_of(TRAIN, E, test=[(0, 0, 3), (4, 1, 9)]).annotated(Annotations(types=KINDS))
    sampler = NegativeSampler(5, sides, make(), mask_known=mask)
    sampler.setup(graph, device)
    asks = 0
    for step in (0, 1):
        for queries, target, negatives in sampler.draw(graph.train.to(device), step, generator(step, device)):
            candidates = negatives.candidates.expand(len(TRAIN), -1).tolist()
            side = torch.as_tensor(queries.side).expand(len(TRAIN)).tolist()
            for i, (triple, answer) in enumerate(zip(TRAIN, target.tolist(), strict=True)):
                assert answer == oracle.target(triple, side[i])
                masked = [mask and oracle.replaced(triple, side[i], c) in TRAIN for c in candidates[i]]
                if isinstance(sampler.proposal, InBatch):
                    masked = [m or c == answer for m, c in zip(masked, candidates[i], strict=True)]
                got = [False] * 5 if negatives.known is None else negatives.known[i].tolist()
                assert got == masked
            asks += 1
    assert asks == (4 if isinstance(sides, Both) else 2)


# In-batch.


@pytest.mark.parametrize("side", [Side.HEAD, Side.TAIL, torch.tensor([0, 1, 1, 0, 1, 0])])
def test_the_batch_is_the_pool_and_never_holds_a_querys_own_answer(side):
    question = asked(TRAIN, side)
    negatives = ready(InBatch(), GRAPH).draw(question, 100, generator(0))
    answers = [oracle.target(t, int(s)) for t, s in zip(TRAIN, torch.as_tensor(side).expand(6).tolist(), strict=True)]
    assert negatives.candidates.tolist() == answers
    # Its own column, and that of others with the same answer.
    assert negatives.known.tolist() == [[a == b for b in answers] for a in answers]
    assert negatives.known.diagonal().all()


def test_some_of_the_batch_are_drawn_without_replacement():
    proposal = ready(InBatch(), GRAPH)
    question = asked([(0, 0, t) for t in range(6)], Side.TAIL)
    pools = [proposal.draw(question, 2, generator(seed)) for seed in range(3000)]
    assert all(len(set(pool.candidates.tolist())) == 2 for pool in pools)
    assert all(torch.equal(p.known, p.candidates == question.target.unsqueeze(1)) for p in pools)
    assert likelihood(torch.stack([pool.candidates for pool in pools]), [1 / 6] * 6) > LIKELY


def test_an_entity_is_proposed_as_often_as_it_answers():
    """P(e), which `log_q` holds, is the frequency in a pool of a random batch."""
    proposal = ready(InBatch(log_q=True), GRAPH)
    for side, shares in (
        (Side.HEAD, [3, 0, 1, 1, 0, 1, 0, 0, 0, 0]),
        (Side.TAIL, [1, 1, 2, 0, 0, 0, 0, 0, 0, 2]),
        (torch.tensor([0, 1] * 3), [4, 1, 3, 1, 0, 1, 0, 0, 0, 2]),
    ):
        log_q = proposal.draw(asked(TRAIN, side), 6, generator(0)).log_q
        assert log_q.exp().tolist() == pytest.approx([share / sum(shares) for share in shares])
    assert ready(InBatch(), GRAPH).draw(asked(TRAIN, Side.TAIL), 6, generator(0)).log_q is None


@pytest.mark.parametrize("log_q", [False, True])
@pytest.mark.parametrize("side", [Side.HEAD, Side.TAIL, "mixed"])
def test_a_batch_of_one_query_gets_the_answer_of_a_triple_of_train(side, log_q):
    """As often as that answer stands at the asked end; its own never counts."""
    proposal, draws = ready(InBatch(log_q), GRAPH), generator(0)
    asks_head = side == Side.HEAD
    question = asked(TRAIN[:1], torch.tensor([1]) if side == "mixed" else side)
    drawn = [proposal.draw(question, 5, draws) for _ in range(3000)]
    assert all(negatives.candidates.shape == (1,) for negatives in drawn)
    answers = [triple[0 if asks_head else 2] for triple in TRAIN]
    shares = [answers.count(e) / len(answers) for e in range(E)]
    assert likelihood(torch.cat([negatives.candidates for negatives in drawn]), shares) > LIKELY
    own = TRAIN[0][0 if asks_head else 2]
    for negatives in drawn[:50]:
        assert negatives.known.tolist() == [[int(negatives.candidates) == own]]


class TailsOnly(Both):
    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side]:
        return [Side.TAIL]


def in_batch_loss(model: DistMult, train: list[oracle.Triple], log_q: bool) -> torch.Tensor:
    """Mean cross-entropy in nats of a batch that is all of train, asked for tails."""
    objective = NegativeSampling(NegativeSampler(10**6, TailsOnly(), InBatch(log_q)), SampledCrossEntropy())
    number = objective.setup(graph_of(train, model.num_entities), torch.device("cpu"))
    return objective.loss(model, torch.arange(number), 0, generator(0))


def scores_of(model: DistMult, triple: oracle.Triple) -> list[float]:
    head, relation, _ = triple
    entity, table = model.entity.weight.tolist(), model.relation.weight.tolist()
    return [oracle.distmult(entity[head], table[relation], vector) for vector in entity]


def test_with_log_q_the_whole_of_train_as_a_batch_is_a_softmax_over_its_answers():
    """An answer e stands in the pool count(e) times with weight exp(s) / P(e): once for each entity, as in 1-vs-all."""
    torch.manual_seed(0)
    model = DistMult(6, 2, 4).double()
    train = [(0, 0, 1), (2, 1, 0), (1, 1, 5), (5, 0, 3)]  # distinct answers; 2 and 4 answer nothing
    wanted = []
    for triple in train:
        scores = scores_of(model, triple)
        wanted.append(oracle.log_sum_exp([scores[e] for e in (0, 1, 3, 5)]) - scores[triple[2]])
    assert in_batch_loss(model, train, True).item() == pytest.approx(sum(wanted) / 4, rel=1e-6)


@pytest.mark.parametrize("log_q", [False, True])
def test_in_batch_cross_entropy_equals_the_loop(log_q):
    torch.manual_seed(0)
    model = DistMult(6, 2, 4).double()
    train = [(0, 0, 1), (0, 1, 1), (2, 0, 1), (3, 0, 5), (4, 1, 0), (0, 0, 5)]
    answers = [triple[2] for triple in train]
    wanted = []
    for triple in train:
        scores = scores_of(model, triple)
        correction = {e: math.log(answers.count(e) / 6) if log_q else 0.0 for e in answers}
        rivals = [scores[e] - correction[e] for e in answers if e != triple[2]]
        own = scores[triple[2]] - correction[triple[2]]
        wanted.append(oracle.log_sum_exp([own, *rivals]) - own)
    assert in_batch_loss(model, train, log_q).item() == pytest.approx(sum(wanted) / 6, rel=1e-6)


# Types.


TYPED = [(0, 0, 5), (1, 0, 6), (9, 0, 5), (2, 1, 9), (3, 1, 9), (9, 1, 9), (0, 0, 5)]


def types(relation: int, side: int) -> set[int]:
    return {oracle.target(triple, side) for triple in TYPED if triple[1] == relation}


@pytest.mark.parametrize("relation", [0, 1])
@pytest.mark.parametrize("side", [Side.HEAD, Side.TAIL])
def test_typed_candidates_are_those_of_the_relation_and_end(relation, side, device):
    proposal = ready(Typed(), graph_of(TYPED, 10), device)
    drawn = proposal.draw(asked([(0, relation, 0)] * 4, side, device), 2000, generator(relation, device)).candidates
    members = types(relation, side)
    if len(members) == 1:  # the tails of relation 1: any entity instead
        members = set(range(10))
    assert likelihood(drawn, [(e in members) / len(members) for e in range(10)]) > LIKELY


def test_each_query_of_mixed_sides_and_relations_has_its_own_type():
    side = torch.tensor([0, 1, 0, 0])
    drawn = ready(Typed(), graph_of(TYPED, 10)).draw(
        asked([(0, 0, 5), (0, 0, 5), (2, 1, 9), (0, 1, 1)], side), 500, generator(0)
    )
    for row, relation, end in zip(drawn.candidates.tolist(), [0, 0, 1, 1], side.tolist(), strict=True):
        assert set(row) == types(relation, end)


def test_a_relation_that_train_does_not_have_is_given_all_entities():
    drawn = ready(Typed(), graph_of(TYPED, 10, relations=3)).draw(asked([(0, 2, 1)], Side.TAIL), 300, generator(0))
    assert set(drawn.candidates.flatten().tolist()) == set(range(10))


# Mistakes.


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Uniform(share=0), "share=0"),
        (lambda: Degree(share=-1), "share=-1"),
        (lambda: Degree(floor=-1.0), "floor=-1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(make, key):
    with pytest.raises(UserError, match=rf"sampler\.proposal\.{key}"):
        make()


def test_unfinished_proposals_say_so():
    question = asked([(0, 0, 1)], Side.TAIL)
    for call in (
        lambda: ready(Proposal(), GRAPH),
        lambda: Proposal().draw(question, 1, generator(0)),
        lambda: Unconditional().draw(question, 1, generator(0)),
    ):
        with pytest.raises(NotImplementedError):
            call()
    assert Proposal().loss(Negatives(torch.tensor([0])), torch.zeros(1, 1)) is None
    assert Asked(question.queries, question.target).contains(torch.tensor([0])) is None


@pytest.mark.parametrize(
    ("answer", "weights"),
    [
        (1, [1 / 3, 1 / 3, 1 / 3]),
        (3, [1 / 2, 0, 0, 1 / 2]),
        (0, [1 / 6 + 1 / 4, 1 / 6, 1 / 6, 1 / 4]),  # either type by half
        (4, [1 / 10] * 10),
        (7, [1 / 10] * 10),
    ],
)
def test_candidates_have_a_type_of_the_answer(answer, weights, device):
    typed = graph_of(TRAIN, E).annotated(Annotations(types=KINDS))
    triples = [(5, 0, 8), (5, 0, answer)]
    drawn = ready(SameType(), typed, device).draw(asked(triples, Side.TAIL, device), 20000, generator(1, device))
    assert likelihood(drawn.candidates[1], weights + [0.0] * (E - len(weights))) > LIKELY
