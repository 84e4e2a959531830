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


def boxe(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    peer = modules.BoxEInteraction
    (base_h, bump_h), (base_t, bump_t) = halves(h), halves(t)
    centre, width = halves(r)
    total = 0.0
    for point, bump, c, w in (
        (base_h, bump_t, halves(centre)[0], halves(width)[0].abs()),
        (base_t, bump_h, halves(centre)[1], halves(width)[1].abs()),
    ):
        box = (c - w / 2, c + w / 2)
        total = total + peer.boxe_kg_arity_position_score(point, bump, box, tanh_map=False, p=1, power_norm=False)
    return total


def mure(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    scale, translation = halves(r)
    peer = modules.MuREInteraction(p=2, power_norm=True)
    # They add the translation to the head.
    return peer((h[:, :-2], h[:, -2]), (-translation, scale), (t[:, :-2], t[:, -1]))


def rotate(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    """Theirs is the Euclidean norm of all moduli; ours their sum, as in the paper's code: one coordinate at a time."""
    head, tail = (torch.complex(*halves(x)).unsqueeze(-1) for x in (h, t))
    turn = torch.polar(torch.ones_like(r), r).unsqueeze(-1)
    return modules.RotatEInteraction()(head, turn, tail).sum(-1)


def pairre(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    h, t = (x / x.norm(dim=-1, keepdim=True) for x in (h, t))
    return modules.PairREInteraction(p=1, power_norm=False)(h, halves(r), t)


def transr(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    peer = modules.TransRInteraction(p=2, power_norm=False, max_projection_norm=1e9)  # without the paper's constraint
    return peer(h, (r[:, :DIM], r[:, DIM:].unflatten(-1, (DIM, DIM)).mT), t)


def transd(model: KGEModel, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
    return modules.TransDInteraction(p=2, power_norm=False)(halves(h), halves(r), halves(t))


SMALL = {"transd": 0.1}  # where projections are shorter than 1, PyKEEN does not cut them
PEERS: dict[str, Callable[[KGEModel, Tensor, Tensor, Tensor], Tensor]] = {
    "distmult": lambda model, h, r, t: modules.DistMultInteraction()(h, r, t),
    "complex": lambda model, h, r, t: modules.ComplExInteraction()(*(torch.complex(*halves(x)) for x in (h, r, t))),
    "rotate": rotate,
    "rescal": lambda model, h, r, t: modules.RESCALInteraction()(h, r.unflatten(-1, (DIM, DIM)), t),
    "cp": lambda model, h, r, t: modules.CPInteraction()(*(x.unsqueeze(-2) for x in (halves(h)[0], r, halves(t)[1]))),
    "simple": lambda model, h, r, t: modules.SimplEInteraction()(
        halves(h), halves(r), halves(t)[::-1]
    ),  # their code compares the first vectors of both ends
    "hole": lambda model, h, r, t: modules.HolEInteraction()(h, r, t),
    "quate": quate,
    "tucker": tucker,
    "toruse": lambda model, h, r, t: modules.TorusEInteraction(p=1)(h, r, t),
    "pairre": pairre,
    "transr": transr,
    "transd": transd,
    "boxe": boxe,
    "mure": mure,
}


@pytest.mark.parametrize("name", PEERS)
def test_scores_are_those_of_pykeen(name):
    case = next(case for case in CASES if case.path.stem == name and not case.reciprocal)
    model = spread(case.build(dim=DIM).double())
    with torch.no_grad():
        for table in model.parameters():
            table.mul_(SMALL.get(name, 1.0))
    generator = torch.Generator().manual_seed(0)
    head, relation, tail = (torch.randint(n, (50,), generator=generator) for n in (E, R, E))
    wanted = PEERS[name](model, model.entity.weight[head], model.relation.weight[relation], model.entity.weight[tail])
    for side, anchor, answer in ((Side.HEAD, tail, head), (Side.TAIL, head, tail)):
        got = model.score(Queries(anchor, relation, side), answer.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
