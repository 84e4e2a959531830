"""The command lines as a user types them: mistakes are one line and exit code 2, and sweeps, paths and help work."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import runs
import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from kgc import cli
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.tasks import folders as folders_of_runs

# Every command of this file would otherwise be a real training run.
QUICK = ["dataset=nations", "model.dim=8", "trainer=cpu", "trainer.max_epochs=1", "logger=none"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder)
    return folder


# Mistakes.

TRAIN_MISTAKES = [
    # words, what the line must name
    (["model=foo"], ["model", "foo", "complex", "distmult", "rotate", "transe"]),
    (["dataset=foo"], ["dataset", "foo", "nations", "kinship", "umls", "folder"]),
    (["sampler=foo"], ["sampler", "foo", "uniform", "bernoulli", "adversarial"]),
    (["objective=foo"], ["objective", "foo", "negative_sampling", "one_vs_all", "k_vs_all"]),
    (["trainer=foo"], ["trainer", "foo", "auto", "cpu", "gpu", "ddp", "ddp_cpu"]),
    (["logger=foo"], ["logger", "foo", "wandb", "csv", "tensorboard", "none"]),
    (["experiment=foo"], ["experiment", "foo"]),
    (["modle=rotate"], ["modle"]),
    (["model.dimension=8"], ["dimension"]),
    (["trainer.epochs=8"], ["epochs"]),
    (["batchsize=8"], ["batchsize"]),
    (["model.dim"], ["model.dim"]),
    (["batch_size="], ["batch_size"]),
    (["batch_size=0"], ["batch_size=0", "at least 1"]),
    (["batch_size=-1"], ["batch_size=-1", "at least 1"]),
    (["batch_size=abc"], ["batch_size=abc"]),
    (["batch_size=1.5"], ["batch_size=1.5"]),
    (["batch_size=null"], ["batch_size"]),
    (["batch_size=true"], ["batch_size=True"]),
    (["batch_size=[1,2]"], ["batch_size"]),
    (["trainer.max_epochs=0"], ["trainer.max_epochs=0"]),
    (["trainer.max_epochs=-1"], ["trainer.max_epochs=-1"]),
    (["trainer.max_epochs=null"], ["trainer.max_epochs"]),
    (["trainer.val_every=0"], ["trainer.val_every=0"]),
    (["trainer.patience=-1"], ["trainer.patience=-1"]),
    (["trainer.devices=0"], ["trainer.devices=0"]),
    (["trainer.devices=abc"], ["trainer.devices=abc"]),
    (["trainer.accelerator=abacus"], ["abacus"]),
    (["trainer.strategy=general"], ["general"]),
    (["trainer.precision=7"], ["precision", "7"]),
    (["trainer.gradient_clip=abc"], ["gradient_clip"]),
    (["trainer.gradient_clip=-1"], ["gradient_clip"]),
    (["trainer.accumulate_grad_batches=0"], ["trainer.accumulate_grad_batches=0"]),
    (["trainer.accumulate_grad_batches=1.5"], ["trainer.accumulate_grad_batches=1.5"]),
    (["trainer.auto_batch=maybe"], ["trainer.auto_batch=maybe"]),
    (["trainer.auto_batch=true"], ["trainer.auto_batch=true", "CPU", "batch_size"]),
    (["seed=abc"], ["seed=abc"]),
    (["seed=-1"], ["seed=-1"]),
    (["seed=1.5"], ["seed=1.5"]),
    (["model=rotate", "model.dim=7"], ["model.dim=7", "even"]),
    (["model=complex", "model.dim=7"], ["model.dim=7", "even"]),
    (["model.dim=0"], ["model.dim=0"]),
    (["model.dim=-8"], ["model.dim=-8"]),
    (["model.dim=abc"], ["model.dim=abc"]),
    (["model.dim=8.5"], ["model.dim=8.5"]),
    (["model.dim=null"], ["model.dim"]),
    (["model=transe", "model.norm=3"], ["model.norm=3"]),
    (["model=transe", "model.norm=abc"], ["model.norm=abc"]),
    (["model.margin=abc"], ["model.margin"]),
    (["model.reciprocal=maybe"], ["model.reciprocal"]),
    (["model.entity_dropout=2"], ["model.entity_dropout=2"]),
    (["model.relation_dropout=-1"], ["model.relation_dropout=-1"]),
    (["sampler.num_negatives=0"], ["sampler.num_negatives=0"]),
    (["sampler.num_negatives=abc"], ["sampler.num_negatives"]),
    (["sampler.temperature=-1"], ["sampler.temperature=-1"]),
    (["sampler.temperature=abc"], ["sampler.temperature"]),
    (["optimizer.lr=0"], ["optimizer.lr=0"]),
    (["optimizer.lr=-1"], ["optimizer.lr=-1"]),
    (["optimizer.lr=abc"], ["optimizer.lr=abc"]),
    (["optimizer.lr=nan"], ["optimizer.lr=nan"]),
    (["optimizer.lr=inf"], ["optimizer.lr"]),
    (["optimizer=sgd", "optimizer.momentum=-1"], ["momentum"]),
    (["optimizer.sparse=maybe"], ["optimizer.sparse=maybe"]),
    (["optimizer.sparse=true", "objective=one_vs_all"], ["optimizer.sparse=true", "objective=negative_sampling"]),
    (["optimizer.sparse=true", "objective=k_vs_all"], ["optimizer.sparse=true", "objective=negative_sampling"]),
    (["optimizer.sparse=true", "trainer.gradient_clip=1"], ["optimizer.sparse=true", "trainer.gradient_clip"]),
    (["optimizer.sparse=true", "trainer=ddp_cpu"], ["optimizer.sparse=true", "processes"]),
    (["optimizer=sgd", "optimizer.sparse=true", "optimizer.momentum=0.9"], ["optimizer.momentum", "optimizer.sparse"]),
    (["optimizer.sparse=true", "optimizer.groups.entity.weight_decay=1"], ["weight_decay", "regularizer=l2"]),
    (["optimizer=adamw", "optimizer.sparse=true"], ["sparse"]),
    (["optimizer.groups.entity.lr=0"], ["optimizer.groups.entity.lr=0", "or null"]),
    (["optimizer.groups.relation.weight_decay=-1"], ["optimizer.groups.relation.weight_decay=-1"]),
    (["optimizer.groups.entities.lr=1"], ["entities"]),
    (["+optimizer.groups.entities.lr=1"], ["optimizer.groups.entities", "entity, relation"]),
    (["+optimizer.groups.entity.rate=1"], ["optimizer.groups.entity.rate", "lr"]),
    (["+optimizer.betas=[2,2]"], ["optimizer", "beta"]),
    (["loss=info_nce", "loss.temperature=0"], ["loss.temperature=0"]),
    (["regularizer=dura"], ["regularizer=dura", "RotatE", "l2"]),
    (["objective=one_vs_all", "objective.relation_weight=-1"], ["objective.relation_weight=-1"]),
    (["scheduler=warmup", "scheduler.warmup=-1"], ["scheduler.warmup=-1"]),
    (["scheduler=cosine", "scheduler.warmup=abc"], ["scheduler.warmup"]),
    (["objective=one_vs_all", "objective.label_smoothing=2"], ["objective.label_smoothing=2"]),
    (["objective=k_vs_all", "objective.label_smoothing=abc"], ["objective.label_smoothing"]),
    (["regularizer=n3", "regularizer.weight=abc"], ["regularizer.weight"]),
    (["scheduler=step", "scheduler.step_size=0"], ["scheduler.step_size"]),
    (["scheduler=plateau", "scheduler.factor=2"], ["scheduler.factor"]),
    (["ranking.hits=[0]"], ["ranking.hits=[0]"]),
    (["ranking.hits=[]"], ["ranking.hits=[]"]),
    (["ranking.hits=[abc]"], ["ranking.hits"]),
    (["ranking.hits=10"], ["ranking.hits"]),
    (["ranking.hits=null"], ["ranking.hits"]),
    (["ranking.filter=[foo]"], ["ranking.filter", "foo", "train, valid, test"]),
    (["ranking.filter=train"], ["ranking.filter"]),
    (["ranking.filter=null"], ["ranking.filter"]),
    (["ranking.nonfinite=ignore"], ["ranking.nonfinite=ignore", "error, worst"]),
    (["ranking.batch=0"], ["ranking.batch=0"]),
    (["ranking.block=-1"], ["ranking.block=-1"]),
    (["ranking.block=abc"], ["ranking.block"]),
    (["ranking.limit=100"], ["ranking.limit=100", "evaluate.py"]),
    (["dataset=folder"], ["dataset.path"]),
    (["dataset=folder", "dataset.path=nowhere"], ["nowhere", "no such folder"]),
    (["checkpoint=nowhere.ckpt"], ["checkpoint=nowhere.ckpt", "no such file"]),
    (["checkpoint=a=b.ckpt"], ["quotes"]),
    (["checkpoint=a b (1).ckpt"], ["quotes"]),
    (["~model"], ["model"]),
    (["+model.hidden=3"], ["hidden"]),
    (["test=abc"], ["test=abc"]),
    (["optimizer=null"], ["optimizer=null", "adagrad, adam"]),
    (["model=null"], ["model=null", "complex", "rotate"]),
    (["sampler=null"], ["sampler=null", "adversarial", "uniform"]),
    (["dataset=null"], ["dataset=null", "nations"]),
    (["objective=null"], ["objective=null", "one_vs_all"]),
    (["loss=null"], ["loss=null", "logistic"]),
    (["trainer=null"], ["trainer=null", "cpu"]),
    (["scheduler=null"], ["scheduler=null", "none"]),
    (["regularizer=3"], ["regularizer=3", "n3, none"]),
    (["~optimizer"], ["optimizer: is needed", "adagrad, adam"]),
    (["~sampler"], ["sampler: is needed", "uniform"]),
    (["~optimizer.lr"], ["optimizer.lr: missing"]),
    (["~sampler.proposal"], ["sampler.proposal: missing"]),
    (["~model.dim"], ["model.dim: missing"]),
    (["~trainer.precision"], ["trainer.precision: missing"]),
    (["~ranking.hits"], ["ranking.hits: missing"]),
    (["~seed"], ["seed: missing"]),
    (["scheduler=cosine", "scheduler.epochs=0"], ["scheduler.epochs=0", "at least 1"]),
    (["scheduler=cosine", "scheduler.epochs=abc"], ["scheduler.epochs=abc"]),
    (["scheduler=step", "+scheduler.warmup=1"], ["scheduler.warmup", "StepLR", "step_size, gamma"]),
    (["scheduler=plateau", "scheduler.mode=up"], ["scheduler.mode=up", "min, max"]),
    (["sampler.proposal=null"], ["sampler.proposal=null", "Proposal"]),
    (["sampler.sides=null"], ["sampler.sides=null", "Sides"]),
    (["sampler.sides=both"], ["sampler.sides=both", "Sides"]),
    (["sampler.sides._target_=kgc.sampling.proposals.Uniform"], ["sampler.sides._target_", "no Sides"]),
    (["objective.sampler=null"], ["objective.sampler=null"]),
    (["objective.loss=null"], ["objective.loss=null"]),
    (["+model.foo=1"], ["model.foo", "RotatE", "dim, norm, margin, relation_dim, reciprocal"]),
    (["+optimizer.foo=1"], ["optimizer.foo", "Adam", "lr, betas, eps"]),
    (["+sampler.foo=1"], ["sampler.foo", "num_negatives"]),
    (["+sampler.proposal.foo=1"], ["sampler.proposal.foo", "share"]),
    (["+sampler.sides.foo=1"], ["sampler.sides.foo", "none"]),
    (["sampler=kbgan", "+sampler.proposal.generator.foo=1"], ["sampler.proposal.generator.foo", "dim"]),
    (["+objective.foo=1"], ["objective.foo", "subsampling"]),
    (["+loss.foo=1"], ["loss.foo"]),
    (["regularizer=n3", "+regularizer.foo=1"], ["regularizer.foo", "weight, p"]),
    (["+dataset.foo=1"], ["dataset.foo", "name"]),
    (["+scheduler.foo=1"], ["scheduler.foo", "epochs, final, warmup"]),
    (["+logger.foo=1"], ["logger.foo"]),
    (["+trainer.foo=1"], ["trainer.foo", "max_epochs"]),
    (["+ranking.foo=1"], ["ranking.foo", "hits"]),
    (["+foo=1"], ["foo: no such key"]),
    (["+model.num_entities=5"], ["model.num_entities", "leave it out"]),
    (["+optimizer.params=1"], ["optimizer.params", "leave it out"]),
    (["+optimizer.maximize=abc"], ["optimizer.maximize=abc", "true or false"]),
    (["+optimizer.betas=3"], ["optimizer.betas=3", "a list"]),
    (["model._target_=kgc.models.foo.Foo"], ["model._target_=kgc.models.foo.Foo"]),
    (["model._target_=kgc.losses.pairwise.Logistic"], ["model.dim", "Logistic"]),
    (["optimizer._partial_=false"], ["optimizer._partial_=false"]),
    (["model=tucker", "model.relation_dim=0"], ["model.relation_dim=0", "at least 1"]),
    (["model=hake", "model.modulus_weight=abc"], ["model.modulus_weight=abc", "a number"]),
    (["model.dim=100000000000"], ["model.dim=100000000000", "at most"]),
    (["model.dim=1000000000"], ["model.dim=1000000000", "GiB"]),
    (["model=tucker", "model.relation_dim=2", "model.dim=1000000"], ["model.dim=1000000", "GiB"]),
    (["sampler=cache", "sampler.proposal.cache_size=1000000000"], ["sampler.proposal.cache_size=1000000000", "GiB"]),
    (["sampler=kbgan", "sampler.proposal.generator.dim=1000000000"], ["sampler.proposal.generator.dim=", "GiB"]),
    (["sampler=in_batch", "batch_size=1"], ["batch_size=1", "in_batch", "raise"]),
    (["trainer.devices=100000", "trainer.strategy=ddp"], ["trainer.devices=100000", "at most"]),
    (["trainer.compile=maybe"], ["trainer.compile=maybe", "or null"]),
    (["trainer.save_minutes=-1"], ["trainer.save_minutes=-1"]),
    (["optimizer.groups.other.lr=0.1"], ["optimizer.groups.other", "entity, relation"]),
]


def assert_names(message: str, names: list[str]) -> None:
    for name in names:
        assert name in message, message
    assert len(message) < 1000, message


@pytest.mark.parametrize(("words", "names"), TRAIN_MISTAKES, ids=lambda value: " ".join(value) if value else "")
def test_mistakes_of_train(words, names, tmp_path, capsys):
    assert_names(runs.command(capsys, tmp_path, "train", *QUICK, *words).mistake(), names)
    assert not list(tmp_path.rglob("metrics.json"))


EVALUATE_MISTAKES = [
    ([], ["checkpoint=PATH", "embeddings.entities"]),
    (["checkpoint=nowhere.ckpt"], ["checkpoint=nowhere.ckpt", "no such file"]),
    (["checkpoint=."], ["checkpoint=."]),
    (["checkpoint=a=b.ckpt"], ["quotes"]),
    (["checkpoint=CKPT", "split=foo"], ["split=foo", "train, valid, test"]),
    (["checkpoint=CKPT", "split=null"], ["split"]),
    (["checkpoint=CKPT", "embeddings.entities=E.npy"], ["checkpoint", "embeddings.entities"]),
    (["checkpoint=CKPT", "embeddings.relations=R.npy"], ["checkpoint", "embeddings.relations"]),
    (["checkpoint=CKPT", "model=rotate"], ["model="]),
    (["checkpoint=CKPT", "dataset=kinship"], ["model's 14 entities"]),
    (["checkpoint=CKPT", "dataset=folder", "dataset.path=nowhere"], ["nowhere", "no such folder"]),
    (["checkpoint=CKPT", "ranking.hits=[0]"], ["ranking.hits=[0]"]),
    (["checkpoint=CKPT", "ranking.filter=[foo]"], ["ranking.filter", "foo"]),
    (["checkpoint=CKPT", "ranking.limit=0"], ["ranking.limit=0", "at least 1"]),
    (["checkpoint=CKPT", "ranking.limit=0.5"], ["ranking.limit=0.5", "whole number"]),
    (["checkpoint=CKPT", "ranking.limit=all"], ["ranking.limit=all", "or null"]),
    (["checkpoint=CKPT", "ranking.limit=5", "seed=-1"], ["seed=-1"]),
    (["checkpoint=CKPT", "optimizer.lr=1"], ["optimizer"]),
    (["checkpoint=CKPT", "trainer.devices=0"], ["trainer.devices=0"]),
    (["model=rotate", "dataset=nations"], ["checkpoint=PATH"]),
    (["model=rotate", "embeddings.entities=E.npy"], ["dataset="]),
    (["dataset=nations", "embeddings.entities=E.npy"], ["model="]),
    (["model=rotate", "dataset=nations", "embeddings.entities=E.npy"], ["embeddings.relations"]),
    (["model=rotate", "dataset=nations", "embeddings.entities=E.npy", "embeddings.relations=R.npy"], ["E.npy"]),
    (["task=foo"], ["task", "foo", "link_prediction", "retrieval"]),
    (["task=retrieval"], ["retrieval.qrels"]),
]


@pytest.mark.parametrize(("words", "names"), EVALUATE_MISTAKES, ids=lambda value: " ".join(value) if value else "")
def test_mistakes_of_evaluate(words, names, trained, tmp_path, capsys):
    words = [word.replace("CKPT", f"{trained}/checkpoints/best.ckpt") for word in words]
    assert_names(runs.command(capsys, tmp_path, "evaluate", *words).mistake(), names)
    assert not list(tmp_path.rglob("metrics.json"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.parametrize("choice", ["gpu", "ddp"])
def test_gpu_trainers_without_a_gpu(choice, trained, tmp_path, capsys):
    for name, words in (("train", QUICK), ("evaluate", [f"checkpoint={trained}/checkpoints/best.ckpt"])):
        message = runs.command(capsys, tmp_path, name, *words, f"trainer={choice}").mistake()
        assert "GPU" in message
        assert "trainer=cpu" in message


@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_damaged_checkpoints(name, damage, trained, tmp_path, capsys):
    path = tmp_path / "damaged.ckpt"
    whole = (trained / "checkpoints" / "last.ckpt").read_bytes()
    path.write_bytes({"truncated": whole[:-300], "empty": b"", "text": b"not a checkpoint"}[damage])
    message = runs.command(capsys, tmp_path, name, f"checkpoint={path}").mistake()
    assert_names(message, [str(path), "not a complete checkpoint"])


HOSTILE = {
    "two columns": (b"a\tr\tb\na\tr\n", ["train.txt:2", "2 columns", "expected 3"]),
    "four columns": (b"a\tr\tb\tc\n", ["train.txt:1", "4 columns", "expected 3"]),
    "commas": (b"a,r,b\n", ["train.txt:1", "commas"]),
    "spaces": (b"a r b\n", ["train.txt:1", "spaces"]),
    "blank line": (b"a\tr\tb\n\nb\tr\ta\n", ["train.txt:2"]),
    "empty label": (b"a\tr\tb\na\t\tb\n", ["train.txt:2", "empty relation"]),
    "latin 1": (b"a\tr\tb\ncaf\xe9\tr\tb\n", ["train.txt:2", "UTF-8"]),
    "utf 16": ("a\tr\tb\n".encode("utf-16"), ["train.txt:1", "UTF-16"]),
    "nothing": (b"", ["train.txt", "no triples"]),
    "only line ends": (b"\n\n\n", ["train.txt", "no triples"]),
    "control codes": (b"\x1b[31ma\tr\tb\n\x00\n", ["train.txt:2"]),
    "one huge line": (b"x" * 1_000_000, ["train.txt:1", "1 column"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders(name, tmp_path, capsys):
    content, names = HOSTILE[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_bytes(content)
    words = [word for word in QUICK if not word.startswith("dataset")]
    message = runs.command(capsys, tmp_path, "train", *words, "dataset=folder", "dataset.path=data").mistake()
    assert_names(message, names)
    assert "\x1b" not in message


def test_folders_that_are_ambiguous_or_empty(tmp_path, capsys):
    words = [word for word in QUICK if not word.startswith("dataset")] + ["dataset=folder", "dataset.path=data"]
    (tmp_path / "data").mkdir()
    assert_names(runs.command(capsys, tmp_path, "train", *words).mistake(), ["data", "no train split"])
    for ending in ("txt", "csv"):
        (tmp_path / "data" / f"train.{ending}").write_text("a,r,b\n")
    assert_names(runs.command(capsys, tmp_path, "train", *words).mistake(), ["train.txt and train.csv"])


def test_a_diverging_run_names_a_triple(tmp_path, capsys):
    words = [*QUICK, "model=distmult", "optimizer=sgd", "optimizer.lr=1e30"]
    message = runs.command(capsys, tmp_path, "train", *words).mistake()
    assert sum("({!r}, {!r}, {!r})".format(*t) in message for t in runs.bundled("nations")["valid"]) == 1
    (folder,) = (tmp_path / "outputs").iterdir()
    assert message in (folder / "train.log").read_text()


def test_a_mistake_leaves_no_empty_folder(tmp_path, capsys):
    runs.command(capsys, tmp_path, "train", *QUICK, "batch_size=0").mistake()
    runs.command(capsys, tmp_path, "evaluate", "split=foo").mistake()
    assert not list(tmp_path.glob("outputs/*"))


def test_a_second_run_in_a_folder_is_refused(trained, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    message = runs.command(capsys, tmp_path, "train", *QUICK, f"hydra.run.dir={trained}").mistake()
    assert_names(message, ["already holds a run", "hydra.run.dir", "checkpoint="])
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_a_fault_of_ours_keeps_its_traceback(tmp_path, monkeypatch, capsys):
    """Only a user's mistake is one line; a fault must be reportable."""

    def fault(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(KGEModule, "training_step", fault)
    with pytest.raises(ZeroDivisionError):
        runs.command(capsys, tmp_path, "train", *QUICK)


# What works.


def test_a_run_and_its_evaluation_by_default_names(tmp_path, capsys):
    done = runs.command(capsys, tmp_path, "train", *QUICK, "model=transe")
    assert (done.code, done.err) == (0, "")
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.endswith("_transe_nations")
    again = runs.command(capsys, tmp_path, "evaluate", "trainer=cpu", f"checkpoint={folder}/checkpoints/best.ckpt")
    assert (again.code, again.err) == (0, "")
    (other,) = set((tmp_path / "outputs").iterdir()) - {folder}
    assert other.name.endswith("_evaluate")
    assert runs.digits(runs.metrics(other)) == runs.digits(runs.metrics(folder), "test")


def test_paths_with_spaces_and_signs(tmp_path, capsys):
    runs.write_splits(tmp_path / "my data", **runs.bundled("nations"))
    words = [word for word in QUICK if not word.startswith("dataset")]
    done = runs.command(
        capsys, tmp_path, "train", *words, "dataset=folder", "dataset.path=my data", "hydra.run.dir=my runs/the first"
    )
    assert (done.code, done.err) == (0, "")
    folder = tmp_path / "my runs" / "the first"
    again = runs.command(
        capsys,
        tmp_path,
        "evaluate",
        "trainer=cpu",
        "checkpoint=my runs/the first/checkpoints/best.ckpt",
        "hydra.run.dir=other runs",
    )
    assert (again.code, again.err) == (0, "")
    assert runs.digits(runs.metrics(tmp_path / "other runs")) == runs.digits(runs.metrics(folder), "test")
    shutil.copy(folder / "checkpoints" / "best.ckpt", tmp_path / "lr=0.1, dim=8 (best).ckpt")
    quoted = runs.command(
        capsys, tmp_path, "evaluate", "trainer=cpu", 'checkpoint="lr=0.1, dim=8 (best).ckpt"', "hydra.run.dir=quoted"
    )
    assert (quoted.code, quoted.err) == (0, "")
    assert runs.digits(runs.metrics(tmp_path / "quoted")) == runs.digits(runs.metrics(folder), "test")


def test_a_resume_by_command_goes_on_in_its_own_folder(tmp_path, capsys):
    assert runs.command(capsys, tmp_path, "train", *QUICK, "hydra.run.dir=run").code == 0
    done = runs.command(capsys, tmp_path, "train", "checkpoint=run/checkpoints/last.ckpt", "trainer.max_epochs=2")
    assert (done.code, done.err) == (0, "")
    assert runs.metrics(tmp_path / "run")["train/epochs"] == 2
    assert not list(tmp_path.glob("outputs/*"))


def test_multirun(tmp_path, capsys):
    done = runs.command(capsys, tmp_path, "train", "-m", *QUICK, "model=transe,distmult", "seed=0,1")
    assert (done.code, done.err) == (0, "")
    (sweep,) = (tmp_path / "multirun").iterdir()
    names = sorted(path.name for path in sweep.iterdir() if path.is_dir())
    assert names == ["0_transe_nations", "1_transe_nations", "2_distmult_nations", "3_distmult_nations"]
    configs = [OmegaConf.load(sweep / name / "config.yaml") for name in names]
    assert [(c.model._target_.split(".")[-1], c.seed) for c in configs] == [
        ("TransE", 0),
        ("TransE", 1),
        ("DistMult", 0),
        ("DistMult", 1),
    ]
    # A trial of a sweep is the run of the same words alone.
    runs.command(capsys, tmp_path, "train", *QUICK, "model=distmult", "seed=1", "hydra.run.dir=alone")
    assert runs.digits(runs.metrics(sweep / names[3])) == runs.digits(runs.metrics(tmp_path / "alone"))
    assert len({runs.metrics(sweep / name)["test/mrr"] for name in names}) == 4


def test_multirun_goes_on_after_a_mistake(tmp_path, capsys):
    done = runs.command(capsys, tmp_path, "train", "-m", *QUICK, "model=rotate", "model.dim=7,8")
    assert done.mistake().startswith("trial 0 (model.dim=7): model.dim=7")
    (sweep,) = (tmp_path / "multirun").iterdir()
    assert [path.parent.name for path in sweep.rglob("metrics.json")] == ["1_rotate_nations"]


def trials(patch: pytest.MonkeyPatch, outcome: Callable[[DictConfig], None]) -> None:
    """Runs that do nothing but what `outcome` does."""
    patch.setattr(cli, "_train", lambda cfg, run_dir, words: outcome(cfg))


def test_multirun_says_why_each_trial_failed(tmp_path, monkeypatch, capsys):
    ran = []

    def outcome(cfg: DictConfig) -> None:
        ran.append(cfg.seed)
        if cfg.seed == 1:
            raise UserError("first\nreason")
        if cfg.seed == 3:
            raise UserError("second reason")

    trials(monkeypatch, outcome)
    done = runs.command(capsys, tmp_path, "train", "-m", "batch_size=8", "seed=0,1,2,3")
    assert ran == [0, 1, 2, 3]
    assert done.code == 2
    assert done.err.splitlines() == ["error: trial 1 (seed=1): first reason", "error: trial 3 (seed=3): second reason"]
    said = [line for line in done.out.splitlines() if " failed: " in line]
    assert said == ["trial 1 failed: first reason", "trial 3 failed: second reason"]


def test_a_fault_of_ours_in_a_sweep_keeps_its_traceback(tmp_path, monkeypatch, capsys):
    def outcome(cfg: DictConfig) -> None:
        raise UserError("a mistake") if cfg.seed else ZeroDivisionError("ours")

    trials(monkeypatch, outcome)
    done = runs.command(capsys, tmp_path, "train", "-m", "seed=0,1")
    assert done.code == 1
    assert "Traceback" in done.err
    for line in ("error: trial 0 (seed=0): ZeroDivisionError: ours", "error: trial 1 (seed=1): a mistake"):
        assert line in done.err.splitlines()


@pytest.mark.parametrize(("name", "words"), [("train", []), ("train", ["-m", "seed=0,1"]), ("evaluate", [])])
def test_runs_of_the_same_second_have_folders_of_their_own(name, words, tmp_path, monkeypatch, capsys):
    """The clock stands still: each command gets a folder that was not there."""
    folders = []
    monkeypatch.setattr(folders_of_runs, "made", keeping(folders_of_runs.made, folders))
    monkeypatch.setattr(cli, f"_{name}", lambda cfg, run_dir, overrides: (run_dir / "file").touch())
    stamp = "hydra.job.name=x"
    now = datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("hydra.core.utils.datetime", SimpleNamespace(now=lambda: now))
    for _ in range(3):
        assert runs.command(capsys, tmp_path, name, *words, stamp).code == 0
    base = "2026-01-02_03-04-05" + {"train": "_rotate_umls", "evaluate": "_evaluate"}[name] * (not words)
    assert [path.name for path in folders] == [base, f"{base}_2", f"{base}_3"]
    for path in folders:
        assert len(list((tmp_path / path).rglob("file"))) == (2 if words else 1)


def keeping(function: Callable[[Path], Path], kept: list[Path]) -> Callable[[Path], Path]:
    def watched(wanted: Path) -> Path:
        kept.append(function(wanted))
        return kept[-1]

    return watched


def test_a_folder_is_made_by_one_of_many(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(folders_of_runs.made, [tmp_path / "outputs" / "name"] * 40))
    assert len(set(folders)) == 40
    assert {path.name for path in folders} == {"name", *(f"name_{i}" for i in range(2, 41))}


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_help_lists_the_groups(name, tmp_path, capsys):
    done = runs.command(capsys, tmp_path, name, "--help")
    assert done.code == 0
    for choices in (
        r"model: .*complex, .*distmult, .*rotate, .*transe",
        "logger: csv, mlflow, none, several, tensorboard, wandb",
    ):
        assert re.search(choices, done.out)
    assert not list(tmp_path.iterdir())


def test_config_can_be_shown_without_a_run(tmp_path, capsys):
    done = runs.command(capsys, tmp_path, "train", "model=transe", "--cfg", "job", "--resolve")
    assert done.code == 0
    assert yaml.safe_load(done.out)["model"]["norm"] == 1
    assert not list(tmp_path.iterdir())


# Loggers.


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without a key, in an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return home


def test_wandb_is_the_default_and_offline(tmp_path, nobody):
    """A process of its own with nobody at the terminal: no question, no network, a run to upload later."""
    words = [word for word in QUICK if not word.startswith("logger")]
    done = runs.process(tmp_path, runs.script("train"), *words, "hydra.run.dir=run", "seed=7")
    assert (done.code, done.err) == (0, "")
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = path.read_bytes()
    for word in ("valid/mrr", "test/mrr", "train/loss", "test/by_relation"):
        assert word.encode() in content, word
    assert f"wandb sync {path.parent}" in done.out
    assert not (tmp_path / "wandb").exists()
    assert runs.metrics(tmp_path / "run")["test/num_queries"] == 402


def test_wandb_disabled_by_its_variable(tmp_path, nobody, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    words = [word for word in QUICK if not word.startswith("logger")]
    done = runs.command(capsys, tmp_path, "train", *words, "hydra.run.dir=run")
    assert (done.code, done.err) == (0, "")
    assert not list((tmp_path / "run").rglob("*.wandb"))
    assert (tmp_path / "run" / "metrics.json").exists()


def test_csv_logger(tmp_path, capsys):
    assert runs.command(capsys, tmp_path, "train", *QUICK, "logger=csv", "hydra.run.dir=run").code == 0
    frame = pl.read_csv(tmp_path / "run" / "csv" / "version_0" / "metrics.csv")
    values = runs.metrics(tmp_path / "run")
    for key in ("valid/mrr", "test/mrr", "test/hits@10"):
        assert frame[key].drop_nulls().to_list()[-1] == pytest.approx(values[key], rel=1e-6)
    config = yaml.safe_load((tmp_path / "run" / "csv" / "version_0" / "hparams.yaml").read_text())
    assert config["model"]["dim"] == 8


def test_tensorboard_logger(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert runs.command(capsys, tmp_path, "train", *QUICK, "logger=tensorboard", "hydra.run.dir=run").code == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    values = runs.metrics(tmp_path / "run")
    for key in ("valid/mrr", "test/mrr"):
        assert events.Scalars(key)[-1].value == pytest.approx(values[key], rel=1e-6)


# Processes of their own.


def test_one_line_and_exit_code_of_the_program(tmp_path):
    done = runs.process(tmp_path, runs.script("train"), "model=foo")
    assert "foo" in done.mistake()
    assert done.out == ""
    assert not list(tmp_path.iterdir())


def test_ctrl_c_during_evaluation(trained, tmp_path, capsys, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(KGEModule, "test_step", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        done = runs.command(capsys, tmp_path, "evaluate", f"checkpoint={trained}/checkpoints/best.ckpt", "trainer=cpu")
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 130
    assert after == before


def test_vectors_by_command(trained, tmp_path, capsys):
    """The second form of `evaluate.py`, word for word."""
    stored = runs.content(trained / "checkpoints" / "best.ckpt")
    np.save(tmp_path / "E.npy", stored["state_dict"]["model.entity.weight"].numpy())
    np.save(tmp_path / "R.npy", stored["state_dict"]["model.relation.weight"].numpy())
    (tmp_path / "ENT.txt").write_text("".join(f"{label}\n" for label in stored["kgc"]["entities"]))
    (tmp_path / "REL.txt").write_text("".join(f"{label}\n" for label in stored["kgc"]["relations"]))
    runs.write_splits(tmp_path / "DIR", **runs.bundled("nations"))
    done = runs.command(
        capsys,
        tmp_path,
        "evaluate",
        "model=rotate",
        "dataset=folder",
        "dataset.path=DIR",
        "embeddings.entities=E.npy",
        "embeddings.relations=R.npy",
        "embeddings.entity_labels=ENT.txt",
        "embeddings.relation_labels=REL.txt",
        "hydra.run.dir=run",
    )
    assert (done.code, done.err) == (0, "")
    assert runs.digits(json.loads((tmp_path / "run" / "metrics.json").read_text())) == runs.digits(
        runs.metrics(trained), "test"
    )
