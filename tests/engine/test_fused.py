"""The fused kernel against counting in plain numpy, and ranks through it against the oracle.

On a GPU (`pytest -m gpu`) the kernel runs as it is. Without one it runs in Triton's interpreter, which must be asked
for before Triton is imported: one test runs this file again in a process of its own that asks for it.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kgc.ranking
from kgc.data.known import KnownAnswers
from kgc.engine import fused
from kgc.engine.counting import RowLayout
from kgc.engine.fused import TILES, TURNS, Scan, Scanner, Tile, can_fuse
from kgc.models.base import KGEModel
from kgc.models.complex import ComplEx
from kgc.models.distmult import DistMult
from kgc.models.rotate import RotatE
from kgc.models.similarity import ComplexModulus, Dot, Euclidean, Manhattan, Similarity
from kgc.models.transe import TransE
from kgc.ranking import RankingOptions, rank_queries
from kgc.types import Queries, Triples

REPOSITORY = Path(__file__).parents[2]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton: pip install -e '.[kernel]'")


@pytest.fixture(scope="module", params=["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU where the kernel is interpreted; elsewhere a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


if not INTERPRETED:

    @needs_triton
    def test_everything_below_in_the_interpreter():
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not gpu", __file__]
        environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "skipped" not in done.stdout, done.stdout


# One block.

SIMILARITIES: dict[str, Similarity] = {
    "dot": Dot(),
    "euclidean": Euclidean(),
    "manhattan": Manhattan(),
    "modulus": ComplexModulus(),
}
SMALL = Tile(16, 32, 16, warps=1)  # several tiles both ways, for few entities


def integers(generator: np.random.Generator, name: str, number: int, width: int) -> np.ndarray:
    """[number, width] small integers; for moduli, coordinates that are all real or all imaginary: roots of squares."""
    values = generator.integers(-3, 4, (number, width))
    if name == "modulus":
        real, imaginary = np.split(values, 2, axis=1)
        real[:, ::2] = 0
        imaginary[:, 1::2] = 0
    return values.astype(float)


def key(name: str, query: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """[U, n] keys in float64, exact for integers."""
    if name == "dot":
        return query @ candidate.T
    if name == "euclidean":
        return query @ candidate.T - (candidate**2).sum(1) / 2
    difference = query[:, None] - candidate[None]
    if name == "manhattan":
        return -np.abs(difference).sum(-1)
    real, imaginary = np.split(difference, 2, axis=-1)
    return -np.hypot(real, imaginary).sum(-1)


class Case:
    """P queries of U rows against n candidates, some of them known answers, some without numbers."""

    def __init__(self, name: str, n: int, width: int, rows: int, queries: int, seed: int, odd: bool = False):
        generator = np.random.default_rng(seed)
        self.name = name
        self.query, self.candidate = integers(generator, name, rows, width), integers(generator, name, n, width)
        self.row = np.concatenate([np.arange(rows), generator.integers(0, rows, queries - rows)])
        generator.shuffle(self.row)
        self.known = generator.random((rows, n)) < 0.15
        self.keys = key(name, self.query, self.candidate)  # [U, n]
        # Keys are multiples of ½. Bands are narrow or wide, end at a key or between two; roots need not be exact.
        target = self.keys[self.row, generator.integers(0, n, queries)]
        self.low = target - generator.choice([0.25 if name == "modulus" else 0, 2.25], queries)
        self.high = target + generator.choice([0.25 if name == "modulus" else 0, 0.25, 1.25], queries)
        if odd:
            lost = generator.random(n) < 0.2
            lost[generator.integers(n)] = True
            self.candidate[lost, generator.integers(width)] = np.nan
            self.keys[:, lost] = np.nan

    def scan(self, device: torch.device, capacity: int | None = None) -> Scan:
        layout = RowLayout(torch.from_numpy(self.row).to(device), len(self.query))
        low, high = (torch.from_numpy(x).float().to(device) for x in (self.low, self.high))
        similarity = SIMILARITIES[self.name]
        query = torch.from_numpy(self.query).float().to(device)[layout.order]
        scanner = Scanner(similarity, query, layout, low, high)
        candidate = torch.from_numpy(self.candidate).float().to(device)
        known = torch.from_numpy(self.known).to(device).nonzero(as_tuple=True)
        room = len(self.row) * len(self.candidate) if capacity is None else capacity
        return scanner.scan(candidate, similarity.key_terms(candidate), known, room)

    def above(self) -> list[int]:
        return [
            sum(1 for k, hidden in zip(self.keys[r], self.known[r], strict=True) if k > high and not hidden)
            for r, high in zip(self.row, self.high, strict=True)
        ]

    def open(self) -> list[tuple[int, int]]:
        """Sorted (query, candidate) in [low, high]."""
        return [
            (p, e)
            for p, r in enumerate(self.row)
            for e in range(len(self.candidate))
            if self.low[p] <= self.keys[r, e] <= self.high[p] and not self.known[r, e]
        ]


def cells(scan: Scan) -> list[tuple[int, int]]:
    return sorted(zip(scan.query.tolist(), scan.column.tolist(), strict=True))


# Candidates, width, rows, queries: one of anything, sizes around those of tiles, more queries of a row than a slot has.
SHAPES = [(1, 2, 1, 1), (2, 30, 3, 7), (17, 100, 1, 5), (63, 2, 5, 9), (64, 30, 16, 16), (129, 30, 2, 2 * TURNS + 5)]
LARGE = [(65, 6, 17, 40), (257, 4, 33, 50)]


@needs_triton
@pytest.mark.parametrize(
    ("shape", "tile"), [*((shape, None) for shape in SHAPES + LARGE), *((shape, SMALL) for shape in LARGE)], ids=str
)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_counts_and_open_cells_equal_a_loop_over_exact_scores(name, shape, tile, device, monkeypatch):
    if tile is not None:
        monkeypatch.setitem(TILES, type(SIMILARITIES[name]), tile)
    case = Case(name, *shape, seed=sum(shape), odd=shape[0] in (17, 65))
    scan = case.scan(device)
    assert scan.above.tolist() == case.above()
    assert cells(scan) == case.open()
    assert scan.total == len(scan.query)


@needs_triton
@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
def test_vectors_of_one_number(name, device):
    case = Case(name, 40, 1, 4, 9, seed=1)
    scan = case.scan(device)
    assert scan.above.tolist() == case.above()
    assert cells(scan) == case.open()


@needs_triton
def test_no_known_cells_hide_nothing_and_all_known_hide_everything(device):
    case = Case("dot", 70, 4, 3, 8, seed=2)
    case.known[:] = False
    scan = case.scan(device)
    assert scan.above.tolist() == case.above()
    assert cells(scan) == case.open()
    case.known[:] = True
    scan = case.scan(device)
    assert scan.above.tolist() == [0] * 8
    assert scan.total == 0


@needs_triton
def test_thresholds_that_are_no_range_count_nothing(device):
    case = Case("dot", 70, 4, 3, 8, seed=2)
    case.low[0] = case.high[1] = np.nan
    case.low[2], case.high[2] = 1, -1
    case.low[3], case.high[3] = -np.inf, np.inf
    scan = case.scan(device)
    assert scan.above.tolist() == [0, 0, 0, *case.above()[3:]]
    assert cells(scan) == [cell for cell in case.open() if cell[0] > 2]
    assert scan.total == len(scan.query)


@needs_triton
@pytest.mark.parametrize("tile", [None, SMALL], ids=["default", "small"])
def test_a_buffer_too_small_is_filled_and_the_true_number_told(tile, device, monkeypatch):
    from kgc.engine import kernel

    if tile is not None:
        monkeypatch.setitem(TILES, Dot, tile)
    case = Case("dot", 70, 2, 18, 30, seed=3)
    expected = case.open()
    assert len(expected) > 200
    monkeypatch.setattr(kernel, "count_tile", guarded := Guarded(kernel.count_tile))
    for capacity in (0, 1, 100, len(expected) - 1, len(expected)):
        scan = case.scan(device, capacity)
        assert scan.total == len(expected)
        assert scan.above.tolist() == case.above()
        assert len(scan.query) == capacity
        assert set(cells(scan)) <= set(expected)
        assert len(set(cells(scan))) == capacity
    assert guarded.calls == 5


class Guarded:
    """The kernel, with room behind the buffer of open cells in which nothing may be written."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __getitem__(self, grid: tuple[int]):
        def call(*arguments, **options):
            before, buffer, behind = arguments[:10], arguments[10], arguments[11:]  # `open_cells` of the kernel
            wide = torch.full((len(buffer) + 100,), -1, device=buffer.device)
            self.function[grid](*before, wide, *behind, **options)
            buffer.copy_(wide[: len(buffer)])
            assert (wide[len(buffer) :] == -1).all()
            self.calls += 1

        return call


