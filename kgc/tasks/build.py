"""From a config to the objects it names, and from a checkpoint back to its config."""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.objectives import Objective
from kgc.ranking import RankingOptions


def interruptible(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls a method of Lightning's trainer; Ctrl-C in it stays a `KeyboardInterrupt`, where Lightning would exit."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        return function(*arguments, **options)
    except SystemExit as error:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores the signal from there on
        raise KeyboardInterrupt from error


def call(node: DictConfig | None, key: str, **arguments: Any) -> Any:
    """What the `_target_` of the config node `key` makes of the node and the arguments; None for a node that is null.

    Raises:
        UserError: the one that the target raised, or one that names the key and the target's complaint.
    """
    if node is None:
        return None
    try:
        return instantiate(node, _convert_="all", **arguments)  # plain lists: they go into checkpoints
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, TypeError | ValueError):
            raise UserError(f"{key}: {node.get('_target_')} refuses it: {cause}") from error
        raise


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint knows besides weights.

    Args:
        path: the file.
        state: parameters by name, without the module's prefix.
        config: the resolved config of the run.
        overrides: the words of the command lines that made the config.
        entities, relations: the vocabularies in the order of the tables.
        digest: of the graph it was trained on.
        epochs: how many were finished.
    """

    path: Path
    state: dict[str, torch.Tensor]
    config: DictConfig
    overrides: list[str]
    entities: Vocabulary
    relations: Vocabulary
    digest: str
    epochs: int


def read_checkpoint(path: str) -> Checkpoint:
    """Reads a checkpoint of `train.py`; no code in it is run.

    Raises:
        UserError: no such file, not a checkpoint of kgc, or a config that names code outside kgc and torch.
    """
    file = Path(str(path))
    if not file.is_file():
        raise UserError(f"checkpoint={path}: no such file; runs keep theirs in RUN_FOLDER/checkpoints/")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        saved = content["kgc"]
        state = {k.removeprefix("model."): v for k, v in content["state_dict"].items() if k.startswith("model.")}
        config = OmegaConf.create(saved["config"])
        entities, relations = Vocabulary(saved["entities"]), Vocabulary(saved["relations"])
        overrides, digest, epochs = list(saved["overrides"]), str(saved["digest"]), len(saved["history"])
        if not {"model", "dataset"} <= config.keys():
            raise ValueError("its config has no model or data set")
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).split("\n")[0].split(". ")[0]  # torch's advice, to load without safety, is not ours
        raise UserError(
            f"checkpoint={path}: not a complete checkpoint of kgc ({type(error).__name__}: {reason})"
        ) from error
    _check_targets(OmegaConf.to_container(config), path)
    if isinstance(config.dataset, DictConfig):
        config.dataset.pop("source", None)  # nothing is fetched from where a stranger's file says: the catalogue knows
    return Checkpoint(file, state, config, overrides, entities, relations, digest, epochs)


# Modules whose classes and functions a checkpoint's config may name: none of them runs code it is given.
_TRUSTED = re.compile(
    r"kgc\.(models|sampling|losses|objectives|data\.catalogue|tracking|optim|schedules)(\.\w+)*|"
    r"torch\.optim\.[A-Z]\w+|torch\.optim\.lr_scheduler\.[A-Z]\w+"
)


def _check_targets(node: Any, path: str) -> None:
    """A config from a file may only name what kgc defines for configs, and torch's optimizers and schedulers."""
    if isinstance(node, dict):
        if "_target_" in node and not _trusted(node["_target_"]):
            raise UserError(
                f"checkpoint={path}: refused, its config names `{node['_target_']}`, which is not of kgc or torch.optim"
            )
        for value in node.values():
            _check_targets(value, path)
    elif isinstance(node, list):
        for value in node:
            _check_targets(value, path)


