"""`task=retrieval`: runs and vectors against trec_eval, mistakes in one line, and the README's examples."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs
import torch

from kgc.engine.ties import tied_ahead
from kgc.models.similarity import Dot, Euclidean
from kgc.scorers import VectorScorer

NAMES = {"mrr": "recip_rank", "map": "map", "rprec": "Rprec", "ndcg": "ndcg"} | {
    f"{ours}@{k}": f"{theirs}_{k}"
    for k in (5, 10)
    for ours, theirs in (("precision", "P"), ("recall", "recall"), ("map", "map_cut"), ("ndcg", "ndcg_cut"))
}

Table = dict[str, dict[str, float]]


def trec_eval(qrels: Table, run: Table) -> dict[str, dict[str, float]]:
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec_eval is not installed")
    measures = {"recip_rank", "map", "Rprec", "ndcg", "P", "recall", "map_cut", "ndcg_cut"}
    return pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)


def assert_equal_to_trec_eval(folder: Path, qrels: Table, run: Table) -> None:
    """Every query's metrics, and their means with 0 for the queries that trec_eval leaves out."""
    wanted, metrics = trec_eval(qrels, run), runs.metrics(folder)
    rows = {row["query"]: row for row in pl.read_parquet(folder / "per_query.parquet").iter_rows(named=True)}
    assert set(rows) == set(qrels)
    for ours, theirs in NAMES.items():
        for query, row in rows.items():
            value = wanted[query][theirs] if query in wanted else 0.0
            assert row[ours] == pytest.approx(value, abs=1e-9), (query, ours)
        mean = sum(values[theirs] for values in wanted.values()) / len(qrels)
        assert metrics[f"retrieval/{ours}"] == pytest.approx(mean, abs=1e-9), ours


def write_qrels(path: Path, qrels: Table) -> Path:
    path.write_text("".join(f"{q} 0 {d} {g}\n" for q, judged in qrels.items() for d, g in judged.items()))
    return path


def write_run(path: Path, run: Table) -> Path:
    lines = []
    for query, scores in run.items():
        ordered = sorted(scores.items(), key=lambda item: -item[1])
        lines += [f"{query} Q0 {document} {i + 1} {score!r} me\n" for i, (document, score) in enumerate(ordered)]
    path.write_text("".join(lines))
    return path


def judgements(seed: int, queries: int, documents: int) -> Table:
    random = np.random.default_rng(seed)
    qrels = {}
    for q in range(queries):
        chosen = random.choice(documents, min(15, documents), replace=False)
        qrels[f"q{q}"] = {f"d{d}": int(g) for d, g in zip(chosen, random.integers(0, 4, len(chosen)), strict=True)}
    return qrels


@pytest.mark.parametrize("tied", [False, True])
def test_a_run_has_the_metrics_of_trec_eval(tied, tmp_path, capsys):
    random = np.random.default_rng(int(tied))
    qrels = judgements(int(tied), 30, 80)
    qrels["q7"] = dict.fromkeys(qrels["q7"], 0)
    run = {}
    for q in range(1, 33):  # q0 is not answered, q30 … q32 are not judged
        chosen = random.choice(100, 50, replace=False)
        scores = random.integers(0, 8, 50).astype(float) if tied else random.normal(size=50)
        run[f"q{q}"] = {f"d{d}": float(s) for d, s in zip(chosen, scores, strict=True)}
    run["q3"]["d0"], run["q3"]["d1"] = 1.0, 1.0 + 1e-12  # one score in single precision
    files = [f"retrieval.run={write_run(tmp_path / 'run.txt', run)}"]
    files += [f"retrieval.qrels={write_qrels(tmp_path / 'qrels.txt', qrels)}", "retrieval.cutoffs=[5,10]"]
    done = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *files, "bootstrap=50", "hydra.run.dir=out")
    assert done.code == 0, done.err
    assert_equal_to_trec_eval(tmp_path / "out", qrels, run)
    metrics = runs.metrics(tmp_path / "out")
    assert metrics["retrieval/num_queries"] == 30
    assert metrics["retrieval/num_unanswered"] == 1
    assert metrics["retrieval/num_unjudged_queries"] == 3
    assert metrics["retrieval/num_without_relevant"] == 1
    judged = {(q, d) for q, documents in qrels.items() for d in documents}
    assert metrics["retrieval/num_unjudged_documents"] == sum(
        (q, d) not in judged for q in run if q in qrels for d in run[q]
    )
    assert metrics["retrieval/map_low"] < metrics["retrieval/map"] < metrics["retrieval/map_high"]
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"metrics.json", "per_query.parquet", "report.html"}


