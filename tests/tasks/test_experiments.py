"""Experiments whose groups the command line chooses otherwise: the choice is taken, what cannot apply is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runs
import yaml
from omegaconf import OmegaConf

from kgc.paths import config_dir
from kgc.tasks.check import check_config
from kgc.tasks.experiments import without_misfits

# Another choice of each group, whose keys are few.
OTHERS = {
    "model": "distmult",
    "objective": "one_vs_all",
    "sampler": "uniform",
    "loss": "cross_entropy",
    "regularizer": "none",
    "optimizer": "sgd",
    "scheduler": "none",
}


def mended(*words: str) -> tuple[Any, list[str]]:
    cfg = runs._compose("train", list(words))
    return cfg, without_misfits(cfg, words)


def leaves(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return {prefix}
    return {leaf for key, value in node.items() for leaf in leaves(value, f"{prefix}.{key}")}


def kinds() -> list[tuple[str, str]]:
    """An experiment for every set of keys that one lays over a group that it chooses."""
    found = {}
    for path in sorted((config_dir() / "experiment").glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        entries = [entry for entry in content["defaults"] if isinstance(entry, dict)]  # names are other recipes
        chosen = {key.split("/")[1]: value for entry in entries for key, value in entry.items()}
        for group in chosen.keys() & OTHERS.keys() & content.keys():
            if chosen[group] != OTHERS[group]:
                target = str((content[group] or {}).get("_target_"))
                found.setdefault((group, target, frozenset(leaves(content[group]))), path.stem)
    return sorted((group, name) for (group, _, _), name in found.items())


KINDS = kinds()


def test_there_are_such_experiments():
    assert {group for group, _ in KINDS} >= {"model", "optimizer", "regularizer", "scheduler", "sampler"}


@pytest.mark.parametrize(("group", "name"), KINDS, ids=lambda value: value)
def test_another_choice_is_that_choice(group, name):
    """What the node is for is what its own file says; every key is one that it has."""
    word = f"{group}={OTHERS[group]}"
    cfg, lines = mended(f"experiment={name}", word)
    check_config(cfg, "train")
    own = runs._compose("train", [word])
    assert (cfg[group] is None) is (own[group] is None)
    if own[group] is not None:
        assert cfg[group]._target_ == own[group]._target_
    assert all(line.startswith(f"experiment={name} with {word} ") for line in lines)


def test_what_is_kept_and_what_goes():
    cfg, lines = mended("experiment=complex_codex_s", "regularizer=none", "optimizer=sgd", "model=transe")
    assert cfg.regularizer is None
    assert cfg.optimizer == runs._compose("train", ["optimizer=sgd"]).optimizer
    assert (cfg.model.dim, cfg.model.reciprocal) == (512, True)
    assert cfg.objective.regularizer is None
    assert lines == [
        "experiment=complex_codex_s with regularizer=none leaves out regularizer.weight",
        "experiment=complex_codex_s with model=transe keeps model.dim=512, model.reciprocal=true, "
        "model.entity_dropout=0.1",
    ]


def test_a_recipe_made_of_another():
    """The settings of `simple_umls` on other data: its choices can be replaced as that one's can."""
    cfg, lines = mended("experiment=simple_nations", "regularizer=none", "model=transe", "dataset=kinship")
    assert (cfg.dataset.name, cfg.regularizer, cfg.model.dim) == ("kinship", None, 512)
    of_umls = mended("experiment=simple_umls", "regularizer=none", "model=transe")[1]
    assert [line.replace("simple_nations", "simple_umls") for line in lines] == of_umls != []


def test_words_of_the_command_line_stand():
    cfg, _ = mended(
        "experiment=complex_codex_s", "regularizer=l2", "regularizer.weight=0.5", "optimizer=sgd", "optimizer.lr=7"
    )
    assert (cfg.regularizer.weight, cfg.regularizer.p, cfg.optimizer.lr) == (0.5, 2, 7)


@pytest.mark.parametrize("words", [[], ["experiment=complex_codex_s"], ["regularizer=l2", "optimizer=sgd"]])
def test_nothing_else_changes(words):
    cfg, lines = mended(*words, "model.dim=8")
    assert lines == []
    assert OmegaConf.to_container(cfg) == OmegaConf.to_container(runs._compose("train", [*words, "model.dim=8"]))


def test_such_a_run_says_so_and_goes_on(tmp_path):
    words = [
        "experiment=complex_codex_s",
        "regularizer=none",
        "dataset=nations",
        "batch_size=512",
        "trainer.max_epochs=1",
    ]
    runs.train(tmp_path / "run", *words)
    said = "experiment=complex_codex_s with regularizer=none leaves out regularizer.weight"
    assert said in Path(tmp_path / "run" / "train.log").read_text()
    assert runs.resume(tmp_path / "run" / "checkpoints" / "last.ckpt", "trainer.max_epochs=2")["train/epochs"] == 2
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["regularizer"] is None
