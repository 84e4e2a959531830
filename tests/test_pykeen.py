"""Agreement with PyKEEN, where it is installed: filtered ranks of both sides under three tie rules, their metrics, and
the scores of TransH, RotE, ConvE and ER-MLP.

Vectors are small integers, so that every score is exact in both and many tie.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kgc.data.catalogue import load_dataset
from kgc.data.known import KnownAnswers
from kgc.metrics.ranks import rank_metrics
from kgc.models.base import KGEModel
from kgc.models.conve import ConvE
from kgc.models.distmult import DistMult
from kgc.models.ermlp import ERMLP
from kgc.models.init import Normal
from kgc.models.rote import RotE
from kgc.models.transe import TransE
from kgc.models.transh import TransH
from kgc.ranking import rank_queries
from kgc.types import Queries, RankCounts, Side, Triples

pykeen = pytest.importorskip("pykeen", reason="PyKEEN is not installed")

HITS = (1, 3, 10)


class Data:
    """Three splits of triples, of which some test triples are ranked."""

    def __init__(self, train: Triples, valid: Triples, test: Triples, entities: int, relations: int, ranked: int):
        self.splits, self.entities, self.relations = (train, valid, test), entities, relations
        self.ranked = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:ranked]]


def small() -> Data:
    """A dense graph: most answers of a query are filtered."""
    generator = torch.Generator().manual_seed(1)
    cells = torch.randperm(40 * 3 * 40, generator=generator)[:1900]
    triples = Triples(cells // 120, cells // 40 % 3, cells % 40)
    return Data(triples[:1500], triples[1500:1700], triples[1700:], 40, 3, ranked=150)


def fb15k237() -> Data:
    folder = os.environ.get("KGC_DATA")
    if not folder or not (Path(folder) / "fb15k237").is_dir():
        pytest.skip("no FB15k-237 in KGC_DATA")
    graph = load_dataset("fb15k237")
    return Data(graph.train, graph.valid, graph.test, graph.num_entities, graph.num_relations, ranked=300)


@pytest.fixture(scope="module", params=[small, fb15k237], ids=["small", "fb15k237"])
def data(request: pytest.FixtureRequest) -> Data:
    return request.param()


def stacked(triples: Triples) -> Tensor:
    return torch.stack([triples.head, triples.relation, triples.tail], dim=1)


def integers(model: KGEModel) -> KGEModel:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for table in model.parameters():
            table.copy_(torch.randint(-2, 3, table.shape, generator=generator))
    return model


def ours(model: KGEModel, data: Data) -> tuple[RankCounts, Tensor]:
    """The counts of the head queries, then of the tail queries, and the side of each."""
    known = KnownAnswers(Triples.cat(list(data.splits)), data.entities, data.relations)
    counts = [rank_queries(model, data.ranked.queries(side), data.ranked.target(side), known) for side in Side]
    fields = ("better", "equal", "candidates", "nonfinite")
    whole = RankCounts(*(torch.cat([getattr(part, field) for part in counts]) for field in fields))
    return whole, torch.tensor(list(Side)).repeat_interleave(len(data.ranked))


MODELS = {
    "distmult": (lambda data: DistMult(data.entities, data.relations, 4), "DistMult", {}),
    "transe": (lambda data: TransE(data.entities, data.relations, 4, norm=1), "TransE", {"scoring_fct_norm": 1}),
}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_and_metrics_are_those_of_pykeen(name, data):
    from pykeen import models
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.triples import CoreTriplesFactory

    build, theirs, options = MODELS[name]
    model = integers(build(data))
    factory = CoreTriplesFactory(stacked(data.splits[0]), data.entities, data.relations)
    peer = getattr(models, theirs)(triples_factory=factory, embedding_dim=4, random_seed=0, **options)
    with torch.no_grad():
        for table, source in (
            (peer.entity_representations, model.entity),
            (peer.relation_representations, model.relation),
        ):
            table[0]._embeddings.weight.copy_(source.weight)
    evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    result = evaluator.evaluate(
        peer,
        stacked(data.ranked),
        batch_size=100,
        use_tqdm=False,
        device=torch.device("cpu"),
        additional_filter_triples=[stacked(split) for split in data.splits],
    )

    counts, side = ours(model, data)
    assert (counts.equal > 0).float().mean() > 0.5
    for rule in ("optimistic", "pessimistic", "realistic"):
        both = [np.concatenate(evaluator.ranks[s.label, rule]) for s in Side]
        assert getattr(counts, rule).tolist() == np.concatenate(both).tolist(), rule
    assert (
        counts.candidates.tolist()
        == np.concatenate([np.concatenate(evaluator.num_candidates[s.label]) for s in Side]).tolist()
    )
    metrics = rank_metrics(counts, side, HITS)
    for rule, prefix in (("realistic", ""), ("optimistic", "optimistic/"), ("pessimistic", "pessimistic/")):
        wanted = {"mrr": "inverse_harmonic_mean_rank", "mr": "arithmetic_mean_rank"} | {
            f"hits@{k}": f"hits_at_{k}" for k in HITS
        }
        for ours_is, theirs_is in wanted.items():
            value = result.get_metric(f"both.{rule}.{theirs_is}")
            assert metrics[prefix + ours_is] == pytest.approx(value, rel=1e-6, abs=1e-6), (rule, ours_is)
    for s in Side:
        value = result.get_metric(f"{s.label}.realistic.inverse_harmonic_mean_rank")
        assert metrics[f"{s.label}/mrr"] == pytest.approx(value, abs=1e-6)
    value = result.get_metric("both.realistic.adjusted_arithmetic_mean_rank_index")
    assert metrics["amri"] == pytest.approx(value, abs=1e-6)


def test_transh_scores_as_in_pykeen():
    from pykeen.nn.modules import TransHInteraction

    model = TransH(30, 4, 8, entity_init=Normal(1.0), relation_init=Normal(1.0)).double()
    generator = torch.Generator().manual_seed(0)
    head, relation, tail = (torch.randint(n, (50,), generator=generator) for n in (30, 4, 30))
    translation, normal = model.relation.weight[relation].chunk(2, dim=-1)
    normal = normal / normal.norm(dim=-1, keepdim=True)  # PyKEEN does so after every step of its training
    peer = TransHInteraction(p=2, power_norm=False)
    wanted = peer(model.entity.weight[head], (normal, translation), model.entity.weight[tail])
    for side, anchor, answer in ((Side.HEAD, tail, head), (Side.TAIL, head, tail)):
        got = model.score(Queries(anchor, relation, side), answer.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_rote_scores_as_mure_of_pykeen_on_rotated_heads():
    from pykeen.nn.modules import MuREInteraction

    model = RotE(30, 4, 8, entity_init=Normal(1.0), relation_init=Normal(1.0)).double()
    generator = torch.Generator().manual_seed(0)
    head, relation, tail = (torch.randint(n, (50,), generator=generator) for n in (30, 4, 30))
    (h, t), r = (model.entity.weight[ids] for ids in (head, tail)), model.relation.weight[relation]
    turned = torch.view_as_real(torch.complex(h[:, :4], h[:, 4:8]) * torch.polar(torch.ones(4).double(), r[:, 8:]))
    peer = MuREInteraction(p=2, power_norm=True)
    turned = turned.permute(0, 2, 1).flatten(1)  # [real half | imaginary half]
    wanted = peer((turned, h[:, 8]), (r[:, :8], torch.ones_like(r[:, :8])), (t[:, :8], t[:, 8]))
    for side, anchor, answer in ((Side.HEAD, tail, head), (Side.TAIL, head, tail)):
        got = model.score(Queries(anchor, relation, side), answer.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def questions(model: KGEModel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids of 50 triples, and the scores of their tails."""
    generator = torch.Generator().manual_seed(0)
    head, relation, tail = (torch.randint(n, (50,), generator=generator) for n in (30, 4, 30))
    scores = model.score(Queries(head, relation, Side.TAIL), tail.unsqueeze(1)).squeeze(1)
    return head, relation, tail, scores


