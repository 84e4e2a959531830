"""From a config to the objects it names, and from a checkpoint back to its config."""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from lightning_fabric.plugins.environments import SLURMEnvironment
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Trainer
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from kgc.checkpoint_folder import check_index, is_folder, read_folder
from kgc.data.annotations import read_annotations
from kgc.data.batches import data_place
from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.limits import lacks_memory
from kgc.models.base import KGEModel
from kgc.objectives import Objective
from kgc.ranking import RankingOptions
from kgc.sharding import Shard, sharded
from kgc.strategy import ShardedStrategy
from kgc.tasks.launch import launched, nodes_here, processes_here, rank_here
from kgc.types import Triples


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
        if isinstance(cause, UserError) or (cause is not None and lacks_memory(cause)):
            raise cause from None
        if isinstance(cause, TypeError | ValueError):
            raise UserError(f"{key}: {node.get('_target_')} refuses it: {cause}") from error
        raise


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint knows besides weights.

    Args:
        path: the file, or the folder (see `kgc.checkpoint_folder`).
        config: the resolved config of the run.
        overrides: the words of the command lines that made the config.
        entities, relations: the vocabularies in the order of the tables.
        digest: of the graph it was trained on.
        epochs: how many were finished.
        types: the digest of the types of entities it was trained with; None without any.
        read: the content, in Lightning's form.
        lacks: what a run needs to go on and an older version did not save.
    """

    path: Path
    config: DictConfig
    overrides: list[str]
    entities: Vocabulary
    relations: Vocabulary
    digest: str
    epochs: int
    read: Callable[[Shard | None], dict[str, Any]]
    types: str | None = None
    lacks: tuple[str, ...] = ()

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Parameters by name, without the module's prefix, mapped into memory where they stand in a file."""
        return self.state_for(None)

    def state_for(self, shard: Shard | None) -> dict[str, torch.Tensor]:
        """`state`, of which a sharded table in a folder is the rows of a shard."""
        states = self.read(shard)["state_dict"]
        return {k.removeprefix("model."): v for k, v in states.items() if k.startswith("model.")}


class DamagedCheckpoint(UserError):
    """A file that is no checkpoint, or not all of one."""


# What training goes on from: of Lightning, and of kgc.
_TRAINING = ("optimizer_states", "loops", "callbacks", "epoch", "global_step")
_PROGRESS = ("seconds", "history", "loss_sum", "examples", "schedule", "rates")


def read_checkpoint(path: str, trust: str | list[str] | None = None) -> Checkpoint:
    """Reads a checkpoint of `train.py`; no code in it is run.

    Args:
        path: the file.
        trust: modules of the user's own that its config may name besides those of kgc and torch.

    Raises:
        UserError: no such file, not a checkpoint of kgc, or a config that names code outside kgc, torch and `trust`.
    """
    checkpoint = _read(path)
    _check_targets(OmegaConf.to_container(checkpoint.config), path, [trust] if isinstance(trust, str) else trust or [])
    return checkpoint


def read_weights(path: Path) -> Checkpoint:
    """Reads a checkpoint of this very run, whose config and labels are not going to be used."""
    return _read(str(path), lambda state: Vocabulary([]))


def _read(path: str, vocabulary: Callable[[Any], Vocabulary] = Vocabulary.from_state) -> Checkpoint:
    file = Path(str(path))
    if not file.is_file() and not is_folder(file):
        raise UserError(f"checkpoint={path}: no such file; runs keep theirs in RUN_FOLDER/checkpoints/")
    try:
        if file.is_file():
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            read = partial(_as_read, content)
        else:
            content = read_folder(file, tensors=False)
            read = partial(read_folder, file)
            check_index(file)
        content["state_dict"].items()
        saved = content["kgc"]
        config = OmegaConf.create(saved["config"])
        entities, relations = (vocabulary(saved[what]) for what in ("entities", "relations"))
        overrides, digest, epochs = list(saved["overrides"]), str(saved["digest"]), len(saved.get("history", ()))
        types = None if saved.get("types") is None else str(saved["types"])
        lacks = [f"{key!r}" for key in _TRAINING if key not in content]
        lacks += [f"'kgc.{key}'" for key in _PROGRESS if key not in saved]
        if not {"model", "dataset"} <= config.keys():
            raise ValueError("its config has no model or data set")
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).split("\n")[0].split(". ")[0]  # torch's advice, to load without safety, is not ours
        raise DamagedCheckpoint(
            f"checkpoint={path}: not a complete checkpoint of kgc ({type(error).__name__}: {reason})"
        ) from error
    if isinstance(config.dataset, DictConfig):
        config.dataset.pop("source", None)  # nothing is fetched from where a stranger's file says: the catalogue knows
    return Checkpoint(file, config, overrides, entities, relations, digest, epochs, read, types, tuple(lacks))


