"""Evaluation of a checkpoint: the digits of the training run, whatever the data looks like on disk."""

from __future__ import annotations

import gzip
import random
import shutil
from pathlib import Path

import oracle
import polars as pl
import pytest
import runs

from kgc.errors import UserError
from kgc.tasks import output

TRAINED = ["model=complex", "objective=one_vs_all", "optimizer.lr=0.1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder, *TRAINED)
    return folder


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than the rest."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


def best(folder: Path) -> str:
    return f"checkpoint='{folder}/checkpoints/best.ckpt'"


def by_label(folder: Path) -> pl.DataFrame:
    frame = runs.ranks(folder)
    return frame.sort(frame.columns)


@pytest.mark.parametrize("split", ["test", "valid"])
def test_same_digits_as_the_training_run(trained, tmp_path, split):
    values = runs.evaluate(tmp_path, best(trained), f"split={split}")
    assert values == runs.metrics(tmp_path)
    assert runs.digits(values) == runs.digits(runs.metrics(trained), split)
    if split == "test":
        assert runs.ranks(tmp_path).equals(runs.ranks(trained))


def test_test_is_the_split_that_is_ranked_unless_told_otherwise(trained, tmp_path):
    assert runs.digits(runs.evaluate(tmp_path, best(trained))) == runs.digits(runs.metrics(trained), "test")


def test_the_train_split_can_be_ranked(trained, tmp_path):
    values = runs.evaluate(tmp_path, best(trained), "split=train")
    assert values["train/num_queries"] == 2 * 1592
    ranks = runs.ranks(tmp_path)["realistic"].to_list()
    assert values["train/hits@1"] == sum(rank <= 1 for rank in ranks) / len(ranks)


def test_files(trained, tmp_path, monkeypatch):
    monkeypatch.undo()  # with the page
    runs.evaluate(tmp_path, best(trained))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"metrics.json", "ranks.parquet", "config.yaml", "report.html", "evaluate.log"}
    assert "ComplEx on nations" in (tmp_path / "report.html").read_text()


def test_log_holds_what_the_console_said(trained, tmp_path, capsys):
    runs.evaluate(tmp_path, best(trained))
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in (tmp_path / "evaluate.log").read_text().splitlines()] == said
    assert "filter     train + valid + test" in said


def test_same_digits_from_other_files_in_another_order(trained, tmp_path):
    splits = runs.bundled("nations")
    frames = {}
    for split, triples in splits.items():
        random.Random(split).shuffle(triples)
        frames[split] = pl.DataFrame(triples, schema=["head", "relation", "tail"], orient="row")
    data = tmp_path / "data"
    data.mkdir()
    frames["train"].write_parquet(data / "train.parquet")
    frames["valid"].write_csv(data / "valid.csv", include_header=False)
    lines = "".join("\t".join(row) + "\r\n" for row in frames["test"].rows())
    (data / "test.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    values = runs.evaluate(tmp_path / "run", best(trained), "dataset=folder", f"dataset.path={data}")
    assert runs.digits(values) == runs.digits(runs.metrics(trained), "test")
    assert runs.ranks(tmp_path / "run")["head"].to_list() != runs.ranks(trained)["head"].to_list()
    assert by_label(tmp_path / "run").equals(by_label(trained))


@pytest.mark.parametrize("words", [["ranking.batch=7"], ["ranking.block=5"], ["ranking.batch=3", "ranking.block=1"]])
def test_block_sizes_change_no_digit(trained, tmp_path, words):
    values = runs.evaluate(tmp_path, best(trained), *words)
    assert runs.digits(values) == runs.digits(runs.metrics(trained), "test")
    assert runs.ranks(tmp_path).equals(runs.ranks(trained))


@pytest.mark.parametrize("names", [[], ["train"], ["train", "test"], ["train", "valid", "test"]])
def test_filter_is_the_one_that_was_asked_for(trained, tmp_path, names):
    runs.evaluate(tmp_path, best(trained), f"ranking.filter=[{','.join(names)}]")
    stored = runs.content(trained / "checkpoints" / "best.ckpt")
    entities, relations = (stored["kgc"][name] for name in ("entities", "relations"))
    splits = {
        split: [(entities.index(h), relations.index(r), entities.index(t)) for h, r, t in triples]
        for split, triples in runs.bundled("nations").items()
    }
    entity, relation = (stored["state_dict"][f"model.{name}.weight"].tolist() for name in ("entity", "relation"))

    def score(h: int, r: int, t: int) -> float:
        return oracle.complex_(entity[h], relation[r], entity[t])

    expected = oracle.ranks(score, splits["test"], [splits[name] for name in names], len(entities))
    ranks = runs.ranks(tmp_path)
    assert ranks["optimistic"].to_list() == [rank.better + 1 for rank in expected]
    assert ranks["pessimistic"].to_list() == [rank.better + rank.equal + 1 for rank in expected]
    assert ranks["candidates"].to_list() == [rank.candidates for rank in expected]


def test_hits_are_the_ones_that_were_asked_for(trained, tmp_path):
    values = runs.evaluate(tmp_path, best(trained), "ranking.hits=[2,5]")
    ranks = runs.ranks(tmp_path)["realistic"].to_list()
    names = {f"test/hits@{k}{end}" for k in (2, 5) for end in ("", "_low", "_high")}
    assert {name for name in values if name.startswith("test/hits")} == names
    assert values["test/hits@5"] == sum(rank <= 5 for rank in ranks) / len(ranks)


# A sample of the split.


@pytest.fixture(scope="module")
def sampled(trained, tmp_path_factory) -> Path:
    """The folder of an evaluation of 60 of the 201 test triples."""
    folder = tmp_path_factory.mktemp("sampled") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "write_report", lambda *_, **__: None)
        runs.evaluate(folder, best(trained), "ranking.limit=60")
    return folder


