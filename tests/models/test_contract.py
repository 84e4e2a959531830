"""What every model of `conf/model/` promises: each file found there is tested, and needs its formula in `oracle.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hydra
import oracle
import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from small import SMALL
from torch import Tensor, nn
from torch.func import functional_call

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.types import Queries, Scorer, Side, Triples

# Scorers without entity vectors, whose scores are no formula of a triple alone: test_rules.py, test_drum.py.
NOT_VECTORS = {"rules", "drum"}
FILES = [p for p in sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml")) if p.stem not in NOT_VECTORS]
E, R, DIM = 30, 3, 8  # cdist of torch takes another path from 26 rows on


@dataclass(frozen=True)
class Layout:
    """How a model differs from one that stores `dim` numbers for an entity, as many for a relation, and no more."""

    parts: int = 1  # dim is a multiple of it
    extra: int = 0  # numbers of an entity behind its vector
    relation: Callable[[int], int] = lambda dim: dim  # numbers of a relation
    weights: tuple[str, ...] = ()  # parameters and modules beside the two tables
    huge: float = 1e9  # a size whose products and squares stay in the range of fp32


LAYOUTS = {
    "complex": Layout(parts=2),
    "rotate": Layout(parts=2, relation=lambda dim: dim // 2),
    "transh": Layout(relation=lambda dim: 2 * dim),
    "rescal": Layout(relation=lambda dim: dim**2),
    "cp": Layout(parts=2, relation=lambda dim: dim // 2),
    "simple": Layout(parts=2),
    "quate": Layout(parts=4),
    "tucker": Layout(weights=("core",)),
    "analogy": Layout(parts=4),
    "pairre": Layout(relation=lambda dim: 2 * dim),
    "transr": Layout(relation=lambda dim: dim + dim**2, huge=1e8),
    "transd": Layout(parts=2, huge=1e5),
    "hake": Layout(parts=2, relation=lambda dim: dim // 2 * 3),
    "boxe": Layout(parts=2, relation=lambda dim: 2 * dim),
    "mure": Layout(extra=2, relation=lambda dim: 2 * dim, huge=1e8),
    "rote": Layout(parts=2, extra=1, relation=lambda dim: dim + dim // 2),
    "refe": Layout(parts=2, extra=1, relation=lambda dim: dim + dim // 2),
    "atte": Layout(parts=2, extra=1, relation=lambda dim: 3 * dim),
    "roth": Layout(parts=2, extra=1, relation=lambda dim: dim + dim // 2 + 1),
    "refh": Layout(parts=2, extra=1, relation=lambda dim: dim + dim // 2 + 1),
    "atth": Layout(parts=2, extra=1, relation=lambda dim: 3 * dim + 1),
    "conve": Layout(extra=1, weights=("network",)),
    "hitter": Layout(weights=("network",)),
    "ermlp": Layout(weights=("hidden", "output")),
    "rgcn": Layout(weights=("encoder",), huge=1e7),
    "compgcn": Layout(weights=("encoder",)),
    "nbfnet": Layout(huge=1e8),
}
# The decoder's formula, on vectors that the encoder makes: of these `test_encoders.py` has a formula.
DECODERS = {"rgcn": "distmult", "compgcn": "distmult"}
# They walk over a graph and have no vectors of entities: what is said of vectors and of formulas on them does not
# apply, and `test_nbfnet.py` compares their scores with sums over paths.
WALKS = ("nbfnet",)
HYPERBOLIC = ("roth", "refh", "atth")


@dataclass(frozen=True)
class Case:
    """A config file, and what differs from it. Models are in evaluation mode."""

    path: Path
    options: tuple[tuple[str, object], ...]

    def build(self, entities: int = E, relations: int = R, dim: int = DIM, **more) -> KGEModel:
        options = dict(self.options) | {"num_entities": entities, "num_relations": relations, "dim": dim}
        options |= SMALL.get(self.path.stem, {}) | more
        torch.manual_seed(0)
        try:
            model = hydra.utils.instantiate(OmegaConf.load(self.path), **options).eval()
        except InstantiationException as error:  # Hydra's wrapping of what the constructor said
            raise error.__cause__ from None
        model.use_facts(some_facts(entities, relations))
        return model

    def formula(self, model: KGEModel):
        """The paper's score of three vectors."""
        name, norm = DECODERS.get(self.path.stem, self.path.stem), dict(self.options).get("norm")
        if name in oracle.WEIGHTED:
            weights = {key: value.tolist() for key, value in model.state_dict().items()}
            return lambda h, r, t: oracle.WEIGHTED[name](h, r, t, weights)
        return oracle.FORMULAS[name + (f"_l{norm}" if norm else "")]

    @property
    def layout(self) -> Layout:
        return LAYOUTS.get(self.path.stem, Layout())

    @property
    def reciprocal(self) -> bool:
        return bool(dict(self.options).get("reciprocal", True))  # walks ask for heads by relations of their own

    def __str__(self) -> str:
        return "-".join([self.path.stem, *(f"{key}={value}" for key, value in self.options)])


