"""Models that are mined instead of trained: the same run folder, without epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig
from pytorch_lightning import Trainer

from kgc.callbacks import Checkpoints
from kgc.console import ProgressLine
from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.ranking import planned
from kgc.tasks.build import build_model, build_trainer, ranking_arguments
from kgc.tasks.explain import write_rules
from kgc.tasks.launch import processes_wanted
from kgc.tasks.output import Session, write_run
from kgc.tasks.split_ranks import QUERIES_A_STEP, rank_split, ranks_frame


def is_mined(cfg: DictConfig) -> bool:
    """Whether the model of a config is mined."""
    try:
        return hasattr(get_object(cfg.model._target_), "mine")
    except (ImportError, ValueError, HydraException):  # building it will say what is wrong
        return False


def check_mined(cfg: DictConfig, resume: bool) -> None:
    """What mining cannot do.

    Raises:
        UserError: more than one process is asked for, or a run to go on with.
    """
    if resume:
        raise UserError("checkpoint=…: a model that is mined is not gone on with; mine again, with more model.seconds")
    if processes_wanted(cfg) > 1:
        raise UserError("a model that is mined needs one process: choose trainer=cpu (evaluate.py may use several)")


def mine_and_test(
    cfg: DictConfig, graph: KnowledgeGraph, identity: dict[str, Any], session: Session, words: list[str]
) -> dict[str, float]:
    """Mines, saves the rules, ranks valid and test, and writes the run's files.

    Args:
        cfg: the run's config.
        graph: its data.
        identity: what the checkpoints store of the run.
        session: its folder and terminal.
        words: of its command line.

    Returns:
        The content of `metrics.json`; `train/seconds` is the time of mining, `train/epochs` is 0.
    """
    run_dir, terminal = session.run_dir, session.terminal
    trainer = build_trainer(cfg, run_dir, callbacks=[ProgressLine(terminal)], logger=False)
    model = build_model(cfg, graph.num_entities, graph.num_relations, graph.stored("train"))
    module = KGEModule(model, graph, seed=cfg.seed, identity=identity, **ranking_arguments(cfg))
    terminal.say(f"model      {type(model).__name__}, mined (sampler, objective and optimizer are not used)")
    terminal.say(f"run        {run_dir}")
    session.start_logging(cfg, graph)
    module.on_fit_start()
    with session.phase("mine"):
        complete = model.mine(lambda line: terminal.say(f"mining     {line}"))
    module.on_fit_end()
    best = _save(trainer, module, run_dir / "checkpoints")
    terminal.say(
        f"mined {len(model.rules):,} rules in {module.seconds:.1f} s"
        + ("" if complete else " (model.seconds are over; there are more)")
        + f": {best}, {write_rules(run_dir / 'rules.tsv', model, graph)}"
    )
    queries = 2 * (len(graph.valid) + len(graph.test))
    module.ranking = planned(model, module.ranking, queries, trainer.strategy.root_device)
    data = KGDataModule(graph, 0, 1, QUERIES_A_STEP, cfg.seed)
    metrics: dict[str, float] = {"train/seconds": module.seconds, "train/epochs": 0, "train/rules": len(model.rules)}
    ranks = ranks_frame(graph)
    for split in ("valid", "test") if cfg.test else ("valid",):
        if len(graph.split(split)):
            with session.phase("test"):
                values, ranks = rank_split(module, trainer, data, split)
            metrics |= values
    write_run(cfg, module, metrics, ranks, session, words)
    return metrics


def _save(trainer: Trainer, module: KGEModule, folder: Path) -> Path:
    """`best.ckpt` and `last.ckpt`, which are the same; returns the first."""
    folder.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder)
    trainer.strategy.connect(module)
    for path in (checkpoints.best, checkpoints.last):
        checkpoints.save(trainer, path)
    return checkpoints.best