@st.composite
def cases(draw) -> Case:
    name = draw(st.sampled_from(list(SIMILARITIES)))
    rows = draw(st.integers(1, 20))
    return Case(
        name,
        n=draw(st.integers(1, 70)),
        width=draw(st.integers(1, 20)) * (2 if name == "modulus" else 1),
        rows=rows,
        queries=draw(st.one_of(st.integers(rows, rows + 10), st.integers(rows, rows + TURNS + 9))),
        seed=draw(st.integers(0, 2**32)),
        odd=draw(st.booleans()),
    )


@needs_triton
@settings(max_examples=25)
@given(cases())
def test_any_block_is_counted_as_in_a_loop(device, case):
    scan = case.scan(device)
    assert scan.above.tolist() == case.above()
    assert cells(scan) == case.open()


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dot", "manhattan"])
def test_tables_beyond_two_to_the_31_numbers(name, device):
    if torch.cuda.get_device_properties(device).total_memory < 40 << 30:
        pytest.skip("needs 40 GiB of GPU memory")
    width, entities = 64, 2**25 + 300
    table = torch.zeros(entities, width, device=device)
    table[[5, -300, -1]] = 1
    similarity, value = SIMILARITIES[name], {"dot": 64.0, "manhattan": 0.0}[name]
    layout = RowLayout(torch.tensor([0, 0], device=device), 1)
    low = torch.tensor([value, value - 10], device=device)
    scanner = Scanner(similarity, torch.ones(1, width, device=device), layout, low, low + 5)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    scan = scanner.scan(table, None, (nothing, nothing), 10)
    assert scan.above.tolist() == [0, 3]
    assert cells(scan) == [(0, 5), (0, entities - 300), (0, entities - 1)]


