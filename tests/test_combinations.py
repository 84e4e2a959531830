"""Choices of groups together: every pair composes to a config that is checked, and combinations run two steps.

What runs in a suite are the same few combinations; `pytest --hypothesis-profile=search tests/test_combinations.py`
draws others, and `-m slow` composes all pairs.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
import runs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small import SMALL

from kgc.errors import UserError
from kgc.tasks.check import check_config
from kgc.tasks.groups import choices

GROUPS = ("model", "sampler", "objective", "loss", "regularizer", "optimizer", "scheduler")
CHOICES = {group: choices(group) for group in GROUPS}
CHOICES["model"].remove("rules")  # mined: no other group is for it
# What does not go together, as the message says it; everything else must run.
REFUSED = re.compile(
    r"regularizer=dura: made for models that score by an inner product, which \w+ does not; .*"
    r"|regularizer: it penalises vectors of entities, which \w+ has not; .*"
    r"|objective=k_vs_all: \w+ would have to find all answers of a query on a graph without any of them; .*"
)

combination = st.fixed_dictionaries({group: st.sampled_from(names) for group, names in CHOICES.items()})


def together(names: str) -> dict[str, str]:
    """One choice of each group, in their order."""
    return dict(zip(GROUPS, names.split(), strict=True))


def small(model: str) -> list[str]:
    return [f"model.{key}={value}" for key, value in SMALL.get(model, {}).items()]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(chosen=combination)
@example(chosen=together("complex typed one_vs_all margin dura adagrad plateau"))
@example(chosen=together("hake kbgan negative_sampling bce n3 sgd warmup"))
@example(chosen=together("conve uniform k_vs_all logistic none adamw step"))
def test_a_combination_runs_two_steps_or_says_why_not(chosen, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("run")
    (folder / "types.tsv").write_text("usa\twest\nuk\twest\nchina\teast\ncuba\teast\n")
    words = [f"{group}={choice}" for group, choice in chosen.items()]
    words += ["batch_size=800", "trainer.max_epochs=1", "test=false", *small(chosen["model"])]
    words += [f"annotations.entity_types={folder}/types.tsv"]
    said, metrics = "", {}
    try:
        metrics = runs.train(folder / "run", *words)
    except UserError as error:
        said = str(error)
    assert REFUSED.fullmatch(said) if said else 0 < metrics["valid/mrr"] <= 1, said


PAIRS = [(a, b) for a, b in combinations(GROUPS, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("groups", PAIRS, ids="-".join)
def test_every_pair_composes(groups):
    first, second = groups
    for one in CHOICES[first]:
        for other in CHOICES[second]:
            check_config(runs._compose("train", [f"{first}={one}", f"{second}={other}"]), "train")
