"""What rules say: the list of a run's rules, and which of them predict a triple."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from omegaconf import DictConfig, ListConfig

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.drum import DRUM
from kgc.models.rules.language import atoms, text, words
from kgc.models.rules.mining import BODIES, SUPPORT
from kgc.models.rules.model import RuleModel
from kgc.tasks.evaluate import load
from kgc.tasks.output import Session
from kgc.types import Queries, Side

_BEST = 10  # answers that are explained where one end is asked for


def write_rules(path: Path, model: RuleModel, graph: KnowledgeGraph) -> Path:
    """Writes head, body, support, number of body groundings and confidence of every rule, the most confident first."""
    table = model.rules.cpu().numpy()
    said = [text(rule, graph.entities.labels, graph.relations.labels) for rule in table]
    frame = pl.DataFrame(
        {
            "head": pl.Series([head for head, _ in said], dtype=pl.String),
            "body": pl.Series([body for _, body in said], dtype=pl.String),
            "support": table[:, SUPPORT],
            "groundings": table[:, BODIES],
            "confidence": model.confidence().cpu().numpy(),
        }
    )
    return _write_tsv(frame, path)


def write_learned_rules(path: Path, model: DRUM, graph: KnowledgeGraph) -> Path:
    """Writes head, body and weight of the rules that a model has learned, of each query relation the heaviest first."""
    rows = []
    for kind in range(2 * graph.num_relations):
        for weight, body in model.learned_rules(kind):
            rule = np.array([kind, -1, -1, 0, 0, *body])
            rows.append((*text(rule, graph.entities.labels, graph.relations.labels), weight))
    return _write_tsv(
        pl.DataFrame(rows, {"head": pl.String, "body": pl.String, "weight": pl.Float64}, orient="row"), path
    )


def explain(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """`task=explain`: what `explain_triple` says of `cfg.triple`.

    Args:
        cfg: what `conf/evaluate.yaml` composes to.
        run_dir: the folder of `explanations.tsv`.

    Returns:
        No metrics.

    Raises:
        UserError: a mistake in the config, or a checkpoint without rules.
    """
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        graph, model, cfg = load(cfg, session.terminal)
        explain_triple(cfg.triple, model, graph, session)
        return {}


def explain_triple(triple: Any, model: RuleModel, graph: KnowledgeGraph, session: Session) -> pl.DataFrame:
    """Says which rules predict a triple, or the best answers where an end of it is null.

    Returns:
        One row a rule, the best first for each triple: head, relation, tail, score, confidence, rule, and in `because`
        the facts of train that make its body true, those of one grounding; what `explanations.tsv` has.

    Raises:
        UserError: the model has no rules, or it is not a triple of its labels.
    """
    if not isinstance(model, RuleModel):
        raise UserError(f"task=explain: {type(model).__name__} has no rules; a checkpoint of model=rules has")
    if not isinstance(triple, ListConfig) or len(triple) != 3 or triple[1] is None or triple[0] is triple[2] is None:
        raise UserError(
            f"triple={triple}: must be [head, relation, tail], with null for an end that is asked for, or for neither"
        )
    vocabularies = (graph.entities, graph.relations, graph.entities)
    head, relation, tail = (_id(name, label, v) for name, label, v in zip(_ENDS, triple, vocabularies, strict=True))
    side = Side.HEAD if head is None else Side.TAIL
    anchor, answer = (tail, head) if side is Side.HEAD else (head, tail)
    query = Queries(torch.tensor([anchor]), torch.tensor([relation]), side)
    scores = model.score(query)[0]
    answers = [answer] if answer is not None else torch.argsort(scores, descending=True, stable=True)[:_BEST].tolist()
    rows = []
    for found in answers:
        ends = (found, anchor) if side is Side.HEAD else (anchor, found)
        labels = (graph.entities[ends[0]], graph.relations[relation], graph.entities[ends[1]])
        for rule, values in model.explain(query, found):
            row = model.rules[rule].numpy()
            _, *body = atoms(row, graph.num_relations)
            facts = [words(atom, graph.entities.labels, graph.relations.labels, values) for atom in body]
            said = " <- ".join(text(row, graph.entities.labels, graph.relations.labels))
            confidence = float(model.confidence()[rule])
            rows.append((*labels, float(scores[found]), confidence, said, ", ".join(facts) or "true"))
    frame = pl.DataFrame(rows, schema=_COLUMNS, orient="row")
    session.terminal.say(f"{len(rows):,} rules predict {', '.join('?' if x is None else str(x) for x in triple)}")
    for row in frame.head(20).iter_rows():
        session.terminal.say(f"{row[4]:.3f}  {row[5]}\n       {' '.join(row[:3])}: {row[6]}")
    session.terminal.say(f"written to {_write_tsv(frame, session.run_dir / 'explanations.tsv')}")
    return frame


_ENDS = ("head", "relation", "tail")
_COLUMNS = dict.fromkeys(_ENDS, pl.String) | {"score": pl.Float64, "confidence": pl.Float64}
_COLUMNS |= {"rule": pl.String, "because": pl.String}


def _id(name: str, label: object, vocabulary: Vocabulary) -> int | None:
    if label is None:
        return None
    found = int(vocabulary.index(pl.Series([str(label)]))[0])
    if found < 0:
        raise UserError(f"triple: the {name} {str(label)!r} is not among the checkpoint's labels")
    return found


def _write_tsv(frame: pl.DataFrame, path: Path) -> Path:
    part = path.with_name(path.name + ".part")
    frame.write_csv(part, separator="\t", quote_style="never")
    part.replace(path)
    return path
