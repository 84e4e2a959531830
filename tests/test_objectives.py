"""Objectives against loops over single triples in Python floats: values, and gradients by finite differences."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

import oracle
import polars as pl
import pytest
import torch

from kgc.data.annotations import Annotations
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.losses.pairwise import Logistic, SampledCrossEntropy
from kgc.losses.regularizers import DURA, Lp
from kgc.models.base import KGEModel
from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.rotate import RotatE
from kgc.models.transe import TransE
from kgc.objectives import KVsAll, NegativeSampling, Objective, OneVsAll, subsampling_weights, weighted_mean
from kgc.sampling.cache import Cache
from kgc.sampling.kbgan import KBGAN
from kgc.sampling.proposals import Asked, Degree, InBatch, Proposal, SameType, Typed, Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Alternate, Bernoulli, Both
from kgc.types import Negatives, Side, Triples, rows_of_pools

CPU = torch.device("cpu")
E, R, DIM = 5, 2, 4
TRAIN = [(0, 0, 1), (0, 0, 1), (0, 0, 2), (3, 1, 1), (4, 1, 4)]  # one triple twice; in the order of training
VALID = [(0, 0, 3)]


def columns(triples) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).reshape(-1, 3).T.contiguous())


GRAPH = KnowledgeGraph(
    "tiny",
    Vocabulary([f"e{i}" for i in range(E)]),
    Vocabulary([f"r{i}" for i in range(R)]),
    columns(TRAIN),
    columns(VALID),
    Triples.empty(),
).annotated(Annotations(types=pl.DataFrame({"entity": [0, 1, 2, 2, 3], "type": ["a", "a", "a", "b", "b"]})))

MODELS = {
    "distmult": (lambda **o: DistMult(E, R, DIM, **o), oracle.distmult),
    "complex": (lambda **o: ComplEx(E, R, DIM, **o), oracle.complex_),
    "transe": (lambda **o: TransE(E, R, DIM, norm=1, margin=2.0, **o), oracle.transe_l1),
    "transe_l2": (lambda **o: TransE(E, R, DIM, norm=2, margin=2.0, **o), oracle.transe_l2),
    "rotate": (lambda **o: RotatE(E, R, DIM, margin=2.0, **o), oracle.rotate),
    "rotate_l2": (lambda **o: RotatE(E, R, DIM, norm=2, margin=2.0, **o), oracle.rotate_l2),
}
every_model = pytest.mark.parametrize("name", MODELS)
reciprocal_or_not = pytest.mark.parametrize("reciprocal", [False, True])


class Slow:
    """A model as lists of floats: `point` is the entity table followed by the relation table."""

    def __init__(self, name: str, reciprocal: bool):
        make, self.formula = MODELS[name]
        self.name, self.reciprocal = name, reciprocal
        self.model: KGEModel = make(reciprocal=reciprocal).double()
        generator = torch.Generator().manual_seed(21)
        with torch.no_grad():
            for table in self.model.parameters():
                table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64))
        self.width = self.model.relation.weight.shape[1]
        self.point = [x for table in self.model.parameters() for x in table.flatten().tolist()]

    def entity(self, point: list[float], i: int) -> list[float]:
        return point[i * DIM : (i + 1) * DIM]

    def relation(self, point: list[float], relation: int, side: int) -> list[float]:
        row = relation + (R if self.reciprocal and side == oracle.HEAD else 0)
        return point[E * DIM + row * self.width :][: self.width]

    def logit(self, point: list[float], anchor: int, relation: int, side: int, candidate: int) -> float:
        a, r, c = self.entity(point, anchor), self.relation(point, relation, side), self.entity(point, candidate)
        score = self.formula(c, r, a) if side == oracle.HEAD and not self.reciprocal else self.formula(a, r, c)
        return self.model.margin + score

    def penalty(self, point: list[float], anchor: int, relation: int, side: int, answer: int, p: int) -> float:
        """Σ |x|ᵖ over the three vectors: moduli of complex numbers, phases as they are."""
        total = 0.0
        for vector, phases in (
            (self.entity(point, anchor), False),
            (self.relation(point, relation, side), self.name.startswith("rotate")),
            (self.entity(point, answer), False),
        ):
            is_complex = self.name in ("complex", "rotate", "rotate_l2") and not phases
            total += sum(abs(x) ** p for x in (oracle.halves(vector) if is_complex else vector))
        return total

    def dura(self, point: list[float], anchor: int, relation: int, side: int, answer: int) -> tuple[float, float]:
        """Squared norms of (the anchor and its query vector, the answer and the vector that asks back from it)."""
        a, r, c = self.entity(point, anchor), self.relation(point, relation, side), self.entity(point, answer)
        if self.name == "complex":
            a, r, c = oracle.halves(a), oracle.halves(r), oracle.halves(c)
        forward = side == oracle.TAIL or self.reciprocal
        turned = [x.conjugate() if isinstance(x, complex) else x for x in r]
        asks, back = (r, turned) if forward else (turned, r)
        query = [x * y for x, y in zip(a, asks, strict=True)]
        backwards = [x * y for x, y in zip(c, back, strict=True)]
        return sum(abs(x) ** 2 for x in a + query), sum(abs(x) ** 2 for x in c + backwards)

    def check(self, loss: torch.Tensor, slow: Callable[[list[float]], float]) -> None:
        """Value and gradient of the objective equal those of the loop. Losses are computed in fp32."""
        assert loss.item() == pytest.approx(slow(self.point), rel=2e-6)
        loss.backward()
        slopes = [g for table in self.model.parameters() for g in table.grad.flatten().tolist()]
        assert slopes == pytest.approx(oracle.gradient(slow, self.point), rel=1e-4, abs=1e-5)


def ends(triple: oracle.Triple, side: int) -> tuple[int, int, int]:
    """(anchor, relation, answer)."""
    head, relation, tail = triple
    return (tail, relation, head) if side == oracle.HEAD else (head, relation, tail)


# Negative sampling.

SAMPLERS = {
    "equal": (Both(), Uniform(), {}),
    "adversarial": (Both(), Uniform(), {"temperature": 1.5}),
    "masked": (Both(), Uniform(), {"mask_known": True, "temperature": 1.0}),
    "pool": (Both(), Uniform(share=None), {"mask_known": True}),
    "pools": (Both(), Uniform(share=2), {"mask_known": True, "temperature": 1.0}),
    "degree": (Bernoulli(), Degree(share=3), {"mask_known": True}),
    "typed": (Bernoulli(), Typed(), {"mask_known": True}),
    "same type": (Bernoulli(), SameType(), {"mask_known": True}),
    "in batch": (Both(), InBatch(), {}),
    "in batch, masked": (Bernoulli(), InBatch(), {"mask_known": True, "temperature": 1.0}),
    "bernoulli": (Bernoulli(), Uniform(), {}),
    "alternate": (Alternate(), Uniform(), {}),
    "kbgan": (Bernoulli(), KBGAN(partial(DistMult, dim=4), pool_size=6), {"mask_known": True}),
    "kbgan, pools": (Both(), KBGAN(partial(ComplEx, dim=6), pool_size=6, share=2), {"temperature": 1.0}),
    "cache": (Both(), Cache(cache_size=3, random_size=2), {"mask_known": True}),
    "cache, unmasked": (Bernoulli(), Cache(cache_size=2, random_size=4), {"temperature": 1.0}),
}


def negative_sampling(
    slow: Slow, sampler: NegativeSampler, batch: list[int], step: int = 0, subsampling: bool = False, p: int = 0
) -> tuple[torch.Tensor, Callable[[list[float]], float]]:
    """The loss of a batch, and the loop that should give it for the very same draws."""
    regularizer = Lp(0.1, p) if p else None
    objective = NegativeSampling(sampler, Logistic(), subsampling=subsampling, regularizer=regularizer)
    assert objective.setup(GRAPH, CPU) == len(TRAIN)
    index = torch.tensor(batch)
    before = copy.deepcopy(sampler.state_dict())  # a cache, and what KBGAN's generator was rewarded with, change
    drawn = list(sampler.draw(GRAPH.train[index], step, torch.Generator().manual_seed(4), slow.model))
    sampler.load_state_dict(before)
    loss = objective.loss(slow.model, index, step, torch.Generator().manual_seed(4))
    triples = [TRAIN[i] for i in batch]
    heads, tails = Counter(t[:2] for t in TRAIN), Counter(t[1:] for t in TRAIN)
    shares = [1 / math.sqrt(heads[t[:2]] + 3 + tails[t[1:]] + 3) if subsampling else 1.0 for t in triples]

    def loop(point: list[float]) -> float:
        total = 0.0
        for queries, _, negatives in drawn:
            sides = torch.as_tensor(queries.side).expand(len(batch)).tolist()
            for i, (triple, side) in enumerate(zip(triples, sides, strict=True)):
                anchor, relation, answer = ends(triple, side)
                candidates = rows_of_pools(negatives.candidates, len(batch))[i].tolist()
                known = [sampler.mask_known and oracle.replaced(triple, side, c) in TRAIN for c in candidates]
                if isinstance(sampler.proposal, InBatch):
                    known = [is_known or c == answer for c, is_known in zip(candidates, known, strict=True)]

                def logits(at: list[float], query=(anchor, relation, side), candidates=candidates) -> list[float]:
                    return [slow.logit(at, *query, c) for c in candidates]

                # Weights are constants: they come from where the model stands, not from where it is moved.
                weights = oracle.negative_weights(logits(slow.point), known, sampler.temperature)
                positive = slow.logit(point, anchor, relation, side, answer)
                total += shares[i] / sum(shares) * oracle.logistic(positive, logits(point), weights)
                if p:
                    total += 0.1 * slow.penalty(point, anchor, relation, side, answer, p) / len(batch)
        return total / len(drawn)

    return loss, loop


@every_model
@reciprocal_or_not
def test_negative_sampling_equals_the_loop_for_every_model(name, reciprocal):
    slow = Slow(name, reciprocal)
    sides, proposal, options = SAMPLERS["masked"]
    slow.check(*negative_sampling(slow, NegativeSampler(4, sides, proposal, **options), [0, 2, 3]))


@pytest.mark.parametrize("choice", SAMPLERS)
@pytest.mark.parametrize("step", [0, 1])
def test_negative_sampling_equals_the_loop_for_every_sampler(choice, step):
    slow = Slow("complex", False)
    sides, proposal, options = SAMPLERS[choice]
    sampler = NegativeSampler(4, sides, proposal, **options)
    slow.check(*negative_sampling(slow, sampler, [0, 1, 2, 3, 4], step))


@every_model
@pytest.mark.parametrize("p", [2, 3])
def test_negative_sampling_with_penalty_and_subsampling_equals_the_loop(name, p):
    slow = Slow(name, True)
    sampler = NegativeSampler(3, Both(), Uniform())
    slow.check(*negative_sampling(slow, sampler, [0, 1, 2, 3], subsampling=True, p=p))


class Only(Proposal):
    """Always the same candidates."""

    def __init__(self, candidates: list[int]):
        super().__init__()
        self.candidates = torch.tensor(candidates)

    def setup(self, graph: KnowledgeGraph, device: torch.device) -> None:
        pass

    def draw(self, asked: Asked, number: int, generator: torch.Generator) -> Negatives:
        return Negatives(self.candidates.expand(len(asked.queries), -1))


class TailsOnly(Both):
    def draw(self, triples: Triples, step: int, generator: torch.Generator) -> list[Side]:
        return [Side.TAIL]


@pytest.mark.parametrize("loss", [Logistic(), SampledCrossEntropy()])
@pytest.mark.parametrize(("mask", "moved"), [(True, []), (False, [2])])
def test_masked_negatives_have_no_gradient(loss, mask, moved):
    # (0, 0, 1) with tails 2 (a fact of train) and 3 (of valid: a negative like any other, seen from train).
    slow = Slow("distmult", False)
    sampler = NegativeSampler(2, TailsOnly(), Only([2, 3]), mask_known=mask)
    objective = NegativeSampling(sampler, loss)
    objective.setup(GRAPH, CPU)
    objective.loss(slow.model, torch.tensor([0]), 0, torch.Generator()).backward()
    touched = slow.model.entity.weight.grad.abs().sum(1).nonzero().squeeze(1).tolist()
    assert touched == sorted([0, 1, 3, *moved])


def test_a_positive_all_of_whose_negatives_are_known_still_learns_without_nan():
    slow = Slow("transe", False)
    sampler = NegativeSampler(2, TailsOnly(), Only([1, 2]), mask_known=True, temperature=1.0)
    objective = NegativeSampling(sampler, Logistic())
    objective.setup(GRAPH, CPU)
    loss = objective.loss(slow.model, torch.tensor([0]), 0, torch.Generator())
    assert loss.item() == pytest.approx(oracle.softplus(-slow.logit(slow.point, 0, 0, oracle.TAIL, 1)) / 2, rel=1e-6)
    loss.backward()
    assert slow.model.entity.weight.grad.isfinite().all()


# Subsampling.


def test_subsampling_weights_by_hand():
    # (0, 0, ?) occurs 3 times, (?, 0, 1) 2, (?, 0, 2) once, the others once; every count starts at 3.
    expected = [1 / math.sqrt(n) for n in (6 + 5, 6 + 5, 6 + 4, 4 + 4, 4 + 4)]
    assert subsampling_weights(GRAPH.train, E).tolist() == pytest.approx(expected)


def test_a_weighted_mean_is_normalised_over_the_batch():
    losses, weights = torch.tensor([1.0, 4.0]), torch.tensor([0.2, 0.1])
    assert weighted_mean(losses, weights).item() == pytest.approx((1 * 2 + 4 * 1) / 3)
    assert weighted_mean(losses, None).item() == pytest.approx(2.5)


# 1-vs-all.


@every_model
@reciprocal_or_not
@pytest.mark.parametrize(("smoothing", "p"), [(0.0, 0), (0.2, 3)])
def test_one_vs_all_equals_the_loop(name, reciprocal, smoothing, p):
    slow = Slow(name, reciprocal)
    objective = OneVsAll(smoothing, Lp(0.1, p) if p else None)
    assert objective.setup(GRAPH, CPU) == len(TRAIN)
    batch = [0, 3, 1]

    def loop(point: list[float]) -> float:
        total = 0.0
        for side in (oracle.HEAD, oracle.TAIL):
            for i in batch:
                anchor, relation, answer = ends(TRAIN[i], side)
                row = [slow.logit(point, anchor, relation, side, c) for c in range(E)]
                normaliser = oracle.log_sum_exp(row)
                total += (1 - smoothing) * (normaliser - row[answer]) / (2 * len(batch))
                total += smoothing * sum(normaliser - x for x in row) / E / (2 * len(batch))
                if p:
                    total += 0.1 * slow.penalty(point, anchor, relation, side, answer, p) / (2 * len(batch))
        return total

    slow.check(objective.loss(slow.model, torch.tensor(batch), 0, torch.Generator()), loop)


# DURA, whose vectors are those of both directions.

bilinear = pytest.mark.parametrize("name", ["distmult", "complex"])


def dura_part(objective: Objective, slow: Slow, index: list[int]) -> torch.Tensor:
    """What the regularizer adds to the loss of a batch."""
    objective.setup(GRAPH, CPU)
    losses = []
    for weight in (0.1, 0.0):
        objective.regularizer = DURA(weight)
        losses.append(objective.loss(slow.model, torch.tensor(index), 0, torch.Generator().manual_seed(1)))
    return losses[0] - losses[1]


@bilinear
@reciprocal_or_not
@pytest.mark.parametrize("kind", ["negative sampling", "bernoulli", "1-vs-all"])
def test_dura_equals_the_loop(name, reciprocal, kind):
    slow = Slow(name, reciprocal)
    batch = [0, 2, 3, 4]
    sides = [[oracle.HEAD] * 4, [oracle.TAIL] * 4]
    if kind == "1-vs-all":
        objective: Objective = OneVsAll()
    else:
        sampler = NegativeSampler(2, Bernoulli() if kind == "bernoulli" else Both(), Uniform())
        objective = NegativeSampling(sampler, Logistic())
    got = dura_part(objective, slow, batch)
    if kind == "bernoulli":  # every triple is asked from one end
        ((queries, _, _),) = sampler.draw(GRAPH.train[torch.tensor(batch)], 0, torch.Generator().manual_seed(1))
        sides = [queries.side.tolist()]
        assert len(set(sides[0])) == 2

    def loop(point: list[float]) -> float:
        total = 0.0
        for part in sides:
            for i, side in zip(batch, part, strict=True):
                anchor, relation, answer = ends(TRAIN[i], side)
                total += sum(slow.dura(point, anchor, relation, side, answer))
        return 0.1 * total / len(batch) / len(sides)

    slow.check(got, loop)


@bilinear
@reciprocal_or_not
def test_dura_of_several_answers_equals_the_loop(name, reciprocal):
    """The anchor and the query vector once, each answer and the vector that asks back from it."""
    slow = Slow(name, reciprocal)
    objective = KVsAll(0.0)
    got = dura_part(objective, slow, [0, 2, 4, 6])
    asked = objective.queries[torch.tensor([0, 2, 4, 6])]
    keys = list(zip(asked.side.tolist(), asked.relation.tolist(), asked.anchor.tolist(), strict=True))

    def loop(point: list[float]) -> float:
        total = 0.0
        for side, relation, anchor in keys:
            answers = {c for c in range(E) if any(ends(t, side) == (anchor, relation, c) for t in TRAIN)}
            parts = [slow.dura(point, anchor, relation, side, c) for c in answers]
            total += parts[0][0] + sum(back for _, back in parts)
        return 0.1 * total / len(keys)

    slow.check(got, loop)


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_dura_is_refused_by_models_of_distance(name):
    objective = OneVsAll(regularizer=DURA(0.1))
    objective.setup(GRAPH, CPU)
    with pytest.raises(UserError, match=r"regularizer=dura.*(TransE|RotatE)"):
        objective.loss(Slow(name, False).model, torch.tensor([0]), 0, torch.Generator())


# Relation prediction, beside 1-vs-all.


@every_model
@reciprocal_or_not
def test_one_vs_all_with_relation_prediction_equals_the_loop(name, reciprocal):
    slow = Slow(name, reciprocal)
    batch = [0, 3, 1]
    losses = []
    for weight in (0.5, 0.0):
        objective = OneVsAll(relation_weight=weight)
        objective.setup(GRAPH, CPU)
        losses.append(objective.loss(slow.model, torch.tensor(batch), 0, torch.Generator()))
    sides = (oracle.HEAD, oracle.TAIL) if reciprocal else (oracle.TAIL,)

    def loop(point: list[float]) -> float:
        total = 0.0
        for side in sides:
            for i in batch:
                anchor, relation, answer = ends(TRAIN[i], side)
                row = [slow.logit(point, anchor, r, side, answer) for r in range(R)]
                total += oracle.log_sum_exp(row) - row[relation]
        return 0.5 * total / len(batch) / len(sides)

    slow.check(losses[0] - losses[1], loop)


# K-vs-all.


def distinct_queries() -> list[tuple[int, int, int]]:
    """(side, relation, anchor) of train, in the order that numbers the examples."""
    return sorted({(side, r, a) for side in (0, 1) for a, r, _ in (ends(triple, side) for triple in TRAIN)})


def test_the_examples_of_k_vs_all_are_the_distinct_queries_of_train():
    objective = KVsAll()
    # heads: (?, 0, 1) (?, 0, 2) (?, 1, 1) (?, 1, 4); tails: (0, 0, ?) (3, 1, ?) (4, 1, ?)
    assert objective.setup(GRAPH, CPU) == 7
    asked = objective.queries
    got = sorted(zip(asked.side.tolist(), asked.relation.tolist(), asked.anchor.tolist(), strict=True))
    assert got == distinct_queries()


@every_model
@reciprocal_or_not
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_k_vs_all_equals_the_loop(name, reciprocal, smoothing):
    slow = Slow(name, reciprocal)
    objective = KVsAll(smoothing, Lp(0.1, 3))
    objective.setup(GRAPH, CPU)
    batch = [0, 2, 4, 6]
    asked = objective.queries[torch.tensor(batch)]
    keys = list(zip(asked.side.tolist(), asked.relation.tolist(), asked.anchor.tolist(), strict=True))

    def loop(point: list[float]) -> float:
        total = penalty = 0.0
        for side, relation, anchor in keys:
            answers = {c for c in range(E) if any(ends(t, side) == (anchor, relation, c) for t in TRAIN)}
            assert answers
            for candidate in range(E):
                label = float(candidate in answers)
                if smoothing:
                    label = (1 - smoothing) * label + 1 / E
                logit = slow.logit(point, anchor, relation, side, candidate)
                total += label * oracle.softplus(-logit) + (1 - label) * oracle.softplus(logit)
            # The query's two vectors once, every answer's vector once.
            first, *others = sorted(answers)
            penalty += slow.penalty(point, anchor, relation, side, first, 3)
            for answer in others:
                vector = slow.entity(point, answer)
                is_complex = slow.name in ("complex", "rotate", "rotate_l2")
                penalty += sum(abs(x) ** 3 for x in (oracle.halves(vector) if is_complex else vector))
        return total / E / len(batch) + 0.1 * penalty / len(batch)

    slow.check(objective.loss(slow.model, torch.tensor(batch), 0, torch.Generator()), loop)


# All of them.

OBJECTIVES = {
    "negative sampling": lambda: NegativeSampling(NegativeSampler(3, Both(), Uniform()), Logistic()),
    "1-vs-all": lambda: OneVsAll(),
    "k-vs-all": lambda: KVsAll(),
}


@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
@every_model
def test_a_step_against_the_gradient_lowers_the_loss(make, name, device):
    model = Slow(name, False).model.to(device)
    objective = make()
    number = objective.setup(GRAPH, device)
    index = torch.arange(number, device=device)

    def loss() -> torch.Tensor:
        return objective.loss(model, index, 0, torch.Generator(device).manual_seed(1))

    before = loss()
    before.backward()
    with torch.no_grad():
        for table in model.parameters():
            table -= 1e-3 * table.grad
    assert loss() < before


@pytest.mark.parametrize("value", [-0.1, 1.0])
@pytest.mark.parametrize("kind", [OneVsAll, KVsAll])
def test_smoothing_outside_its_range_is_refused_by_name(kind, value):
    with pytest.raises(UserError, match=rf"objective\.label_smoothing={value}"):
        kind(label_smoothing=value)


def test_an_unfinished_objective_says_so():
    with pytest.raises(NotImplementedError):
        Objective().setup(GRAPH, CPU)
    with pytest.raises(NotImplementedError):
        Objective().loss(MODELS["distmult"][0](), torch.tensor([0]), 0, torch.Generator())