def test_ranks_of_a_sample_are_those_of_the_whole_split(trained, sampled):
    ranks = runs.ranks(sampled)
    assert len(ranks) == 2 * 60
    assert ranks["side"].to_list() == ["head"] * 60 + ["tail"] * 60
    triples = ranks.select("head", "relation", "tail")
    assert triples[:60].equals(triples[60:])
    assert triples[:60].is_unique().all()
    whole = runs.ranks(trained)
    assert ranks.join(whole, on=whole.columns, how="anti").is_empty()
    # In the order of the split.
    order = whole.head(201).with_row_index().join(ranks.head(60), on=["head", "relation", "tail"], how="semi")
    assert order.select("head", "relation", "tail").equals(triples[:60])


def test_metrics_of_a_sample_are_named_so(trained, sampled):
    values = runs.metrics(sampled)
    assert {name.split("/sampled/")[0] for name in values} == {"test"}
    assert all(name.startswith("test/sampled/") for name in values)
    promised = {name.removeprefix("test/") for name in runs.metrics(trained) if name.startswith("test/")}
    further = {"num_triples", "split_triples"}
    further |= {f"{name}_{end}" for name in ("mrr", "hits@1", "hits@3", "hits@10") for end in ("low", "high")}
    assert {name.removeprefix("test/sampled/") for name in values} == promised | further
    assert (values["test/sampled/num_triples"], values["test/sampled/split_triples"]) == (60, 201)
    assert values["test/sampled/num_queries"] == 120
    ranks = runs.ranks(sampled)["realistic"].to_list()
    assert values["test/sampled/mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 120, rel=1e-14)
    # The whole split's MRR lies within: 60 of 201 triples.
    low, high = values["test/sampled/mrr_low"], values["test/sampled/mrr_high"]
    assert low < values["test/sampled/mrr"] < high
    assert low < runs.metrics(trained)["test/mrr"] < high


def test_a_sample_depends_on_the_seed_and_not_on_the_order_of_lines(trained, sampled, tmp_path):
    splits = runs.bundled("nations")
    random.Random(0).shuffle(splits["test"])
    data = runs.write_splits(tmp_path / "data", **splits)
    words = [best(trained), "dataset=folder", f"dataset.path={data}", "ranking.limit=60"]
    assert runs.digits(runs.evaluate(tmp_path / "same", *words)) == runs.digits(runs.metrics(sampled))
    assert by_label(tmp_path / "same").equals(by_label(sampled))
    runs.evaluate(tmp_path / "other", *words, "seed=1")
    assert not by_label(tmp_path / "other").equals(by_label(sampled))


@pytest.mark.parametrize("limit", [201, 5000])
def test_a_limit_beyond_the_split_is_the_whole_split(trained, tmp_path, limit):
    values = runs.evaluate(tmp_path, best(trained), f"ranking.limit={limit}")
    assert runs.digits(values) == runs.digits(runs.metrics(trained), "test")
    assert runs.ranks(tmp_path).equals(runs.ranks(trained))


def test_a_sample_of_one(trained, tmp_path):
    values = runs.evaluate(tmp_path, best(trained), "ranking.limit=1", "split=valid")
    assert values["valid/sampled/num_queries"] == 2
    assert (values["valid/sampled/mrr_low"], values["valid/sampled/mrr_high"]) == (0.0, 1.0)


def test_console_says_that_a_sample_is_one_and_which_path_ranks(trained, tmp_path, capsys):
    runs.evaluate(tmp_path, best(trained), "ranking.limit=60")
    said = capsys.readouterr().out
    assert "sample     60 of 201 test triples, seed 0: the metrics are estimates and stand under test/sampled/" in said
    assert "test: estimate from 60 of 201 triples, filtered ranks" in said
    assert "ranking    test: certified (float64 decides), eager" in said


def test_unseen_entities_are_those_that_train_lacks(tmp_path):
    """As in FB15k-237 and WN18RR: some test entities have no training triple and are ranked all the same."""
    splits = runs.bundled("nations")
    lonely = splits["test"][0][0]
    train = [triple for triple in splits["train"] if lonely not in triple]
    valid = [triple for triple in splits["valid"] if lonely not in triple]
    data = runs.write_splits(tmp_path / "data", train=train, valid=valid, test=splits["test"])
    words = ["dataset=folder", f"dataset.path={data}"]
    values = runs.train(tmp_path / "run", *words)
    seen_relations = {relation for _, relation, _ in train}
    unseen = [t for t in splits["test"] if lonely in t or t[1] not in seen_relations]
    assert values["test/num_queries"] == 402
    assert values["test/num_unseen"] == 2 * len(unseen) >= 20
    again = runs.evaluate(tmp_path / "again", best(tmp_path / "run"))
    assert runs.digits(again) == runs.digits(values, "test")


def test_data_found_from_any_folder(tmp_path, monkeypatch):
    """A relative `dataset.path` means the folder where training was started."""
    runs.write_splits(tmp_path / "here" / "data", **runs.bundled("nations"))
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    values = runs.train(Path("run"), "dataset=folder", "dataset.path=data")
    monkeypatch.chdir(tmp_path / "there")
    again = runs.evaluate(Path("run"), "checkpoint=../here/run/checkpoints/best.ckpt")
    assert runs.digits(again) == runs.digits(values, "test")


def test_changed_data_is_said(tmp_path, capsys):
    splits = runs.bundled("nations")
    data = runs.write_splits(tmp_path / "data", **splits)
    runs.train(tmp_path / "run", "dataset=folder", f"dataset.path={data}")
    runs.write_splits(data, test=splits["test"][:-1])
    capsys.readouterr()
    values = runs.evaluate(tmp_path / "changed", best(tmp_path / "run"))
    assert "warning: the data of data changed since training" in capsys.readouterr().out
    assert values["test/num_queries"] == 400
    runs.write_splits(data, **splits)
    runs.evaluate(tmp_path / "restored", best(tmp_path / "run"))
    assert "warning" not in capsys.readouterr().out


def test_a_label_that_the_model_does_not_know_is_named(trained, tmp_path):
    splits = runs.bundled("nations")
    splits["test"].insert(3, ("uk", "embassy", "atlantis"))
    data = runs.write_splits(tmp_path / "data", **splits)
    with pytest.raises(UserError) as caught:
        runs.evaluate(tmp_path / "run", best(trained), "dataset=folder", f"dataset.path={data}")
    assert f"{data}/test.txt:4:" in str(caught.value)
    assert "'atlantis'" in str(caught.value)


def test_the_folder_of_a_training_run_is_not_written_into(trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="folder of a training run"):
        runs.evaluate(trained, best(trained))
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_checkpoint_needs_nothing_of_its_run(trained, tmp_path):
    shutil.copy(trained / "checkpoints" / "best.ckpt", tmp_path / "model with = and spaces.ckpt")
    values = runs.evaluate(tmp_path / "run", f"checkpoint='{tmp_path}/model with = and spaces.ckpt'")
    assert runs.digits(values) == runs.digits(runs.metrics(trained), "test")


def test_empty_split_is_a_mistake(tmp_path):
    splits = runs.bundled("nations")
    data = runs.write_splits(tmp_path / "data", train=splits["train"], valid=splits["valid"])
    runs.train(tmp_path / "run", "dataset=folder", f"dataset.path={data}")
    with pytest.raises(UserError, match="test split of data is empty"):
        runs.evaluate(tmp_path / "again", best(tmp_path / "run"))
    assert runs.evaluate(tmp_path / "valid", best(tmp_path / "run"), "split=valid")["valid/num_queries"] == 398


# Keys that a task does not read.


@pytest.mark.parametrize(
    ("task", "word", "named"),
    [
        ("retrieval", "checkpoint=last.ckpt", "checkpoint=last.ckpt"),
        ("retrieval", "dataset=umls", "dataset"),
        ("compare", "model=complex", "model"),
        ("predict", "ranking.limit=10", "ranking.limit=10"),
        ("triple_classification", "ranking.limit=10", "ranking.limit=10"),
    ],
)
def test_a_key_that_the_task_does_not_read_is_refused(tmp_path, task, word, named):
    with pytest.raises(UserError) as caught:
        runs.evaluate(tmp_path / "run", f"task={task}", word)
    assert str(caught.value) == f"{named}: task={task} does not read it; leave it out"