# Ranks.

MODELS = {
    "distmult": DistMult,
    "complex": ComplEx,
    "transe_l1": lambda *sizes: TransE(*sizes, norm=1),
    "transe_l2": lambda *sizes: TransE(*sizes, norm=2),
    "rotate": RotatE,
}


@pytest.fixture
def through_the_kernel(device, monkeypatch) -> list[tuple[int, int]]:
    """Makes certified ranks use the kernel, also where it is interpreted; (room, found) of each scan."""
    seen = []
    scan = Scanner.scan

    def spy(self, *arguments):
        found = scan(self, *arguments)
        seen.append((arguments[-1], found.total))
        return found

    monkeypatch.setattr(Scanner, "scan", spy)
    if device.type == "cpu":
        monkeypatch.setattr(kgc.ranking, "can_fuse", lambda similarity, device: type(similarity) in TILES)
    return seen


def filled(name: str, entities: int, dim: int, seed: int, twins: bool = True) -> KGEModel:
    """A model of normal numbers, with `twins` every fifth entity equal to the one before."""
    model = MODELS[name](entities, 2, dim)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in (model.entity.weight, model.relation.weight):
            table.copy_(torch.randn(table.shape, generator=generator))
        if twins:
            copies = model.entity.weight[4::5]
            copies.copy_(model.entity.weight[3::5][: len(copies)].clone())
    return model


def ranked(model: KGEModel, name: str, triples: list, known: list, device: torch.device, **options) -> tuple:
    """Ranks of both sides by `rank_queries`, and by the paper's formula in Python."""
    entity, relation = model.entity.weight.tolist(), model.relation.weight.tolist()
    formula = oracle.FORMULAS[name]
    entities = len(entity)
    expected = oracle.ranks(
        lambda h, r, t: formula(entity[h], relation[r], entity[t]), triples, [known] if known else [], entities
    )
    ids = columns(triples).to(device)
    side = torch.tensor([oracle.HEAD, oracle.TAIL], device=device).repeat_interleave(len(ids))
    queries = Queries(torch.cat([ids.tail, ids.head]), ids.relation.repeat(2), side)
    index = KnownAnswers(columns(known).to(device), entities, 2) if known else None
    targets = torch.cat([ids.head, ids.tail])
    counts = rank_queries(model.to(device), queries, targets, index, RankingOptions(compile=True, **options))
    fields = (counts.better, counts.equal, counts.candidates, counts.nonfinite)
    return [oracle.Rank(*row) for row in zip(*(field.tolist() for field in fields), strict=True)], expected


def columns(triples: list[oracle.Triple]) -> Triples:
    return Triples(*torch.tensor(triples, dtype=torch.int64).T.contiguous())


def draw_triples(seed: int, number: int, entities: int) -> list[oracle.Triple]:
    generator = random.Random(seed)
    return [
        (generator.randrange(entities), generator.randrange(2), generator.randrange(entities)) for _ in range(number)
    ]


@needs_triton
@pytest.mark.parametrize(("entities", "dim"), [(1, 2), (2, 2), (17, 30), (63, 6)])
@pytest.mark.parametrize("name", MODELS)
def test_certified_ranks_through_the_kernel_are_those_of_float64(name, entities, dim, device, through_the_kernel):
    model = filled(name, entities, dim, seed=entities)
    triples = draw_triples(entities, 8, entities)
    known = triples[::2] + draw_triples(entities + 1, 60, entities)
    for filtered, options in ((known, {}), (known, {"batch": 5, "block": 40}), ([], {})):
        got, expected = ranked(model, name, triples, filtered, device, **options)
        assert got == expected
    assert through_the_kernel


@needs_triton
@pytest.mark.parametrize("name", MODELS)
def test_one_question_with_many_answers(name, device, through_the_kernel):
    entities = TURNS + 9
    model = filled(name, entities, 6, seed=8)
    triples = [(3, 1, t) for t in range(entities)]
    got, expected = ranked(model, name, triples, triples[::3], device)
    assert got == expected
    assert through_the_kernel


