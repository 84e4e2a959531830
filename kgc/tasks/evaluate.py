"""`evaluate.py`: the question of `cfg.task`, about a checkpoint or vectors trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hydra.utils import get_class, get_method
from omegaconf import DictConfig, OmegaConf, open_dict

from kgc.console import Terminal
from kgc.data.catalogue import described
from kgc.data.graph import KnowledgeGraph
from kgc.errors import UserError
from kgc.foreign.trained import FORMATS, Trained, read_trained
from kgc.foreign.vectors import load_vectors, read_vectors, read_vocabulary
from kgc.models.base import KGEModel
from kgc.models.messages import OverFacts
from kgc.paths import config_dir
from kgc.tasks.build import build_graph, build_model, load_weights, read_checkpoint
from kgc.tasks.check import check_config, check_unread
from kgc.tasks.storage import one_line_for_files


def evaluate(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Answers the question of `cfg.task` and writes `metrics.json` and what else belongs to it.

    Args:
        cfg: what `conf/evaluate.yaml` composes to.
        run_dir: the run's folder; made if missing.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    check_config(cfg, "evaluate")
    check_unread(cfg)
    if (run_dir / "checkpoints").exists():
        raise UserError(f"{run_dir} is the folder of a training run; choose another hydra.run.dir")
    with one_line_for_files(run_dir):
        return get_method(cfg.task._target_)(cfg, run_dir)


def load(cfg: DictConfig, terminal: Terminal) -> tuple[KnowledgeGraph, KGEModel, DictConfig]:
    """The graph and the model that a question is about, and the config with what they are.

    Raises:
        UserError: neither a checkpoint nor vectors are given, or both, or they do not fit.
    """
    if cfg.checkpoint and any(cfg.embeddings.values()):
        given = next(name for name, value in cfg.embeddings.items() if value)
        raise UserError(f"checkpoint and embeddings.{given} are both given: choose one")
    if cfg.checkpoint:
        graph, model, cfg = from_checkpoint(cfg, terminal)
    elif cfg.embeddings.entities or cfg.embeddings.format:
        graph, model = from_vectors(cfg, terminal)
    else:
        raise UserError(
            "nothing to evaluate: give checkpoint=PATH, embeddings.format=NAME embeddings.path=PATH, or "
            "embeddings.entities=FILE with its companions"
        )
    for line in graph.lines():
        terminal.say(line)
    return graph, model, cfg


def from_checkpoint(cfg: DictConfig, terminal: Terminal) -> tuple[KnowledgeGraph, KGEModel, DictConfig]:
    """The trained model and its graph; `dataset=…` on the command line puts another graph in its place.

    `dataset.inference=DIR`, or a name of the catalogue, puts a graph of other entities there, for models that know no
    entity.
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
        named = not Path(str(inference)).is_dir() and described(str(inference)) is not None
        load, key = ("load_dataset", "name") if named else ("load_folder", "path")
        cfg.dataset = {"_target_": f"kgc.data.catalogue.{load}", key: str(inference)}
        own_data = False
    if not any(cfg.annotations.values()):
        cfg.annotations = present_annotations(checkpoint.config.get("annotations") or {}, terminal)
    graph = build_graph(cfg, None if inference else checkpoint.entities, checkpoint.relations)
    if not own_data and issubclass(get_class(cfg.model._target_), OverFacts):
        terminal.say(f"facts      messages pass over the {len(graph.stored('train')):,} train triples of {graph.name}")
    if own_data and graph.digest != checkpoint.digest:
        terminal.say(
            f"warning: the data of {graph.name} changed since training (digest {graph.digest[:12]}, then "
            f"{checkpoint.digest[:12]}): these numbers are not comparable with the run's own"
        )
    model = build_model(cfg, graph.num_entities, graph.num_relations, graph.stored("train"))
    load_weights(model, checkpoint)
    return graph, model, cfg


def present_annotations(files: Mapping[str, str | None], terminal: Terminal) -> dict[str, str | None]:
    """The files that a run was trained with, without those that are gone: ranks do not depend on them."""
    for what, path in files.items():
        if path is not None and not Path(path).is_file():
            terminal.say(f"warning: {path} is gone; annotations.{what}=FILE says where it is now")
    return {what: path if path is not None and Path(path).is_file() else None for what, path in files.items()}


def inference_folder(cfg: DictConfig) -> str | None:
    """Takes `dataset.inference` out of the config, which leaves a data set or None.

    Raises:
        UserError: a data set is given as well.
    """
    with open_dict(cfg):
        inference = cfg.dataset.pop("inference", None) if cfg.dataset else None
    if not cfg.dataset:
        cfg.dataset = None
    elif inference is not None:
        raise UserError(f"dataset.inference={inference} and another data set are both given: choose one")
    return inference


def from_vectors(cfg: DictConfig, terminal: Terminal) -> tuple[KnowledgeGraph, KGEModel]:
    """A model made of what `cfg.embeddings` names, and the graph in the order of its labels."""
    if inference_folder(cfg) is not None:
        raise UserError("dataset.inference goes with checkpoint=PATH: vectors are of the entities that they were for")
    if cfg.dataset is None:
        raise UserError("dataset=… is needed with embeddings: vectors alone do not tell what they were trained on")
    trained = _trained(cfg) if cfg.embeddings.format else _tables(cfg)
    graph = build_graph(cfg, trained.entity_labels, trained.relation_labels)
    cfg.model.dim = trained.entities.shape[1] - get_class(cfg.model._target_).extra
    model = build_model(cfg, len(trained.entity_labels), len(trained.relation_labels))
    load_vectors(model, trained.entities, trained.relations)
    entities, relations = len(trained.entities), len(trained.relations)
    terminal.say(f"model      {type(model).__name__} of {entities:,} entity and {relations:,} relation vectors")
    return graph, model


def _trained(cfg: DictConfig) -> Trained:
    """What another library saved; its model becomes the config's."""
    given = cfg.embeddings
    for name in ("entities", "relations"):
        if given[name] is not None:
            raise UserError(f"embeddings.{name} and embeddings.format={given.format} are both given: choose one")
    model = None if cfg.model is None else str(cfg.model._target_).split(".")[-2]
    trained = read_trained(given.format, given.path, model, given.norm, given.entity_labels, given.relation_labels)
    if cfg.model is None:
        cfg.model = OmegaConf.load(config_dir() / "model" / f"{trained.model}.yaml")
    cfg.model = OmegaConf.merge(cfg.model, trained.options)
    return trained


def _tables(cfg: DictConfig) -> Trained:
    """The four files of `embeddings`."""
    given = cfg.embeddings
    for name in ("path", "norm"):
        if given[name] is not None:
            raise UserError(f"embeddings.{name} goes with embeddings.format, {' | '.join(FORMATS)}")
    if cfg.model is None:
        raise UserError("model=… is needed with embeddings.entities")
    if given.relations is None:
        raise UserError("embeddings.relations is needed with embeddings.entities")
    if "dim" not in cfg.model:
        raise UserError("embeddings.entities: this model has no vectors of entities; evaluate a run by checkpoint=PATH")
    entities = read_vectors(given.entities, "embeddings.entities")
    relations = read_vectors(given.relations, "embeddings.relations")
    entity_labels = read_vocabulary(given.entity_labels, "embeddings.entity_labels", len(entities))
    relation_labels = read_vocabulary(given.relation_labels, "embeddings.relation_labels", len(relations))
    return Trained(str(cfg.model._target_), {}, entities, relations, entity_labels, relation_labels)