def _as_read(content: dict[str, Any], shard: Shard | None) -> dict[str, Any]:
    return content


# Modules whose classes and functions a checkpoint's config may name: none of them runs code it is given.
_TRUSTED = re.compile(
    r"kgc\.(models|sampling|losses|objectives|data\.catalogue|tracking|optim|schedules)(\.\w+)*|"
    r"torch\.optim\.[A-Z]\w+|torch\.optim\.lr_scheduler\.[A-Z]\w+"
)


def _check_targets(node: Any, path: str, trust: list[str]) -> None:
    """A config from a file may only name what kgc defines for configs, torch's optimizers and schedulers, and trust."""
    if isinstance(node, dict):
        target = node.get("_target_")
        if "_target_" in node and str(target).rpartition(".")[0] not in trust and not _trusted(target):
            raise UserError(
                f"checkpoint={path}: refused, its config names `{target}`, which is not of kgc or torch.optim; the "
                "modules of models of your own are named by trust=MODULE"
            )
        for value in node.values():
            _check_targets(value, path, trust)
    elif isinstance(node, list):
        for value in node:
            _check_targets(value, path, trust)


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
    """The graph of `cfg.dataset` with `cfg.annotations`, in given vocabularies (of a checkpoint, of label files) or in
    its own."""
    graph = call(cfg.dataset, "dataset", entities=entities, relations=relations)
    files = cfg.get("annotations") or {}
    if not any(files.values()):
        return graph
    return graph.annotated(read_annotations(files, graph.entities, graph.relations))


def build_model(cfg: DictConfig, num_entities: int, num_relations: int, facts: Triples | None = None) -> KGEModel:
    """The model of `cfg.model`, with initial values drawn from the global generator.

    Args:
        cfg: its node `model`.
        num_entities, num_relations: E and R.
        facts: the train split, for models that pass messages over the graph; int32 or int64 ids.
    """
    layout = shard_layout(cfg)
    if layout is not None:
        kind = get_object(cfg.model._target_)
        if isinstance(kind, type) and not (issubclass(kind, KGEModel) and kind.shardable):
            raise UserError(
                f"trainer=sharded: {kind.__name__} has no table of entities that processes could share row by row; "
                "choose trainer=ddp, which keeps the whole model on each device"
            )
    with sharded(layout):
        model = call(cfg.model, "model", num_entities=num_entities, num_relations=num_relations)
    takes_facts = getattr(type(model), "use_facts", KGEModel.use_facts) is not KGEModel.use_facts
    if facts is not None and takes_facts:
        model.use_facts(facts.long())
    return model


def shard_layout(cfg: DictConfig) -> tuple[int, int] | None:
    """(rank, size) of this process among those that share a table of entities; None where each has a table of its own.

    Raises:
        UserError: `trainer.shards` does not divide the number of processes.
    """
    processes = processes_here()
    if OmegaConf.select(cfg, "trainer.strategy") != "sharded" or processes == 1:
        return None
    size = cfg.trainer.shards or processes
    if processes % size:
        raise UserError(f"trainer.shards={size}: does not divide the {processes} processes of the run")
    if size == 1:
        return None
    return rank_here() % size, size


