"""Experiments whose groups the command line chooses otherwise.

An experiment chooses groups and lays keys of its own over them. Another choice of a group on the command line takes
those of its keys that it has, such as `model.dim`; the others were for the experiment's choice, and go with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict

from kgc.paths import config_dir
from kgc.signature import parameters, shown
from kgc.tasks.groups import is_group


def composed(words: Sequence[str]) -> DictConfig:
    """What `conf/train.yaml` composes to, with Hydra's own node; for use inside a running Hydra too."""
    used = GlobalHydra.instance().is_initialized()
    state = GlobalHydra.instance().hydra if used else None
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return compose("train", overrides=list(words), return_hydra_config=True)
    finally:
        if used:
            GlobalHydra.instance().initialize(state)


def without_misfits(cfg: DictConfig, words: Sequence[str]) -> list[str]:
    """Takes out of a config what an experiment set for choices of groups that the command line replaces.

    Args:
        cfg: what the words compose to; changed in place.
        words: of the command line.

    Returns:
        A line for each group: which keys were kept, and which left out.
    """
    given = dict(word.split("=", 1) for word in words if is_group(word.partition("=")[0]))
    name = given.pop("experiment", None)
    if name is None:
        return []
    paths = [word for word in words if word.lstrip("+").startswith("hydra.searchpath")]
    chosen = composed([*paths, f"experiment={name}"]).hydra.runtime.choices
    others = {group: choice for group, choice in given.items() if chosen.get(group) not in (choice, None)}
    if not others:
        return []
    yours = composed([*paths, *(f"{group}={choice}" for group, choice in others.items())])
    typed = {word.lstrip("+~").partition("=")[0] for word in words}
    lines = []
    for group, choice in others.items():
        both, after = (_leaves(node.get(group)) for node in (cfg, yours))
        laid = {key: value for key, value in both.items() if key not in after or after[key] != value}
        laid = {key: value for key, value in laid.items() if not _typed(f"{group}.{key}", typed)}
        kept = {key: value for key, value in laid.items() if _fits(yours.get(group), key)}
        gone = [key for key in laid if key not in kept]
        with open_dict(cfg):
            if yours.get(group) is None:
                cfg[group] = None
            for key in gone if cfg[group] is not None else ():
                _restore(cfg[group], key, after)
        said = [f"keeps {', '.join(f'{group}.{key}={shown(value)}' for key, value in kept.items())}"] if kept else []
        said += [f"leaves out {', '.join(f'{group}.{key}' for key in gone)}"] if gone else []
        if said:
            lines.append(f"experiment={name} with {group}={choice} {' and '.join(said)}")
    return lines


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Unresolved leaves by dotted key; lists and empty mappings are leaves; a null node has none."""
    if node is None:
        return {}
    found: dict[str, Any] = {}
    for name, value in OmegaConf.to_container(node, resolve=False).items() if isinstance(node, DictConfig) else ():
        child = node._get_node(name)
        if isinstance(child, DictConfig) and isinstance(value, dict) and value:
            found |= _leaves(child, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _typed(key: str, typed: set[str]) -> bool:
    """Whether the command line sets a key, or what it lies in; the choice of the group does not count."""
    parts = key.split(".")
    return any(".".join(parts[:n]) in typed for n in range(2, len(parts) + 1))


def _fits(node: Any, key: str) -> bool:
    """Whether the code that a node is for takes a key."""
    first, _, rest = key.partition(".")
    if not isinstance(node, DictConfig) or first.startswith("_"):
        return False
    if rest:
        return _fits(node.get(first) if first in node else None, rest)
    if "_target_" not in node:
        return first in node
    found, more = parameters(get_object(node._target_))
    return more or first in found


def _restore(node: DictConfig, key: str, after: dict[str, Any]) -> None:
    """Gives a key the value of the choice's own file, or takes it out, with mappings that it leaves empty."""
    if key in after:
        OmegaConf.update(node, key, after[key], force_add=True)
        return
    parent, _, name = key.rpartition(".")
    inside = OmegaConf.select(node, parent) if parent else node
    if inside is not None and name in inside:
        del inside[name]
        if parent and not inside and not any(other.startswith(f"{parent}.") for other in after):
            _restore(node, parent, after)
