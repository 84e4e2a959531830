"""Encoders: messages, R-GCN and CompGCN against their papers' formulas in plain loops and PyKEEN; when they run."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import runs
import torch
from test_contract import some_facts
from torch import Tensor

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.losses.pairwise import Logistic
from kgc.models.compgcn import CompGCN, CompGCNLayer, correlation, multiplication, subtraction, symmetric_shares
from kgc.models.conve import ConvE
from kgc.models.distmult import DistMult
from kgc.models.encoded import EncodedModel
from kgc.models.messages import MessageGraph, max_messages, sum_messages
from kgc.models.mure import MuRE
from kgc.models.pairre import PairRE
from kgc.models.rgcn import RGCN, shares
from kgc.models.rotate import RotatE
from kgc.models.transd import TransD
from kgc.models.transe import TransE
from kgc.models.transh import TransH
from kgc.objectives import NegativeSampling, OneVsAll
from kgc.optim import adam, table_groups
from kgc.ranking import RankingOptions, is_certified, rank_queries
from kgc.sampling.proposals import Uniform
from kgc.sampling.sampler import NegativeSampler
from kgc.sampling.sides import Both
from kgc.types import Queries, Triples

E, R, DIM = 12, 3, 6
FACTS = some_facts(E, R)
Edges = list[tuple[int, int, int]]


def edges_of(facts: Triples) -> Edges:
    """Distinct (source, relation, target), inverses with R behind."""
    rows = set(zip(facts.head.tolist(), facts.relation.tolist(), facts.tail.tolist(), strict=True))
    return sorted(rows | {(t, r + R, h) for h, r, t in rows})


EDGES = edges_of(FACTS)
MODELS = {
    "bases": partial(RGCN, bases=2),
    "blocks": partial(RGCN, blocks=3, across_relations=True, reciprocal=True),
    "compgcn": partial(CompGCN, layers=2, reciprocal=True),
}
every_encoder = pytest.mark.parametrize("name", MODELS)


def build(name: str, decoder=DistMult, facts: Triples | None = FACTS, **more) -> EncodedModel:
    torch.manual_seed(2)
    model = MODELS[name](E, R, DIM, decoder=decoder, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        for statistics in model.buffers():
            if statistics.is_floating_point():
                statistics.uniform_(0.5, 1.5)
    if facts is not None:
        model.use_facts(facts)
    return model.eval()


# Messages.


def test_edges_are_distinct_facts_and_their_inverses():
    twice = Triples.cat([FACTS, FACTS[:5]])
    graph = MessageGraph.of(twice, E, R)
    assert sorted(graph.facts()) == EDGES
    assert len(graph.source) == len({(u, r) for u, r, _ in EDGES})
    assert graph.in_degree.tolist() == [sum(v == e for _, _, v in EDGES) for e in range(E)]


def test_facts_are_taken_out_in_both_directions():
    graph, out = MessageGraph.of(FACTS, E, R), FACTS[:4]
    kept = [edge for edge in EDGES if edge not in edges_of(out)]
    assert sorted(graph.without(out).facts()) == kept
    absent = Triples(out.head, out.relation, (out.tail + 1) % E)
    others = [edge for edge in EDGES if edge not in edges_of(absent)]
    assert sorted(graph.without(absent).facts()) == others
    ends = {frozenset(pair) for pair in zip(out.head.tolist(), out.tail.tolist(), strict=True)}
    far = [(u, r, v) for u, r, v in EDGES if frozenset((u, v)) not in ends]
    assert sorted(graph.without_ends(out).facts()) == far
    assert len(far) < len(kept) < len(EDGES)


def test_dropped_facts_go_with_their_inverses_and_are_drawn_anew():
    graph = MessageGraph.of(FACTS, E, R)
    drawn = []
    for seed in range(40):
        torch.manual_seed(seed)
        drawn.append(sorted(graph.dropped(0.25).facts()))
        assert all((v, (r + R) % (2 * R), u) in drawn[-1] for u, r, v in drawn[-1])
        assert set(drawn[-1]) <= set(EDGES)
    assert 0.7 < sum(map(len, drawn)) / (40 * len(EDGES)) < 0.8
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("change", ["all", "some", "none"])
def test_sums_and_maxima_are_those_of_a_loop_with_their_gradients(change):
    graph = MessageGraph.of(FACTS, E, R)
    if change != "all":
        graph = graph.without(FACTS[:6] if change == "some" else FACTS)
    generator = torch.Generator().manual_seed(0)
    messages = torch.randn(len(graph.source), 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(len(graph.pair), generator=generator, dtype=torch.float64)
    total, largest = torch.zeros(E, 4, dtype=torch.float64), torch.full((E, 4), -torch.inf, dtype=torch.float64)
    for pair, target, factor in zip(graph.pair.tolist(), graph.target.tolist(), weight, strict=True):
        total[target] += factor * messages[pair].detach()
        largest[target] = torch.maximum(largest[target], messages[pair].detach())
    torch.testing.assert_close(sum_messages(messages, graph, weight), total, rtol=1e-12, atol=1e-12)
    assert torch.equal(max_messages(messages, graph), largest)
    assert torch.autograd.gradcheck(lambda m: sum_messages(m, graph, weight), messages)
    finite = graph.in_degree > 0
    assert torch.autograd.gradcheck(lambda m: max_messages(m, graph)[finite], messages)


# Layers.


def rgcn_by_hand(model: RGCN, edges: Edges) -> Tensor:
    """Equation 2, an edge at a time."""
    vectors = model.entity.weight.detach().double()
    for i, layer in enumerate(model.encoder.layers):
        parts = {name: value.detach().double() for name, value in layer.named_parameters()}
        new = vectors @ parts["loop"] + parts["bias"]
        for u, r, v in edges:
            if "matrices.basis" in parts:
                matrix = sum(
                    a * V for a, V in zip(parts["matrices.coefficient"][r], parts["matrices.basis"], strict=True)
                )
            else:
                matrix = torch.block_diag(*parts["matrices.block"][r])
            same = [edge for edge in edges if edge[2] == v and (model.encoder.across_relations or edge[1] == r)]
            new[v] += vectors[u] @ matrix / len(same)
        vectors = new.clamp_min(0) if i + 1 < len(model.encoder.layers) else new
    return vectors


def correlated(a: Tensor, b: Tensor) -> Tensor:
    n = len(a)
    return torch.stack([sum(a[i] * b[(k + i) % n] for i in range(n)) for k in range(n)])


BY_HAND = {subtraction: lambda a, b: a - b, multiplication: lambda a, b: a * b, correlation: correlated}


def compgcn_by_hand(model: CompGCN, edges: Edges, composition) -> tuple[Tensor, Tensor]:
    phi = BY_HAND[composition]
    vectors, relations = model.entity.weight.detach().double(), model.relation.weight.detach().double()
    for layer in model.encoder.layers:
        p = {name: value.detach().double() for name, value in layer.state_dict().items()}
        new = torch.stack([phi(x, p["loop"][0]) @ p["loop_weight"] for x in vectors])
        for u, r, v in edges:
            way = [edge for edge in edges if (edge[1] >= R) == (r >= R)]
            leaving, reaching = sum(edge[0] == u for edge in way), sum(edge[2] == v for edge in way)
            matrix = p["inverse_weight"] if r >= R else p["forward_weight"]
            new[v] += phi(vectors[u], relations[r]) @ matrix / (leaving * reaching) ** 0.5
        new = new / 3 + p["bias"]
        new = (new - p["norm.running_mean"]) / (p["norm.running_var"] + layer.norm.eps).sqrt()
        vectors = (new * p["norm.weight"] + p["norm.bias"]).tanh()
        relations = relations @ p["relation_weight"]
    return vectors, relations


@pytest.mark.parametrize("name", ["bases", "blocks"])
def test_r_gcn_is_its_paper(name):
    model = build(name).double()
    entities, relations = model.tables()
    torch.testing.assert_close(entities, rgcn_by_hand(model, EDGES), rtol=1e-10, atol=1e-10)
    assert relations is model.relation.weight or torch.equal(relations, model.relation.weight)


@pytest.mark.parametrize("composition", BY_HAND)
def test_compgcn_is_its_paper(composition):
    model = build("compgcn", composition=composition).double()
    entities, relations = compgcn_by_hand(model, EDGES, composition)
    torch.testing.assert_close(model.tables()[0], entities, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.tables()[1], relations, rtol=1e-10, atol=1e-10)


def directions(graph: MessageGraph) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(marked edges, source, target, relation) of facts and of inverses."""
    inverse = graph.relation[graph.pair] >= R
    marks = (~inverse, inverse)
    columns = (graph.source[graph.pair], graph.target, graph.relation[graph.pair] % R)
    return [(mark, *(column[mark] for column in columns)) for mark in marks]


