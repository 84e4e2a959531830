"""`ranking.candidates`: ranks among drawn and given candidates, and the name `sampled` wherever they show."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import torch

from kgc.data.catalogue import load_folder
from kgc.errors import UserError
from kgc.tasks.build import build_model, load_weights, read_checkpoint
from kgc.types import Queries, Side

K = 5  # candidates that the data set gives


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """Nations as OGB would lay it out, with candidates of its own, and a run on it."""
    root = tmp_path_factory.mktemp("sampled")
    folder, random = root / "data", np.random.default_rng(0)
    (folder / "split" / "random").mkdir(parents=True)
    (folder / "mapping").mkdir()
    splits = runs.bundled("nations")
    entities = sorted({e for rows in splits.values() for h, _, t in rows for e in (h, t)})[::-1]  # not in our order
    relations = sorted({r for rows in splits.values() for _, r, _ in rows})
    given = {}
    for split, rows in splits.items():
        columns = zip(*((entities.index(h), relations.index(r), entities.index(t)) for h, r, t in rows), strict=True)
        part = dict(zip(("head", "relation", "tail"), map(np.array, columns), strict=True))
        if split != "train":
            given[split] = {e: random.integers(0, len(entities), (len(rows), K)) for e in ("head", "tail")}
            part |= {f"{end}_neg": ids for end, ids in given[split].items()}
        torch.save(part, folder / "split" / "random" / f"{split}.pt")
    for name, labels in (("nodeidx2entityid", entities), ("reltype2relid", relations)):
        text = "id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        (folder / "mapping" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    data = ["dataset=folder", f"dataset.path={folder}"]
    runs.train(root / "run", *data, "model=distmult", "trainer.max_epochs=1")
    checkpoint = root / "run" / "checkpoints" / "best.ckpt"
    return SimpleNamespace(root=root, folder=folder, checkpoint=checkpoint, given=given, entities=entities)


def evaluate(trained: SimpleNamespace, folder: Path, *words: str) -> dict[str, float]:
    return runs.evaluate(folder, f"checkpoint={trained.checkpoint}", *words)


def test_given_candidates_against_a_brute_force(trained, tmp_path):
    values = evaluate(trained, tmp_path / "run", "ranking.candidates=given")
    checkpoint = read_checkpoint(str(trained.checkpoint))
    graph = load_folder(str(trained.folder))
    model = build_model(checkpoint.config, graph.num_entities, graph.num_relations)
    load_weights(model, checkpoint)
    ranks = []
    for side, end in ((Side.HEAD, "head"), (Side.TAIL, "tail")):
        queries, targets = graph.test.queries(side), graph.test.target(side)
        with torch.no_grad():
            scores = model.eval().score(Queries(queries.anchor, queries.relation, side)).double()
        for i, row in enumerate(trained.given["test"][end].tolist()):
            ids = [graph.entities.labels.index(trained.entities[e]) for e in row]
            own = scores[i, targets[i]]
            better, equal = (scores[i, ids] > own).sum(), (scores[i, ids] == own).sum()
            ranks.append(1 + float(better) + float(equal) / 2)
    assert runs.ranks(tmp_path / "run")["realistic"].to_list() == ranks
    assert runs.ranks(tmp_path / "run")["candidates"].to_list() == [K + 1] * len(ranks)
    assert values["test/sampled/mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-14)
    means = np.array(ranks).reshape(2, -1).mean(0)
    assert values["test/sampled/mr_se"] == pytest.approx(np.std(means, ddof=1) / np.sqrt(len(means)), rel=1e-12)
    assert "test/sampled/mr_estimate" not in values  # they were not drawn evenly


def test_drawn_candidates_are_named_sampled_everywhere(trained, tmp_path):
    values = evaluate(trained, tmp_path / "run", "ranking.candidates=4", "logger=csv")
    assert all(name.startswith("test/sampled/") for name in values)
    assert values["test/sampled/num_candidates"] == 4
    assert values["test/sampled/num_triples"] == values["test/sampled/split_triples"] == 201
    assert {"mrr_se", "mr_se", "hits@1_se", "hits@10_se", "mr_estimate", "mr_estimate_se"} <= {
        name.removeprefix("test/sampled/") for name in values
    }
    log = (tmp_path / "run" / "evaluate.log").read_text()
    assert "candidates 4 drawn (seed 0) candidates a query, not all 14 entities: sampled ranks" in log
    assert "test: sampled ranks, among 4 candidates a query" in log
    assert "standard error" in log
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Sampled ranks, among 4 candidates a query on the test split" in page
    assert "filtered ranks" not in page
    header = (tmp_path / "run" / "csv" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    assert "test/sampled/mrr" in header
    assert "test/mrr" not in header


def test_as_many_candidates_as_rivals_give_the_filtered_ranks(trained, tmp_path):
    some = evaluate(trained, tmp_path / "some", "ranking.candidates=1000")
    whole = evaluate(trained, tmp_path / "whole")
    for name in ("mrr", "mr", "hits@1", "hits@10", "tail/mrr"):
        assert some[f"test/sampled/{name}"] == whole[f"test/{name}"]
    assert runs.ranks(tmp_path / "some").equals(runs.ranks(tmp_path / "whole"))
    assert some["test/sampled/mr_estimate"] == pytest.approx(whole["test/mr"], rel=1e-12)
    assert some["test/sampled/mr_estimate_se"] == 0


def test_draws_depend_on_the_seed_and_go_with_a_sample_of_triples(trained, tmp_path):
    words = ["ranking.candidates=3", "ranking.draw=typed", "ranking.limit=40"]
    first, again, other = (
        evaluate(trained, tmp_path / str(i), *words, f"seed={seed}") for i, seed in enumerate((0, 0, 1))
    )
    assert runs.digits(first) == runs.digits(again) != runs.digits(other)
    assert first["test/sampled/num_triples"] == 40
    assert "test/sampled/mr_estimate" not in first
    assert "estimate from 40 of 201 triples, sampled ranks" in (tmp_path / "0" / "evaluate.log").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ranking.candidates=0"], "ranking.candidates=0: must be a whole number from 1 on"),
        (["ranking.candidates=all"], "ranking.candidates=all: must be a whole number from 1 on"),
        (["ranking.draw=even"], "ranking.draw=even: choices are uniform, typed"),
        (["ranking.candidates=3", "protocol=query"], "goes with protocol=triple"),
        (["ranking.candidates=3", "bootstrap=9"], "bootstrap with ranking.candidates: choose one"),
        (["ranking.candidates=given", "ranking.limit=3"], "candidates are given for a whole split"),
        (["ranking.candidates=given", "dataset=nations"], "nations gives no candidates; those of OGB do"),
        (["ranking.candidates=given", "split=train"], "gives no head_neg"),
    ],
)
def test_what_cannot_be(trained, tmp_path, words, said):
    with pytest.raises(UserError) as caught:
        evaluate(trained, tmp_path / "run", *words)
    assert said in str(caught.value)


def test_training_ranks_all_entities(tmp_path):
    with pytest.raises(UserError, match=r"^ranking.candidates=9: training ranks whole splits against all entities"):
        runs.train(tmp_path / "run", "ranking.candidates=9")
