"""Training: from a config to a run folder with checkpoints, metrics, ranks and a report."""

from __future__ import annotations

import math
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import seed_everything

from kgc.callbacks import CheckpointFiles, Checkpoints, Interrupted, LastEpochValidates, Patience, StopOnSignal
from kgc.cluster import in_job, requeue, was_requeued
from kgc.console import ProgressLine
from kgc.data.batches import data_place
from kgc.data.datamodule import KGDataModule
from kgc.engine.compiled import compile_training, compiler_fault
from kgc.errors import Pruned, UserError
from kgc.module import KGEModule
from kgc.ranking import NonFiniteScore, planned
from kgc.runtime import prepare_process, release_memory
from kgc.sweeps.study import PruneHopeless, StudyTrial
from kgc.tasks.build import (
    build_graph,
    build_trainer,
    build_training,
    call,
    interruptible,
    load_weights,
    ranking_arguments,
    read_checkpoint,
    read_weights,
)
from kgc.tasks.check import check_config
from kgc.tasks.experiments import without_misfits
from kgc.tasks.explain import write_learned_rules
from kgc.tasks.launch import launch, processes_wanted, shared_folder
from kgc.tasks.memory import largest_batch, one_line_for_memory
from kgc.tasks.mine import check_mined, is_mined, mine_and_test
from kgc.tasks.output import Session, quoted, write_run
from kgc.tasks.resume import config_words, read_last_good, resumed_config, resumed_folder
from kgc.tasks.split_ranks import QUERIES_A_STEP, describe_nonfinite, rank_split, ranks_frame
from kgc.tasks.storage import check_room, check_writable, one_line_for_files
from kgc.telemetry import Telemetry


def train(
    cfg: DictConfig, run_dir: Path, overrides: list[str] | None = None, trial: StudyTrial | None = None
) -> dict[str, float] | None:
    """Trains the model of a config and measures it.

    Args:
        cfg: what `conf/train.yaml` composes to.
        run_dir: the run's folder; made if missing. A resumed run goes on in its own folder unless
            `hydra.run.dir` was given.
        overrides: the command line's `key=value` words, which override the config of a checkpoint that is resumed.
        trial: of a study, which is told the valid MRR and may end a hopeless run.

    Returns:
        The content of `metrics.json`; None after a clean stop by a signal.

    Raises:
        UserError: a mistake in the config or the data.
        Pruned: the study ended the run.
    """
    overrides = overrides or []
    last = run_dir / "checkpoints" / "last.ckpt"
    resume, notes = read_last_good(cfg.checkpoint, cfg.trust) if cfg.checkpoint else (None, [])
    if was_requeued() and last.exists():  # the words of the job's first start are in the checkpoint
        (resume, notes), overrides = read_last_good(str(last), cfg.trust), []
    if resume:
        cfg = resumed_config(resume, overrides)
        run_dir = resumed_folder(run_dir, resume, overrides)
        overrides = [*resume.overrides, *overrides]
    elif last.exists():
        raise UserError(
            f"{run_dir} already holds a run; choose another hydra.run.dir, or go on with it by checkpoint={last}"
        )
    else:
        notes = without_misfits(cfg, overrides)
    check_config(cfg, "train", resumed=resume is not None)
    for key in ("limit", "candidates"):
        if cfg.ranking.get(key) is not None:
            raise UserError(
                f"ranking.{key}={cfg.ranking[key]}: training ranks whole splits against all entities; give it to "
                "evaluate.py (test=false leaves the final test out)"
            )
    if resume and resume.epochs > cfg.trainer.max_epochs:
        raise UserError(
            f"trainer.max_epochs={cfg.trainer.max_epochs}: the checkpoint has {resume.epochs} epochs already"
        )
    if is_mined(cfg):
        check_mined(cfg, resume is not None)
    if cfg.dataset.get("path"):
        cfg.dataset.path = str(Path(str(cfg.dataset.path)).resolve())  # the checkpoint finds its data from anywhere
    for name, path in (cfg.get("annotations") or {}).items():
        if path is not None:
            cfg.annotations[name] = str(Path(str(path)).expanduser().resolve())
    config = OmegaConf.to_container(cfg, resolve=True)
    words = config_words(overrides)
    arguments = (config, words, str(run_dir), str(resume.path) if resume else None, notes, trial)
    processes = processes_wanted(cfg)
    metrics = launch(run, processes, *arguments) if processes > 1 else run(*arguments)
    if metrics is None:
        raise KeyboardInterrupt
    if isinstance(metrics, Pruned):
        raise metrics
    return metrics


