"""Config values that would fail late, with a traceback, or silently."""

from __future__ import annotations

import math
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from kgc.errors import UserError
from kgc.tasks.groups import check_groups, check_nodes

SPLITS = ("train", "valid", "test")
_INF = math.inf
_BIG = 2**31 - 1

# key: (least, largest, may be null); whole numbers, then any numbers, then true or false, then choices.
_WHOLE = {
    "seed": (0, 2**32 - 1, False),
    "batch_size": (1, _BIG, False),
    "trainer.max_epochs": (1, _BIG, False),
    "trainer.val_every": (1, _BIG, False),
    "trainer.accumulate_grad_batches": (1, _BIG, False),
    "trainer.patience": (0, _BIG, True),
    "trainer.shards": (1, _BIG, True),
    "trainer.log_every": (1, _BIG, True),
    "model.dim": (1, _BIG, False),
    "model.relation_dim": (1, _BIG, True),
    **{f"model.{size}": (1, _BIG, False) for size in ("height", "channels", "kernel", "layers", "heads", "width")},
    "model.hidden": (1, _BIG, False),
    "model.bases": (1, _BIG, True),
    "model.blocks": (1, _BIG, True),
    "ranking.limit": (1, _BIG, True),
    "bootstrap": (1, _BIG, True),
    "sampler.num_negatives": (1, _BIG, False),
    "sampler.proposal.share": (1, _BIG, True),
    "sampler.proposal.pool_size": (1, _BIG, False),
    "sampler.proposal.cache_size": (1, _BIG, False),
    "sampler.proposal.random_size": (1, _BIG, False),
    "sampler.proposal.every": (1, _BIG, False),
    "sampler.proposal.generator.dim": (1, _BIG, False),
    "scheduler.epochs": (1, _BIG, False),
    "scheduler.step_size": (1, _BIG, False),
    "scheduler.patience": (0, _BIG, False),
    "regularizer.p": (1, _BIG, False),
}
_NUMBER = {
    "trainer.save_minutes": (0, _INF, True),
    "trainer.gradient_clip": (1e-30, _INF, True),
    "model.margin": (-_INF, _INF, False),
    "model.entity_dropout": (0, 0.999999, False),
    "model.relation_dropout": (0, 0.999999, False),
    **{
        f"model.{part}dropout": (0, 0.999999, False) for part in ("", "input_", "feature_", "hidden_", "self_", "edge_")
    },
    "sampler.temperature": (0, _INF, False),
    "sampler.proposal.power": (-_INF, _INF, False),
    "sampler.proposal.floor": (0, _INF, False),
    "sampler.proposal.decay": (0, 1, False),
    "objective.label_smoothing": (0, 0.999999, False),
    "objective.relation_weight": (0, _INF, False),
    "loss.margin": (-_INF, _INF, False),
    "loss.temperature": (1e-30, _INF, False),
    "regularizer.weight": (0, _INF, False),
    "optimizer.lr": (1e-30, _INF, False),
    "optimizer.momentum": (0, _INF, False),
    "optimizer.weight_decay": (0, _INF, False),
    **{
        f"optimizer.groups.{table}.{option}": (least, _INF, True)
        for table in ("entity", "relation", "other")
        for option, least in (("lr", 1e-30), ("momentum", 0), ("weight_decay", 0))
    },
    "scheduler.gamma": (1e-30, _INF, False),
    "scheduler.factor": (1e-30, 0.999999, False),
    "scheduler.final": (0, 1, False),
    "scheduler.warmup": (0, _INF, False),
}
_FLAG = (
    "test",
    "quiet",
    "model.reciprocal",
    "model.across_relations",
    "model.dependent",
    "model.one_hop",
    "model.layer_norm",
    "model.short_cut",
    "sampler.mask_known",
    "sampler.proposal.log_q",
    "objective.subsampling",
    "optimizer.sparse",
    "trainer.auto_batch",
    "trainer.requeue",
)
_FLAG_OR_NULL = ("trainer.compile", "ranking.compile")
_CHOICE = {
    "trainer.accelerator": ("auto", "cpu", "gpu"),
    "trainer.strategy": ("auto", "ddp", "sharded"),
    "trainer.precision": ("32-true", "bf16-mixed"),
    "trainer.backend": (None, "gloo", "nccl"),
    "split": SPLITS,
    "ranking.draw": ("uniform", "typed"),
    "protocol": ("triple", "query"),
}

