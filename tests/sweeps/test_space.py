"""Search spaces: of words and of W&B's files, for both of their users."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from kgc.errors import UserError
from kgc.paths import config_dir
from kgc.sweeps import space as spaces
from kgc.tasks.check import check_config

FILES = sorted((config_dir() / "sweep").glob("*.yaml"))


def test_words():
    space = spaces.of_words(
        [
            *("model.dim=64,128", "sampler=choice(uniform,bernoulli)", "model.reciprocal=true,false"),
            "dataset=nations",
            *("seed=range(1,9,2)", "optimizer.lr=tag(log,interval(0.001,0.1))", "model.margin=interval(2,16.0)"),
            *("batch_size=int(interval(8,64))", "ranking.hits=[1,3,10],[1]", "+model.x=1"),
        ]
    )
    assert space.swept == {
        "model.dim": CategoricalDistribution(["64", "128"]),
        "sampler": CategoricalDistribution(["uniform", "bernoulli"]),
        "model.reciprocal": CategoricalDistribution(["True", "False"]),
        "seed": IntDistribution(1, 7, step=2),  # without its stop, as in Hydra's own sweeper
        "optimizer.lr": FloatDistribution(0.001, 0.1, log=True),
        "model.margin": FloatDistribution(2, 16),
        "batch_size": IntDistribution(8, 64),
        "ranking.hits": CategoricalDistribution(["[1,3,10]", "[1]"]),
    }
    assert space.fixed == {"dataset": "nations", "+model.x": "1"}


WRONG = ["optimizer.lr=tag(log,interval(0,1))", "optimizer.lr=interval(1,0)", "seed=range(3,3)"]


@pytest.mark.parametrize("word", WRONG)
def test_words_that_mean_nothing(word):
    with pytest.raises(UserError, match=r"optimizer\.lr=|seed="):
        spaces.of_words([word])


def test_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    content = {
        "command": ["${env}", "python", "train.py", "dataset=nations", "--flag=x", "${args_no_hyphens}"],
        "parameters": {
            "seed": {"value": 3},
            "test": {"value": False},
            "model.dim": {"values": [8, 16]},
            "optimizer.lr": {"distribution": "log_uniform_values", "min": 0.001, "max": 0.1},
            "model.margin": {"min": 1.0, "max": 2.0},
            "batch_size": {"min": 8, "max": 64},
            "model.entity_dropout": {"distribution": "q_uniform", "min": 0.0, "max": 0.5, "q": 0.1},
            "sampler.num_negatives": {"distribution": "q_log_uniform_values", "min": 8, "max": 64, "q": 1},
        },
    }
    path.write_text(yaml.safe_dump(content))
    space = spaces.of_file(str(path))
    assert space.fixed == {"dataset": "nations", "seed": "3", "test": "false"}
    assert space.swept == {
        "model.dim": CategoricalDistribution(["8", "16"]),
        "optimizer.lr": FloatDistribution(0.001, 0.1, log=True),
        "model.margin": FloatDistribution(1, 2),
        "batch_size": IntDistribution(8, 64),
        "model.entity_dropout": FloatDistribution(0, 0.5, step=0.1),
        "sampler.num_negatives": IntDistribution(8, 64, log=True),
    }
    # W&B's own conversion, where the client has one, agrees on all but categories, which are words here.
    theirs = pytest.importorskip("wandb.sdk.sweeps.scheduler.optuna").sweep_parameter_to_distribution
    for key, distribution in space.swept.items():
        if key != "model.dim":
            assert theirs(content["parameters"][key]) == distribution, key


def test_what_the_command_line_says_hides_the_file(tmp_path):
    given = spaces.of_words(["model.dim=64", "optimizer.lr=interval(1,2)", "dataset=nations"])
    space = given.over(spaces.of_file("rotate"))
    assert space.fixed == {"model": "rotate", "model.dim": "64", "dataset": "nations"}
    assert space.swept["optimizer.lr"] == FloatDistribution(1, 2)
    assert "model.margin" in space.swept
    assert "model.dim" not in space.swept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "mine.yaml: "),
        ("method: grid", "a W&B sweep has a mapping `parameters`"),
        ("parameters: {seed: 3}", "parameters.seed must be a mapping"),
        ("parameters: {seed: {distribution: normal, mu: 0, sigma: 1}}", "Optuna has nothing for distribution normal"),
        ("parameters: {seed: {min: 3}}", "parameters.seed"),
        ("parameters: {seed: {distribution: log_uniform_values, min: 0, max: 1}}", "parameters.seed"),
    ],
)
def test_files_that_are_wrong(text, said, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        spaces.of_file(str(tmp_path / "mine.yaml"))
    assert said in str(caught.value)


def test_a_name_that_no_file_has():
    with pytest.raises(UserError, match=r"hydra\.sweeper\.space=foo: no such file; there are .*rotate"):
        spaces.of_file("foo")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_good_to_its_ends(path: Path):
    """The first values of all keys make a config that passes all checks, and so do the last."""
    space = spaces.of_file(path.stem)
    assert space.swept
    ends = {
        key: kind.choices if isinstance(kind, CategoricalDistribution) else (kind.low, kind.high)
        for key, kind in space.swept.items()
    }
    fixed = [f"{key}={value}" for key, value in space.fixed.items()]
    trials = [{key: values[0] for key, values in ends.items()}, {key: values[-1] for key, values in ends.items()}]
    if path.stem == "grid":
        trials = [dict(zip(ends, values, strict=True)) for values in itertools.product(*ends.values())]
    for trial in trials:
        words = fixed + [f"{key}={spaces.word_of(value)}" for key, value in trial.items()]
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            check_config(compose("train", overrides=words), "train")
    content = yaml.safe_load(path.read_text())
    assert content["metric"] == {"name": "valid/mrr", "goal": "maximize"}
    assert "${args_no_hyphens}" in content["command"]
    assert path.stem in ("grid", "random") or f"model={path.stem}" in content["command"]


def test_models_of_the_contract_and_all_kinds_of_sweeps_are_there():
    assert {"transe", "distmult", "complex", "rotate"} <= set(spaces.ready())
    kinds = {yaml.safe_load(path.read_text())["method"] for path in FILES}
    assert kinds == {"grid", "random", "bayes"}
    hyperband = [yaml.safe_load(path.read_text()).get("early_terminate", {}).get("type") for path in FILES]
    assert hyperband.count("hyperband") >= 4