def vectors(seed: int, rows: int, whole: bool) -> np.ndarray:
    """Integers, whose products are exact and tie, with repeated rows; or normal numbers."""
    random = np.random.default_rng(seed)
    table = random.integers(-2, 3, (rows, 6)) if whole else random.normal(size=(rows, 6))
    table[table.any(1) == 0] = 1
    return table.astype(np.float32)


def write_vectors(path: Path, table: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, table)
    elif path.suffix == ".parquet":
        pl.DataFrame({"id": np.arange(len(table)), "vector": table.tolist()}).write_parquet(path)
    else:
        from safetensors.numpy import save_file

        save_file({"vectors": table}, path)
    return path


SCORES = {
    "dot": lambda q, d: d @ q,
    "l2": lambda q, d: -((d - q) ** 2).sum(1),
    "cosine": lambda q, d: d @ q / np.linalg.norm(d, axis=1),
}


@pytest.mark.parametrize(
    ("similarity", "whole", "ending"),
    [("dot", True, ".npy"), ("l2", True, ".safetensors"), ("dot", False, ".parquet"), ("cosine", False, ".npy")],
)
def test_vectors_have_the_metrics_of_trec_eval(similarity, whole, ending, tmp_path):
    queries, documents = vectors(0, 25, whole), vectors(1, 300, whole)
    qrels = judgements(2, 24, 300)  # q24 is not judged
    run = {}
    for q in range(25):
        scores = SCORES[similarity](queries[q].astype(float), documents.astype(float))
        if not whole:  # places: trec_eval rounds scores to single precision
            scores = scores.argsort().argsort()
        run[f"q{q}"] = {f"d{d}": float(s) for d, s in enumerate(scores)}
    for name, table in (("queries", queries), ("documents", documents)):
        write_vectors(tmp_path / f"{name}{ending}", table)
        (tmp_path / f"{name}.txt").write_text("".join(f"{name[0]}{i}\n" for i in range(len(table))))
    words = [f"retrieval.{name}={tmp_path / name}{ending}" for name in ("queries", "documents")]
    words += [f"retrieval.query_ids={tmp_path}/queries.txt", f"retrieval.document_ids={tmp_path}/documents.txt"]
    words += [f"retrieval.qrels={write_qrels(tmp_path / 'qrels.txt', qrels)}", f"retrieval.similarity={similarity}"]
    metrics = runs.evaluate(tmp_path / "out", "task=retrieval", *words, "retrieval.cutoffs=[5,10]")
    del run["q24"]
    assert_equal_to_trec_eval(tmp_path / "out", qrels, run)
    assert metrics["retrieval/num_unjudged_queries"] == 1
    assert metrics["retrieval/num_documents"] == 300
    assert (metrics["retrieval/num_tied"] > 100) == whole


@pytest.mark.parametrize("similarity", [Dot(), Euclidean()])
@pytest.mark.parametrize("scale", [1.0, 1e18])
@pytest.mark.parametrize("blocks", [1, 4])
def test_ties_are_broken_as_a_loop_breaks_them(similarity, scale, blocks, monkeypatch):
    if blocks > 1:  # of 64 documents, the last of which overlaps the one before, for 8 queries at once
        monkeypatch.setattr("kgc.engine.ties.DEFAULT", {"cpu": (8, 8 * 64)})
    # At 1e18 the squares leave fp32: float64 decides all.
    queries, table = (torch.from_numpy(vectors(seed, rows, True)) * scale for seed, rows in ((3, 20), (4, 200)))
    scorer = VectorScorer(queries, table, similarity)
    generator = torch.Generator().manual_seed(0)
    priority, target = torch.randperm(200, generator=generator), torch.randint(200, (20,), generator=generator)
    tied, ahead = tied_ahead(scorer, scorer.queries(torch.arange(20)), target, priority)
    for q in range(20):
        rows, own = table.double(), int(target[q])
        scores = (rows @ queries[q].double()) if isinstance(similarity, Dot) else (rows - queries[q]).square().sum(-1)
        same = [d for d in range(200) if d != own and scores[d] == scores[own]]
        assert int(tied[q]) == len(same)
        assert int(ahead[q]) == sum(bool(priority[d] > priority[own]) for d in same)
    assert int(tied.sum()) > 20