@pytest.mark.parametrize("name", ["bases", "blocks"])
def test_relational_messages_are_those_of_pykeen(name):
    peers = pytest.importorskip("pykeen.nn.message_passing", reason="PyKEEN is not installed")
    model = build(name).double()
    graph, layer, x = model.graph, model.encoder.layers[0], model.entity.weight.detach()
    weight = shares(graph, model.encoder.across_relations)
    wanted = torch.zeros(E, DIM, dtype=torch.float64)
    for way, (mark, source, target, relation) in enumerate(directions(graph)):
        mine = slice(way * R, (way + 1) * R)
        if name == "bases":
            peer = peers.BasesDecomposition(num_bases=2, num_relations=R, input_dim=DIM, output_dim=DIM).double()
            low_rank = peer.relation_representations
            with torch.no_grad():
                low_rank.base._embeddings.weight.copy_(layer.matrices.basis.flatten(1))
                low_rank.weight._embeddings.weight.copy_(layer.matrices.coefficient[mine])
        else:
            peer = peers.BlockDecomposition(num_blocks=3, num_relations=R, input_dim=DIM, output_dim=DIM).double()
            with torch.no_grad():
                peer.blocks.copy_(layer.matrices.block[mine])
        options = {"edge_type": relation, "edge_weights": weight[mark]}
        with torch.sparse.check_sparse_tensor_invariants(True):  # or torch warns that it does not check
            wanted += peer(x=x, source=target, target=source, **options).detach()  # theirs go from target to source
    got = sum_messages(layer.matrices(x, graph), graph, weight)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("composition", "theirs"),
    [(subtraction, "sub"), (multiplication, "mult"), (correlation, "corr")],
)
def test_a_layer_of_compgcn_is_that_of_pykeen(composition, theirs):
    peers = pytest.importorskip("pykeen.nn.representation", reason="PyKEEN is not installed")
    import pykeen.nn.compositions as compositions

    kinds = {
        "sub": compositions.SubtractionCompositionModule,
        "mult": compositions.MultiplicationCompositionModule,
        "corr": compositions.CircularCorrelationCompositionModule,
    }
    model = build("compgcn").double()
    layer = CompGCNLayer(DIM, composition, 0.0).double().eval()
    layer.load_state_dict(model.encoder.layers[0].state_dict())
    peer = peers.CompGCNLayer(DIM, composition=kinds[theirs], activation=torch.nn.Tanh).double().eval()
    with torch.no_grad():
        for mine, other in (
            (layer.forward_weight, peer.w_fwd),
            (layer.inverse_weight, peer.w_bwd),
            (layer.loop_weight, peer.w_loop),
            (layer.loop, peer.self_loop),
            (layer.relation_weight.T, peer.w_rel.weight),
            (layer.bias, peer.bias.bias),
        ):
            other.copy_(mine)
    peer.bn.load_state_dict(layer.norm.state_dict())
    graph, entity, relation = model.graph, model.entity.weight, model.relation.weight
    _, source, target, kind = directions(graph)[0]
    theirs_of = torch.stack([relation[:R], relation[R:]], dim=1).flatten(0, 1)  # inverses beside their relations
    wanted, _ = peer(entity, theirs_of, torch.stack([source, target]), kind)
    got, _ = layer(entity, relation, graph, symmetric_shares(graph))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)  # their edge weights are rounded to fp32


