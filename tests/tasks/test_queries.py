"""`task=queries`: answers of questions by brute force, truths by a loop over all assignments, and the command line."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import runs
import torch

from kgc.data.catalogue import load_dataset
from kgc.data.known import KnownAnswers
from kgc.data.logic import FORMS, Links, answers, from_json, name_of, sample_questions, to_json
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.distmult import DistMult
from kgc.ranking import RankingOptions, rank_queries
from kgc.tasks.queries import Decomposition, _read
from kgc.types import Queries, Side, Triples


def satisfied(question: tuple, answer: int, edges: set, entities: range) -> bool:
    """Whether an entity answers a question, tried with every entity for every variable."""
    kind = question[0]
    if kind == "a":
        return question[1] == answer
    if kind == "p":
        return any((x, question[2], answer) in edges and satisfied(question[1], x, edges, entities) for x in entities)
    parts = [satisfied(part, answer, edges, entities) for part in question[1:]]
    return all(parts) if kind == "i" else any(parts)


def edges_of(*splits: Triples) -> set:
    triples = Triples.cat(list(splits))
    return set(zip(triples.head.tolist(), triples.relation.tolist(), triples.tail.tolist(), strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_sampled_questions_have_the_answers_of_a_brute_force(name):
    graph = load_dataset("nations")
    entities = range(graph.num_entities)
    every, before = edges_of(graph.train, graph.valid, graph.test), edges_of(graph.train, graph.valid)
    asked = sample_questions(graph, "test", name, 3, seed=1)
    assert len({question for question, *_ in asked}) == 3
    for question, easy, hard in asked:
        assert name_of(question) == name
        everything = {x for x in entities if satisfied(question, x, every, entities)}
        assert easy == {x for x in entities if satisfied(question, x, before, entities)}
        assert hard == everything - easy
        assert hard
        entity_ids, relation_ids = ({x: i for i, x in enumerate(v.labels)} for v in (graph.entities, graph.relations))
        assert from_json(json.loads(json.dumps(to_json(question, graph))), entity_ids, relation_ids) == question
    assert asked == sample_questions(graph, "test", name, 3, seed=1)
    assert asked != sample_questions(graph, "test", name, 3, seed=2)


def test_answers_are_those_of_the_given_edges():
    links = Links(Triples(*torch.tensor([[0, 0, 1], [1, 0, 2], [1, 0, 3], [4, 1, 3]]).T))
    hop = ("p", ("a", 0), 0)
    assert answers(("p", hop, 0), links) == {2, 3}
    assert answers(("i", ("p", hop, 0), ("p", ("a", 4), 1)), links) == {3}
    assert answers(("u", hop, ("p", ("a", 4), 1)), links) == {1, 3}


# Truths.


def model_of(entities: int = 7) -> DistMult:
    torch.manual_seed(0)
    model = DistMult(entities, 3, 4).eval()
    with torch.no_grad():
        for table in model.parameters():
            table.normal_()
    return model


def truth(model: DistMult, question: tuple, answer: int, t_norm: str) -> float:
    """The best assignment of all variables, by truths as they stand in the paper."""
    both = (lambda a, b: a * b) if t_norm == "product" else min
    either = (lambda a, b: a + b - a * b) if t_norm == "product" else max
    kind = question[0]
    if kind == "a":
        return float(question[1] == answer)
    if kind == "p":

        def hop(x: int) -> float:
            score = model.score(Queries(torch.tensor([x]), torch.tensor([question[2]]), Side.TAIL))[0, answer]
            return both(truth(model, question[1], x, t_norm), 1 / (1 + math.exp(-float(score))))

        return max(hop(x) for x in range(model.num_entities))
    values = [truth(model, part, answer, t_norm) for part in question[1:]]
    result = values[0]
    for value in values[1:]:
        result = both(result, value) if kind == "i" else either(result, value)
    return result


def instance(form: tuple, numbers) -> tuple:
    if form[0] == "a":
        return ("a", next(numbers) % 7)
    if form[0] == "p":
        return ("p", instance(form[1], numbers), next(numbers) % 3)
    return (form[0], *(instance(part, numbers) for part in form[1:]))


@torch.no_grad()
@pytest.mark.parametrize("t_norm", ["product", "min"])
@pytest.mark.parametrize("name", ["1p", "2p", "3i", "ip", "pi", "2u", "up"])
def test_truths_are_those_of_the_best_assignment(name, t_norm):
    model, question = model_of(), instance(FORMS[name], itertools.count(2, 5))
    got = Decomposition(model, t_norm, beam=7).truths(question)
    wanted = [math.log(truth(model, question, x, t_norm)) for x in range(7)]
    assert got.tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    narrow = Decomposition(model, t_norm, beam=1).truths(question)
    assert bool((narrow <= got + 1e-12).all())


def test_unions_keep_digits_at_both_ends():
    either = Decomposition(model_of()).either
    for a, b in ((1e-200, 3e-200), (0.5, 0.25), (1 - 1e-12, 0.9)):
        logs = torch.tensor([a, b], dtype=torch.float64).log()
        assert float(either(*logs)) == pytest.approx(math.log(a + b - a * b), rel=1e-9)


@pytest.mark.parametrize("name", ["1p", "2i"])
def test_ranks_leave_out_the_other_answers_and_one_hop_is_link_prediction(name):
    model = model_of(7)
    question = instance(FORMS[name], itertools.count(1))
    counts = Decomposition(model).ranks(question, {0, 5}, {2, 4}, RankingOptions())
    truths = Decomposition(model).truths(question)
    rivals = [1, 3, 6]
    assert counts.candidates.tolist() == [4, 4]
    assert counts.realistic.tolist() == [1 + sum(bool(truths[x] > truths[h]) for x in rivals) for h in (2, 4)]
    if name == "1p":
        (_, (_, anchor), relation) = question
        known = torch.tensor([0, 2, 4, 5])
        index = KnownAnswers(Triples(torch.full((4,), anchor), torch.full((4,), relation), known), 7, 3)
        hop = Queries(torch.full((2,), anchor), torch.full((2,), relation), Side.TAIL)
        assert counts.better.tolist() == rank_queries(model, hop, torch.tensor([2, 4]), index).better.tolist()


# The command line.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder, "model=complex", "trainer.max_epochs=2")
    return f'checkpoint="{folder / "checkpoints" / "best.ckpt"}"'


def test_drawn_questions_are_answered_and_can_be_asked_again(checkpoint, tmp_path, capsys):
    words = ["task=queries", checkpoint, "trainer=cpu"]
    done = runs.command(capsys, tmp_path, "evaluate", *words, "queries.sample=1p:9,2u:4", "hydra.run.dir=out")
    assert done.code == 0, done.err
    metrics = runs.metrics(tmp_path / "out")
    rows = pl.read_parquet(tmp_path / "out" / "answers.parquet")
    for form, number in (("1p", 9), ("2u", 4)):
        mine = rows.filter(pl.col("form") == form)
        by_question = mine.group_by("question").agg((1 / pl.col("realistic")).mean().alias("mrr"))
        assert metrics[f"queries/{form}/num_queries"] == len(by_question) == number
        assert metrics[f"queries/{form}/mrr"] == pytest.approx(by_question["mrr"].mean())
    assert metrics["queries/mrr"] == pytest.approx((metrics["queries/1p/mrr"] + metrics["queries/2u/mrr"]) / 2)
    again = runs.evaluate(tmp_path / "again", *words, f"queries.path={tmp_path / 'out' / 'queries.json'}")
    assert {**again, "queries/seconds": 0} == {**metrics, "queries/seconds": 0}

    # One hop: the filtered ranks of link prediction, triple by triple.
    runs.evaluate(tmp_path / "single", checkpoint)
    single = {
        (row["head"], row["relation"], row["tail"]): row["realistic"]
        for row in runs.ranks(tmp_path / "single").filter(pl.col("side") == "tail").iter_rows(named=True)
    }
    questions = json.loads((tmp_path / "out" / "queries.json").read_text())["queries"]
    for row in rows.filter(pl.col("form") == "1p").iter_rows(named=True):
        head, (relation,) = questions[row["question"]]["query"]
        assert row["realistic"] == single[head, relation, row["answer"]]


@pytest.mark.parametrize(
    ("words", "content", "names"),
    [
        ([], None, ["queries.path", "queries.sample"]),
        (["queries.sample=5p:3"], None, ["5p:3", "1p, 2p"]),
        (["queries.sample=1p:300", "split=valid"], None, ["1p:300", "only", "max_answers"]),
        (["queries.sample=1p:3", "queries.t_norm=max"], None, ["max", "product, min"]),
        (["queries.sample=1p:3", "queries.beam=0"], None, ["queries.beam=0"]),
        (["queries.sample=1p:3", "split=train"], None, ["split=train"]),
        (["queries.path=nowhere.json"], None, ["nowhere.json", "no such file"]),
        (["queries.path=FILE"], "{", ["ask.json", "JSON"]),
        (["queries.path=FILE"], [{"query": ["usa", ["nothing"]], "hard": ["cuba"]}], ["question 0", "nothing"]),
        (["queries.path=FILE"], [{"query": ["usa", ["embassy"]], "hard": ["cubba"]}], ["question 0", "cubba"]),
        (["queries.path=FILE"], [{"query": ["usa", ["embassy"]], "hard": []}], ["question 0", "no hard answer"]),
        (["queries.path=FILE"], [{"query": "usa", "hard": ["cuba"]}], ["question 0", "no question"]),
        (["queries.path=FILE"], [{"query": ["usa", ["embassy"] * 4], "hard": ["cuba"]}], ["question 0", "forms"]),
    ],
)
def test_mistakes_are_one_line(checkpoint, tmp_path: Path, capsys, words, content, names):
    text = content if isinstance(content, str) else json.dumps({"queries": content})
    (tmp_path / "ask.json").write_text(text)
    words = [word.replace("FILE", str(tmp_path / "ask.json")) for word in words]
    message = runs.command(capsys, tmp_path, "evaluate", "task=queries", checkpoint, "trainer=cpu", *words).mistake()
    for name in names:
        assert name in message, message


ROW = '{"query": ["a", ["r"]], "hard": ["b"]}'
OBJECT = 'not a JSON object {"queries": […]}'
EXPECTED = 'expected an object {"query": …, "easy": […], "hard": […]}'
IS_NONE = "is no question: [entity, [relation, …]], or a list of questions"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"queries": 5}', OBJECT),
        ('{"queries": null}', OBJECT),
        ('{"queries": {"query": ["a", ["r"]]}}', OBJECT),
        (f"[{ROW}]", OBJECT),
        ("", f"{OBJECT} (JSONDecodeError: Expecting value: line 1 column 1 (char 0))"),
        ('{"queries": []}', "there are no questions in it"),
        ('{"queries": ' + "[" * 200_000, f"{OBJECT} (nested too deeply)"),
        (f'{{"queries": [{ROW}, "a"]}}', f"question 1 (from 0): {EXPECTED}"),
        ([{"hard": ["b"]}], f"question 0 (from 0): {EXPECTED}"),
        ([{"query": None}], f"question 0 (from 0): None {IS_NONE}"),
        ([{"query": "a" * 999}], f"question 0 (from 0): '{'a' * 78}… {IS_NONE}"),
        ([{"query": ["a\nb", ["r"]]}], "question 0 (from 0): entity 'a\\nb' is not known"),
        ([{"query": ["a", ["r"]], "hard": None}], "question 0 (from 0): its hard answers must be a list of labels"),
        ([{"query": ["a", ["r"]], "easy": "b"}], "question 0 (from 0): its easy answers must be a list of labels"),
        ([{"query": ["a", ["r"]], "hard": [["b"]]}], "question 0 (from 0): its hard answers must be a list of labels"),
        ([{"query": ["a", ["r"] * 3000], "hard": ["b"]}], "question 0 (from 0): nested too deeply"),
    ],
)
def test_hostile_files_are_one_line(text, expected, tmp_path):
    graph = SimpleNamespace(entities=Vocabulary.from_labels(["a", "b"]), relations=Vocabulary.from_labels(["r"]))
    path = tmp_path / "ask.json"
    path.write_text(text if isinstance(text, str) else json.dumps({"queries": text}))
    with pytest.raises(UserError) as caught:
        _read(str(path), graph)
    assert str(caught.value) == f"{path}: {expected}"