def test_other_rules_for_ties_and_gains(tmp_path):
    qrels = write_qrels(tmp_path / "qrels.txt", {"q": {"a": 0, "b": 2, "c": 0}})
    run = write_run(tmp_path / "run.txt", {"q": {"a": 1.0, "b": 1.0, "c": 1.0}})
    words = ["task=retrieval", f"retrieval.run={run}", f"retrieval.qrels={qrels}", "retrieval.cutoffs=[1]"]
    rules = {"trec": 1 / 2, "expected": (1 + 1 / 2 + 1 / 3) / 3, "optimistic": 1.0, "pessimistic": 1 / 3}
    for ties, mrr in rules.items():
        metrics = runs.evaluate(tmp_path / ties, *words, f"retrieval.ties={ties}")
        assert metrics["retrieval/mrr"] == pytest.approx(mrr)
        assert metrics["retrieval/num_tied"] == 1
    assert runs.evaluate(tmp_path / "2", *words, "retrieval.relevant_from=2")["retrieval/mrr"] == 1 / 2
    both = write_qrels(tmp_path / "both.txt", {"q": {"a": 1, "b": 3}})
    words[2] = f"retrieval.qrels={both}"
    run.write_text("q Q0 a 1 2.0 me\nq Q0 b 2 1.0 me\n")
    metrics = runs.evaluate(tmp_path / "gain", *words, "retrieval.gain=exponential")
    assert metrics["retrieval/ndcg"] == pytest.approx((1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3)))


# Mistakes.


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Path]:
    """Files that are right, by the key that takes them."""
    np.save(tmp_path / "q.npy", vectors(0, 3, True))
    np.save(tmp_path / "d.npy", vectors(1, 5, True))
    (tmp_path / "q.txt").write_text("q0\nq1\nq2\n")
    (tmp_path / "d.txt").write_text("d0\nd1\nd2\nd3\nd4\n")
    (tmp_path / "qrels.txt").write_text("q0 0 d1 1\nq1 0 d2 1\n")
    (tmp_path / "run.txt").write_text("q0 Q0 d1 1 2.0 me\nq0 Q0 d2 2 1.0 me\n")
    names = ("q.npy", "d.npy", "q.txt", "d.txt", "qrels.txt", "run.txt")
    keys = ("queries", "documents", "query_ids", "document_ids", "qrels", "run")
    return {key: tmp_path / name for key, name in zip(keys, names, strict=True)}


VECTORS = ("queries", "documents", "query_ids", "document_ids", "qrels")
MISTAKES = [
    # keys given, the file that is damaged, its content, what the line must name
    (VECTORS, "queries", np.ones((3, 7), np.float32), ["7", "6", "retrieval.documents"]),
    (VECTORS, "documents", np.full((5, 6), np.nan, np.float32), ["d.npy", "row 0", "NaN"]),
    (VECTORS, "documents", np.array([["a"]]), ["d.npy", "numbers"]),
    (VECTORS, "documents", np.ones(6, np.float32), ["d.npy", "[rows, dim]"]),
    (VECTORS, "documents", "text", ["d.npy", "not a readable"]),
    (VECTORS, "document_ids", "d0\nd1\nd2\nd3\nd1\n", ["d.txt:5", "d1", "line 2"]),
    (VECTORS, "document_ids", "d0\nd1\n", ["d.txt", "2 ids", "5 rows"]),
    (VECTORS, "qrels", "q0 0 d1 1\nq0 0 d9 1\n", ["qrels.txt:2", "d9", "document_ids"]),
    (VECTORS, "qrels", "q9 0 d1 1\n", ["qrels.txt:1", "q9", "query_ids"]),
    (VECTORS, "qrels", "q0 0 d1 0\n", ["qrels.txt", "no document", "1"]),
    (VECTORS, "qrels", "", ["qrels.txt", "empty"]),
    (VECTORS, "qrels", "q0 0 d1 1\nq0 d2 1\n", ["qrels.txt:2", "3 columns", "expected 4"]),
    (VECTORS, "qrels", "q0 0 d1 much\n", ["qrels.txt:1", "much"]),
    (VECTORS, "qrels", "q0 0 d1 1\nq0 0 d1 0\n", ["qrels.txt:2", "d1", "twice"]),
    (("run", "qrels"), "run", "q0 Q0 d1 1 nan me\n", ["run.txt:1", "nan"]),
    (("run", "qrels"), "run", "q0 Q0 d1 1 2.0\n", ["run.txt:1", "5 columns", "expected 6"]),
    (("run", "qrels"), "run", "q0 Q0 d1 1 2 me\nq0 Q0 d1 2 1 me\n", ["run.txt:2", "d1", "twice"]),
    (("run", "qrels"), "run", "x Q0 d1 1 2 me\n", ["run.txt", "query ids"]),
    (("run",), None, None, ["retrieval.qrels is needed"]),
    (("qrels",), None, None, ["retrieval.run", "retrieval.queries"]),
    (("queries", "qrels"), None, None, ["retrieval.documents"]),
    ((*VECTORS, "run"), None, None, ["choose one"]),
]


