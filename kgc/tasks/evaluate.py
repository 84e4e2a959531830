"""Evaluation of a checkpoint or of vectors trained elsewhere."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from kgc.console import ProgressLine, Terminal
from kgc.data.datamodule import KGDataModule
from kgc.data.graph import KnowledgeGraph
from kgc.data.sample import sample_triples
from kgc.errors import UserError
from kgc.foreign import load_vectors, read_vectors, read_vocabulary
from kgc.models.base import KGEModel
from kgc.models.messages import OverFacts
from kgc.module import KGEModule
from kgc.ranking import planned
from kgc.runtime import prepare_process
from kgc.tasks.build import (
    build_graph,
    build_model,
    build_trainer,
    load_weights,
    ranking_arguments,
    read_checkpoint,
)
from kgc.tasks.check import check_config
from kgc.tasks.explain import explain
from kgc.tasks.launch import launch, processes_wanted
from kgc.tasks.link_prediction import QUERIES_A_STEP, rank_split, split_triples
from kgc.tasks.output import Session, write_run
from kgc.tasks.storage import one_line_for_files


def evaluate(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Ranks one split and writes `metrics.json`, `ranks.parquet` and `report.html`.

    Args:
        cfg: what `conf/evaluate.yaml` composes to.
        run_dir: the run's folder; made if missing.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    check_config(cfg, "evaluate")
    if (run_dir / "checkpoints").exists():
        raise UserError(f"{run_dir} is the folder of a training run; choose another hydra.run.dir")
    processes = processes_wanted(cfg)
    arguments = (OmegaConf.to_container(cfg, resolve=True), str(run_dir))
    return launch(run, processes, *arguments) if processes > 1 else run(*arguments)


def run(config: dict, folder: str) -> dict[str, float]:
    """One process of an evaluation."""
    cfg = OmegaConf.create(config)
    run_dir = Path(folder)
    with one_line_for_files(run_dir), Session(run_dir, "evaluate.log") as session:
        terminal = session.terminal
        prepare_process()
        if cfg.checkpoint and any(cfg.embeddings.values()):
            given = next(name for name, value in cfg.embeddings.items() if value)
            raise UserError(f"checkpoint and embeddings.{given} are both given: choose one")
        if cfg.checkpoint:
            graph, model, cfg = from_checkpoint(cfg, terminal)
        elif cfg.embeddings.entities:
            graph, model = from_vectors(cfg, terminal)
        else:
            raise UserError(
                "nothing to evaluate: give checkpoint=PATH, or embeddings.entities=FILE with its companions"
            )
        for line in graph.report.lines():
            terminal.say(line)
        if cfg.explain is not None:
            if session.first:
                explain(cfg, model, graph, session)
            return {}
        terminal.say(f"filter     {' + '.join(cfg.ranking.filter) or 'none: raw ranks'}")
        whole = split_triples(graph, cfg.split)
        sample = None
        if cfg.ranking.limit is not None and cfg.ranking.limit < len(whole):
            sample = sample_triples(whole, cfg.ranking.limit, cfg.seed)
            terminal.say(
                f"sample     {len(sample):,} of {len(whole):,} {cfg.split} triples, seed {cfg.seed}: the metrics are "
                f"estimates and stand under {cfg.split}/sampled/"
            )
        session.start_logging(cfg)
        trainer = build_trainer(cfg, run_dir, callbacks=[ProgressLine(terminal)], logger=False)
        module = KGEModule(model, graph, **ranking_arguments(cfg))
        queries = 2 * len(whole if sample is None else sample) // trainer.world_size
        module.ranking = planned(model, module.ranking, queries, trainer.strategy.root_device)
        data = KGDataModule(graph, 0, 1, QUERIES_A_STEP, 0)
        metrics, ranks = rank_split(module, trainer, data, cfg.split, sample)
        if trainer.is_global_zero:
            write_run(cfg, graph, metrics, ranks, [], session)
        return metrics


def from_checkpoint(cfg: DictConfig, terminal: Terminal) -> tuple[KnowledgeGraph, KGEModel, DictConfig]:
    """The trained model and its graph; `dataset=…` on the command line puts another graph in its place.

    `dataset.inference=DIR` puts a graph of other entities there, for models that know no entity.
    """
    inference = inference_folder(cfg)
    checkpoint = read_checkpoint(cfg.checkpoint, cfg.trust)
    if cfg.model is not None:
        raise UserError("model=… goes with embeddings.entities; a checkpoint knows its model")
    cfg.model = checkpoint.config.model
    own_data = cfg.dataset is None
    if own_data:
        cfg.dataset = checkpoint.config.dataset
    if inference is not None:
        kind = get_class(cfg.model._target_)
        if not getattr(kind, "inductive", False):
            raise UserError(
                f"dataset.inference={inference}: {kind.__name__} has a vector for each entity that it was trained on, "
                "and knows no other; train model=nbfnet to rank a graph of other entities"
            )
        cfg.dataset = {"_target_": "kgc.data.catalogue.load_folder", "path": str(inference)}
        own_data = False
    graph = build_graph(cfg, None if inference else checkpoint.entities, checkpoint.relations)
    if not own_data and issubclass(get_class(cfg.model._target_), OverFacts):
        terminal.say(f"facts      messages pass over the {len(graph.train):,} train triples of {graph.name}")
    if own_data and graph.digest != checkpoint.digest:
        terminal.say(
            f"warning: the data of {graph.name} changed since training (digest {graph.digest[:12]}, then "
            f"{checkpoint.digest[:12]}): these numbers are not comparable with the run's own"
        )
    model = build_model(cfg, graph.num_entities, graph.num_relations, graph.train)
    load_weights(model, checkpoint)
    return graph, model, cfg


def inference_folder(cfg: DictConfig) -> str | None:
    """Takes `dataset.inference` out of the config, which leaves a data set or None.

    Raises:
        UserError: a data set is given as well.
    """
    inference = cfg.dataset.pop("inference", None) if cfg.dataset else None
    if not cfg.dataset:
        cfg.dataset = None
    elif inference is not None:
        raise UserError(f"dataset.inference={inference} and another data set are both given: choose one")
    return inference


def from_vectors(cfg: DictConfig, terminal: Terminal) -> tuple[KnowledgeGraph, KGEModel]:
    """A model made of the arrays of `cfg.embeddings`, and the graph in the order of their label files."""
    if inference_folder(cfg) is not None:
        raise UserError("dataset.inference goes with checkpoint=PATH: vectors are of the entities that they were for")
    given = cfg.embeddings
    for name in ("model", "dataset"):
        if cfg[name] is None:
            raise UserError(f"{name}=… is needed with embeddings.entities")
    if given.relations is None:
        raise UserError("embeddings.relations is needed with embeddings.entities")
    if "dim" not in cfg.model:
        raise UserError("embeddings.entities: this model has no vectors of entities; evaluate a run by checkpoint=PATH")
    entities = read_vectors(given.entities, "embeddings.entities")
    relations = read_vectors(given.relations, "embeddings.relations")
    entity_labels = read_vocabulary(given.entity_labels, "embeddings.entity_labels", len(entities))
    relation_labels = read_vocabulary(given.relation_labels, "embeddings.relation_labels", len(relations))
    graph = build_graph(cfg, entity_labels, relation_labels)
    cfg.model.dim = entities.shape[1] - get_class(cfg.model._target_).extra
    model = build_model(cfg, len(entities), len(relations))
    load_vectors(model, entities, relations)
    terminal.say(
        f"model      {type(model).__name__} of {len(entities):,} entity and {len(relations):,} relation vectors"
    )
    return graph, model
