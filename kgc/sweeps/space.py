"""Search spaces for Optuna: of a W&B sweep file such as those in `conf/sweep`, and of words such as
`optimizer.lr=interval(0.001,0.1)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from kgc.errors import UserError
from kgc.paths import config_dir


@dataclass
class Space:
    """What a search tries.

    Args:
        swept: distributions by config key; categories are values as Hydra's words have them.
        fixed: words that all trials share.
    """

    swept: dict[str, BaseDistribution] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)

    def over(self, other: Space) -> Space:
        """This space with what another one lacks in it: a key here, swept or fixed, hides the other's."""
        here = {key.lstrip("+~") for key in (*self.swept, *self.fixed)}
        return Space(
            {key: value for key, value in other.swept.items() if key.lstrip("+~") not in here} | self.swept,
            {key: value for key, value in other.fixed.items() if key.lstrip("+~") not in here} | self.fixed,
        )


def ready() -> list[str]:
    """Names of the files in `conf/sweep`."""
    return sorted(path.stem for path in (config_dir() / "sweep").glob("*.yaml"))


def of_words(words: Sequence[str]) -> Space:
    """The space of a command line: `a,b` and `choice(a,b)` are categories, `range(1,9,2)` steps, `interval(0.1,1)`
    numbers between two, `int(interval(1,9))` whole ones, `tag(log,interval(0.001,0.1))` on a log scale.

    Raises:
        UserError: a word that no distribution stands for.
    """
    space = Space()
    for override in OverridesParser.create().parse_overrides(list(words)):
        key = override.get_key_element()
        if override.is_sweep_override():
            space.swept[key] = _distribution(override)
        else:
            space.fixed[key] = override.get_value_element_as_str()
    return space


def of_file(name: str) -> Space:
    """The space of a W&B sweep file: `parameters`, and the words `key=value` of its `command`, which are fixed.

    Args:
        name: of a file in `conf/sweep`, or the path of one.

    Raises:
        UserError: there is no such file, or it holds what no distribution of Optuna stands for.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else config_dir() / "sweep" / f"{name}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"hydra.sweeper.space={name}: no such file; there are {', '.join(ready())}, or the path of a .yaml of yours"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise UserError(f"{path}: a W&B sweep has a mapping `parameters`")
    space = Space()
    for word in content.get("command") or []:
        key, sign, value = str(word).partition("=")
        if sign and not key.startswith(("-", "$")):
            space.fixed[key] = value
    for key, spec in content["parameters"].items():
        if not isinstance(spec, dict):
            raise UserError(f"{path}: parameters.{key} must be a mapping, such as values: [1, 2]")
        if "value" in spec:
            space.fixed[key] = word_of(spec["value"])
        else:
            space.swept[key] = _of_wandb(spec, f"{path}: parameters.{key}")
    return space


def word_of(value: Any) -> str:
    """A value as Hydra's command line has it."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if value is None or isinstance(value, bool | list | dict) else repr(value)


def _distribution(override: Override) -> BaseDistribution:
    value = override.value()
    try:
        if isinstance(value, RangeSweep) and not value.shuffle:
            whole = all(isinstance(bound, int) for bound in (value.start, value.stop, value.step))
            values = list(value.range())  # without its stop, which Optuna takes in
            kind = IntDistribution if whole else FloatDistribution
            return kind(values[0], values[-1], step=value.step)
        if isinstance(value, IntervalSweep):
            kind = IntDistribution if isinstance(value.start, int) and isinstance(value.end, int) else FloatDistribution
            return kind(value.start, value.end, log="log" in value.tags)
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(f"{override.input_line}: {error}") from error


def _of_wandb(spec: dict[str, Any], where: str) -> BaseDistribution:
    low, high, step = spec.get("min"), spec.get("max"), spec.get("q", 1)
    whole = all(isinstance(bound, int) for bound in (low, high))
    kind = spec.get("distribution") or ("categorical" if "values" in spec else "int_uniform" if whole else "uniform")
    try:
        if kind == "categorical":
            return CategoricalDistribution([word_of(value) for value in spec["values"]])
        if kind == "int_uniform":
            return IntDistribution(low, high)
        if kind == "uniform":
            return FloatDistribution(low, high)
        if kind == "log_uniform_values":
            return FloatDistribution(low, high, log=True)
        if kind == "q_uniform":
            return (IntDistribution if whole and isinstance(step, int) else FloatDistribution)(low, high, step=step)
        if kind == "q_log_uniform_values" and whole and step == 1:
            return IntDistribution(low, high, log=True)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: {type(error).__name__}: {error}") from error
    raise UserError(
        f"{where}: Optuna has nothing for distribution {kind}; choose categorical, int_uniform, uniform, q_uniform, "
        "log_uniform_values or, with q: 1, q_log_uniform_values"
    )
