"""What a run leaves with its loggers when it closes: metrics, tables, pictures of its ranks, artifacts."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from kgc.plots import hits_at_all
from kgc.sections import ranks_by_side

_TABLE_ROWS = 1000  # W&B shows no more without paging, and a page of the browser stays quick
_HEADLINE = ("mrr", "mr", "hits@1", "hits@3", "hits@10")


def best_and_last(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """`best/epoch`, `best/valid/mrr` of the epoch with the highest valid MRR, `last/epoch`, `last/train/loss` and
    `last/valid/mrr` (of the last validation); finite values only.

    Args:
        history: one row an epoch.
    """
    values: dict[str, float] = {}
    validated = [row for row in history if "valid/mrr" in row]
    if validated:
        best = max(validated, key=lambda row: row["valid/mrr"])
        values |= {"best/epoch": best["epoch"], "best/valid/mrr": best["valid/mrr"]}
        values["last/valid/mrr"] = validated[-1]["valid/mrr"]
    if history:
        values |= {"last/epoch": history[-1]["epoch"], "last/train/loss": history[-1]["train/loss"]}
    return {key: value for key, value in values.items() if math.isfinite(value)}


@rank_zero_only
def log_summary(
    loggers: Sequence[Logger],
    metrics: dict[str, float],
    ranks: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    *,
    split: str = "test",
    step: int | None = None,
    history: Sequence[Mapping[str, float]] = (),
) -> None:
    """Writes what a run ends with: its final metrics, how its ranks are spread, and its tables.

    W&B gets the metrics, with those of `best_and_last`, in the run's summary, `SPLIT/log10_rank` as a histogram of 64
    bins, `SPLIT/hits_curve` as a chart of Hits@K over K, and the first 1,000 rows of each table. TensorBoard gets the
    metrics, the histogram, the curve (K for the step), and the headline metrics next to the config under "hparams".
    Other loggers get the metrics. Of `valid` the curves have the values already: only W&B gets those of the best epoch.

    Args:
        metrics: the content of `metrics.json`.
        ranks: one row a query, as in `ranks.parquet`; `realistic` and `side` are read.
        tables: by name, such as `by_relation`.
        split: the split that `ranks` belongs to, or SPLIT/sampled.
        step: optimizer steps done, None where nothing was trained.
        history: one row an epoch; empty where nothing was trained.
    """
    counts, edges = _histogram(ranks)
    curve = hits_table(ranks)
    ends = metrics | best_and_last(history)
    written = {key: value for key, value in ends.items() if not (history and key.startswith("valid/"))}
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.summary.update(ends)
            _log_to_wandb(logger, counts, edges, curve, tables, split)
            continue
        logger.log_metrics(written, step)
        if isinstance(logger, TensorBoardLogger):
            if counts.sum():
                middles = np.repeat((edges[:-1] + edges[1:]) / 2, counts)
                logger.experiment.add_histogram(f"{split}/log10_rank", middles, step, bins=edges)
            for row in curve.filter(pl.col("side") == "both").iter_rows(named=True):
                logger.experiment.add_scalar(f"{split}/hits_curve", row["hits"], row["k"])
            place = "/".join(["hp", *split.split("/")[1:]])  # an estimate stays named as one
            headline = {f"{place}/{name}": metrics[key] for name in _HEADLINE if (key := f"{split}/{name}") in metrics}
            logger.log_hyperparams(logger.hparams, headline, step)


def hits_table(ranks: pl.DataFrame) -> pl.DataFrame:
    """Hits@K for all K: columns k, hits, side (`both`, `tail`, `head`); about 160 rows a side."""
    series = {"both": ranks["realistic"].cast(pl.Float64).to_numpy()} | ranks_by_side(ranks)
    series = {side: values for side, values in series.items() if len(values)}
    last = max((float(np.ceil(values.max())) for values in series.values()), default=1.0)
    rows = []
    for side, values in series.items():
        ks, hits = hits_at_all(values, last)
        rows += [(int(k), float(h), side) for k, h in zip(ks, hits, strict=True)]
    return pl.DataFrame(rows, schema={"k": pl.Int64, "hits": pl.Float64, "side": pl.String}, orient="row")


@rank_zero_only
def log_artifacts(loggers: Sequence[Logger], folder: Path, data: Mapping[str, Any]) -> None:
    """Makes artifacts of what the config asks for, of W&B runs only: `RUN-best`, `RUN-last` (type model) and
    `RUN-ranks` (type ranks), with the data set's name and digest in their metadata.

    Online the data set is an input of the run: an artifact of type dataset, which holds its name, digest and sizes, and
    is the same for all runs on the same triples. Offline W&B knows no inputs.

    Args:
        folder: of the run.
        data: name, digest and sizes of the data set.
    """
    files = {"best": "checkpoints/best.ckpt", "last": "checkpoints/last.ckpt", "ranks": "ranks.parquet"}
    for logger in loggers:
        wanted = [name for name in getattr(logger, "artifacts", ()) if (folder / files[name]).exists()]
        if not wanted:
            continue
        import wandb

        run = logger.experiment
        with _data_dir(logger.save_dir):
            if not (run.offline or run.disabled):
                source = wandb.Artifact(_artifact_name(str(data["name"])), type="dataset", metadata=dict(data))
                with source.new_file("dataset.json") as file:
                    json.dump(dict(data), file, indent=2, sort_keys=True)
                run.use_artifact(source)
            for name in wanted:
                kind = "ranks" if name == "ranks" else "model"
                artifact = wandb.Artifact(_artifact_name(f"{run.id}-{name}"), type=kind, metadata={"data": dict(data)})
                artifact.add_file(str(folder / files[name]))
                run.log_artifact(artifact)


def _log_to_wandb(
    logger: WandbLogger,
    counts: np.ndarray,
    edges: np.ndarray,
    curve: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    split: str,
) -> None:
    import wandb

    def table(frame: pl.DataFrame) -> wandb.Table:
        return wandb.Table(frame.columns, data=[list(row) for row in frame.rows()])

    extras: dict[str, Any] = {f"{split}/{name}": table(frame.head(_TABLE_ROWS)) for name, frame in tables.items()}
    if counts.sum():
        extras[f"{split}/log10_rank"] = wandb.Histogram(np_histogram=(counts, edges))
        title = f"{split}: Hits@K for all K"
        extras[f"{split}/hits_curve"] = wandb.plot.line(table(curve), "k", "hits", stroke="side", title=title)
    with _data_dir(logger.save_dir):
        logger.experiment.log(extras)


@contextmanager
def _data_dir(folder: str | None) -> Iterator[None]:
    """Has W&B stage files in the run's folder; its own choice is the home directory, which may be full or read-only."""
    before = os.environ.get("WANDB_DATA_DIR")
    if before is None and folder is not None:
        os.environ["WANDB_DATA_DIR"] = str(Path(folder) / "wandb" / "staging")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("WANDB_DATA_DIR", None)


def _artifact_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[:128]


def _histogram(ranks: pl.DataFrame, bins: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Counts [bins] and edges [bins + 1] of log10 of the realistic ranks."""
    values = np.log10(ranks["realistic"].cast(pl.Float64).to_numpy())
    top = max(1.0, math.ceil(values.max())) if len(values) else 1.0
    return np.histogram(values, bins=bins, range=(0.0, top))
