"""A training run: what it leaves in its folder, and that its numbers are true."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import oracle
import polars as pl
import pytest
import runs
from omegaconf import OmegaConf

from kgc.errors import UserError
from kgc.tasks import output, train


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than a tiny run."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One run of RotatE, its folder, what it returned and what it said."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        returned = runs.train(folder, "trainer.max_epochs=3")
    return SimpleNamespace(folder=folder, returned=returned, said=said.getvalue())


# The folder.


def test_files(finished):
    files = {str(path.relative_to(finished.folder)) for path in finished.folder.rglob("*") if path.is_file()}
    assert files == {
        "metrics.json",
        "ranks.parquet",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "report.html",
        "train.log",
    }


PROMISED = [
    "mrr",
    "mr",
    "hits@1",
    "hits@3",
    "hits@10",
    "head/mrr",
    "head/mr",
    "head/hits@1",
    "head/hits@3",
    "head/hits@10",
    "tail/mrr",
    "tail/mr",
    "tail/hits@1",
    "tail/hits@3",
    "tail/hits@10",
    "optimistic/mrr",
    "optimistic/mr",
    "optimistic/hits@1",
    "optimistic/hits@3",
    "optimistic/hits@10",
    "pessimistic/mrr",
    "pessimistic/mr",
    "pessimistic/hits@1",
    "pessimistic/hits@3",
    "pessimistic/hits@10",
    "amr",
    "amri",
    "num_queries",
    "num_tied",
    "num_unseen",
    "seconds",
]


def test_metrics_file_is_flat_finite_and_has_every_promised_key(finished):
    text = (finished.folder / "metrics.json").read_text()
    values = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in metrics.json"))
    assert values == finished.returned
    assert all(isinstance(value, int | float) and math.isfinite(value) for value in values.values())
    promised = {f"{split}/{key}" for split in ("valid", "test") for key in PROMISED}
    assert promised | {"train/seconds", "train/epochs"} <= set(values)
    assert values["train/epochs"] == 3
    assert values["train/seconds"] > 0
    assert values["test/seconds"] > 0


def test_ranks_file_has_one_row_a_query(finished):
    ranks = runs.ranks(finished.folder)
    assert ranks.columns == ["head", "relation", "tail", "side", "optimistic", "pessimistic", "realistic", "candidates"]
    asked = Counter((row["head"], row["relation"], row["tail"], row["side"]) for row in ranks.iter_rows(named=True))
    assert asked == Counter((*t, side) for t in runs.bundled("nations")["test"] for side in ("head", "tail"))


def test_candidates_are_the_entities_less_the_other_known_answers(finished):
    splits = runs.bundled("nations")
    known = {triple for triples in splits.values() for triple in triples}
    entities = {end for head, _, tail in known for end in (head, tail)}
    for row in runs.ranks(finished.folder).iter_rows(named=True):
        if row["side"] == "tail":
            answers = {t for h, r, t in known if (h, r) == (row["head"], row["relation"])}
        else:
            answers = {h for h, r, t in known if (r, t) == (row["relation"], row["tail"])}
        assert row["candidates"] == len(entities) - len(answers) + 1
        assert 1 <= row["optimistic"] <= row["realistic"] <= row["pessimistic"] <= row["candidates"]


def test_metrics_follow_from_the_ranks_file(finished):
    values = finished.returned
    rows = runs.ranks(finished.folder).to_dicts()
    for row in rows:
        assert row["realistic"] == (row["optimistic"] + row["pessimistic"]) / 2
    groups = {
        "": [row["realistic"] for row in rows],
        "head/": [row["realistic"] for row in rows if row["side"] == "head"],
        "tail/": [row["realistic"] for row in rows if row["side"] == "tail"],
        "optimistic/": [row["optimistic"] for row in rows],
        "pessimistic/": [row["pessimistic"] for row in rows],
    }
    for prefix, ranks in groups.items():
        assert values[f"test/{prefix}mrr"] == math.fsum(1 / rank for rank in ranks) / len(ranks)
        assert values[f"test/{prefix}mr"] == float(sum(map(Fraction, ranks)) / len(ranks))
        for k in (1, 3, 10):
            assert values[f"test/{prefix}hits@{k}"] == sum(rank <= k for rank in ranks) / len(ranks)
    chance = sum(Fraction(row["candidates"] + 1, 2) for row in rows)
    ahead = sum(Fraction(row["realistic"]) - 1 for row in rows)
    rivals = sum(Fraction(row["candidates"] - 1, 2) for row in rows)
    assert values["test/amr"] == pytest.approx(float(sum(map(Fraction, groups[""])) / chance), rel=1e-15)
    assert values["test/amri"] == pytest.approx(float(1 - ahead / rivals), rel=1e-12)
    assert values["test/num_queries"] == len(rows) == 402
    assert values["test/num_tied"] == sum(row["optimistic"] < row["pessimistic"] for row in rows)
    assert values["test/num_unseen"] == 0


def test_log_holds_what_the_console_said(finished):
    log = (finished.folder / "train.log").read_text()
    assert [line.rstrip() for line in log.splitlines()] == [line.rstrip() for line in finished.said.splitlines()]


def test_console_names_data_model_and_ends_with_the_numbers(finished):
    lines = finished.said.splitlines()
    assert lines[0] == "14 entities, 55 relations; triples: 1,592 train, 199 valid, 201 test"
    # 14 entities of 8 numbers, 55 relations of 4 phases
    assert f"RotatE, {14 * 8 + 55 * 4} parameters" in finished.said
    values = finished.returned
    for label, prefix in (("both sides", ""), ("head", "head/"), ("tail", "tail/")):
        (line,) = [line for line in lines if line.strip().startswith(label)]
        assert f"{values[f'test/{prefix}mrr']:.4f}" in line
        assert f"{values[f'test/{prefix}hits@10']:.4f}" in line
    assert sum(line.startswith("epoch ") for line in lines) == 3


def test_config_file_repeats_the_run(finished, tmp_path, no_page):
    config = OmegaConf.load(finished.folder / "config.yaml")
    assert config.model.dim == 8
    assert config.trainer.max_epochs == 3
    again = train.train(config, tmp_path / "again")
    assert runs.digits(again) == runs.digits(finished.returned)
    assert runs.ranks(tmp_path / "again").equals(runs.ranks(finished.folder))
    last = "checkpoints/last.ckpt"
    runs.assert_same(runs.trained(tmp_path / "again" / last), runs.trained(finished.folder / last))


def test_another_seed_is_another_run(finished, tmp_path, no_page):
    other = runs.train(tmp_path / "run", "trainer.max_epochs=3", "seed=1")
    assert runs.digits(other)["test/mrr"] != finished.returned["test/mrr"]


def test_report_shows_the_numbers(finished):
    page = (finished.folder / "report.html").read_text()
    assert "RotatE on nations" in page
    assert f"{finished.returned['test/mrr']:.4f}" in page
    assert runs.content(finished.folder / "checkpoints" / "best.ckpt")["kgc"]["digest"] in page


def test_a_second_run_does_not_go_into_the_same_folder(finished):
    before = {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="already holds a run"):
        runs.train(finished.folder)
    assert {path: path.read_bytes() for path in finished.folder.rglob("*") if path.is_file()} == before


# The ranks.

MODELS: dict[str, tuple[list[str], Callable[..., float]]] = {
    "transe-l1": (["model=transe"], oracle.transe_l1),
    "transe-l2": (["model=transe", "model.norm=2"], oracle.transe_l2),
    "distmult": (["model=distmult"], oracle.distmult),
    "complex": (["model=complex", "objective=one_vs_all"], oracle.complex_),
    "rotate": (["model=rotate"], oracle.rotate),
    "rotate-l2": (["model=rotate", "model.norm=2"], oracle.rotate_l2),
    "complex-reciprocal": (["model=complex", "model.reciprocal=true", "objective=k_vs_all"], oracle.complex_),
    "rotate-reciprocal": (["model=rotate", "model.reciprocal=true"], oracle.rotate),
}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_equal_a_brute_force_over_the_stored_vectors(name, tmp_path, no_page):
    words, formula = MODELS[name]
    runs.train(tmp_path, *words, "optimizer.lr=0.1")
    stored = runs.content(tmp_path / "checkpoints" / "best.ckpt")
    labels, relations = stored["kgc"]["entities"], stored["kgc"]["relations"]
    entity = dict(zip(labels, stored["state_dict"]["model.entity.weight"].tolist(), strict=True))
    table = stored["state_dict"]["model.relation.weight"].tolist()
    assert len(table) == len(relations) * (2 if "reciprocal" in name else 1)
    known = {triple for triples in runs.bundled("nations").values() for triple in triples}
    for row in runs.ranks(tmp_path).iter_rows(named=True):
        head, relation, tail = row["head"], row["relation"], row["tail"]
        number = relations.index(relation)
        scores = {}
        for other in labels:
            if row["side"] == "tail":
                triple, vectors = (head, relation, other), (entity[head], table[number], entity[other])
            elif "reciprocal" in name:  # asked as (tail, inverse relation, ?)
                triple = (other, relation, tail)
                vectors = (entity[tail], table[len(relations) + number], entity[other])
            else:
                triple, vectors = (other, relation, tail), (entity[other], table[number], entity[tail])
            if triple not in known or triple == (head, relation, tail):
                scores[other] = formula(*vectors)
        own = scores.pop(row[row["side"]])
        better = sum(score > own for score in scores.values())
        assert (row["optimistic"], row["pessimistic"], row["candidates"]) == (better + 1, better + 1, len(scores) + 1)


def simulated(scores: list[float], patience: int) -> tuple[int, int]:
    """(best epoch, last epoch), from 1, of a run that ends after so many validations without a higher score."""
    best, waited = 0, 0
    for epoch, score in enumerate(scores, start=1):
        if not best or score > scores[best - 1]:
            best, waited = epoch, 0
        else:
            waited += 1
        if waited == patience:
            return best, epoch
    return best, len(scores)


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best epoch is its second."""
    folder = tmp_path_factory.mktemp("wild") / "run"
    runs.train(folder, *runs.LOST_AFTER_TWO, "trainer.patience=null")
    return folder


