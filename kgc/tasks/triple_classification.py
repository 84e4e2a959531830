"""`task=triple_classification`: is a triple true? Areas, thresholds per relation, calibration."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import polars as pl
import torch
from omegaconf import DictConfig
from torch import Tensor

from kgc import page
from kgc.console import Terminal
from kgc.data.catalogue import companion
from kgc.data.graph import KnowledgeGraph, triples_by_id
from kgc.data.known import KnownAnswers
from kgc.data.reader import locate, read_triples
from kgc.errors import UserError
from kgc.metrics import classification
from kgc.metrics.breakdown import macro
from kgc.metrics.intervals import bootstrap_interval
from kgc.models.base import KGEModel
from kgc.ranking import exact_arithmetic
from kgc.runtime import prepare_process
from kgc.sampling.proposals import Asked, Proposal, Typed, Uniform
from kgc.scorers import place_of
from kgc.tasks.build import device_of
from kgc.tasks.evaluate import load
from kgc.tasks.output import Session, run_facts, write_answers
from kgc.types import Queries, Side, Triples

_PROPOSALS: dict[str, type[Proposal]] = {"typed": Typed, "uniform": Uniform}
CALIBRATIONS = {"platt": classification.Platt, "isotonic": classification.Isotonic}
# Triples scored together, and candidates drawn for each triple until one is not known to be true.
_BATCH, _DRAWN = 4096, 64


def triple_classification(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Writes `metrics.json` (`classification/…`), `triples.parquet`, `thresholds.parquet`, `reliability.parquet` and
    `report.html`.

    A triple's score is that of its tail among the answers to (head, relation, ?). A threshold per relation, and one for
    relations without both kinds of triples in valid, maximises accuracy on valid; calibration is fitted there too.
    `classification/num_negatives_known` counts false triples of valid and test that stand in a split: given ones may.

    Args:
        cfg: what `conf/evaluate.yaml` composes to with `task=triple_classification`.
        run_dir: the run's folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    options = cfg.classification
    _check(cfg)
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        prepare_process()
        graph, model, cfg = load(cfg, session.terminal)
        began = time.perf_counter()
        for split in ("valid", "test"):
            if not len(graph.split(split)):
                raise UserError(f"the {split} split of {graph.name} is empty: valid chooses thresholds for test")
        drawn = torch.Generator().manual_seed(cfg.seed)
        negatives = {split: _negatives(cfg, graph, split, drawn, session.terminal) for split in ("valid", "test")}
        known = {split: known_negatives(graph, triples) for split, triples in negatives.items()}
        if found := [f"{n:,} of {len(negatives[split]):,} in {split}" for split, n in known.items() if n]:
            terminal = session.terminal
            terminal.say(f"note: negatives that the data have as true triples: {', '.join(found)}; take them out")
        session.start_logging(cfg)
        device = device_of(cfg)
        model = model.to(device).eval()
        triples = {split: Triples.cat([graph.split(split), negatives[split]]) for split in negatives}
        labels = {split: torch.arange(len(triples[split])) < len(graph.split(split)) for split in negatives}
        scores = {split: score_triples(model, triples[split], graph) for split in negatives}
        valid = scores["valid"], labels["valid"]
        thresholds = classification.thresholds_per_group(*valid, triples["valid"].relation, graph.num_relations)
        calibrate = CALIBRATIONS[options.calibration](*valid)
        test, truth, relation = scores["test"], labels["test"], triples["test"].relation
        said, probability = test >= thresholds[relation], calibrate(test)
        metric = classification.Classified(truth)
        metric.update(torch.arange(len(test)), test)
        metrics = metric.compute() | {
            "accuracy": classification.accuracy(said, truth),
            "f1": classification.f1(said, truth),
            "macro/accuracy": macro((said == truth).double(), relation),
            "brier": classification.brier(probability, truth),
            "calibration_error": classification.calibration_error(probability, truth, options.bins),
            "valid/accuracy": classification.accuracy(
                scores["valid"] >= thresholds[triples["valid"].relation], labels["valid"]
            ),
        }
        if cfg.bootstrap is not None:
            low, high = bootstrap_interval((said == truth).double(), cfg.bootstrap, cfg.seed)
            metrics |= {"accuracy_low": low, "accuracy_high": high}
        metrics |= {"num_true": int(truth.sum()), "num_false": int((~truth).sum())}
        metrics["num_negatives_known"] = sum(known.values())
        metrics["seconds"] = time.perf_counter() - began
        metrics = {f"classification/{name}": value for name, value in metrics.items()}
        curve = classification.reliability(probability, truth, options.bins)
        frames = {
            "triples": _triples_frame(graph, triples["test"], truth, test, probability, said),
            "thresholds": pl.DataFrame({"relation": graph.relations.labels, "threshold": thresholds.numpy()}),
            "reliability": pl.DataFrame(curve),
        }
        title = f"Triple classification: {type(model).__name__} on {graph.name}"
        write_answers(cfg, title, metrics, session, frames, run_facts(graph), [_reliability_section(curve)])
        return metrics


@torch.no_grad()
def score_triples(model: KGEModel, triples: Triples, graph: KnowledgeGraph) -> Tensor:
    """[B] float64 scores of the tails of B triples, on the CPU.

    Raises:
        UserError: a score is not finite.
    """
    device, parts = place_of(model), []
    with exact_arithmetic(device):
        for part in torch.arange(len(triples)).split(_BATCH):
            some = triples[part].to(device)
            parts.append(model.score(some.queries(Side.TAIL), some.tail.unsqueeze(1)).squeeze(1).double().cpu())
    scores = torch.cat(parts)
    odd = (~scores.isfinite()).nonzero().squeeze(-1)
    if len(odd):
        i = int(odd[0])
        names = graph.entities[int(triples.head[i])], graph.relations[int(triples.relation[i])]
        raise UserError(
            f"the model scores {len(odd)} triples as NaN or infinite, first ({names[0]!r}, {names[1]!r}, "
            f"{graph.entities[int(triples.tail[i])]!r}): it has diverged, or its vectors are damaged"
        )
    return scores


def known_negatives(graph: KnowledgeGraph, negatives: Triples) -> int:
    """How many of B triples called false stand in a split, repetitions included."""
    known = _known(graph)
    return int(known.contains(negatives.queries(Side.TAIL), negatives.tail.unsqueeze(1)).sum())


def _known(graph: KnowledgeGraph) -> KnownAnswers:
    everything = Triples.cat([graph.train, graph.valid, graph.test])
    return KnownAnswers(everything, graph.num_entities, graph.num_relations)


def draw_negatives(graph: KnowledgeGraph, triples: Triples, proposal: Proposal, generator: torch.Generator) -> Triples:
    """One false triple for each of B triples: its head or its tail (by chance) replaced by a drawn entity, so that the
    triple is in no split. Where the proposal has no such entity at that end, the other end is replaced, else
    either by any entity. A triple without any has none.
    """
    known = _known(graph)
    side = torch.randint(2, (len(triples),), generator=generator)
    columns = torch.stack([triples.head, triples.tail], dim=1)  # by side
    open_ = torch.arange(len(triples))
    for source, ends in ((proposal, side), (proposal, 1 - side), (Uniform(), side), (Uniform(), 1 - side)):
        source.setup(graph, torch.device("cpu"))
        end = ends[open_]
        answer, anchor = (columns[open_].gather(1, which.unsqueeze(1)).squeeze(1) for which in (end, 1 - end))
        queries = Queries(anchor, triples.relation[open_], end)
        candidates = source.draw(Asked(queries, answer), _DRAWN, generator).candidates
        false = ~known.contains(queries, candidates)
        found = false.any(1)
        drawn = candidates.gather(1, false.int().argmax(1, keepdim=True)).squeeze(1)
        columns[open_[found], end[found]] = drawn[found]
        open_ = open_[~found]
    kept = torch.ones(len(triples), dtype=torch.bool)
    kept[open_] = False
    return Triples(columns[:, 0], triples.relation, columns[:, 1])[kept]


def _check(cfg: DictConfig) -> None:
    options = cfg.classification
    for name, known in (("negatives", _PROPOSALS), ("calibration", CALIBRATIONS)):
        if options[name] not in known:
            raise UserError(f"classification.{name}={options[name]}: choices are {', '.join(known)}")
    if type(options.bins) is not int or options.bins < 1:
        raise UserError(f"classification.bins={options.bins}: must be a whole number, at least 1")
    if cfg.split != "test":
        raise UserError(f"split={cfg.split}: triple_classification judges test, by thresholds chosen on valid")


def _negatives(
    cfg: DictConfig, graph: KnowledgeGraph, split: str, generator: torch.Generator, terminal: Terminal
) -> Triples:
    """The false triples of a split, from a file or drawn."""
    given = cfg.classification[f"{split}_negatives"]
    path = Path(str(given)) if given is not None else None
    if path is None:
        path = companion(graph.name, f"{split}_negatives", cfg.dataset.get("path"))
    if path is not None:
        triples = triples_by_id(read_triples(path), partial(locate, path), graph.entities, graph.relations)
        if not len(triples):
            raise UserError(f"{path}: there are no triples in it")
        terminal.say(f"negatives  {split}: {len(triples):,} from {path}")
        return triples
    kind = cfg.classification.negatives
    triples = draw_negatives(graph, graph.split(split), _PROPOSALS[kind](), generator)
    lacking = len(graph.split(split)) - len(triples)
    terminal.say(
        f"negatives  {split}: {len(triples):,} drawn ({kind}, seed {cfg.seed})"
        + (f"; {lacking:,} triples have no false neighbour" if lacking else "")
    )
    if not len(triples):
        raise UserError(f"no false triple could be drawn for {split}; give classification.{split}_negatives=FILE")
    return triples


def _triples_frame(
    graph: KnowledgeGraph, triples: Triples, truth: Tensor, scores: Tensor, probability: Tensor, said: Tensor
) -> pl.DataFrame:
    entities, relations = graph.entities.series, graph.relations.series
    return pl.DataFrame(
        {
            "head": entities.gather(triples.head.numpy()),
            "relation": relations.gather(triples.relation.numpy()),
            "tail": entities.gather(triples.tail.numpy()),
            "label": truth.numpy(),
            "score": scores.numpy(),
            "probability": probability.numpy(),
            "predicted": said.numpy(),
        }
    )


def _reliability_section(curve: dict[str, list[float]]) -> str:
    rows = [
        [f"{low:.2f}–{high:.2f}", f"{count:,}", f"{predicted:.4f}", f"{observed:.4f}"]
        for low, high, count, predicted, observed in zip(*curve.values(), strict=True)
    ]
    table = page.table(["probability", "triples", "predicted", "observed"], rows)
    return f"<section><h2>Reliability</h2>{table}</section>"
