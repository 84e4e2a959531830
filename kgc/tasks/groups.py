"""The groups of a config: those that a task needs are there, and their keys are those of the code that they name."""

from __future__ import annotations

import difflib
import importlib
import typing
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kgc.errors import UserError
from kgc.paths import config_dir
from kgc.signature import check_options, parameters, shown

# Groups whose `_target_` is called; with what the program itself gives it.
_SUPPLIED = {
    "model": ("num_entities", "num_relations"),
    "dataset": ("entities", "relations"),
    "sampler": (),
    "loss": (),
    "regularizer": (),
    "objective": (),
    "optimizer": ("params",),
    "scheduler": ("optimizer",),
    "logger": ("save_dir",),
}
_LISTED = 50  # choices of one group that a message names
_MAY_BE_NONE = ("regularizer", "scheduler")  # `none` in these groups is null
_GENERATOR = "generator"  # of `sampler=kbgan`: a model
_PARTIAL = ("optimizer", "scheduler", _GENERATOR)  # called later, with what they are for


def choices(group: str) -> list[str]:
    """The choices of a config group."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def is_group(name: str) -> bool:
    return bool(name) and (config_dir() / name).is_dir()


def wrong_choice(words: Sequence[str]) -> str | None:
    """The message for the first word `group=value` whose value is null or a number, which Hydra refuses unnamed."""
    for word in words:
        name, sign, value = word.lstrip("+").partition("=")
        if sign and is_group(name) and value not in choices(name) and not value.startswith(("[", "{")):
            return f"{name}={value}: choices of the group {name} are {listed(name, value)}"
    return None


def listed(group: str, value: str) -> str:
    """The choices of a group; of many, those whose names are nearest to a value."""
    names = choices(group)
    if len(names) <= _LISTED:
        return ", ".join(names)
    near = difflib.get_close_matches(value, names, 8, 0.3) or names[:8]
    return f"{', '.join(near)} and {len(names) - len(near)} others, the names of the files in conf/{group}"


def check_groups(cfg: DictConfig, name: str, resumed: bool = False) -> None:
    """Whether a config has the groups that its task reads, and the keys of those that name no code.

    Args:
        cfg: the config.
        name: `train` or `evaluate`, whose defaults say what there should be.
        resumed: the config is of a checkpoint, whose version may have had keys that are gone.

    Raises:
        UserError: names the group or the key.
    """
    top = OmegaConf.load(config_dir() / f"{name}.yaml")
    groups = [key for entry in top.defaults if isinstance(entry, DictConfig) for key in entry if is_group(key)]
    plain = [key for key in top if key not in ("defaults", "hydra")]
    for group in [g for g in groups if g != "experiment"]:
        if cfg.get(group) is None and not (group in cfg and (group in _MAY_BE_NONE or group in plain)):
            raise UserError(f"{group}: is needed; choose {group}=NAME from {', '.join(choices(group))}")
    if isinstance(cfg.get("task"), DictConfig):
        plain += _task_keys(cfg.task.get("_target_"))
    known = {"": [*plain, *groups]}
    known |= {g: list(OmegaConf.load(config_dir() / f)) for g, f in _PLAIN_GROUPS.items() if g in groups}
    for group, keys in known.items():
        _check_plain(cfg[group] if group else cfg, f"{group}." if group else "", keys, resumed)


def _task_keys(target: Any) -> list[str]:
    """The keys that a choice of the group `task` puts beside it."""
    files = [OmegaConf.load(config_dir() / "task" / f"{name}.yaml") for name in choices("task")]
    own = [key for file in files if file.task._target_ == target for key in file if key not in ("task", "defaults")]
    if not own and target not in [file.task._target_ for file in files]:
        raise UserError(f"task._target_={shown(target)}: choose task=NAME from {', '.join(choices('task'))}")
    return own


def check_nodes(cfg: DictConfig) -> None:
    """Whether the keys of every group are parameters of the code that it names, with values of their kinds.

    Raises:
        UserError: names the key.
    """
    for group, supplied in _SUPPLIED.items():
        node = cfg.get(group)
        if group == "dataset" and isinstance(node, DictConfig) and "inference" in node:  # evaluate.py reads it itself
            node = OmegaConf.create({key: value for key, value in node.items() if key != "inference"}) or None
        if node is not None:
            _check_node(node, group, supplied)


# Groups that the tasks read by themselves, with a file that has all their keys.
_PLAIN_GROUPS = {"trainer": "trainer/auto.yaml", "ranking": "ranking/filtered.yaml"}


def _check_plain(node: Any, prefix: str, keys: list[str], resumed: bool) -> None:
    if not isinstance(node, DictConfig):
        raise UserError(f"{prefix[:-1]}={shown(node)}: must be one of {', '.join(choices(prefix[:-1]))}")
    for key in keys:
        if key not in node and not (not prefix and is_group(key)):
            raise UserError(f"{prefix}{key}: missing; leave ~{prefix}{key} out")
    unknown = [str(key) for key in node if key not in keys]
    if unknown and not resumed:
        raise UserError(f"{prefix}{unknown[0]}: no such key; there are {', '.join(keys)}")


def _check_node(node: Any, key: str, supplied: tuple[str, ...] = (), later: bool | None = None) -> Any:
    """A node with a `_target_`, and those in it; returns what the `_target_` names.

    Args:
        node: the node.
        key: its config key.
        supplied: parameters that the program gives.
        later: whether it is called later, with more parameters (`_partial_`); None where its name says so.
    """
    if not isinstance(node, DictConfig) or "_target_" not in node:
        choice = f"; choose {key}=NAME from {', '.join(choices(key))}" if is_group(key) else ""
        raise UserError(f"{key}={shown(node)}: must be a mapping with a _target_{choice}")
    target = node.get("_target_")
    try:
        module, _, name = str(target).rpartition(".")
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever importing a module that the user named may raise
        raise UserError(f"{key}._target_={shown(target)}: there is no such class or function") from error
    if not callable(function):
        raise UserError(f"{key}._target_={target}: is no class or function")
    partial = node.get("_partial_", False)
    if later is None:
        later = key.rpartition(".")[2] in _PARTIAL
    if partial is not later:
        raise UserError(f"{key}._partial_={shown(partial)}: must be {shown(later)}")
    for name in node:
        if OmegaConf.is_missing(node, name):
            raise UserError(f"{key}.{name}: missing; give {key}.{name}=…")
    nodes = {n: node[n] for n in node if isinstance(node[n], DictConfig) and "_target_" in node[n]}
    values = {n: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for n, v in node.items()}
    named = key.rpartition(".")[2] in _PARTIAL
    check_options(function, values, key, supplied, complete=named or not later)
    for name, value in nodes.items():
        if OmegaConf.is_interpolation(node, name):
            continue  # a group of its own
        kind = parameters(function)[0].get(name, (False, None))[1]
        called = typing.get_origin(kind) is Callable or None
        given = _SUPPLIED["model"] if name == _GENERATOR else _SUPPLIED["logger"] if key == "logger" else ()
        made = _check_node(value, f"{key}.{name}", given, called)
        if isinstance(kind, type) and isinstance(made, type) and not issubclass(made, kind):
            raise UserError(f"{key}.{name}._target_={value.get('_target_')}: is no {kind.__name__}")
    return function
