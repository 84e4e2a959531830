"""From a config to the objects it names, and from a checkpoint back to its config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Trainer

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.ranking import RankingOptions

SPLITS = ("train", "valid", "test")


def call(node: DictConfig | None, **arguments: Any) -> Any:
    """What a config node's `_target_` makes of the node and the arguments; None for a node that is null.

    A mistake that the target reports comes out as it is, not wrapped by Hydra.
    """
    try:
        return instantiate(node, **arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint knows besides weights.

    Args:
        path: the file.
        state: parameters by name, without the module's prefix.
        config: the resolved config of the run.
        entities, relations: the vocabularies in the order of the tables.
        digest: of the graph it was trained on.
    """

    path: Path
    state: dict[str, torch.Tensor]
    config: DictConfig
    entities: Vocabulary
    relations: Vocabulary
    digest: str


def read_checkpoint(path: str) -> Checkpoint:
    """Reads a checkpoint of `train.py`; no code in it is run.

    Raises:
        UserError: no such file, not a checkpoint of kgc, or a config that names code outside kgc and torch.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"checkpoint={path}: no such file; runs keep theirs in RUN_FOLDER/checkpoints/")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        kgc = content["kgc"]
        state = {k.removeprefix("model."): v for k, v in content["state_dict"].items() if k.startswith("model.")}
        config = OmegaConf.create(kgc["config"])
        entities, relations = Vocabulary(kgc["entities"]), Vocabulary(kgc["relations"])
    except UserError:
        raise
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = str(error).split("\n")[0]
        raise UserError(
            f"checkpoint={path}: not a complete checkpoint of kgc ({type(error).__name__}: {reason})"
        ) from error
    _check_targets(OmegaConf.to_container(config), path)
    return Checkpoint(file, state, config, entities, relations, kgc["digest"])


def _check_targets(node: Any, path: str) -> None:
    """A config from a file may only name code of kgc and torch."""
    if isinstance(node, dict):
        target = node.get("_target_", "kgc.")
        if not str(target).startswith(("kgc.", "torch.")):
            raise UserError(
                f"checkpoint={path}: its config names `{target}`, which is neither of kgc nor of torch; refused"
            )
        for value in node.values():
            _check_targets(value, path)
    elif isinstance(node, list):
        for value in node:
            _check_targets(value, path)


def build_graph(
    cfg: DictConfig, entities: Vocabulary | None = None, relations: Vocabulary | None = None
) -> KnowledgeGraph:
    """The graph of `cfg.dataset`, in given vocabularies (of a checkpoint, of label files) or in its own."""
    return call(cfg.dataset, entities=entities, relations=relations)


def build_model(cfg: DictConfig, num_entities: int, num_relations: int) -> KGEModel:
    """The model of `cfg.model`, with initial values drawn from the global generator."""
    return call(cfg.model, num_entities=num_entities, num_relations=num_relations)


def ranking_options(cfg: DictConfig) -> RankingOptions:
    """`cfg.ranking` less what the metric and the filter take."""
    for name in cfg.ranking.filter:
        if name not in SPLITS:
            raise UserError(f"ranking.filter: no split `{name}`; choices are {', '.join(SPLITS)}")
    if not cfg.ranking.hits or any(not isinstance(k, int) or k < 1 for k in cfg.ranking.hits):
        raise UserError(f"ranking.hits={list(cfg.ranking.hits)}: must be whole numbers from 1 on, such as [1,3,10]")
    names = ("precision", "batch", "block", "compile", "nonfinite")
    return RankingOptions(**{name: cfg.ranking[name] for name in names})


def ranking_arguments(cfg: DictConfig) -> dict[str, Any]:
    """What `KGEModule` takes from `cfg.ranking`."""
    return {
        "ranking": ranking_options(cfg),
        "filter_splits": list(cfg.ranking.filter),
        "hits": list(cfg.ranking.hits),
    }


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
