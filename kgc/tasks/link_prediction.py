"""`task=link_prediction`: filtered ranks of a split, one answer or one list a question."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch
from omegaconf import DictConfig, OmegaConf

from kgc.console import ProgressLine
from kgc.data.batches import data_place
from kgc.data.datamodule import KGDataModule
from kgc.data.sample import sample_triples
from kgc.errors import UserError
from kgc.metrics.intervals import bootstrap_interval
from kgc.module import KGEModule
from kgc.ranking import planned
from kgc.runtime import prepare_process
from kgc.tasks.build import build_trainer, ranking_arguments
from kgc.tasks.evaluate import load
from kgc.tasks.launch import launch, processes_wanted, shared_folder
from kgc.tasks.output import Session, run_facts, write_answers, write_run
from kgc.tasks.query_protocol import rank_lists
from kgc.tasks.sampled import use_candidates
from kgc.tasks.split_ranks import QUERIES_A_STEP, rank_split, split_triples
from kgc.tasks.storage import one_line_for_files
from kgc.types import Side


def link_prediction(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """`task=link_prediction`: ranks one split, and writes `metrics.json`, `report.html` and `ranks.parquet`, or with
    `protocol=query` `per_query.parquet`.

    Args:
        cfg: what `conf/evaluate.yaml` composes to.
        run_dir: the run's folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config or the files it names.
    """
    processes = processes_wanted(cfg)
    arguments = (OmegaConf.to_container(cfg, resolve=True), str(run_dir))
    return launch(run, processes, *arguments) if processes > 1 else run(*arguments)


def run(config: dict, folder: str) -> dict[str, float]:
    """One process of an evaluation."""
    cfg = OmegaConf.create(config)
    run_dir = Path(shared_folder(cfg, folder))
    with one_line_for_files(run_dir), Session(run_dir, "evaluate.log", cfg.quiet) as session:
        terminal = session.terminal
        prepare_process()
        with session.phase("data"):
            graph, model, cfg = load(cfg, terminal)
        terminal.say(f"filter     {' + '.join(cfg.ranking.filter) or 'none: raw ranks'}")
        whole = split_triples(graph, cfg.split)
        sample = None
        if cfg.ranking.limit is not None and cfg.protocol == "query":
            raise UserError("ranking.limit: goes with protocol=triple; a question's list needs all its answers")
        if cfg.ranking.limit is not None and cfg.ranking.limit < len(whole):
            sample = sample_triples(whole, cfg.ranking.limit, cfg.seed)
            terminal.say(
                f"sample     {len(sample):,} of {len(whole):,} {cfg.split} triples, seed {cfg.seed}: the metrics are "
                f"estimates and stand under {cfg.split}/sampled/"
            )
        candidates = cfg.ranking.candidates
        if candidates is not None and cfg.protocol == "query":
            raise UserError("ranking.candidates: goes with protocol=triple; a question's list needs all entities")
        if candidates is not None and cfg.bootstrap is not None:
            raise UserError("bootstrap with ranking.candidates: choose one; sampled ranks have standard errors (…_se)")
        session.start_logging(cfg, graph)
        trainer = build_trainer(cfg, run_dir, callbacks=[ProgressLine(terminal)], logger=False)
        module = KGEModule(model, graph, **ranking_arguments(cfg))
        if candidates is not None:
            words = use_candidates(module, cfg, whole, whole if sample is None else sample)
            terminal.say(f"candidates {words}: sampled ranks, under {cfg.split}/sampled/, are no filtered ranks")
        queries = 2 * len(whole if sample is None else sample) // data_place(trainer)[1]
        module.ranking = planned(model, module.ranking, queries, trainer.strategy.root_device)
        data = KGDataModule(graph, 0, 1, QUERIES_A_STEP, 0)
        if cfg.protocol == "query":
            metrics, lists = rank_lists(module, trainer, data, cfg.split, cfg.bootstrap, cfg.seed)
            if trainer.is_global_zero:
                title = f"{type(model).__name__} on {graph.name}, one list a question"
                write_answers(cfg, title, metrics, session, {"per_query": lists}, run_facts(graph))
            return metrics
        evenly = isinstance(candidates, int) and cfg.ranking.draw == "uniform"
        with session.phase("test"):
            metrics, ranks = rank_split(module, trainer, data, cfg.split, sample, evenly)
        if cfg.bootstrap is not None and sample is None:
            metrics |= bootstrap_metrics(ranks, cfg.split, module.hits, cfg.bootstrap, cfg.seed)
        if trainer.is_global_zero:
            write_run(cfg, module, metrics, ranks, session)
        return metrics


def bootstrap_metrics(
    ranks: pl.DataFrame, split: str, hits: tuple[int, ...], resamples: int, seed: int
) -> dict[str, float]:
    """95 % intervals of MRR and Hits@K: the two queries of a triple are drawn together."""
    realistic = torch.tensor(ranks["realistic"].to_numpy()).view(len(Side), -1).T  # [triples, 2]
    values = {"mrr": 1 / realistic} | {f"hits@{k}": (realistic <= k).double() for k in hits}
    intervals = {}
    for name, value in values.items():
        low, high = bootstrap_interval(value, resamples, seed)
        intervals |= {f"{split}/{name}_low": low, f"{split}/{name}_high": high}
    return intervals