# When the encoder runs, and on what.


def counting(model: EncodedModel) -> list[int]:
    calls = [0]
    model.encoder.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    return calls


def questions() -> tuple[Queries, Tensor]:
    side = torch.arange(20) % 2
    generator = torch.Generator().manual_seed(1)
    anchor, relation, target = (torch.randint(n, (20,), generator=generator) for n in (E, R, E))
    return Queries(anchor, relation, side), target


@every_encoder
def test_an_evaluation_runs_the_encoder_once_and_leaves_no_trace_in_the_state(name):
    model = build(name)
    names, calls = list(model.state_dict()), counting(model)
    queries, targets = questions()
    for options in (
        RankingOptions(),
        RankingOptions(batch=3, block=5),
        RankingOptions(precision="block", batch=3, block=5),
    ):
        rank_queries(model, queries, targets, None, options)
    assert calls == [1]
    assert list(model.state_dict()) == names
    assert all("_kept" not in key and "graph" not in key for key in names)


@every_encoder
@pytest.mark.parametrize("fused", [True, False])
def test_the_tables_follow_the_parameters(name, fused):
    model = build(name)
    with torch.no_grad():
        before = model.tables()[0].clone()
    optimizer = adam(table_groups(model), lr=0.1)
    for group in optimizer.param_groups:
        group["fused"] = fused  # a fused step changes parameters without a new version
    objective = OneVsAll()
    objective.triples = FACTS
    for module in model.modules():
        module.training = True  # as Lightning goes back to training, without train()
    with model.one_pass():
        objective.loss(model, torch.arange(8), 0, torch.Generator()).backward()
    optimizer.step()
    for module in model.modules():
        module.training = False
    with torch.no_grad():
        after = model.tables()[0].clone()
        assert not torch.allclose(before, after)
        assert torch.equal(after, copy.deepcopy(model).tables()[0])
        state = {key: value + 0.5 if value.is_floating_point() else value for key, value in model.state_dict().items()}
        model.load_state_dict(state)
        loaded = model.tables()[0].clone()
        assert not torch.allclose(after, loaded)
        model.use_facts(FACTS[:9])
        assert not torch.allclose(loaded, model.tables()[0])


