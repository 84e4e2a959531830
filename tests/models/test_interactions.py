"""Agreement of scores with PyKEEN's interactions, where it is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_contract import CASES, E, R, spread
from torch import Tensor

from kgc.models.base import KGEModel
from kgc.types import Queries, Side

modules = pytest.importorskip("pykeen.nn.modules", reason="PyKEEN is not installed")

DIM = 8


def halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=-1)


def tucker(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    off = {"head_dropout": 0.0, "relation_dropout": 0.0, "head_relation_dropout": 0.0}
    peer = modules.TuckERInteraction(DIM, DIM, apply_batch_normalization=False, **off).double()
    with torch.no_grad():
        peer.core_tensor.copy_(model.core.transpose(0, 1))  # theirs begins with the head
    return peer(h, r, t)


def quaternions(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(-1, -2)  # [*, D/4, 4]


def quate(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    h, r, t = map(quaternions, (h, r, t))
    # Theirs is the negative score, as in the official code, whose loss turns it round.
    return -modules.QuatEInteraction().double()(h, r / r.norm(dim=-1, keepdim=True), t)


PEERS: dict[str, Callable[[KGEModel, Tensor, Tensor, Tensor], Tensor]] = {
    "rescal": lambda model, h, r, t: modules.RESCALInteraction()(h, r.unflatten(-1, (DIM, DIM)), t),
    "cp": lambda model, h, r, t: modules.CPInteraction()(*(x.unsqueeze(-2) for x in (halves(h)[0], r, halves(t)[1]))),
    "simple": lambda model, h, r, t: modules.SimplEInteraction()(
        halves(h), halves(r), halves(t)[::-1]
    ),  # their code compares the first vectors of both ends
    "hole": lambda model, h, r, t: modules.HolEInteraction()(h, r, t),
    "quate": quate,
    "tucker": tucker,
}


@pytest.mark.parametrize("name", PEERS)
def test_scores_are_those_of_pykeen(name):
    case = next(case for case in CASES if case.path.stem == name and not case.reciprocal)
    model = spread(case.build(dim=DIM).double())
    generator = torch.Generator().manual_seed(0)
    head, relation, tail = (torch.randint(n, (50,), generator=generator) for n in (E, R, E))
    wanted = PEERS[name](model, model.entity.weight[head], model.relation.weight[relation], model.entity.weight[tail])
    for side, anchor, answer in ((Side.HEAD, tail, head), (Side.TAIL, head, tail)):
        got = model.score(Queries(anchor, relation, side), answer.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
