"""`task=queries`: multi-hop questions, answered by continuous query decomposition with beam search."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import polars as pl
import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor
from torch.nn import functional as F

from kgc.data.graph import KnowledgeGraph
from kgc.data.known import KnownAnswers
from kgc.data.logic import FORMS, Question, from_json, label_id, name_of, sample_questions, to_json
from kgc.errors import UserError
from kgc.metrics.ranks import mean
from kgc.models.base import KGEModel
from kgc.ranking import RankingOptions, exact_arithmetic, rank_queries
from kgc.runtime import prepare_process
from kgc.scorers import place_of
from kgc.tasks.build import device_of, ranking_options
from kgc.tasks.evaluate import load
from kgc.tasks.output import Session, run_facts, write_answers, write_json
from kgc.types import Queries, RankCounts, Side, Triples

Asked = tuple[Question, set[int], set[int]]  # question, easy answers, hard answers


def queries(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Writes `metrics.json` (`queries/2p/mrr` …), `answers.parquet`, `queries.json` and `report.html`.

    Every hard answer is ranked among all entities but the other answers; a question's metric is the mean over its hard
    answers, that of a form the mean over its questions (Ren and Leskovec 2020), `queries/mrr` the mean over forms.

    Args:
        cfg: what `conf/evaluate.yaml` composes to with `task=queries`.
        run_dir: the run's folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    options = cfg.queries
    _check(cfg)
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        prepare_process()
        graph, model, cfg = load(cfg, session.terminal)
        asked = _read(options.path, graph) if options.path is not None else _sampled(cfg, graph)
        session.start_logging(cfg)
        began = time.perf_counter()
        model = model.to(device_of(cfg)).eval()
        answering = Decomposition(model, options.t_norm, options.beam)
        rows, hits = [], list(cfg.ranking.hits)
        for i, (question, easy, hard) in enumerate(asked):
            counts = answering.ranks(question, easy, hard, ranking_options(cfg))
            columns = (counts.optimistic, counts.pessimistic, counts.realistic, counts.candidates)
            for answer, *values in zip(sorted(hard), *(column.tolist() for column in columns), strict=True):
                rows.append((i, name_of(question), graph.entities[answer], *values))
        names = ["question", "form", "answer", "optimistic", "pessimistic", "realistic", "candidates"]
        frame = pl.DataFrame(rows, schema=names, orient="row")
        metrics = {f"queries/{name}": value for name, value in _metrics(frame, hits).items()}
        metrics["queries/seconds"] = time.perf_counter() - began
        write_json(run_dir / "queries.json", _as_json(asked, graph))
        title = f"Multi-hop questions: {type(model).__name__} on {graph.name}"
        write_answers(cfg, title, metrics, session, {"answers": frame}, run_facts(graph))
        return metrics


class Decomposition:
    """Scores of all entities for a question, from a model of single hops (Arakelyan et al. 2021, CQD-Beam).

    The truth of a hop is the logistic function of its logit. Everything is held as its logarithm, in float64, so that
    truths close to 0 or 1 stay apart.

    Args:
        model: a trained model.
        t_norm: `product` (and a·b, or a + b − ab) or `min` (and min, or max).
        beam: entities kept for each variable between hops, the most likely ones.
    """

    def __init__(self, model: KGEModel, t_norm: str = "product", beam: int = 10):
        self.model = model
        self.t_norm = t_norm
        self.beam = beam
        self.device = place_of(model)

    @torch.no_grad()
    def truths(self, question: Question) -> Tensor:
        """[E] float64 logarithms of how true each entity is as an answer."""
        kind = question[0]
        if kind == "p":
            return self._hop(question[1], question[2])
        if kind == "a":
            truth = torch.full((self.model.num_entities,), -torch.inf, dtype=torch.float64, device=self.device)
            truth[question[1]] = 0.0
            return truth
        parts = [self.truths(part) for part in question[1:]]
        result = parts[0]
        for part in parts[1:]:
            result = self.both(result, part) if kind == "i" else self.either(result, part)
        return result

    def _hop(self, inner: Question, relation: int) -> Tensor:
        if inner[0] == "a":
            entity = torch.tensor([inner[1]], device=self.device)
            before = torch.zeros(1, 1, dtype=torch.float64, device=self.device)
        else:
            best = self.truths(inner).topk(min(self.beam, self.model.num_entities))
            entity, before = best.indices, best.values.unsqueeze(1)
        hop = Queries(entity, torch.full_like(entity, relation), Side.TAIL)
        logits = self.model.logits(self.model.score(hop).double())
        return self.both(before, F.logsigmoid(logits)).amax(0)

    def both(self, a: Tensor, b: Tensor) -> Tensor:
        """log of the t-norm."""
        return a + b if self.t_norm == "product" else torch.minimum(a, b)

    def either(self, a: Tensor, b: Tensor) -> Tensor:
        """log of the t-conorm."""
        if self.t_norm == "min":
            return torch.maximum(a, b)
        # a + b − ab = 1 − (1 − a)(1 − b); where both are small the sum keeps the digits.
        small = torch.logaddexp(a, b) + torch.log1p(-torch.exp(a + b - torch.logaddexp(a, b)))
        return torch.where(torch.maximum(a, b) < -1, small, torch.log1p(-torch.expm1(a) * torch.expm1(b)))

    def ranks(self, question: Question, easy: set[int], hard: set[int], options: RankingOptions) -> RankCounts:
        """Of each hard answer, ascending by id, among all entities but the other answers; one hop by `rank_queries`.

        Raises:
            UserError: a truth is NaN.
        """
        targets = torch.tensor(sorted(hard), device=self.device)
        if name_of(question) == "1p":
            (_, (_, anchor), relation) = question
            known = torch.tensor(sorted(easy | hard), device=self.device)
            heads, relations = torch.full_like(known, anchor), torch.full_like(known, relation)
            index = KnownAnswers(Triples(heads, relations, known), self.model.num_entities, self.model.num_relations)
            hop = Queries(torch.full_like(targets, anchor), torch.full_like(targets, relation), Side.TAIL)
            return rank_queries(self.model, hop, targets, index, options)
        with exact_arithmetic(self.device):
            truths = self.truths(question)
        if bool(truths.isnan().any()):
            raise UserError("the model gives NaN as a score: it has diverged, or its vectors are damaged")
        rivals = torch.ones_like(truths, dtype=torch.bool)
        rivals[list(easy | hard)] = False
        own, others = truths[targets].unsqueeze(1), truths[rivals]
        better, equal = (others > own).sum(1).cpu(), (others == own).sum(1).cpu()
        return RankCounts(better, equal, torch.full_like(better, len(others) + 1), torch.zeros_like(better))


def _metrics(frame: pl.DataFrame, hits: list[int]) -> dict[str, float]:
    rank = pl.col("realistic")
    values = {"mrr": (1 / rank).mean()} | {f"hits@{k}": (rank <= k).mean() for k in hits}
    by_question = frame.group_by("question", "form", maintain_order=True).agg(
        **{name: value.cast(pl.Float64) for name, value in values.items()}, answers=pl.len()
    )
    metrics: dict[str, float] = {}
    forms = [name for name in FORMS if name in set(frame["form"])]
    for form in forms:
        mine = by_question.filter(pl.col("form") == form)
        metrics |= {f"{form}/{name}": mean(torch.tensor(mine[name].to_numpy())) for name in values}
        metrics |= {f"{form}/num_queries": len(mine), f"{form}/num_answers": int(mine["answers"].sum())}
    overall = {name: sum(metrics[f"{form}/{name}"] for form in forms) / len(forms) for name in values}
    return overall | {"num_queries": len(by_question)} | metrics


def _check(cfg: DictConfig) -> None:
    options = cfg.queries
    if (options.path is None) == (options.sample is None):
        raise UserError("give queries.path=FILE or queries.sample=2p:100,2i:100, one of them")
    if options.t_norm not in ("product", "min"):
        raise UserError(f"queries.t_norm={options.t_norm}: choices are product, min")
    for name in ("beam", "max_answers"):
        if type(options[name]) is not int or options[name] < 1:
            raise UserError(f"queries.{name}={options[name]}: must be a whole number, at least 1")
    if options.sample is not None and cfg.split == "train":
        raise UserError("split=train: drawn questions need a split whose triples are new, valid or test")


def _sampled(cfg: DictConfig, graph: KnowledgeGraph) -> list[Asked]:
    wanted = cfg.queries.sample
    parts = list(wanted) if isinstance(wanted, ListConfig) else str(wanted).split(",")
    asked: list[Asked] = []
    for part in parts:
        name, _, number = str(part).partition(":")
        if name not in FORMS or not number.isdigit() or int(number) < 1:
            raise UserError(
                f"queries.sample={wanted}: {part!r} is no FORM:NUMBER, such as 2p:100; forms are {', '.join(FORMS)}"
            )
        asked += sample_questions(graph, cfg.split, name, int(number), cfg.seed, cfg.queries.max_answers)
    return asked


def _read(path: str, graph: KnowledgeGraph) -> list[Asked]:
    """The questions of a JSON file: {"queries": [{"query": …, "easy": […], "hard": […]}, …]}."""
    file = Path(str(path))
    if not file.is_file():
        raise UserError(f"queries.path={path}: no such file")
    wanted = 'not a JSON object {"queries": […]}'
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: {wanted} ({type(error).__name__}: {error})") from error
    except RecursionError:
        raise UserError(f"{path}: {wanted} (nested too deeply)") from None
    rows = content.get("queries") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: {wanted}")
    entities, relations = ({label: i for i, label in enumerate(v.labels)} for v in (graph.entities, graph.relations))
    asked = []
    for i, row in enumerate(rows):
        place = f"{path}: question {i} (from 0)"
        if not isinstance(row, dict) or "query" not in row:
            raise UserError(f'{place}: expected an object {{"query": …, "easy": […], "hard": […]}}')
        try:
            question = from_json(row["query"], entities, relations)
            easy, hard = (_answers(row, kind, entities) for kind in ("easy", "hard"))
            form = name_of(question)
        except ValueError as error:
            raise UserError(f"{place}: {error}") from error
        except RecursionError:
            raise UserError(f"{place}: nested too deeply") from None
        if form is None:
            raise UserError(f"{place} has none of the forms {', '.join(FORMS)}")
        if not hard:
            raise UserError(f"{place} has no hard answer")
        asked.append((question, easy - hard, hard))
    if not asked:
        raise UserError(f"{path}: there are no questions in it")
    return asked


def _answers(row: dict[str, Any], kind: str, entities: dict[str, int]) -> set[int]:
    """The easy or the hard answers of a question.

    Raises:
        ValueError: no list of labels, or one that is not known.
    """
    labels = row.get(kind, [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"its {kind} answers must be a list of labels")
    return {label_id(label, entities, "entity") for label in labels}


def _as_json(asked: list[Asked], graph: KnowledgeGraph) -> dict[str, Any]:
    def labels(ids: set[int]) -> list[str]:
        return [graph.entities[i] for i in sorted(ids)]

    return {
        "queries": [
            {"query": to_json(question, graph), "easy": labels(easy), "hard": labels(hard)}
            for question, easy, hard in asked
        ]
    }