@every_encoder
def test_a_step_runs_the_encoder_once_with_all_gradients(name):
    model = build(name).double()
    objective = OneVsAll()
    objective.triples = FACTS

    def gradients() -> list[Tensor]:
        model.zero_grad()
        objective.loss(model, torch.arange(10), 0, torch.Generator()).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    wanted = gradients()  # an encoder's run for each use
    calls = counting(model)
    with model.one_pass():
        got = gradients()
    assert calls == [1]
    for mine, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@every_encoder
def test_negative_sampling_trains_an_encoder(name):
    torch.manual_seed(0)
    model = MODELS[name](E, R, DIM, decoder=DistMult, edge_dropout=0.1)
    model.use_facts(FACTS)
    objective = NegativeSampling(NegativeSampler(4, Both(), Uniform()), Logistic())
    labels = Vocabulary([str(i) for i in range(E)]), Vocabulary([str(i) for i in range(R)])
    examples = objective.setup(KnowledgeGraph("facts", *labels, FACTS, FACTS[:0], FACTS[:0]), torch.device("cpu"))
    optimizer, generator, losses = adam(table_groups(model), lr=0.03), torch.Generator().manual_seed(0), []
    for step in range(60):
        with model.one_pass():
            loss = objective.loss(model, torch.arange(examples), step, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


@every_encoder
@pytest.mark.parametrize("decoder", [TransE, partial(ConvE, height=2, channels=2, kernel=2)])
def test_other_decoders_rank_the_vectors_that_the_encoder_makes(name, decoder):
    model = build(name, decoder, **({} if name == "compgcn" else {"reciprocal": True}))
    assert is_certified(model, RankingOptions())
    with torch.no_grad():
        entities, relations = model.tables()
        plain = decoder(E, R, DIM, reciprocal=True).eval()
        weights = {
            key.removeprefix("decoder."): v for key, v in model.state_dict().items() if key.startswith("decoder.")
        }
        plain.load_state_dict(weights | {"entity.weight": entities, "relation.weight": relations})
        queries, targets = questions()
        wanted, got = (rank_queries(m, queries, targets, None, RankingOptions()) for m in (plain, model))
        assert torch.equal(got.better, wanted.better)
        torch.testing.assert_close(model.score(queries), plain.score(queries))


@pytest.mark.parametrize(
    ("name", "decoder"), [("bases", TransH), ("bases", PairRE), ("bases", MuRE), ("compgcn", TransD)]
)
@pytest.mark.parametrize("reciprocal", [False, True])
def test_decoders_that_project_see_the_relations_that_the_encoder_makes(name, decoder, reciprocal):
    model = build(name, decoder, **({} if name == "compgcn" else {"reciprocal": reciprocal}))
    queries, _ = questions()
    trained = model.score(queries)
    with torch.no_grad():
        entities, relations = model.tables()
        plain = decoder(E, R, DIM, reciprocal=model.reciprocal).eval()
        plain.load_state_dict({"entity.weight": entities, "relation.weight": relations})
        torch.testing.assert_close(model.score(queries), plain.score(queries))
        torch.testing.assert_close(trained, plain.score(queries))
    trained.sum().backward()
    assert model.relation.weight.grad.abs().max() > 0


@every_encoder
def test_scores_of_a_model_in_evaluation_mode_are_the_same_with_and_without_gradients(name):
    model = build(name)
    queries, _ = questions()
    with torch.no_grad():
        kept = model.score(queries)
    assert torch.equal(model.score(queries), kept)


def test_mistakes_are_named_with_the_cure():
    for options in ({}, {"bases": 2, "blocks": 2}):
        with pytest.raises(UserError, match=r"model\.bases=.* one of them a number and the other null"):
            RGCN(E, R, DIM, decoder=DistMult, **options)
    with pytest.raises(UserError, match=r"model\.dim=7: .*model\.blocks=3 blocks.* try 6"):
        RGCN(E, R, 7, decoder=DistMult, blocks=3)
    with pytest.raises(UserError, match=r"model\.decoder: CompGCN needs .* wide as entities, model\.dim=6"):
        CompGCN(E, R, DIM, decoder=RotatE, reciprocal=True)
    alone = build("bases", facts=None)
    with pytest.raises(UserError, match=r"RGCN has no graph .*use_facts"):
        alone.tables()
    with pytest.raises(UserError, match=r"optimizer\.sparse=true: .*RGCN"):
        alone.use_sparse_gradients()


# In runs.

SMALL = {
    "rgcn": ["model=rgcn", "model.bases=2", "model.edge_dropout=0.2", "model.self_dropout=0.2"],
    "compgcn": ["model=compgcn", "objective=one_vs_all"],
    "nbfnet": ["model=nbfnet", "model.layers=2", "objective=one_vs_all", "model.dim=4", "batch_size=512"],
}


@pytest.mark.parametrize("name", SMALL)
def test_a_run_sees_train_alone_resumes_and_evaluates_digit_for_digit(name, tmp_path):
    whole = runs.train(tmp_path / "whole", *SMALL[name])
    runs.train(tmp_path / "half", *SMALL[name], "trainer.max_epochs=1")
    last = tmp_path / "half" / "checkpoints" / "last.ckpt"
    assert runs.digits(runs.resume(last, "trainer.max_epochs=2"), "test") == runs.digits(whole, "test")
    first, second = (runs.trained(tmp_path / run / "checkpoints" / "last.ckpt") for run in ("whole", "half"))
    runs.assert_same(first["weights"], second["weights"])
    checkpoint = f"checkpoint='{tmp_path / 'whole' / 'checkpoints' / 'best.ckpt'}'"
    runs.evaluate(tmp_path / "again", checkpoint)
    assert runs.digits(runs.metrics(tmp_path / "again"), "test") == runs.digits(whole, "test")
    # Other triples to ask for, the same train: the same scores; what is asked for is not in the graph.
    splits = runs.bundled("nations")
    moved = runs.write_splits(tmp_path / "moved", train=splits["train"], valid=splits["test"], test=splits["valid"])
    runs.evaluate(tmp_path / "asked", checkpoint, "dataset=folder", f"dataset.path='{moved}'", "split=valid")
    asked = runs.digits(runs.metrics(tmp_path / "asked"), "valid")
    assert list(asked.values()) == list(runs.digits(whole, "test").values())