def history(folder: Path) -> list[dict[str, float]]:
    return runs.content(folder / "checkpoints" / "last.ckpt")["kgc"]["history"]


def test_best_checkpoint_is_of_the_best_epoch_and_was_tested(wild, tmp_path, no_page):
    scores = [row["valid/mrr"] for row in history(wild)]
    best, last = simulated(scores, patience=100)
    assert (best, last) == (2, 10)
    checkpoint = runs.content(wild / "checkpoints" / "best.ckpt")
    assert checkpoint["epoch"] == best - 1
    assert len(checkpoint["kgc"]["history"]) == best
    written = runs.metrics(wild)
    assert written["valid/mrr"] == scores[best - 1] == max(scores)
    assert written["train/epochs"] == 10
    tested = runs.evaluate(tmp_path / "best", f"checkpoint={wild}/checkpoints/best.ckpt")
    assert runs.digits(tested) == runs.digits(written, "test")
    other = runs.evaluate(tmp_path / "last", f"checkpoint={wild}/checkpoints/last.ckpt")
    assert other["test/mrr"] != written["test/mrr"]


@pytest.mark.parametrize("patience", [1, 2])
def test_training_ends_when_patience_does(wild, tmp_path, no_page, patience):
    best, last = simulated([row["valid/mrr"] for row in history(wild)], patience)
    assert last < 10
    values = runs.train(tmp_path, *runs.LOST_AFTER_TWO, f"trainer.patience={patience}")
    assert values["train/epochs"] == last
    assert values["valid/mrr"] == history(wild)[best - 1]["valid/mrr"]


