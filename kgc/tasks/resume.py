"""Going on with a run: its config with what the new command line changes, and its folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from kgc.errors import UserError
from kgc.tasks.build import Checkpoint, DamagedCheckpoint, read_checkpoint
from kgc.tasks.experiments import composed, without_misfits

# What the weights and the optimizer's state belong to.
_FIXED = (
    "model.",
    "objective._target_",
    "optimizer._target_",
    "sampler.proposal.generator",
    "sampler.proposal.cache_size",
)


def read_last_good(path: str, trust: str | list[str]) -> tuple[Checkpoint, list[str]]:
    """The checkpoint that a run goes on from, and a warning where that is another one than was asked for: of a damaged
    `last.ckpt` the `best.ckpt` beside it, which was written before it. The run reaches the same result from there.

    Raises:
        UserError: see `read_checkpoint`.
    """
    try:
        return read_checkpoint(path, trust), []
    except DamagedCheckpoint as error:
        best = Path(str(path)).with_name("best.ckpt")
        if Path(str(path)).name != "last.ckpt" or not best.is_file():
            raise
        try:
            found = read_checkpoint(str(best), trust)
        except DamagedCheckpoint:
            raise error from None
        return found, [f"warning: {error}; going on from {best}, of epoch {found.epochs}"]


def config_words(overrides: list[str]) -> list[str]:
    """The words of a command line that say what the config is, and where its files lie."""
    words = ((word, word.lstrip("+~")) for word in overrides)
    return [w for w, key in words if key.startswith("hydra.searchpath") or not key.startswith(("hydra", "checkpoint="))]


def resumed_config(resume: Checkpoint, overrides: list[str]) -> DictConfig:
    """The config of the checkpoint, with the words of the command line on top.

    The words are composed after those of the run's first command line, so that they mean what they would have meant
    there; what comes out different is changed in the stored config. Keys that an older version had not get today's
    defaults, where the code that they are for is the same.

    Args:
        resume: the checkpoint.
        overrides: the new command line's words.

    Raises:
        UserError: a word changes the model, the kind of objective or the optimizer, or what a sampler learns; the
            checkpoint lacks state, or its words mean nothing today.
    """
    if resume.lacks:
        raise UserError(
            f"checkpoint={resume.path}: written by an older version of kgc, it lacks {', '.join(resume.lacks)}, "
            "without which a run cannot go on; evaluate.py still takes it, and a new run starts without checkpoint="
        )
    words = config_words(overrides)
    # `+` adds a key that was not there; today it may be.
    stored = ["+" + word if word.startswith("+") and not word.startswith("++") else word for word in resume.overrides]
    try:
        before = _flat(_composed(stored))
    except HydraException as error:
        raise UserError(
            f"checkpoint={resume.path}: the words of its run mean nothing to this version of kgc "
            f"({str(error).splitlines()[0]}); go on with the version that wrote it"
        ) from error
    after = _flat(_composed(stored + words))
    config = _flat(OmegaConf.to_container(resume.config, resolve=True))
    for key in before.keys() | after.keys():
        if key in before and key in after and before[key] == after[key]:
            continue
        if key.startswith(_FIXED) and config.get(key) != after.get(key):
            raise UserError(
                f"{key}={after.get(key)}: the checkpoint has {key}={config.get(key)}; leave it out to go on"
            )
        config.pop(key, None)
        if key in after:
            config[key] = after[key]
    new = [key for key in after if key in before and key not in config and _has_place(key, config, before)]
    config |= {key: after[key] for key in new}  # the version that wrote the checkpoint had them not
    return OmegaConf.create(_nested(config | {"checkpoint": str(resume.path)}))


def _has_place(key: str, config: dict[str, Any], today: dict[str, Any]) -> bool:
    """Whether a key of today's config fits into an older one: no value stands in its way, and each part of the config
    that it lies in is for the same code, or is new."""
    parents = [key[:place] for place, sign in enumerate(key) if sign == "."]
    if any(parent in config for parent in parents) or any(other.startswith(f"{key}.") for other in config):
        return False
    there = [parent for parent in parents if any(other.startswith(f"{parent}.") for other in config)]
    return all(config.get(f"{parent}._target_") == today.get(f"{parent}._target_") for parent in there)


def _composed(words: list[str]) -> dict[str, Any]:
    cfg = composed(words)
    with open_dict(cfg):
        cfg.pop("hydra")
    without_misfits(cfg, words)
    return OmegaConf.to_container(cfg, resolve=True)


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; lists and empty mappings are leaves."""
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    return {k: v for name, child in node.items() for k, v in _flat(child, f"{prefix}.{name}".lstrip(".")).items()}


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def resumed_folder(run_dir: Path, resume: Checkpoint, overrides: list[str]) -> Path:
    """Where a resumed run writes: the folder of its checkpoint, or the `hydra.run.dir` that was given."""
    home = resume.path.resolve().parent.parent
    given = any(o.startswith("hydra.run.dir=") for o in overrides)
    if not given and resume.path.resolve().parent.name != "checkpoints":
        raise UserError(
            f"checkpoint={resume.path}: it lies in no folder named checkpoints; say by hydra.run.dir=DIR where to go on"
        )
    if given and run_dir.resolve() != home:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        best = resume.path.with_name("best.ckpt")
        if best.is_dir():
            shutil.copytree(best, run_dir / "checkpoints" / "best.ckpt", dirs_exist_ok=True)
        elif best.exists():
            shutil.copy2(best, run_dir / "checkpoints" / "best.ckpt")
        return run_dir
    if run_dir.exists() and run_dir.resolve() != home and not any(run_dir.iterdir()):
        run_dir.rmdir()  # Hydra made it before it was known that this is a resume
    return home