def build_training(cfg: DictConfig, graph: KnowledgeGraph, trainer: Trainer) -> tuple[KGEModel, Objective, int]:
    """The model, what it minimises, set up on the trainer's device, and the number of its training examples.

    Raises:
        UserError: sparse gradients where something needs dense ones, or batches without negatives.
    """
    model = build_model(cfg, graph.num_entities, graph.num_relations, graph.stored("train"))
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
        if data_place(trainer)[1] > 1:
            raise UserError(
                "optimizer.sparse=true with several processes: NCCL cannot sum sparse gradients; leave it out, train "
                "on one device, or choose trainer=sharded with one table over all processes"
            )
        model.use_sparse_gradients()
    examples = objective.setup(graph, trainer.strategy.root_device)
    if min(cfg.batch_size, -(-examples // data_place(trainer)[1])) < objective.least_batch:
        raise UserError(
            f"batch_size={cfg.batch_size}: sampler=in_batch takes the answers of a batch's other triples for "
            "negatives, and there are none; raise batch_size, or choose sampler=uniform"
        )
    return model, objective, examples


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

    On a CPU they stay where they are mapped from the file: pages are read when they are used, and no copy is made.

    Raises:
        UserError: they do not fit.
    """
    mapped = all(parameter.device.type == "cpu" for parameter in model.parameters())
    try:
        state = checkpoint.state_for(getattr(model, "shard", None))
    except Exception as error:  # whatever damaged files make the reader raise
        reason = str(error).split("\n")[0]
        raise UserError(
            f"checkpoint={checkpoint.path}: not a complete checkpoint of kgc ({type(error).__name__}: {reason})"
        ) from error
    try:
        model.load_state_dict(state, assign=mapped)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"checkpoint={checkpoint.path}: its weights do not fit its config ({reason})") from error


class NoProfiler(PassThroughProfiler):
    """Lightning's profiler that does nothing, and makes nothing for each of the sixty hooks of a step."""

    _nothing = contextlib.nullcontext()

    def profile(self, action_name: str) -> contextlib.nullcontext:
        return self._nothing


def device_of(cfg: DictConfig) -> torch.device:
    """The device of a task that runs on one: the first GPU where there is one and `trainer.accelerator` allows it.

    Raises:
        UserError: `trainer.accelerator` wants a GPU and there is none.
    """
    if cfg.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu: torch sees no GPU here; choose trainer=cpu or trainer=ddp_cpu")
    return torch.device("cuda" if cfg.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def build_trainer(cfg: DictConfig, run_dir: Path, **options: Any) -> Trainer:
    """Lightning's trainer for `cfg.trainer`.

    Raises:
        UserError: the accelerator or the number of devices is not there.
    """
    t = cfg.trainer
    strategy: Any = t.strategy
    layout = shard_layout(cfg)
    if strategy == "ddp":
        strategy = DDPStrategy(process_group_backend=t.backend)
    if layout is not None:
        strategy = ShardedStrategy(layout[1], t.backend)
    elif strategy == "sharded":  # one process a table
        strategy = DDPStrategy(process_group_backend=t.backend) if processes_here() > 1 else "auto"
    if t.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu: torch sees no GPU here; choose trainer=cpu or trainer=ddp_cpu")
    try:
        if SLURMEnvironment.detect():  # a run saves its state and comes back by itself, see kgc.cluster
            options["plugins"] = [*options.get("plugins", ()), SLURMEnvironment(auto_requeue=False)]
        return _trainer(t, strategy, run_dir, options)
    except RuntimeError as error:
        if "--ntasks" not in str(error):
            raise
        raise UserError(f"Slurm: {str(error).splitlines()[0]}") from error
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise UserError(f"trainer: {str(error).splitlines()[0]}") from error


def _trainer(t: DictConfig, strategy: Any, run_dir: Path, options: dict[str, Any]) -> Trainer:
    return Trainer(
        accelerator=t.accelerator,
        devices=processes_here() // nodes_here() if launched() else t.devices,
        num_nodes=nodes_here(),
        strategy=strategy,
        precision=t.precision,
        default_root_dir=run_dir,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(options.get("callbacks")),
        num_sanity_val_steps=0,
        log_every_n_steps=0,  # `Telemetry` logs
        profiler=NoProfiler(),
        use_distributed_sampler=False,
        **options,
    )
