"""What every model of `conf/model/` promises: each file found there is tested, and needs its formula in `oracle.py`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import hydra
import oracle
import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.func import functional_call

from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.types import Queries, Scorer, Side

# Scorers without entity vectors, whose scores are no formula of a triple alone: test_rules.py, test_drum.py.
NOT_VECTORS = {"rules", "drum"}
FILES = [p for p in sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml")) if p.stem not in NOT_VECTORS]
E, R, DIM = 30, 3, 8  # cdist of torch takes another path from 26 rows on
# dim is a multiple of it
PARTS = {"complex": 2, "rotate": 2, "cp": 2, "simple": 2, "quate": 4, "analogy": 4, "transd": 2, "hake": 2, "boxe": 2}
MODULI = ("complex", "rotate", "quate", "analogy")  # magnitudes are roots
EXTRA = {"tucker": ["core"]}  # parameters beside the two tables
# Numbers a relation stores, where not DIM.
WIDTHS = {
    "rotate": DIM // 2,
    "transh": 2 * DIM,
    "rescal": DIM**2,
    "cp": DIM // 2,
    "pairre": 2 * DIM,
    "transr": DIM + DIM**2,
    "hake": DIM // 2 * 3,
    "boxe": 2 * DIM,
    "mure": 2 * (DIM - 2),
}
# Sizes whose products and squares stay in the range of fp32, where those of 10⁹ would not.
HUGE = {"tucker": 1e8, "transr": 1e8, "transd": 1e5, "mure": 1e8}


@dataclass(frozen=True)
class Case:
    """A config file, and what differs from it."""

    path: Path
    options: tuple[tuple[str, object], ...]

    def build(self, entities: int = E, relations: int = R, dim: int = DIM, **more) -> KGEModel:
        options = dict(self.options) | {"num_entities": entities, "num_relations": relations, "dim": dim} | more
        torch.manual_seed(0)
        try:
            return hydra.utils.instantiate(OmegaConf.load(self.path), **options)
        except InstantiationException as error:  # Hydra's wrapping of what the constructor said
            raise error.__cause__ from None

    @property
    def formula(self):
        norm = dict(self.options).get("norm")
        return oracle.FORMULAS[self.path.stem + (f"_l{norm}" if norm else "")]

    @property
    def reciprocal(self) -> bool:
        return bool(dict(self.options)["reciprocal"])

    def __str__(self) -> str:
        return "-".join([self.path.stem, *(f"{key}={value}" for key, value in self.options)])


def cases() -> list[Case]:
    found = []
    for path in FILES:
        norms = [1, 2] if "norm" in OmegaConf.load(path) else [None]
        for norm in norms:
            for reciprocal in (False, True):
                options = [("reciprocal", reciprocal)] + ([("norm", norm)] if norm else [])
                found.append(Case(path, tuple(options)))
    return found


CASES = cases()
every_model = pytest.mark.parametrize("case", CASES, ids=str)


def spread(model: KGEModel, seed: int = 0) -> KGEModel:
    """Parameters of the size of 1, in place of the small ones training starts from."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in model.parameters():
            table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64))
    return model


def mixed_queries(number: int, device: torch.device | str = "cpu", seed: int = 0) -> Queries:
    generator = random.Random(seed)
    drawn = [[generator.randrange(n) for _ in range(number)] for n in (E, R, 2)]
    return Queries(*(torch.tensor(column, device=device) for column in drawn))


def names_of(case: Case) -> list[str]:
    return ["entity.weight", "relation.weight", *EXTRA.get(case.path.stem, [])]


def expected_score(case: Case, model: KGEModel, anchor: int, relation: int, side: int, candidate: int) -> float:
    """The paper's formula on the stored vectors; reciprocal models ask (?, r, t) as (t, r + R, ?)."""
    entity, table, *others = (model.state_dict()[name].tolist() for name in names_of(case))
    if side == oracle.TAIL:
        return case.formula(entity[anchor], table[relation], entity[candidate], *others)
    if case.reciprocal:
        return case.formula(entity[anchor], table[relation + R], entity[candidate], *others)
    return case.formula(entity[candidate], table[relation], entity[anchor], *others)


def test_some_models_are_found():
    assert {"transe", "distmult", "complex", "rotate", "transh"} <= {path.stem for path in FILES}


@every_model
def test_scores_are_the_formula_of_the_paper(case):
    model = spread(case.build().double())
    queries = mixed_queries(40)
    got = model.score(queries)
    assert got.shape == (40, E)
    wanted = [
        [expected_score(case, model, a, r, s, candidate) for candidate in range(E)]
        for a, r, s in zip(*(x.tolist() for x in (queries.anchor, queries.relation, queries.side)), strict=True)
    ]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@every_model
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
    torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