def _trusted(target: Any) -> bool:
    if not isinstance(target, str) or not _TRUSTED.fullmatch(target):
        return False
    module, _, name = target.rpartition(".")
    if module.startswith("torch."):
        return True
    try:  # `kgc.tracking.os.system` passes the pattern, but `kgc.tracking.os` is no module of kgc
        return getattr(importlib.import_module(module), name).__module__ == module
    except (ImportError, AttributeError):
        return False


def build_graph(
    cfg: DictConfig, entities: Vocabulary | None = None, relations: Vocabulary | None = None
) -> KnowledgeGraph:
    """The graph of `cfg.dataset`, in given vocabularies (of a checkpoint, of label files) or in its own."""
    return call(cfg.dataset, "dataset", entities=entities, relations=relations)


def build_model(cfg: DictConfig, num_entities: int, num_relations: int) -> KGEModel:
    """The model of `cfg.model`, with initial values drawn from the global generator."""
    return call(cfg.model, "model", num_entities=num_entities, num_relations=num_relations)


def build_training(cfg: DictConfig, graph: KnowledgeGraph, trainer: Trainer) -> tuple[KGEModel, Objective, int]:
    """The model, what it minimises, set up on the trainer's device, and the number of its training examples.

    Raises:
        UserError: sparse gradients where something needs dense ones.
    """
    model = build_model(cfg, graph.num_entities, graph.num_relations)
    objective = call(cfg.objective, "objective")
    if cfg.optimizer.get("sparse"):
        if not objective.sparse:
            raise UserError(
                f"optimizer.sparse=true: {type(objective).__name__} scores all entities in every step, so every row "
                "has a gradient; leave it out, or choose objective=negative_sampling"
            )
        if cfg.trainer.gradient_clip is not None:
            raise UserError(
                "optimizer.sparse=true with trainer.gradient_clip: torch cannot clip sparse gradients; leave one out"
            )
        if trainer.world_size > 1:
            raise UserError(
                "optimizer.sparse=true with several processes: NCCL cannot sum sparse gradients; leave it out, or "
                "train on one device"
            )
        model.use_sparse_gradients()
    return model, objective, objective.setup(graph, trainer.strategy.root_device)


def ranking_options(cfg: DictConfig) -> RankingOptions:
    """`cfg.ranking` less what the metric and the filter take."""
    names = ("precision", "batch", "block", "compile", "nonfinite")
    return RankingOptions(**{name: cfg.ranking[name] for name in names})


def ranking_arguments(cfg: DictConfig) -> dict[str, Any]:
    """What `KGEModule` takes from `cfg.ranking`."""
    return {
        "ranking": ranking_options(cfg),
        "filter_splits": list(cfg.ranking.filter),
        "hits": list(cfg.ranking.hits),
    }


def load_weights(model: KGEModel, checkpoint: Checkpoint) -> None:
    """Puts the weights of a checkpoint into a model of the same config.

    Raises:
        UserError: they do not fit.
    """
    try:
        model.load_state_dict(checkpoint.state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"checkpoint={checkpoint.path}: its weights do not fit its config ({reason})") from error


def build_trainer(cfg: DictConfig, run_dir: Path, **options: Any) -> Trainer:
    """Lightning's trainer for `cfg.trainer`.

    Raises:
        UserError: the accelerator or the number of devices is not there.
    """
    t = cfg.trainer
    strategy: Any = t.strategy
    if strategy == "ddp":
        from pytorch_lightning.strategies import DDPStrategy

        strategy = DDPStrategy(process_group_backend=t.backend)
    if t.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu: torch sees no GPU here; choose trainer=cpu or trainer=ddp_cpu")
    try:
        return _trainer(t, strategy, run_dir, options)
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise UserError(f"trainer: {str(error).splitlines()[0]}") from error


def _trainer(t: DictConfig, strategy: Any, run_dir: Path, options: dict[str, Any]) -> Trainer:
    return Trainer(
        accelerator=t.accelerator,
        devices=t.devices,
        strategy=strategy,
        precision=t.precision,
        default_root_dir=run_dir,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(options.get("callbacks")),
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
        **options,
    )
