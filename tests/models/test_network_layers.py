"""Layers of networks: torch's own in values, and in float64 the same bits for a row whatever stands beside it."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from kgc.models.conve import ConvE
from kgc.models.hitter import HittER, _Layer
from kgc.models.layers import BatchNorm, Convolution, ExactProduct, ImageNorm, LayerNorm, Linear
from kgc.types import Queries, Side


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 7, 300])
def test_products_are_those_of_fractions(width):
    # Sizes within a row from 1e-6 to 1e6, and rows of 1e-30 and 1e30.
    spread = 10.0 ** torch.linspace(-6, 6, width, dtype=torch.float64)
    a, b = drawn(3, width) * spread * torch.tensor([[1e-30], [1.0], [1e30]]), drawn(width, 2, seed=1)
    got = ExactProduct.apply(a, b)
    for i, j in ((i, j) for i in range(3) for j in range(2)):
        wanted = sum(
            (Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)), Fraction()
        )
        bound = width * 2.0**-54 * float(a[i].abs().max() * b[:, j].abs().max()) + 2.0**-52 * abs(wanted)
        assert abs(Fraction(got[i, j].item()) - wanted) <= bound


def test_products_do_not_depend_on_rows_beside_them_nor_on_the_order_of_terms():
    a, b = drawn(301, 777), drawn(777, 65, seed=1)
    whole = ExactProduct.apply(a, b)
    for rows in (slice(0, 1), slice(300, 301), slice(5, 44), slice(1, 300)):
        assert torch.equal(ExactProduct.apply(a[rows], b), whole[rows])
    order = torch.randperm(777, generator=torch.Generator().manual_seed(2))
    assert torch.equal(ExactProduct.apply(a[:, order], b[order]), whole)
    assert not torch.equal(a[:, order] @ b[order], a @ b)  # as it would be otherwise


def test_what_is_not_finite_stays_in_its_row_and_column():
    a, b = drawn(4, 5), drawn(5, 3, seed=1)
    a[1, 2], b[0, 2] = float("inf"), float("nan")
    finite = ExactProduct.apply(a, b).isfinite()
    assert finite.tolist() == [[True, True, False], [False] * 3, [True, True, False], [True, True, False]]
    assert ExactProduct.apply(torch.zeros(2, 5, dtype=torch.float64), drawn(5, 3)).tolist() == [[0.0] * 3] * 2
    assert ExactProduct.apply(a[:0], b).shape == (0, 3)


def test_gradients_of_products():
    assert torch.autograd.gradcheck(ExactProduct.apply, (drawn(3, 5).requires_grad_(), drawn(5, 2).requires_grad_()))


LAYERS = {
    "linear": (lambda: Linear(6, 4), lambda: nn.Linear(6, 4), (5, 3, 6)),
    "convolution": (lambda: Convolution(2, 3, (2, 3)), lambda: nn.Conv2d(2, 3, (2, 3)), (5, 2, 4, 6)),
    "batch norm": (lambda: BatchNorm(6), lambda: nn.BatchNorm1d(6), (5, 6)),
    "image norm": (lambda: ImageNorm(2), lambda: nn.BatchNorm2d(2), (5, 2, 4, 6)),
    "layer norm": (lambda: LayerNorm(6), lambda: nn.LayerNorm(6), (5, 3, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [False, True])
def test_layers_are_those_of_torch(name, dtype, training):
    make, peer, shape = LAYERS[name]
    ours, theirs = make().to(dtype).train(training), peer().to(dtype).train(training)
    with torch.no_grad():
        for value in ours.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 1.5)
    theirs.load_state_dict(ours.state_dict())  # names are the same
    rows = drawn(*shape).to(dtype)
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(ours(rows), theirs(rows), rtol=bound, atol=bound)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", ["linear", "convolution", "batch norm", "image norm", "layer norm"])
def test_rows_of_layers_in_float64_do_not_depend_on_the_batch(name):
    make, _, shape = LAYERS[name]
    layer, rows = make().double().eval(), drawn(67, *shape[1:])
    single = torch.cat([layer(row.unsqueeze(0)) for row in rows])
    assert torch.equal(layer(rows), single)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_of_hitter_is_torchs_encoder_layer(dtype):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).to(dtype).eval()
    ours = _Layer(12, 3, 20, dropout=0.1).to(dtype).eval()
    names = {
        "self_attn.in_proj_": "attention.",
        "self_attn.out_proj.": "joined.",
        "linear1.": "inner.",
        "linear2.": "outer.",
    }
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value.uniform_(-1, 1)
    ours.load_state_dict(state)
    tokens, bound = drawn(7, 3, 12).to(dtype), 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=bound, atol=bound)


@pytest.mark.parametrize(
    "make",
    [lambda: ConvE(50, 7, 40, reciprocal=True), lambda: HittER(50, 7, 40, layers=2, reciprocal=True)],
    ids=["conve", "hitter"],
)
def test_exact_query_vectors_of_whole_networks_do_not_depend_on_the_batch(make):
    torch.manual_seed(0)
    model = make()
    draw = torch.Generator().manual_seed(1)
    queries = Queries(*(torch.randint(n, (300,), generator=draw) for n in (50, 7)), Side.TAIL)
    whole = model.exact_query_vectors(queries)
    order = torch.randperm(300, generator=draw)
    assert torch.equal(model.exact_query_vectors(queries[order]), whole[order])
    for rows in (slice(0, 1), slice(299, 300), slice(3, 60)):
        assert torch.equal(model.exact_query_vectors(queries[rows]), whole[rows])
    plain = copy.deepcopy(model).eval().query_vectors(queries)
    torch.testing.assert_close(whole.float(), plain, rtol=1e-4, atol=1e-5)
