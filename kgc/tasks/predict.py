"""`task=predict`: the best answers to questions, the best triples of a relation, the best triples of all."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import torch
from omegaconf import DictConfig
from torch import Tensor

from kgc.annotated import with_names
from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.data.reader import locate, read_triples
from kgc.data.vocabulary import Vocabulary
from kgc.errors import UserError
from kgc.models.base import KGEModel
from kgc.ranking import exact_arithmetic
from kgc.runtime import prepare_process
from kgc.sampling.proposals import Typed
from kgc.scorers import place_of
from kgc.tasks.build import device_of
from kgc.tasks.evaluate import load
from kgc.tasks.output import Session, run_facts, write_answers
from kgc.tasks.triple_classification import CALIBRATIONS, draw_negatives, score_triples
from kgc.types import Queries, Side, Triples

_ENDS = ("head", "relation", "tail")
_FORMATS = ("csv", "parquet", "json")
# Scores held at once.
_CELLS = 1 << 22

# One answer a row: question, triple, score, whether it is known.
_Rows = tuple[Tensor, Triples, Tensor, Tensor]


def predict(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Writes `predictions.csv` (or `.parquet`, `.json`), `metrics.json` and `report.html`.

    Rows have question (from 0), rank, head, relation, tail, score, known, probability where it is calibrated, and
    `head_name`, `relation_name`, `tail_name` where `annotations` name entities or relations. Equal scores are in the
    order of their labels.

    Args:
        cfg: what `conf/evaluate.yaml` composes to with `task=predict`.
        run_dir: the run's folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names, or a score that is NaN.
    """
    options = cfg.predict
    _check(cfg)
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        prepare_process()
        graph, model, cfg = load(cfg, session.terminal)
        began = time.perf_counter()
        questions = _questions(cfg, graph)
        session.start_logging(cfg)
        device = device_of(cfg)
        model = model.to(device).eval()
        triples = Triples.cat([graph.stored(name) for name in cfg.ranking.filter] or [Triples.empty()])
        known = KnownAnswers(triples.to(device), graph.num_entities, graph.num_relations)
        marks = options.known == "mark"
        with exact_arithmetic(device), torch.no_grad():
            if questions is None:
                relation = options.relation
                asked = range(graph.num_relations) if relation is None else [_id(graph, relation, "relation")]
                rows = best_triples(model, known, asked, options.k, marks)
            else:
                rows = best_answers(model, known, questions, options.k, marks)
        frame = _frame(graph, rows)
        if options.calibration is not None:
            frame = frame.with_columns(probability=_probabilities(cfg, graph, model, rows).numpy())
        frame = frame.sort(
            "question", "score", "head", "relation", "tail", descending=[False, True, False, False, False]
        )
        frame = frame.with_columns(rank=pl.int_range(1, pl.len() + 1).over("question"))
        frame = with_names(frame.select("question", "rank", pl.exclude("question", "rank")), graph.annotations)
        _write(run_dir / f"predictions.{options.format}", frame)
        number = 1 if questions is None else len(questions)
        metrics = {
            "predict/num_questions": number,
            "predict/num_unanswered": number - frame["question"].n_unique(),
            "predict/num_predictions": len(frame),
            "predict/seconds": time.perf_counter() - began,
        }
        session.terminal.say(str(frame.head(20)))
        title = f"Predictions of {type(model).__name__} on {graph.name}"
        write_answers(cfg, title, metrics, session, {}, run_facts(graph))
        session.terminal.say(f"written to {run_dir / f'predictions.{options.format}'}")
        return metrics


