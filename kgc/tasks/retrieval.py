"""`task=retrieval`: where the relevant documents of queries stand, in a TREC run or among vectors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import polars as pl
import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor

from kgc.console import Terminal
from kgc.data.reader import read_labels
from kgc.data.trec import read_qrels, read_run
from kgc.data.vocabulary import Vocabulary
from kgc.engine.ties import tied_ahead
from kgc.errors import UserError
from kgc.metrics.answers import GAINS, TIES, Answers, answer_metrics, settle
from kgc.metrics.intervals import bootstrap_interval
from kgc.metrics.ranks import mean
from kgc.models.similarity import Dot, Euclidean
from kgc.ranking import RankingOptions, describe, exact_arithmetic, rank_queries
from kgc.runtime import prepare_process
from kgc.scorers import VectorScorer
from kgc.tasks.build import device_of, ranking_options
from kgc.tasks.output import Session, run_facts, write_answers
from kgc.vectors import open_vectors, unit_length

_SIMILARITIES = {"dot": Dot, "cosine": Dot, "l2": Euclidean}


def retrieval(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Writes `metrics.json` (`retrieval/…`), `per_query.parquet` and `report.html`.

    Means are over the judged queries: one that retrieves nothing, or has no relevant document, counts as 0.

    Args:
        cfg: what `conf/evaluate.yaml` composes to with `task=retrieval`.
        run_dir: the run's folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    options = cfg.retrieval
    _check(options)
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        prepare_process()
        began = time.perf_counter()
        judged = read_qrels(Path(str(options.qrels)))
        if not (judged["grade"] >= options.relevant_from).any():
            raise UserError(f"{options.qrels}: no document has a grade of {options.relevant_from} or more")
        session.start_logging(cfg)
        read = _from_run if options.run is not None else _from_vectors
        judged, facts, counts = read(cfg, judged, session.terminal)
        names, metrics, frame = _measure(judged, options)
        values = {name: mean(value) for name, value in metrics.items()}
        if cfg.bootstrap is not None:
            for name, value in metrics.items():
                low, high = bootstrap_interval(value, cfg.bootstrap, cfg.seed)
                values |= {f"{name}_low": low, f"{name}_high": high}
        values |= {
            "num_queries": len(names),
            "num_without_relevant": int((frame["relevant"] == 0).sum()),
            **counts,
            "num_tied": int(judged.filter((pl.col("equal") > 0) & (pl.col("grade") > 0)).height),
            "seconds": time.perf_counter() - began,
        }
        values = {f"retrieval/{name}": value for name, value in values.items()}
        write_answers(cfg, "Retrieval", values, session, {"per_query": frame}, facts | run_facts())
        return values


def _check(options: DictConfig) -> None:
    for name in ("qrels", "run", "queries", "documents"):
        if options[name] is not None and not Path(str(options[name])).is_file():
            raise UserError(f"retrieval.{name}={options[name]}: no such file")
    if options.qrels is None:
        raise UserError("retrieval.qrels is needed: a file of lines `query iteration document grade`")
    if options.run is not None and (options.queries is not None or options.documents is not None):
        raise UserError("retrieval.run and vectors are both given: choose one")
    if options.run is None and (options.queries is None or options.documents is None):
        raise UserError(
            "nothing to rank: give retrieval.run=FILE, or retrieval.queries=FILE and retrieval.documents=FILE"
        )
    choices = {"similarity": tuple(_SIMILARITIES), "ties": ("trec", *TIES), "gain": GAINS}
    for name, known in choices.items():
        if options[name] not in known:
            raise UserError(f"retrieval.{name}={options[name]}: choices are {', '.join(known)}")
    cutoffs = options.cutoffs
    if not isinstance(cutoffs, ListConfig) or not cutoffs or not all(type(k) is int and k > 0 for k in cutoffs):
        raise UserError(f"retrieval.cutoffs={cutoffs}: must be a list of whole numbers from 1 on, such as [1,3,10]")
    if type(options.relevant_from) is not int or options.relevant_from < 1:
        raise UserError(f"retrieval.relevant_from={options.relevant_from}: must be a whole number, at least 1")


def _from_run(cfg: DictConfig, judged: pl.DataFrame, terminal: Terminal) -> tuple[pl.DataFrame, dict, dict]:
    """The judgements with `better`, `equal`, `ahead` in the lists of a run, and what was counted."""
    options = cfg.retrieval
    run, odd = read_run(Path(str(options.run)))
    if odd:
        terminal.say(f"note       {odd}; documents are ordered by score")
    queries = judged["query"].unique()
    found = run.filter(pl.col("query").is_in(queries.implode()))
    if found.is_empty():
        raise UserError(f"{options.run}: none of its queries is judged in {options.qrels}; are the query ids the same?")
    # trec_eval holds scores in single precision.
    score = pl.col("score").cast(pl.Float32) if options.ties == "trec" else pl.col("score")
    same = ["query", "score"]
    found = (
        found.with_columns(score)
        .sort("query", "score", "document", descending=[False, True, True])
        .with_columns(place=pl.int_range(pl.len()).over("query"))
        .with_columns(better=pl.col("place").min().over(same), equal=pl.len().over(same).cast(pl.Int64) - 1)
        .with_columns(ahead=pl.col("place") - pl.col("better"))
    )
    places = found.select("query", "document", "better", "equal", "ahead")
    joined = judged.join(places, on=["query", "document"], how="left", maintain_order="left")
    joined = joined.with_columns(pl.col("better").fill_null(-1), pl.col("equal", "ahead").fill_null(0))
    unjudged = found.join(judged, on=["query", "document"], how="anti")
    counts = {
        "num_unanswered": len(queries) - found["query"].n_unique(),
        "num_unjudged_queries": run["query"].n_unique() - found["query"].n_unique(),
        "num_unjudged_documents": len(unjudged),
    }
    retrieved = f"{len(found):,} documents for {found['query'].n_unique():,} judged queries"
    terminal.say(f"run        {options.run}: {retrieved}")
    return joined, {"run": str(options.run), "qrels": str(options.qrels)}, counts


def _from_vectors(cfg: DictConfig, judged: pl.DataFrame, terminal: Terminal) -> tuple[pl.DataFrame, dict, dict]:
    """The judgements with `better`, `equal`, `ahead` among all documents, and what was counted."""
    options = cfg.retrieval
    tables, ids = {}, {}
    for name, key in (("queries", "query_ids"), ("documents", "document_ids")):
        tables[name] = open_vectors(options[name], f"retrieval.{name}")
        ids[name] = _ids(options[key], f"retrieval.{key}", len(tables[name]))
    widths = {name: table.shape[1] for name, table in tables.items()}
    if widths["queries"] != widths["documents"]:
        raise UserError(
            f"retrieval.queries has {widths['queries']} numbers a row, retrieval.documents {widths['documents']}: both "
            "must come from the same embedding model"
        )
    if options.similarity == "cosine":
        tables = {name: unit_length(table, f"retrieval.{name}") for name, table in tables.items()}
    rows = {}
    for column, name, key in (("query", "queries", "query_ids"), ("document", "documents", "document_ids")):
        rows[column] = ids[name].index(judged[column])
        if bool((rows[column] < 0).any()):
            at = int((rows[column] < 0).nonzero()[0])
            raise UserError(
                f"{options.qrels}:{judged['line'][at]}: {column} {judged[column][at]!r} is not among the "
                f"{len(ids[name]):,} of retrieval.{name} (retrieval.{key})"
            )
    device = device_of(cfg)
    scorer = VectorScorer(
        tables["queries"].to(device), tables["documents"].to(device), _SIMILARITIES[options.similarity]()
    )
    gaining = torch.tensor((judged["grade"] > 0).to_numpy())
    queries, targets = scorer.queries(rows["query"][gaining].to(device)), rows["document"][gaining].to(device)
    ranking: RankingOptions = ranking_options(cfg)
    terminal.say(
        f"vectors    {len(tables['queries']):,} queries, {len(tables['documents']):,} documents of "
        f"{widths['documents']} numbers, {options.similarity}"
    )
    terminal.say(f"ranking    {describe(scorer, queries, ranking)}")
    places = rank_queries(scorer, queries, targets, None, ranking)
    ahead = torch.zeros_like(targets)
    tied = places.equal > 0
    if options.ties == "trec" and bool(tied.any()):
        priority = torch.from_numpy(_order(ids["documents"])).to(device)
        with exact_arithmetic(device):
            _, ahead[tied] = tied_ahead(scorer, queries[tied], targets[tied], priority)

    def column(values: Tensor, otherwise: int) -> np.ndarray:
        whole = torch.full((len(judged),), otherwise, dtype=torch.int64)
        whole[gaining] = values.cpu()
        return whole.numpy()

    joined = judged.with_columns(
        better=column(places.better, -1), equal=column(places.equal, 0), ahead=column(ahead, 0)
    )
    counts = {
        "num_unjudged_queries": len(tables["queries"]) - judged["query"].n_unique(),
        "num_documents": len(tables["documents"]),
    }
    return joined, {name: str(options[name]) for name in ("queries", "documents", "qrels")}, counts


def _ids(path: str | None, key: str, rows: int) -> Vocabulary:
    """The ids of the rows of a table; their numbers where no file is given."""
    if path is None:
        return Vocabulary([str(i) for i in range(rows)])
    labels = read_labels(Path(str(path)))
    if len(labels) != rows:
        raise UserError(f"{key}={path}: {len(labels)} ids for a table of {rows} rows")
    return Vocabulary(labels)


def _order(ids: Vocabulary) -> np.ndarray:
    """[N] the place of each id among the sorted ids (by bytes, as trec_eval compares them)."""
    order = ids.series.arg_sort().to_numpy()
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _measure(judged: pl.DataFrame, options: DictConfig) -> tuple[pl.Series, dict[str, Tensor], pl.DataFrame]:
    """The judged queries in the order of the qrels, [Q] of each metric, and the rows of `per_query.parquet`."""
    names = judged["query"].unique(maintain_order=True)
    query = Vocabulary(names.to_list()).index(judged["query"])
    columns = [torch.tensor(judged[name].to_numpy()) for name in ("grade", "better", "equal", "ahead")]
    answers = Answers(query, *columns[:3], num_queries=len(names))
    ties = options.ties
    if ties == "trec":
        answers, ties = settle(answers, columns[3]), "expected"
    values = answer_metrics(answers, list(options.cutoffs), ties, options.gain, options.relevant_from)
    relevant = torch.bincount(query[columns[0] >= options.relevant_from], minlength=len(names))
    frame = pl.DataFrame(
        {
            "query": names,
            "judged": torch.bincount(query, minlength=len(names)).numpy(),
            "relevant": relevant.numpy(),
            **{name: value.numpy() for name, value in values.items()},
        }
    )
    return names, values, frame
