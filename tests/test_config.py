"""The config groups: every choice composes, names code that is there, and says nothing that its code does not read."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from kgc.paths import config_dir
from kgc.tasks.build import build_model

# The table of the command-line contract: choices, and the default where it is promised.
PROMISED = {
    "model": ("transe distmult complex rotate", "rotate"),
    "dataset": ("nations kinship umls folder fb15k237 wn18rr", "umls"),
    "sampler": ("uniform bernoulli adversarial", "adversarial"),
    "objective": ("negative_sampling one_vs_all k_vs_all", "negative_sampling"),
    "trainer": ("auto cpu gpu ddp ddp_cpu", "auto"),
    "logger": ("wandb csv tensorboard none", "wandb"),
}
KEYS = ["seed", "trainer.max_epochs", "model.dim", "sampler.num_negatives", "optimizer.lr", "checkpoint"]

# Those of Hydra's own groups, and the sweeps that are W&B's, have tests of their own.
FILES = sorted(
    path
    for path in config_dir().rglob("*.yaml")
    if path.relative_to(config_dir()).parts[0] not in (path.name, "hydra", "sweep")
)


def composed(name: str, *words: str) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose(name, overrides=list(words), return_hydra_config=True)


@pytest.mark.parametrize("group", PROMISED)
def test_promised_choices_and_defaults(group):
    choices, default = PROMISED[group]
    assert set(choices.split()) <= {path.stem for path in (config_dir() / group).glob("*.yaml")}
    assert composed("train").hydra.runtime.choices[group] == default


def test_promised_keys():
    cfg = composed("train")
    for key in KEYS:
        assert OmegaConf.select(cfg, key, default="missing") != "missing", key


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_choice_composes(path):
    word = f"{path.parent.name}={path.stem}"
    command = "evaluate" if path.parent.name == "task" else "train"
    needed = ["dataset.path=somewhere"] if word in ("dataset=folder", "dataset=file") else []
    cfg = composed(command, word, *needed)
    assert cfg.hydra.runtime.choices[path.parent.name] == path.stem
    for key in cfg:
        if key != "hydra" and isinstance(cfg[key], DictConfig):
            OmegaConf.to_container(cfg[key], resolve=True, throw_on_missing=True)
    if path.parent.name in composed("evaluate").hydra.runtime.choices:
        composed("evaluate", word)


def nodes(config: Any) -> list[dict[str, Any]]:
    """All nodes with a `_target_`, at any depth."""
    if isinstance(config, list):
        return [found for value in config for found in nodes(value)]
    if not isinstance(config, dict):
        return []
    own = [config] if "_target_" in config else []
    return own + [found for value in config.values() for found in nodes(value)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_keys_are_parameters_of_the_code_that_is_named(path):
    """No key that no code reads, and no code that is not there."""
    for node in nodes(yaml.safe_load(path.read_text())):
        parameters = set()
        for cls in inspect.getmro(target) if inspect.isclass(target := get_object(node["_target_"])) else [target]:
            parameters |= set(inspect.signature(cls).parameters) if cls is not object else set()
        keys = {key for key in node if not key.startswith("_") and key != "defaults"}
        assert keys <= parameters, node["_target_"]


@pytest.mark.parametrize("model", ["transe", "distmult", "complex", "rotate"])
def test_dim_is_the_number_of_real_numbers_per_entity(model):
    built = build_model(composed("train", f"model={model}", "model.dim=12"), 5, 3)
    assert built.entity.weight.shape == (5, 12)
    assert built.entity.weight.dtype == torch.float32
    # RotatE stores one phase for each complex coordinate.
    assert built.relation.weight.shape == (3, 6 if model == "rotate" else 12)
    reciprocal = build_model(composed("train", f"model={model}", "model.dim=12", "model.reciprocal=true"), 5, 3)
    assert reciprocal.relation.weight.shape[0] == 6


def test_norm_of_transe_is_1_unless_told_otherwise():
    assert composed("train", "model=transe").model.norm == 1


def test_ranks_are_filtered_by_all_splits_unless_told_otherwise():
    for name in ("train", "evaluate"):
        assert list(composed(name).ranking.filter) == ["train", "valid", "test"]
        assert list(composed(name).ranking.hits) == [1, 3, 10]


def test_folders_of_runs():
    hydra = OmegaConf.to_container(composed("train").hydra, resolve=False)
    assert hydra["run"]["dir"].startswith("outputs/")
    assert hydra["run"]["dir"].endswith("_${hydra:runtime.choices.model}_${hydra:runtime.choices.dataset}")


def test_ready_data_come_from_the_named_folder(tmp_path, monkeypatch):
    """`$KGC_DATA/NAME`, in whatever format, is used and nothing is downloaded."""
    monkeypatch.setenv("KGC_DATA", str(tmp_path / "ready"))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("a download"))
    runs.write_splits(tmp_path / "ready" / "nations", **runs.bundled("nations"))
    here = runs.train(tmp_path / "here")
    monkeypatch.delenv("KGC_DATA")
    assert runs.digits(here) == runs.digits(runs.train(tmp_path / "bundled"))


def test_shared_copies_are_the_bundled_data():
    """What is bundled is what other systems train on: the counts of the papers."""
    sizes = {name: [len(split) for split in runs.bundled(name).values()] for name in ("nations", "kinship", "umls")}
    assert sizes == {"nations": [1592, 199, 201], "kinship": [8544, 1068, 1074], "umls": [5216, 652, 661]}


def test_config_folder_is_the_one_beside_the_package():
    assert config_dir() in (Path(runs.REPOSITORY) / "conf", Path(runs.REPOSITORY) / "kgc" / "conf")