@pytest.mark.parametrize(("keys", "damaged", "content", "names"), MISTAKES)
def test_mistakes_are_one_line(good, tmp_path, capsys, keys, damaged, content, names):
    if isinstance(content, np.ndarray):
        np.save(good[damaged], content)
    elif content is not None:
        good[damaged].write_text(content)
    words = [f"retrieval.{key}={good[key]}" for key in keys]
    message = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *words).mistake()
    for name in names:
        assert name in message, message


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("retrieval.similarity=hamming", ["hamming", "dot, cosine, l2"]),
        ("retrieval.ties=coin", ["coin", "trec, expected, optimistic, pessimistic"]),
        ("retrieval.gain=cubic", ["cubic", "linear, exponential"]),
        ("retrieval.cutoffs=[0]", ["retrieval.cutoffs"]),
        ("retrieval.relevant_from=0", ["retrieval.relevant_from=0"]),
        ("retrieval.run=nowhere.txt", ["retrieval.run=nowhere.txt", "no such file"]),
    ],
)
def test_mistaken_options_are_one_line(good, tmp_path, capsys, word, names):
    words = [f"retrieval.{key}={good[key]}" for key in ("run", "qrels")]
    message = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *words, word).mistake()
    for name in names:
        assert name in message, message


def test_zero_vectors_have_no_cosine(good, tmp_path, capsys):
    table = vectors(1, 5, True)
    table[3] = 0
    np.save(good["documents"], table)
    words = [f"retrieval.{key}={good[key]}" for key in VECTORS]
    line = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *words, "retrieval.similarity=cosine").mistake()
    assert "retrieval.documents: row 3" in line


def test_an_unsorted_run_is_ordered_by_score_and_said_so(good, tmp_path, capsys):
    words = [f"retrieval.{key}={good[key]}" for key in ("run", "qrels")]
    good["run"].write_text("q0 Q0 d2 1 1.0 me\nq0 Q0 d1 2 2.0 me\n")
    done = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *words, "hydra.run.dir=one")
    assert "run.txt:2: the run is not sorted by score" in done.out
    assert runs.metrics(tmp_path / "one")["retrieval/mrr"] == 0.5  # q0 has it first, q1 is not answered
    good["run"].write_text("q0 Q0 d1 2 2.0 me\nq0 Q0 d2 1 1.0 me\n")
    done = runs.command(capsys, tmp_path, "evaluate", "task=retrieval", *words, "hydra.run.dir=two")
    assert "run.txt:2: the rank column contradicts the scores" in done.out


def test_the_examples_of_the_readme_run(tmp_path, capsys):
    readme = re.sub(r"\\\n\s*", "", (runs.REPOSITORY / "README.md").read_text(encoding="utf-8"))
    commands = re.findall(r"^    (python evaluate\.py task=retrieval .*)$", readme, re.MULTILINE)
    assert len(commands) == 3
    names, people = ["ann", "bob", "cyd"], np.eye(3, dtype=np.float32)
    np.save(tmp_path / "questions.npy", people)
    np.save(tmp_path / "passages.npy", np.concatenate([people + 0.1, -people]))
    pl.DataFrame({"vector": people.tolist()}).write_parquet(tmp_path / "left.parquet")
    pl.DataFrame({"vector": (people * 3).tolist()}).write_parquet(tmp_path / "right.parquet")
    for file in ("left", "right"):
        (tmp_path / f"{file}.txt").write_text("".join(f"{name}\n" for name in names))
    (tmp_path / "same.txt").write_text("".join(f"{name} 0 {name} 1\n" for name in names))
    (tmp_path / "qrels.txt").write_text("0 0 0 1\n1 0 1 1\n2 0 5 1\n")
    (tmp_path / "bm25.txt").write_text("0 Q0 0 1 9.5 bm25\n1 Q0 3 1 9.0 bm25\n1 Q0 1 2 8.5 bm25\n")
    wanted = []
    for i, command in enumerate(commands):
        words = shlex.split(command)[2:]
        done = runs.command(capsys, tmp_path, "evaluate", *words, f"hydra.run.dir=out{i}", "trainer=cpu")
        assert done.code == 0, done.err
        wanted.append(runs.metrics(tmp_path / f"out{i}")["retrieval/mrr"])
    # The passage −e₂ of the third question stands last of six.
    assert wanted == pytest.approx([(1 + 1 + 1 / 6) / 3, (1 + 1 / 2 + 0) / 3, 1.0])