def best_answers(model: KGEModel, known: KnownAnswers, questions: Tensor, k: int, mark: bool) -> _Rows:
    """The k best answers of each of [Q, 3] questions (head, relation, tail), -1 at the end asked for.

    Args:
        known: answers to leave out, or only to mark.
        mark: mark them.
    """
    device = place_of(model)
    parts = []
    for column in range(3):
        place = (questions[:, column] < 0).nonzero().squeeze(-1)
        for some in place.split(max(1, _CELLS // max(model.num_entities, model.num_relations))):
            head, relation, tail = questions[some].to(device).unbind(1)
            if column == 1:
                scores = _relation_scores(model, head, tail)
                every = torch.arange(model.num_relations, device=device)
                is_known = known.contains(
                    Queries(head.repeat_interleave(len(every)), every.repeat(len(head)), Side.TAIL),
                    tail.repeat_interleave(len(every)).unsqueeze(1),
                ).view(scores.shape)
            else:
                side = Side.HEAD if column == 0 else Side.TAIL
                queries = Queries(tail if side is Side.HEAD else head, relation, side)
                scores = model.score(queries)
                is_known = torch.zeros_like(scores, dtype=torch.bool)
                is_known[known.answers(queries)] = True
            row, answer, score = _top(scores, is_known, k, mark)
            triple = questions[some][row.cpu()].clone()
            triple[:, column] = answer.cpu()
            parts.append((some[row.cpu()], Triples(*triple.T), score.cpu(), is_known[row, answer].cpu()))
    return _joined(parts)


def best_triples(model: KGEModel, known: KnownAnswers, relations: Iterable[int], k: int, mark: bool) -> _Rows:
    """The k best triples of some relations, by the score of their tails; never holds more than a block of pairs."""
    device = place_of(model)
    best: _Rows | None = None
    heads = torch.arange(model.num_entities, device=device)
    for relation in relations:
        for head in heads.split(max(1, _CELLS // model.num_entities)):
            queries = Queries(head, torch.full_like(head, relation), Side.TAIL)
            scores = model.score(queries)
            is_known = torch.zeros_like(scores, dtype=torch.bool)
            is_known[known.answers(queries)] = True
            _, cell, score = _top(scores.view(1, -1), is_known.view(1, -1), k, mark)
            row, tail = cell // model.num_entities, cell % model.num_entities
            triples = Triples(head[row].cpu(), queries.relation[row].cpu(), tail.cpu())
            part = (torch.zeros(len(row), dtype=torch.int64), triples, score.cpu(), is_known[row, tail].cpu())
            both = part if best is None else _joined([best, part])
            top = torch.argsort(both[2], descending=True, stable=True)[:k]
            best = tuple(column[top] for column in both)
    return best


def _top(scores: Tensor, is_known: Tensor, k: int, mark: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and score of the k best cells of each row of [B, N], of equal ones the first; known ones only where
    they are marked.

    Raises:
        UserError: a score is NaN.
    """
    if bool(scores.isnan().any()):
        raise UserError("the model gives NaN as a score: it has diverged, or its vectors are damaged")
    if not mark:
        scores = scores.masked_fill(is_known, -torch.inf)
    k = min(k, scores.shape[1])
    least = scores.topk(k, dim=1).values[:, -1:]
    above, level = scores > least, scores == least  # of equal ones at the end the first are taken
    chosen = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    column = chosen.nonzero()[:, 1].view(len(scores), k)
    value = scores.gather(1, column)
    value, order = value.sort(dim=1, descending=True, stable=True)
    column = column.gather(1, order)
    row = torch.arange(len(scores), device=scores.device).unsqueeze(1).expand_as(column)
    kept = torch.ones_like(column, dtype=torch.bool) if mark else ~is_known.gather(1, column)
    return row[kept], column[kept], value[kept]


def _relation_scores(model: KGEModel, head: Tensor, tail: Tensor) -> Tensor:
    """[B, R] scores of every relation between B heads and tails."""
    every = torch.arange(model.num_relations, device=head.device)
    queries = Queries(head.repeat_interleave(len(every)), every.repeat(len(head)), Side.TAIL)
    return model.score(queries, tail.repeat_interleave(len(every)).unsqueeze(1)).view(len(head), len(every))


def _joined(parts: list[_Rows]) -> _Rows:
    questions, triples, scores, is_known = zip(*parts, strict=True)
    return torch.cat(questions), Triples.cat(list(triples)), torch.cat(scores), torch.cat(is_known)


def _check(cfg: DictConfig) -> None:
    options = cfg.predict
    if type(options.k) is not int or options.k < 1:
        raise UserError(f"predict.k={options.k}: must be a whole number, at least 1")
    for name, known in (("known", ("remove", "mark")), ("format", _FORMATS), ("calibration", (None, *CALIBRATIONS))):
        if options[name] not in known:
            raise UserError(f"predict.{name}={options[name]}: choices are {', '.join(str(k or 'null') for k in known)}")
    given = [name for name in _ENDS if options[name] is not None]
    if options.queries is not None and given:
        raise UserError(f"predict.queries and predict.{given[0]} are both given: choose one")
    if len(given) == 3:
        raise UserError("predict.head, relation and tail are all given: leave out the one that is asked for")
    if len(given) == 1 and given != ["relation"]:
        raise UserError(f"predict.{given[0]} alone asks for nothing: give a second one of head, relation and tail")


def _questions(cfg: DictConfig, graph: KnowledgeGraph) -> Tensor | None:
    """[Q, 3] ids, -1 at the end asked for; None where triples are asked for."""
    options = cfg.predict
    vocabularies = {"head": graph.entities, "relation": graph.relations, "tail": graph.entities}
    if options.queries is None:
        if sum(options[name] is not None for name in _ENDS) < 2:
            return None
        ids = [-1 if options[name] is None else _id(graph, options[name], name) for name in _ENDS]
        return torch.tensor([ids])
    path = Path(str(options.queries))
    frame = read_triples(path)
    if frame.is_empty():
        raise UserError(f"{path}: there are no questions in it")
    columns = []
    asked = sum((frame[name] == "?").cast(pl.Int8) for name in _ENDS)
    if (asked != 1).any():
        row = (asked != 1).arg_max()
        raise UserError(f"{locate(path, row)}: {asked[row]} ends are ?, expected 1")
    for name in _ENDS:
        ids = vocabularies[name].index(frame[name])
        is_asked = torch.tensor((frame[name] == "?").to_numpy())
        odd = (ids < 0) & ~is_asked
        if bool(odd.any()):
            row = int(odd.nonzero()[0])
            raise UserError(f"{locate(path, row)}: {_unknown(vocabularies[name], frame[name][row], name)}")
        columns.append(torch.where(is_asked, -1, ids))
    return torch.stack(columns, dim=1)


def _id(graph: KnowledgeGraph, label: object, name: str) -> int:
    """The id of what a label, or a name that only one has, stands for."""
    is_relation = name == "relation"
    vocabulary = graph.relations if is_relation else graph.entities
    names = graph.annotations.relation_names if is_relation else graph.annotations.entity_names
    found = int(vocabulary.index(pl.Series([str(label)], dtype=pl.String))[0])
    if found < 0:
        labels = [own for own, called in names.items() if called == str(label)]
        if len(labels) > 1:
            raise UserError(f"predict.{name}: {label!r} is the name of {_listed(labels)}; give one of these labels")
        if not labels:
            raise UserError(f"predict.{name}: {_unknown(vocabulary, str(label), name)}")
        found = int(vocabulary.index(pl.Series(labels))[0])
    return found


def _listed(labels: list[str], most: int = 10) -> str:
    more = f" and {len(labels) - most:,} more" if len(labels) > most else ""
    return ", ".join(map(repr, labels[:most])) + more


def _unknown(vocabulary: Vocabulary, label: str, name: str) -> str:
    near = difflib.get_close_matches(label, vocabulary.labels, n=3)
    what = "relation" if name == "relation" else "entity"
    return f"{what} {label!r} is not known" + (f"; near it: {', '.join(map(repr, near))}" if near else "")


def _probabilities(cfg: DictConfig, graph: KnowledgeGraph, model: KGEModel, rows: _Rows) -> Tensor:
    """[M] calibrated on valid and one typed negative for each of its triples, by the scores of tails."""
    if not len(graph.valid):
        raise UserError(f"predict.calibration={cfg.predict.calibration}: {graph.name} has no valid split to fit it on")
    negatives = draw_negatives(graph, graph.valid, Typed(), torch.Generator().manual_seed(cfg.seed))
    if not len(negatives):
        raise UserError(f"predict.calibration={cfg.predict.calibration}: no false triple could be drawn for valid")
    triples = Triples.cat([graph.valid, negatives])
    labels = torch.arange(len(triples)) < len(graph.valid)
    calibrate = CALIBRATIONS[cfg.predict.calibration](score_triples(model, triples, graph), labels)
    return calibrate(score_triples(model, rows[1], graph))


def _frame(graph: KnowledgeGraph, rows: _Rows) -> pl.DataFrame:
    questions, triples, scores, is_known = rows
    entities, relations = graph.entities.series, graph.relations.series
    return pl.DataFrame(
        {
            "question": questions.numpy(),
            "head": entities.gather(triples.head.numpy()),
            "relation": relations.gather(triples.relation.numpy()),
            "tail": entities.gather(triples.tail.numpy()),
            "score": scores.numpy(),
            "known": is_known.numpy(),
        }
    )


def _write(path: Path, frame: pl.DataFrame) -> None:
    part = path.with_name(path.name + ".part")
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "json": frame.write_json}[path.suffix[1:]](part)
    part.replace(path)