def test_validation_every_few_epochs_and_at_the_end(tmp_path, no_page):
    runs.train(tmp_path, "trainer.max_epochs=5", "trainer.val_every=2")
    assert [row["epoch"] for row in history(tmp_path)] == [1, 2, 3, 4, 5]
    assert [row["epoch"] for row in history(tmp_path) if "valid/mrr" in row] == [2, 4, 5]


def test_learning_rate_follows_the_scheduler(tmp_path, no_page):
    words = ["scheduler=step", "scheduler.step_size=2", "scheduler.gamma=0.1", "optimizer.lr=0.5"]
    runs.train(tmp_path / "step", "trainer.max_epochs=5", *words)
    assert [row["train/lr"] for row in history(tmp_path / "step")] == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005])
    runs.train(tmp_path / "cosine", "trainer.max_epochs=4", "scheduler=cosine", "optimizer.lr=0.5")
    expected = [0.5 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    assert [row["train/lr"] for row in history(tmp_path / "cosine")] == pytest.approx(expected)


def test_plateau_halves_the_learning_rate_when_valid_mrr_does_not_rise(tmp_path, no_page):
    words = ["scheduler=plateau", "scheduler.patience=0", "+scheduler.threshold=0", "trainer.patience=null"]
    runs.train(tmp_path, "optimizer.lr=1", "model=distmult", "trainer.max_epochs=10", *words)
    rows = history(tmp_path)
    rate, best, expected = 1.0, 0.0, []
    for row in rows:
        expected.append(rate)
        if row["valid/mrr"] > best:
            best = row["valid/mrr"]
        else:
            rate /= 2
    assert expected[-1] < 1
    assert [row["train/lr"] for row in rows] == expected


# Choices.

CHOICES = [
    ("model=transe", "objective=negative_sampling", "sampler=uniform", "loss=margin", "optimizer=sgd"),
    ("model=transe", "objective=one_vs_all", "regularizer=l2", "scheduler=cosine"),
    ("model=transe", "objective=k_vs_all", "model.norm=2", "optimizer=adagrad", "model.entity_dropout=0.2"),
    ("model=distmult", "objective=negative_sampling", "sampler=bernoulli", "loss=bce", "optimizer=adagrad"),
    ("model=distmult", "objective=one_vs_all", "regularizer=n3", "scheduler=step", "model.reciprocal=true"),
    ("model=distmult", "objective=k_vs_all", "scheduler=plateau", "optimizer=adamw"),
    ("model=complex", "objective=negative_sampling", "loss=cross_entropy", "sampler.mask_known=true"),
    ("model=complex", "objective=one_vs_all", "regularizer=n3", "optimizer=adagrad", "trainer.gradient_clip=1.0"),
    ("model=complex", "objective=k_vs_all", "regularizer=l2", "trainer.precision=bf16-mixed"),
    ("model=complex", "objective=one_vs_all", "regularizer=dura", "objective.relation_weight=0.5", "scheduler=warmup"),
    ("model=transe", "objective=negative_sampling", "loss=info_nce", "optimizer=rowwise_adagrad", "regularizer=l1"),
    ("model=rotate", "objective=negative_sampling", "sampler=adversarial", "objective.subsampling=true"),
    ("model=rotate", "objective=one_vs_all", "optimizer=sgd", "optimizer.momentum=0.9", "scheduler=cosine"),
    ("model=rotate", "objective=k_vs_all", "model.relation_dropout=0.1", "model.reciprocal=true"),
]


@pytest.mark.parametrize("words", CHOICES, ids=lambda words: "-".join(word.split("=")[1] for word in words[:2]))
def test_choices_work_together(words, tmp_path, no_page):
    values = runs.train(tmp_path, *words, "trainer.max_epochs=1", "batch_size=800")
    assert values["test/num_queries"] == 402
    assert 1 / 14 < values["test/mrr"] < 1
    weights = runs.content(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]
    assert list(weights["model.entity.weight"].shape) == [14, 8]
    config = OmegaConf.load(tmp_path / "config.yaml")
    names = {"transe": "TransE", "distmult": "DistMult", "complex": "ComplEx", "rotate": "RotatE"}
    assert config.model._target_.endswith(names[words[0].split("=")[1]])
    objectives = {"negative_sampling": "NegativeSampling", "one_vs_all": "OneVsAll", "k_vs_all": "KVsAll"}
    assert config.objective._target_.endswith(objectives[words[1].split("=")[1]])


def test_every_choice_changes_what_is_learnt(tmp_path, no_page):
    changes = [
        [],
        ["sampler=uniform"],
        ["sampler=bernoulli"],
        ["sampler.num_negatives=5"],
        ["sampler.mask_known=true"],
        ["sampler.temperature=2"],
        ["loss=margin"],
        ["loss=margin", "loss.margin=3"],
        ["loss=bce"],
        ["loss=cross_entropy"],
        ["loss=info_nce", "loss.temperature=0.5"],
        ["loss=info_nce", "loss.temperature=0.5", "loss.margin=0.1"],
        ["regularizer=l1"],
        ["regularizer=l2"],
        ["regularizer=n3"],
        ["regularizer=n3", "regularizer.weight=1"],
        ["optimizer=sgd"],
        ["optimizer=sgd", "optimizer.momentum=0.9"],
        ["optimizer=adagrad"],
        ["optimizer=adamw"],
        ["optimizer=rowwise_adagrad"],
        ["optimizer.lr=0.03"],
        ["optimizer.groups.entity.lr=0.03"],
        ["optimizer.groups.relation.weight_decay=0.1"],
        ["scheduler=warmup"],
        ["trainer.accumulate_grad_batches=2"],
        ["objective.subsampling=true"],
        ["objective=one_vs_all"],
        ["objective=one_vs_all", "objective.label_smoothing=0.1"],
        ["objective=one_vs_all", "objective.relation_weight=1"],
        ["objective=k_vs_all"],
        ["objective=k_vs_all", "objective.label_smoothing=0"],
        ["model.margin=3"],
        ["model.reciprocal=true"],
        ["model.entity_dropout=0.5"],
        ["model.relation_dropout=0.5"],
        ["batch_size=400"],
        ["trainer.gradient_clip=0.001"],
        ["model=complex"],
        ["model=complex", "regularizer=dura"],
        ["model=complex", "trainer.precision=bf16-mixed"],  # RotatE has no matrix product that it would round
        ["seed=1"],
    ]
    learnt: dict[bytes, list[str]] = {}
    for number, words in enumerate(changes):
        folder = tmp_path / str(number)
        runs.train(folder, "trainer.max_epochs=1", "batch_size=800", "test=false", *words)
        weights = runs.content(folder / "checkpoints" / "last.ckpt")["state_dict"]["model.entity.weight"]
        assert weights.isfinite().all(), words
        assert weights.numpy().tobytes() not in learnt, (words, learnt[weights.numpy().tobytes()])
        learnt[weights.numpy().tobytes()] = words


def test_training_learns(tmp_path, no_page):
    """Far above chance on test, and the loss falls: ComplEx finds most right answers of Nations in a few epochs."""
    values = runs.train(
        tmp_path, "model=complex", "model.dim=32", "objective=one_vs_all", "trainer.max_epochs=15", "optimizer.lr=0.05"
    )
    rows = history(tmp_path)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] < 1.01 * math.log(14)
    assert values["test/mrr"] > 0.6