@needs_triton
@pytest.mark.parametrize("name", MODELS)
def test_more_open_cells_than_there_is_room_for(name, device, through_the_kernel):
    entities = 50
    model = filled(name, entities, 4, seed=9)
    with torch.no_grad():
        model.entity.weight[10:] = model.entity.weight[9].clone()
    triples = draw_triples(4, 15, entities)
    got, expected = ranked(model, name, triples, triples, device)
    assert got == expected
    assert sum(rank.equal for rank in expected) > 16 * len(expected)
    (room, found), again = through_the_kernel
    assert found > room
    assert again == (found, found)


@needs_triton
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # NumPy's, where the kernel is interpreted
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("name", ["complex", "transe_l1", "transe_l2", "rotate"])
def test_entities_without_numbers_never_flatter(name, value, device, through_the_kernel):
    model = filled(name, 20, 4, seed=10)
    with torch.no_grad():
        model.entity.weight[4, 1] = value
        model.entity.weight[9] = value
    triples = draw_triples(5, 12, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        got, expected = ranked(model, name, triples, triples, device, nonfinite="worst")
    assert got == expected
    assert through_the_kernel


@needs_triton
def test_compile_false_and_blocks_do_without_the_kernel(device, through_the_kernel):
    model = filled("distmult", 20, 4, seed=11).to(device)
    query = Queries(torch.tensor([1], device=device), torch.tensor([0], device=device), oracle.TAIL)
    target = torch.tensor([2], device=device)
    rank_queries(model, query, target, None, RankingOptions(compile=False))
    rank_queries(model, query, target, None, RankingOptions())  # too little work
    rank_queries(model, query, target, None, RankingOptions(compile=False, precision="block"))
    assert not through_the_kernel
    rank_queries(model, query, target, None, RankingOptions(compile=True))
    assert through_the_kernel


if not INTERPRETED:
    # Where the kernel may run.

    def test_the_kernel_is_for_formulas_and_devices_it_knows(monkeypatch):
        class Weighted(Manhattan):
            def terms(self, difference: Tensor) -> Tensor:
                return 2 * difference.abs()

        cuda = torch.device("cuda")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(fused, "find_spec", lambda name: object())
        for capability, similarity in itertools.product([(7, 5), (8, 0), (9, 0)], SIMILARITIES.values()):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
            assert can_fuse(similarity, cuda) == (capability >= (8, 0))
            assert not can_fuse(similarity, torch.device("cpu"))
        assert not can_fuse(Weighted(), cuda)
        monkeypatch.setattr(fused, "find_spec", lambda name: None)
        assert not can_fuse(Dot(), cuda)
        monkeypatch.setattr(fused, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.version, "cuda", None)  # ROCm calls its devices cuda
        assert not can_fuse(Dot(), cuda)

    def test_ranking_does_not_import_triton_where_it_does_not_use_it():
        script = (
            "import sys; sys.modules['triton'] = None\n"  # an import of it would fail
            "import torch\n"
            "from kgc.models.distmult import DistMult\n"
            "from kgc.ranking import rank_queries\n"
            "from kgc.types import Queries\n"
            "one = torch.tensor([1])\n"
            "print(rank_queries(DistMult(3, 2, 4), Queries(one, one, 1), one).candidates.item())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert done.stdout == "3\n", done.stderr

    @needs_triton
    @pytest.mark.parametrize(
        ("similarity", "capability"), [(Euclidean, 80), (Euclidean, 90), (Manhattan, 90), (ComplexModulus, 90)]
    )
    def test_the_kernel_compiles_for_gpus(similarity, capability, tmp_path, monkeypatch):
        # The interpreter runs code that the compiler refuses. No GPU is needed to compile.
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from kgc.engine.kernel import KEYS, count_tile

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        tile = TILES[similarity]
        types = dict.fromkeys(("query", "table", "terms", "low", "high"), "*fp32")
        types |= dict.fromkeys(("known", "row_of_slot", "first_of_slot", "turns_of_slot", "above"), "*i32")
        types |= {"open_cells": "*i64", "found": "*i64"}
        constants = {"KEYS": KEYS[similarity], "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth}
        if similarity is not Euclidean:
            constants["terms"] = None
        signature = {
            name: "constexpr" if name in constants else types.get(name, "i32") for name in count_tile.arg_names
        }
        compiled = triton.compile(
            ASTSource(count_tile, signature, constants),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": tile.warps, "num_stages": 3, "enable_fp_fusion": True, "maxnreg": tile.registers},
        )
        assert "tf32" not in compiled.asm["ptx"]
        assert compiled.metadata.shared <= 48 << 10  # what every GPU has