@every_model
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


@every_model
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
    product = model.relation_query(model.entity_vectors(head), model.entity_vectors(tail))
    assert (product is not None) == (case.path.stem in LINEAR)
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


@every_model
def test_gradients_are_those_of_finite_differences(case):
    model = spread(case.build(entities=5, relations=2, dim=4).double(), seed=5)
    queries = Queries(torch.tensor([0, 3, 4]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
    names = [f"model.{name}" for name, _ in model.named_parameters()]
    tables = tuple(table.detach().clone().requires_grad_() for table in model.parameters())
    for candidates in (None, range(1, 4), torch.tensor([2, 1]), torch.tensor([[1, 2], [1, 2], [0, 3]])):

        def score(*tables: Tensor, candidates=candidates) -> Tensor:
            return functional_call(Scores(model), dict(zip(names, tables, strict=True)), (queries, candidates))

        assert torch.autograd.gradcheck(score, tables)


@every_model
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e9])
def test_zero_and_huge_vectors_have_finite_scores_and_gradients(case, size, device):
    model = spread(case.build()).to(device)
    with torch.no_grad():
        for table in model.parameters():
            table.mul_(min(size, HUGE.get(case.path.stem, size)))
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
    assert sorted(state) == sorted(names_of(case))
    assert state["entity.weight"].shape == (E, DIM)
    assert state["relation.weight"].shape == (2 * R if case.reciprocal else R, WIDTHS.get(case.path.stem, DIM))


@every_model
def test_initial_parameters_are_finite_distinct_and_drawn_from_the_seed(case):
    first, second = case.build(), case.build()
    for name, table in first.state_dict().items():
        assert table.isfinite().all()
        assert len(table.unique(dim=0)) == len(table)
        assert torch.equal(table, second.state_dict()[name])


@every_model
def test_sizes_that_do_not_divide_are_refused_with_the_cure(case):
    parts = PARTS.get(case.path.stem, 1)
    if parts > 1:
        need = {2: "even; try 6 or 8", 4: "a multiple of 4; try 4 or 8"}[parts]
        with pytest.raises(UserError, match=rf"model\.dim=7: .* must be {need}"):
            case.build(dim=7)
    else:
        assert case.build(dim=7).score(mixed_queries(2)).shape == (2, E)
    with pytest.raises(UserError, match=r"model\.dim=0"):
        case.build(dim=0)


@every_model
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
    vectors = model.entity_vectors()
    kept = vectors != 0
    assert 0.35 < kept.float().mean() < 0.65
    torch.testing.assert_close(vectors[kept], 2 * model.entity.weight[kept])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mure", {"dim": 2}, r"model\.dim=2: MuRE .* at least 3"),
        ("protate", {"modulus": 0.0}, r"model\.modulus=0\.0: .* more than 0"),
    ],
)
def test_options_that_make_no_model_are_refused_with_the_cure(name, options, message):
    with pytest.raises(UserError, match=message):
        next(case for case in CASES if case.path.stem == name).build(**options)


def test_an_unknown_norm_is_refused_with_the_choices():
    case = next(case for case in CASES if case.path.stem == "transe")
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
        ("mure", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),
        ("transr", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0, 4.0, 2.0]),  # the matrix behind it is not held down
        ("transh", [3.0, 0.0, 4.0, 2.0], [3.0, 0.0]),  # the second half is a normal, whose length means nothing
    ],
)
def test_magnitudes_are_moduli_of_what_the_numbers_stand_for(name, entity, relation):
    model = next(case for case in CASES if case.path.stem == name).build(dim=4)
    vectors = torch.tensor([[3.0, 0.0, -4.0, 2.0]])
    torch.testing.assert_close(model.magnitude(vectors), torch.tensor([entity]))
    torch.testing.assert_close(model.relation_magnitude(vectors), torch.tensor([relation]))


def test_hake_penalises_moduli_only():
    model = next(case for case in CASES if case.path.stem == "hake").build(dim=4)
    assert model.magnitude(torch.tensor([[3.0, 0.0, -4.0, 2.0]])).tolist() == [[3.0, 0.0]]
    assert model.relation_magnitude(torch.tensor([[-3.0, 1.0, -4.0, 2.0, 5.0, 6.0]])).tolist() == [[3.0, 1.0]]


@pytest.mark.parametrize("name", MODULI)
def test_the_gradient_of_a_modulus_at_zero_is_finite(name):
    model = next(case for case in CASES if case.path.stem == name).build(dim=4)
    zero = torch.zeros(1, 4, requires_grad=True)
    model.magnitude(zero).sum().backward()
    assert zero.grad.isfinite().all()