def test_conve_scores_as_in_pykeen():
    from pykeen.nn.modules import ConvEInteraction

    torch.manual_seed(0)
    model = ConvE(30, 4, 24, height=4, channels=5, entity_init=Normal(1.0), reciprocal=True).double().eval()
    peer = ConvEInteraction(embedding_dim=24, output_channels=5, embedding_height=4, embedding_width=6).double().eval()
    ours, theirs = model.network.state_dict(), peer.state_dict()
    with torch.no_grad():
        for value in ours.values():
            if value.is_floating_point():
                value.uniform_(0.2, 1.5)
    peer.load_state_dict(dict(zip(theirs, ours.values(), strict=True)))  # in the order of the layers
    head, relation, tail, scores = questions(model)
    entity, width = model.entity.weight, 24
    answer = entity[tail]
    wanted = peer(entity[head, :width], model.relation.weight[relation], (answer[:, :width], answer[:, width]))
    torch.testing.assert_close(scores, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_er_mlp_scores_as_in_pykeen(reciprocal):
    from pykeen.nn.modules import ERMLPInteraction

    torch.manual_seed(0)
    model = ERMLP(30, 4, 8, hidden=6, reciprocal=reciprocal).double()
    peer = ERMLPInteraction(embedding_dim=8, hidden_dim=6, activation="tanh").double()
    with torch.no_grad():
        peer.hidden.weight.copy_(model.hidden.weight)
        peer.hidden.bias.copy_(model.hidden.bias.normal_())
        peer.hidden_to_score.weight.copy_(model.output.unsqueeze(0))
        peer.hidden_to_score.bias.zero_()
    head, relation, tail, scores = questions(model)
    wanted = peer(model.entity.weight[head], model.relation.weight[relation], model.entity.weight[tail])
    torch.testing.assert_close(scores, wanted, rtol=1e-12, atol=1e-12)