def run(
    config: dict[str, Any],
    words: list[str],
    folder: str,
    resume: str | None,
    notes: list[str],
    trial: StudyTrial | None = None,
) -> dict[str, float] | Pruned | None:
    """One process of a run: data, model, training, test, files. Returns what `train` returns, or why it was pruned."""
    cfg = OmegaConf.create(config)
    run_dir = Path(shared_folder(cfg, folder))
    try:
        with one_line_for_files(run_dir), Session(run_dir, "train.log", cfg.quiet) as session:
            for note in notes:
                session.terminal.say(note)
            return fit_and_test(cfg, words, resume, session, trial)
    except Interrupted:
        return None
    except Pruned as error:  # not raised here: it may be another process that waits for it
        return error


def fit_and_test(
    cfg: DictConfig, words: list[str], resume: str | None, session: Session, trial: StudyTrial | None = None
) -> dict[str, float]:
    """Trains, restores the best weights, ranks valid and test, and writes the run's files."""
    run_dir, terminal = session.run_dir, session.terminal
    checkpoint = read_checkpoint(resume, cfg.trust) if resume else None
    check_writable(run_dir / "checkpoints")
    prepare_process()
    seed_everything(cfg.seed, verbose=False)
    known = (checkpoint.entities, checkpoint.relations) if checkpoint else ()
    with session.phase("data"):
        graph = build_graph(cfg, *known)
    if checkpoint and graph.digest != checkpoint.digest:
        raise UserError(
            f"the data of {graph.name} changed since the checkpoint was written (digest {graph.digest[:12]}, then "
            f"{checkpoint.digest[:12]}): going on would mix two data sets; start a new run"
        )
    if checkpoint and checkpoint.types != graph.annotations.digest:
        raise UserError(
            "annotations.entity_types: the types changed since the checkpoint was written (digest "
            f"{short(graph.annotations.digest)}, then {short(checkpoint.types)}), and a sampler may draw by them: "
            "start a new run"
        )
    for line in graph.lines():
        terminal.say(line)
    identity = {
        "config": OmegaConf.to_container(cfg, resolve=True),
        "overrides": words,
        "entities": graph.entities.state(),
        "relations": graph.relations.state(),
        "digest": graph.digest,
        "types": graph.annotations.digest,
        "version": version("kgc"),
    }
    if is_mined(cfg):
        return mine_and_test(cfg, graph, identity, session, words)
    checkpoints = Checkpoints(run_dir / "checkpoints", cfg.trainer.save_minutes)
    stop = StopOnSignal(checkpoints)
    callbacks = [LastEpochValidates(), ProgressLine(terminal), checkpoints, stop]
    if len(graph.valid) and cfg.trainer.patience is not None:
        callbacks.append(Patience(cfg.trainer.patience))
    if trial is not None:
        callbacks.append(PruneHopeless(trial))
    trainer = build_trainer(
        cfg,
        run_dir,
        callbacks=callbacks,
        plugins=[CheckpointFiles()],
        logger=False,
        max_epochs=cfg.trainer.max_epochs,
        check_val_every_n_epoch=min(cfg.trainer.val_every, cfg.trainer.max_epochs),
        gradient_clip_val=cfg.trainer.gradient_clip,
        accumulate_grad_batches=cfg.trainer.accumulate_grad_batches,
        limit_val_batches=None if len(graph.valid) else 0,
    )
    with one_line_for_memory(cfg, trainer, checkpoints.last):
        if cfg.trainer.auto_batch:
            cfg.batch_size, cfg.trainer.auto_batch = largest_batch(cfg, graph, trainer), False
            terminal.say(f"auto_batch found batch_size={cfg.batch_size}")
        model, objective, num_examples = build_training(cfg, graph, trainer)
    data = KGDataModule(
        graph,
        num_examples=num_examples,
        batch_size=cfg.batch_size,
        query_batch_size=QUERIES_A_STEP,
        seed=cfg.seed,
    )
    module = KGEModule(
        model,
        graph,
        objective,
        optimizer=call(cfg.optimizer, "optimizer"),
        scheduler=call(cfg.scheduler, "scheduler"),
        seed=cfg.seed,
        identity=identity | {"config": OmegaConf.to_container(cfg, resolve=True)},  # with the batch size found
        **ranking_arguments(cfg),
    )
    check_room(checkpoints, module)
    parameters = num_parameters(model)
    compiled = False
    if cfg.trainer.compile is not False and hasattr(model, "similarity"):
        cells = math.inf if cfg.trainer.compile else objective.cells(model, num_examples * cfg.trainer.max_epochs)
        compiled = compile_training(model.similarity, cells, model.dim, trainer.strategy.root_device)
    if cfg.trainer.compile and not compiled:
        fault = compiler_fault(trainer.strategy.root_device)
        reason = fault or f"the training of {type(model).__name__} has nothing that is compiled"
        terminal.say(f"warning: trainer.compile=true changes nothing: {reason}")
    terminal.say(
        f"model      {type(model).__name__}, {parameters:,} parameters ({parameters * 4 / 2**20:.1f} MiB) on "
        f"{trainer.strategy.root_device.type}" + (f" x {trainer.world_size}" if trainer.world_size > 1 else "")
    )
    if module.shard is not None:
        terminal.say(
            f"shards     {module.shard.size} of up to {module.shard.most:,} entities, in {data_place(trainer)[1]} "
            "data-parallel group(s)"
        )
    terminal.say(
        f"training   {num_examples:,} examples in batches of {cfg.batch_size:,}, up to {cfg.trainer.max_epochs:,} "
        f"epochs, {cfg.optimizer._target_.split('.')[-1]} with lr {cfg.optimizer.get('lr')}"
    )
    terminal.say(f"objective  {describe_objective(cfg)}")
    terminal.say(f"run        {run_dir}")
    rounds = -(-cfg.trainer.max_epochs // cfg.trainer.val_every)
    queries = 2 * (rounds * len(graph.valid) + len(graph.test)) // data_place(trainer)[1]
    module.ranking = planned(model, module.ranking, queries, trainer.strategy.root_device)
    session.start_logging(cfg, graph)
    telemetry = Telemetry(session.loggers, cfg.trainer.log_every, checkpoints)
    trainer.callbacks.insert(trainer.callbacks.index(checkpoints) + 1, telemetry)
    if len(graph.valid) == 0:
        plateau = cfg.scheduler is not None and cfg.scheduler._target_.endswith("ReduceLROnPlateau")
        rate = ", scheduler=plateau keeps the learning rate" if plateau else ""
        terminal.say(f"warning: no valid split: no early stopping{rate}, the last weights are taken as the best")
    try:
        with stop.listening(), one_line_for_memory(cfg, trainer, checkpoints.last):
            interruptible(trainer.fit, module, datamodule=data, ckpt_path=resume, weights_only=True)
    except NonFiniteScore as error:
        raise UserError(describe_nonfinite(error, graph)) from error
    except Interrupted:
        terminal.say(f"stopped; the state is saved. Go on with: python train.py checkpoint={quoted(checkpoints.last)}")
        if trainer.is_global_zero and in_job() and cfg.trainer.requeue:
            terminal.say(requeue(stop.number or signal.SIGUSR1, stop.before))
        raise
    except Pruned as error:
        terminal.say(f"pruned     {error}")
        raise
    epochs = len(module.history)
    objective = None
    module.forget_training()
    trainer.strategy.optimizers = []  # which hold the table that the best weights replace
    release_memory()
    session.spent(telemetry.seconds)
    best = read_weights(checkpoints.best)
    load_weights(model, best)
    terminal.say(
        f"trained {epochs} epochs in {module.seconds:.1f} s; weights of the best epoch, {checkpoints.best_epoch + 1}: "
        f"{checkpoints.best}"
    )
    metrics: dict[str, float] = {"train/seconds": module.seconds, "train/epochs": epochs}
    ranks = ranks_frame(graph)
    for split in ("valid", "test") if cfg.test else ("valid",):
        if len(graph.split(split)):
            with session.phase("test"):
                values, ranks = rank_split(module, trainer, data, split)
            metrics |= values
    if trainer.is_global_zero and hasattr(model, "learned_rules"):
        terminal.say(f"rules      {write_learned_rules(run_dir / 'rules.tsv', model, graph)}")
    if trainer.is_global_zero:
        write_run(cfg, module, metrics, ranks, session, words)
    return metrics


def short(digest: str | None) -> str:
    """A digest's first letters, for a message."""
    return "none" if digest is None else digest[:12]


def num_parameters(model: torch.nn.Module) -> int:
    """Numbers that are trained, those of other processes' rows included."""
    shard = getattr(model, "shard", None)
    others = 0 if shard is None else (shard.rows - shard.held) * model.entity.embedding_dim
    return sum(p.numel() for p in model.parameters()) + others


def _describe_weights(cfg: DictConfig) -> str:
    temperature = cfg.objective.sampler.temperature
    if not getattr(get_class(cfg.objective.loss._target_), "weighted", True):
        return "weights not used by this loss"
    return f"weights softmax({temperature} x logit)" if temperature else "equal weights"


def describe_objective(cfg: DictConfig) -> str:
    """The objective in a line, with what it is made of."""
    name = cfg.objective._target_.split(".")[-1]
    if "sampler" not in cfg.objective:
        return f"{name} (sampler and loss are not used)"
    sampler = cfg.objective.sampler
    words = [
        f"{sampler.num_negatives} negatives by {sampler.proposal._target_.split('.')[-1]}",
        sampler.sides._target_.split(".")[-1].lower() + " sides",
        _describe_weights(cfg),
        "false negatives masked" if sampler.mask_known else "false negatives kept",
        f"loss {cfg.objective.loss._target_.split('.')[-1]}",
    ]
    return f"{name}: {', '.join(words)}"