# What a task of evaluate.py does not read, of the keys that are not its own.
_SOURCES = ("checkpoint", "model", "dataset", "embeddings")
# Keys that link prediction alone reads.
_LINK = ("ranking.limit", "ranking.candidates")
_UNREAD = {
    "triple_classification": _LINK,
    "predict": ("split", "bootstrap", *_LINK),
    "queries": ("bootstrap", *_LINK),
    "explain": ("split", "bootstrap", *_LINK),
    "inspect": ("checkpoint", "model", "embeddings", "split", "bootstrap", *_LINK),
    "retrieval": (*_SOURCES, "split", *_LINK),
    "compare": (*_SOURCES, "split", "bootstrap", *_LINK),
}


def check_unread(cfg: DictConfig) -> None:
    """Raises a `UserError` for a key that was set and that the task of evaluate.py does not read."""
    task = str(cfg.task._target_).rpartition(".")[2]
    for key in _UNREAD.get(task, ()):
        value = OmegaConf.select(cfg, key)
        parts = value.items() if isinstance(value, DictConfig) else [("", value)]
        given = [f"{key}.{name}={part}" if name else f"{key}={part}" for name, part in parts if part is not None]
        if given and given != ["split=test"]:
            name = key if isinstance(value, DictConfig) and "_target_" in value else given[0]
            raise UserError(f"{name}: task={task} does not read it; leave it out")


def check_config(cfg: DictConfig, task: str, resumed: bool = False) -> None:
    """Raises a `UserError` that names the key, its value and what it may be.

    Args:
        cfg: the config.
        task: `train` or `evaluate`.
        resumed: see `check_groups`.
    """
    check_groups(cfg, task, resumed)
    for key, (least, largest, optional) in _WHOLE.items():
        _check(cfg, key, int, "a whole number", least, largest, optional)
    for key, (least, largest, optional) in _NUMBER.items():
        _check(cfg, key, int | float, "a number", least, largest, optional)
    for key in _FLAG:
        value = OmegaConf.select(cfg, key, default=True)
        if not isinstance(value, bool):
            raise UserError(f"{key}={value}: must be true or false")
    for key in _FLAG_OR_NULL:
        value = OmegaConf.select(cfg, key, default=None)
        if value is not None and not isinstance(value, bool):
            raise UserError(f"{key}={value}: must be true or false, or null")
    for key, choices in _CHOICE.items():
        value = OmegaConf.select(cfg, key, default=choices[0])
        if value not in choices:
            raise UserError(f"{key}={value}: choices are {', '.join('null' if c is None else c for c in choices)}")
    _check_ranking(cfg)
    check_nodes(cfg)


def _check(cfg: DictConfig, key: str, kind: Any, words: str, least: float, largest: float, optional: bool) -> None:
    missing = object()
    value = OmegaConf.select(cfg, key, default=missing)
    if value is missing or (value is None and (optional or not _present(cfg, key))):
        return
    good = (
        isinstance(value, kind) and not isinstance(value, bool) and least <= value <= largest and math.isfinite(value)
    )
    if not good:
        bounds = [f"at least {least:g}"] if least > -_INF else []
        bounds += [f"at most {largest}"] if largest < _INF and (largest != _BIG or _large(value)) else []
        raise UserError(f"{key}={value}: must be {', '.join([words, *bounds])}" + (", or null" if optional else ""))


def _large(value: Any) -> bool:
    return isinstance(value, int | float) and value > _BIG


def _present(cfg: DictConfig, key: str) -> bool:
    """Whether the key is written in the config, if only as null."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return node is not None and name in node


def _check_ranking(cfg: DictConfig) -> None:
    hits, names = cfg.ranking.hits, cfg.ranking.filter
    whole = isinstance(hits, ListConfig) and all(isinstance(k, int) and not isinstance(k, bool) and k > 0 for k in hits)
    if not whole or not hits:
        raise UserError(f"ranking.hits={hits}: must be a list of whole numbers from 1 on, such as [1,3,10]")
    wanted = cfg.ranking.get("candidates")
    whole = isinstance(wanted, int) and not isinstance(wanted, bool) and 1 <= wanted <= _BIG
    if not (whole or wanted in (None, "given")):
        raise UserError(
            f"ranking.candidates={wanted}: must be a whole number from 1 on (so many are drawn), given (those of the "
            "data set), or null (all entities)"
        )
    if not isinstance(names, ListConfig) or any(name not in SPLITS for name in names):
        raise UserError(f"ranking.filter={names}: must be a list of splits, from {', '.join(SPLITS)}; [] for none")