# Data of one's own.


def small(folder: Path, **changes: list[runs.Labels]) -> Path:
    """A ring of six entities under two relations, with what is changed."""
    names = ["a", "b", "c", "d", "e", "f"]
    ring = [(names[i], "next", names[(i + 1) % 6]) for i in range(6)]
    over = [(names[i], "over", names[(i + 2) % 6]) for i in range(6)]
    splits = {"train": ring + over[:4], "valid": over[4:5], "test": over[5:]} | changes
    return runs.write_splits(folder, **splits)


def own_data(folder: Path) -> list[str]:
    return ["dataset=folder", f"dataset.path={folder}", "batch_size=4", "model.dim=4"]


def test_unseen_entities_are_kept_and_counted(tmp_path, capsys, no_page):
    test = [("f", "over", "b"), ("a", "over", "stranger"), ("stranger", "other", "newcomer")]
    values = runs.train(tmp_path / "run", *own_data(small(tmp_path / "data", test=test)))
    assert values["test/num_queries"] == 6
    assert values["test/num_unseen"] == 4
    assert values["valid/num_unseen"] == 0
    said = capsys.readouterr().out
    assert "8 entities, 3 relations; triples: 10 train, 1 valid, 3 test" in said
    assert "in valid or test but never in train: 2 entities, 1 relations" in said
    ranks = runs.ranks(tmp_path / "run")
    assert set(ranks["tail"]) == {"b", "stranger", "newcomer"}
    # (f, over, ?) knows b only; (?, other, newcomer) knows stranger only: everyone competes.
    assert ranks.filter(pl.col("side") == "tail")["candidates"].to_list() == [8, 7, 8]