def some_facts(entities: int, relations: int) -> Triples:
    """A graph in which no two entities stand alike, some relation may be missing and some entity has no edge in."""
    generator = torch.Generator().manual_seed(9)
    head, tail = (torch.randint(entities - 1, (2 * entities,), generator=generator) for _ in range(2))
    return Triples(head, torch.randint(relations, (2 * entities,), generator=generator), tail)


def cases() -> list[Case]:
    found = []
    for path in FILES:
        if path.stem in WALKS:
            continue
        norms = [1, 2] if "norm" in OmegaConf.load(path) else [None]
        for norm in norms:
            for reciprocal in (True,) if OmegaConf.load(path).reciprocal else (False, True):
                options = [("reciprocal", reciprocal)] + ([("norm", norm)] if norm else [])
                found.append(Case(path, tuple(options)))
    return found


CASES = cases()
WALKING = [Case(path, ()) for path in FILES if path.stem in WALKS]
every_model = pytest.mark.parametrize("case", CASES, ids=str)
every_scorer = pytest.mark.parametrize("case", CASES + WALKING, ids=str)


def spread(model: KGEModel, seed: int = 0) -> KGEModel:
    """Parameters of the size of 1, in place of the small ones training starts from."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in model.parameters():
            table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64))
        for statistics in model.buffers():
            if statistics.is_floating_point():
                statistics.copy_(0.5 + torch.rand(statistics.shape, generator=generator, dtype=torch.float64))
    return model


def within_reach(case: Case, model: KGEModel) -> KGEModel:
    """Hyperbolic points at some distance from the boundary of the ball, where the formula itself loses digits.

    `test_hyperbolic.py` has those beside it.
    """
    if case.path.stem in HYPERBOLIC:
        with torch.no_grad():
            model.entity.weight[:, : model.dim] *= 0.3
            model.relation.weight[:, : model.dim] *= 0.3
    return model


def mixed_queries(number: int, device: torch.device | str = "cpu", seed: int = 0) -> Queries:
    generator = random.Random(seed)
    drawn = [[generator.randrange(n) for _ in range(number)] for n in (E, R, 2)]
    return Queries(*(torch.tensor(column, device=device) for column in drawn))


def scorer(case: Case, model: KGEModel) -> Callable[[int, int, int, int], float]:
    """(anchor, relation, side, candidate) to the paper's formula on the stored numbers.

    Reciprocal models ask (?, r, t) as (t, r + R, ?).
    """
    with torch.no_grad():
        entity, table = (vectors.tolist() for vectors in model.tables())
    formula = case.formula(model)

    def score(anchor: int, relation: int, side: int, candidate: int) -> float:
        if side == oracle.TAIL:
            return formula(entity[anchor], table[relation], entity[candidate])
        if case.reciprocal:
            return formula(entity[anchor], table[relation + R], entity[candidate])
        return formula(entity[candidate], table[relation], entity[anchor])

    return score


def test_some_models_are_found():
    assert {"transe", "distmult", "complex", "rotate", "transh"} <= {path.stem for path in FILES}


@every_model
def test_scores_are_the_formula_of_the_paper(case):
    model = within_reach(case, spread(case.build().double()))
    queries = mixed_queries(40)
    got = model.score(queries)
    assert got.shape == (40, E)
    score = scorer(case, model)
    asked = zip(*(ids.tolist() for ids in (queries.anchor, queries.relation, queries.side)), strict=True)
    wanted = [[score(*query, candidate) for candidate in range(E)] for query in asked]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@every_scorer
def test_every_route_scores_a_triple_alike(case, device):
    model = spread(case.build()).to(device)
    queries = mixed_queries(27, device)
    own = torch.randint(E, (27, 5), generator=torch.Generator().manual_seed(1)).to(device)
    shared = torch.tensor([E - 1, 0, 7, 7], device=device)
    with torch.no_grad():
        everything = model.score(queries)
        routes = {
            "triple": (model.score(queries, own[:, :1]), everything.gather(1, own[:, :1])),
            "own": (model.score(queries, own), everything.gather(1, own)),
            "shared": (model.score(queries, shared), everything[:, shared]),
            "all as ids": (model.score(queries, torch.arange(E, device=device)), everything),
            "whole range": (model.score(queries, range(E)), everything),
            "range": (model.score(queries, range(4, 11)), everything[:, 4:11]),
            "last": (model.score(queries, range(E - 1, E)), everything[:, -1:]),
            "one query": (model.score(queries[:1]), everything[:1]),
            "no queries": (model.score(queries[:0]), everything[:0]),
        }
    for name, (got, wanted) in routes.items():
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@every_model
def test_routes_agree_where_a_distance_is_small(case):
    # Entities beside each other: far from the origin, where ‖a‖² + ‖b‖² − 2ab in fp32 would lose their distance.
    model = spread(case.build())
    with torch.no_grad():
        model.entity.weight.mul_(1e-3).add_(3.0)
        model.relation.weight.mul_(1e-3)
    queries = mixed_queries(27)
    expected = model.double().score(queries)
    scores, own = model.float().score(queries), model.score(queries, torch.arange(E).expand(27, E))
    # Hyperbolic points are 17 units from the origin, where a rounded query is off by e^17 times more.
    bound = 1e-3 if case.path.stem in HYPERBOLIC else 1e-5
    torch.testing.assert_close(own.double(), expected, rtol=bound, atol=1e-5)
    torch.testing.assert_close(scores.double(), expected, rtol=bound, atol=1e-5)


@every_scorer
def test_a_batch_of_both_sides_scores_as_a_call_for_each(case, device):
    model = spread(case.build()).to(device)
    queries = mixed_queries(20, device)
    own = torch.randint(E, (20, 4), generator=torch.Generator().manual_seed(2)).to(device)
    for candidates in (None, range(3, 9), torch.tensor([2, 5], device=device), own):
        mixed = model.score(queries, candidates)
        for side in Side:
            mine = (queries.side == side).nonzero().squeeze(1)
            part = Queries(queries.anchor[mine], queries.relation[mine], side)
            chosen = candidates[mine] if candidates is own else candidates
            torch.testing.assert_close(mixed[mine], model.score(part, chosen), rtol=1e-5, atol=1e-5)


@every_scorer
def test_both_ends_give_a_triple_one_score_unless_reciprocal(case):
    model = spread(case.build().double())
    head, relation, tail = (torch.randint(n, (25,), generator=torch.Generator().manual_seed(3)) for n in (E, R, E))
    asked_for_head = model.score(Queries(tail, relation, Side.HEAD), head.unsqueeze(1))
    asked_for_tail = model.score(Queries(head, relation, Side.TAIL), tail.unsqueeze(1))
    if case.reciprocal:
        assert not torch.allclose(asked_for_head, asked_for_tail)
    else:
        torch.testing.assert_close(asked_for_head, asked_for_tail, rtol=1e-12, atol=1e-12)


LINEAR = {"distmult", "complex", "rescal", "cp", "simple", "hole", "tucker", "analogy"}  # in the relation


@every_model
def test_scores_that_are_linear_in_the_relation_are_products_with_it(case):
    model = spread(case.build().double())
    head, relation, tail = (torch.randint(n, (25,), generator=torch.Generator().manual_seed(3)) for n in (E, R, E))
    anchor, answer = model.entity_vectors(head), model.entity_vectors(tail)
    if case.layout.weights == ("network",):
        with pytest.raises(UserError, match=r"objective\.relation_weight"):
            model.relation_query(anchor, answer)
        return
    product = model.relation_query(anchor, answer)
    assert (product is not None) == (DECODERS.get(case.path.stem, case.path.stem) in LINEAR)
    if product is not None:
        wanted = model.score(Queries(head, relation, Side.TAIL), tail.unsqueeze(1)).squeeze(1)
        got = (product * model.relation_vectors(relation)).sum(-1)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


class Scores(nn.Module):
    """`score` as a forward, so that parameters can be replaced."""

    def __init__(self, model: KGEModel):
        super().__init__()
        self.model = model

    def forward(self, queries: Queries, candidates: Tensor | range | None) -> Tensor:
        return self.model.score(queries, candidates)


@every_scorer
def test_gradients_are_those_of_finite_differences(case):
    model = spread(case.build(entities=5, relations=2, dim=4).double(), seed=5)
    queries = Queries(torch.tensor([0, 3, 4]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
    weights = {f"model.{name}": weight.detach().clone() for name, weight in model.named_parameters()}
    tables = tuple(weight.requires_grad_() for weight in weights.values())
    for candidates in (None, range(1, 4), torch.tensor([2, 1]), torch.tensor([[1, 2], [1, 2], [0, 3]])):

        def score(*changed: Tensor, candidates=candidates) -> Tensor:
            named = dict(zip(weights, changed, strict=True))
            return functional_call(Scores(model), named, (queries, candidates))

        many = case.path.stem in (*DECODERS, *WALKS)  # weights: differences along random directions
        assert torch.autograd.gradcheck(score, tables, fast_mode=many)


@every_scorer
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e9])
def test_zero_and_huge_vectors_have_finite_scores_and_gradients(case, size, device):
    model = spread(case.build()).to(device)
    with torch.no_grad():
        for name in ("entity", "relation"):
            if hasattr(model, name):
                getattr(model, name).weight.mul_(min(size, case.layout.huge))
        if hasattr(model, "entity"):
            model.entity.weight[1] = model.entity.weight[0]
    queries = mixed_queries(27, device)
    own = torch.randint(E, (27, 5), generator=torch.Generator().manual_seed(1)).to(device)
    for candidates in (None, torch.tensor([0, 1], device=device), own, queries.anchor.unsqueeze(1)):
        model.zero_grad()
        scores = model.score(queries, candidates)
        assert scores.isfinite().all()
        scores.mean().backward()
        assert all(table.grad.isfinite().all() for table in model.parameters())


@every_model
def test_parameters_are_one_entity_and_one_relation_table_and_what_is_declared(case):
    state = case.build().state_dict()
    layout = case.layout
    assert {name.split(".")[0] for name in state} == {"entity", "relation", *layout.weights}
    assert bool(layout.weights) == (case.path.stem in oracle.WEIGHTED or case.path.stem in DECODERS)
    assert state["entity.weight"].shape == (E, DIM + layout.extra)
    assert state["relation.weight"].shape == (2 * R if case.reciprocal else R, layout.relation(DIM))


@every_scorer
def test_initial_parameters_are_finite_distinct_and_drawn_from_the_seed(case):
    first, second = case.build(), case.build()
    for name, table in first.state_dict().items():
        assert table.isfinite().all()
        assert name not in ("entity.weight", "relation.weight") or len(table.unique(dim=0)) == len(table)
        assert torch.equal(table, second.state_dict()[name])


@every_scorer
def test_sizes_that_do_not_divide_are_refused_with_the_cure(case):
    parts = case.layout.parts
    if parts > 1:
        need = {2: "even; try 6 or 8", 4: "a multiple of 4; try 4 or 8"}[parts]
        with pytest.raises(UserError, match=rf"model\.dim=7: .* must be {need}"):
            case.build(dim=7)
    else:
        more = {"heads": 7} if case.path.stem == "hitter" else {}
        assert case.build(dim=7, **more).score(mixed_queries(2)).shape == (2, E)
    with pytest.raises(UserError, match=r"model\.dim=0"):
        case.build(dim=0)


@every_scorer
def test_a_model_is_a_scorer_and_margin_is_only_in_logits(case):
    model = case.build()
    assert isinstance(model, Scorer)
    assert model.num_entities == E
    scores = torch.tensor([-2.0, 0.5])
    margin = OmegaConf.load(case.path).get("margin", 0.0)
    assert model.logits(scores).tolist() == [-2.0 + margin, 0.5 + margin]


@every_model
def test_dropout_acts_in_training_only(case):
    model = spread(case.build(entity_dropout=0.5, relation_dropout=0.5))
    plain = case.build()
    plain.load_state_dict(model.state_dict())
    queries = mixed_queries(6)
    assert torch.equal(model.eval().score(queries), plain.score(queries))
    model.train()
    assert not torch.equal(model.score(queries), model.score(queries))
    # About half of the coordinates are 0, the others doubled.
    with model.one_pass():
        vectors, stored = model.entity_vectors(), model.tables()[0]
    kept = vectors[:, :DIM] != 0
    assert 0.35 < kept.float().mean() < 0.65
    torch.testing.assert_close(vectors[:, :DIM][kept], 2 * stored[:, :DIM][kept])
    assert torch.equal(vectors[:, DIM:], stored[:, DIM:])


@pytest.mark.parametrize("path", [p for p in FILES if OmegaConf.load(p).get("reciprocal")], ids=lambda path: path.stem)
def test_models_without_head_queries_refuse_them_with_the_cure(path):
    with pytest.raises(UserError, match=r"model\.reciprocal=false: \w+ answers tail queries only; .*reciprocal=true"):
        Case(path, (("reciprocal", False),)).build()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("protate", {"modulus": 0.0}, r"model\.modulus=0\.0: .* more than 0"),
    ],
)
def test_options_that_make_no_model_are_refused_with_the_cure(name, options, message):
    with pytest.raises(UserError, match=message):
        next(case for case in CASES if case.path.stem == name).build(**options)


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_an_unknown_norm_is_refused_with_the_choices(name):
    case = next(case for case in CASES if case.path.stem == name)
    with pytest.raises(UserError, match=r"model\.norm=3: .*norm=1.*norm=2"):
        case.build(norm=3)


@pytest.mark.parametrize(
    ("name", "entity", "relation"),
    [
        # Moduli of 3 + 4i and of 0 + 2i, stored [3, 0 | 4, 2].
        ("complex", [5.0, 2.0], [5.0, 2.0]),
        ("rotate", [5.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("distmult", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("transe", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("rescal", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("hole", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("cp", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("simple", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("tucker", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("quate", [29**0.5], [29**0.5]),  # 3 − 4j + 2k
        ("analogy", [3.0, 0.0, 20**0.5], [3.0, 0.0, 20**0.5]),  # 3, 0 and −4 + 2i
        ("toruse", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("protate", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("pairre", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("transd", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("boxe", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("mure", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0, 7.0, 7.0, 7.0, 7.0]),  # stretched and translated
        ("transr", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),  # the matrix behind it is not held down
        ("transh", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0]),  # the second half is a normal, whose length means nothing
        ("rote", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),  # what comes after the translation, and biases, are none
        ("atth", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
    ],
)
def test_magnitudes_are_moduli_of_what_the_numbers_stand_for(name, entity, relation):
    model = next(case for case in CASES if case.path.stem == name).build(dim=4)
    vectors = torch.tensor([[3.0, 0.0, -4.0, 2.0]])
    rest = torch.full((1, 9), 7.0)
    entities, relations = (torch.cat([vectors, rest[:, : w - 4]], dim=1) for w in (4 + model.extra, 4))
    if model.extra:
        relations = torch.cat([vectors, rest[:, : model.relation.weight.shape[1] - 4]], dim=1)
    torch.testing.assert_close(model.magnitude(entities), torch.tensor([entity]))
    torch.testing.assert_close(model.relation_magnitude(relations), torch.tensor([relation]))


def test_hake_penalises_moduli_only():
    model = next(case for case in CASES if case.path.stem == "hake").build(dim=4)
    assert model.magnitude(torch.tensor([[3.0, 0.0, -4.0, 2.0]])).tolist() == [[3.0, 0.0]]
    assert model.relation_magnitude(torch.tensor([[-3.0, 1.0, -4.0, 2.0, 5.0, 6.0]])).tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize("name", ["complex", "rotate", "quate", "analogy"])  # magnitudes are roots
def test_the_gradient_of_a_modulus_at_zero_is_finite(name):
    model = next(case for case in CASES if case.path.stem == name).build(dim=4)
    zero = torch.zeros(1, 4, requires_grad=True)
    model.magnitude(zero).sum().backward()
    assert zero.grad.isfinite().all()