def test_repeated_and_shared_triples_are_named(tmp_path, capsys, no_page):
    test = [("f", "over", "b"), ("f", "over", "b"), ("a", "next", "b")]
    values = runs.train(tmp_path / "run", *own_data(small(tmp_path / "data", test=test)))
    assert values["test/num_queries"] == 6
    said = capsys.readouterr().out
    assert "repeated triples: 1 in test\n" in said
    assert "triples in two splits: 1 in train and test\n" in said


def test_choices_without_effect_are_told(tmp_path, capsys, no_page):
    words = [
        "trainer.compile=true",
        "scheduler=plateau",
        "loss=cross_entropy",
        "model=distmult",
        "trainer.max_epochs=2",
    ]
    runs.train(tmp_path / "run", *own_data(small(tmp_path / "data", valid=[])), *words)
    said = capsys.readouterr().out
    assert "warning: trainer.compile=true changes nothing: " in said
    assert "scheduler=plateau keeps the learning rate" in said
    assert "weights not used by this loss" in said


def test_without_valid_split(tmp_path, capsys, no_page):
    values = runs.train(tmp_path / "run", *own_data(small(tmp_path / "data", valid=[])), "trainer.max_epochs=4")
    assert "warning: no valid split" in capsys.readouterr().out
    assert values["train/epochs"] == 4
    assert values["test/num_queries"] == 2
    assert not [name for name in values if name.startswith("valid/")]
    best, last = (runs.content(tmp_path / "run" / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    assert best["epoch"] == last["epoch"] == 3
    runs.assert_same(best["state_dict"], last["state_dict"])


def test_without_test_split(tmp_path, capsys):
    data = small(tmp_path / "data", test=[])
    values = runs.train(tmp_path / "run", *own_data(data))
    assert values["valid/num_queries"] == 2
    assert not [name for name in values if name.startswith("test/")]
    assert "0 test" in capsys.readouterr().out
    assert runs.ranks(tmp_path / "run")["tail"].to_list() == ["a", "a"]
    assert f"{values['valid/mrr']:.4f}" in (tmp_path / "run" / "report.html").read_text()


def test_with_train_split_only(tmp_path, capsys):
    values = runs.train(tmp_path / "run", *own_data(small(tmp_path / "data", valid=[], test=[])))
    assert set(values) == {"train/seconds", "train/epochs"}
    assert "no split was ranked" in capsys.readouterr().out
    assert (tmp_path / "run" / "checkpoints" / "best.ckpt").exists()


def test_test_split_can_be_left_for_later(tmp_path, no_page):
    values = runs.train(tmp_path / "run", "test=false")
    assert not [name for name in values if name.startswith("test/")]
    assert values["valid/num_queries"] == runs.ranks(tmp_path / "run").height == 398


def test_paths_with_spaces(tmp_path, no_page):
    data = small(tmp_path / "my data")
    folder = tmp_path / "my runs" / "first run"
    values = runs.train(folder, *own_data(data))
    assert values["test/num_queries"] == 2
    again = runs.evaluate(tmp_path / "other run", f"checkpoint='{folder}/checkpoints/best.ckpt'")
    assert runs.digits(again) == runs.digits(values, "test")


def test_labels_that_look_like_something_else(tmp_path, capsys):
    """Brackets are no markup, `nan` and numbers are labels, and a page shows angle brackets as they are."""
    names = ["[bold]x[/bold]", "nan", "007", "<script>alert(1)</script>", "\u202eright", 'it\'s "quoted" {x} $y']
    ring = [(names[i], "[red]r", names[(i + 1) % 6]) for i in range(6)]
    over = [(names[i], "None", names[(i + 2) % 6]) for i in range(6)]
    data = runs.write_splits(tmp_path / "data", train=ring + over[:4], valid=over[4:5], test=over[5:])
    runs.train(tmp_path / "run", *own_data(data))
    ranks = runs.ranks(tmp_path / "run")
    assert ranks.rows()[0][:3] == over[5]
    assert runs.content(tmp_path / "run" / "checkpoints" / "best.ckpt")["kgc"]["entities"] == sorted(names)
    assert "<script>alert(1)" not in (tmp_path / "run" / "report.html").read_text()


# Numbers that went wrong.


def test_divergence_names_a_triple(tmp_path):
    with pytest.raises(UserError) as caught:
        runs.train(tmp_path, "optimizer.lr=1e30", "optimizer=sgd", "model=distmult")
    message = str(caught.value)
    assert "\n" not in message
    triples = [t for t in runs.bundled("nations")["valid"] if "({!r}, {!r}, {!r})".format(*t) in message]
    assert len(triples) == 1, message
    assert "diverged" in message
    assert "optimizer.lr" in message
    assert message in (tmp_path / "train.log").read_text()


@pytest.mark.filterwarnings("default:.*non-finite")
def test_divergence_can_rank_last(tmp_path, no_page, capsys):
    values = runs.train(tmp_path, "optimizer.lr=1e30", "optimizer=sgd", "model=distmult", "ranking.nonfinite=worst")
    ranks = runs.ranks(tmp_path)
    assert values["test/num_nonfinite"] > 0
    assert ranks["realistic"].to_list() == ranks["candidates"].to_list()
    assert "non-finite" in capsys.readouterr().out
