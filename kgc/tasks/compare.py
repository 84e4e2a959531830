"""`task=compare`: two or more runs, query by query, from their `ranks.parquet`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor

from kgc import page, sections
from kgc.errors import Alert, UserError
from kgc.metrics.comparison import compare_means
from kgc.metrics.ranks import mean
from kgc.tasks.output import Session, run_facts, write_answers

_QUERY = ["head", "relation", "tail", "side"]


def compare(cfg: DictConfig, run_dir: Path) -> dict[str, float]:
    """Writes `metrics.json` (`compare/…`), `relations.parquet` and `comparison.html`.

    Differences are those of the later run from the first: positive where its metric is higher. Of more than two runs
    the keys are `compare/2/…`, `compare/3/…`, by their place in the list; where a run ranked a sample of its split, or
    among a sample of candidates, `sampled/` stands before the metrics' names.

    Args:
        cfg: what `conf/evaluate.yaml` composes to with `task=compare`.
        run_dir: the folder of the comparison.

    Returns:
        The content of `metrics.json`.

    Raises:
        UserError: a mistake in the config, or runs that do not belong together.
        Alert: the last run is significantly worse, and `alert.mrr_drop` asks for it; all files are written before.
    """
    _check(cfg)
    names = [str(name) for name in cfg.compare.runs]
    with Session(run_dir, "evaluate.log", cfg.quiet) as session:
        frames = [_ranks(name) for name in names]
        sampled = "sampled/" if any(_is_sampled(name) for name in names) else ""
        session.start_logging(cfg)
        hits, resamples = list(cfg.ranking.hits), cfg.compare.resamples
        metrics, relations = {}, []
        for place, later in enumerate(frames[1:], start=2):
            prefix = "compare" if len(frames) == 2 else f"compare/{place}"
            values, by_relation = compare_ranks(frames[0], later, hits, resamples, cfg.seed)
            metrics |= {f"{prefix}/{sampled}{name}": value for name, value in values.items()}
            relations.append(by_relation.insert_column(0, pl.Series("run", [names[place - 1]] * len(by_relation))))
        table = pl.concat(relations)
        facts = {"baseline": names[0]} | {f"run {i}": name for i, name in enumerate(names[1:], start=2)}
        write_answers(
            cfg,
            f"{Path(names[-1]).name or names[-1]} against {Path(names[0]).name or names[0]}",
            metrics,
            session,
            {"relations": table},
            facts | run_facts(),
            [_ranks_section(names, frames), _section(table)],
            page="comparison.html",
        )
    _alert(cfg, metrics, f"{prefix}/{sampled}mrr", names)
    return metrics


def compare_ranks(
    first: pl.DataFrame, second: pl.DataFrame, hits: list[int], resamples: int, seed: int
) -> tuple[dict[str, float], pl.DataFrame]:
    """Metrics of two tables of ranks over the queries that both hold, and a row a relation.

    Returns:
        For each of `mrr`, `mr`, `hits@K`: `/first`, `/second` and those of `compare_means`, the queries of a triple
        being one cluster; `wins`, `losses`, `draws` (queries that the second ranks better, worse, alike),
        `num_queries`, `num_unpaired`. The table: relation, queries, wins, losses, and the same of `mrr`.

    Raises:
        UserError: no query is in both.
    """
    # A triple that stands in the split twice has two rows; the first goes with the first.
    numbered = [frame.with_columns(again=pl.int_range(pl.len()).over(_QUERY)) for frame in (first, second)]
    pairs = numbered[0].join(numbered[1], on=[*_QUERY, "again"], suffix="_second", maintain_order="left")
    if pairs.is_empty():
        raise UserError("the runs have no query in common: were they evaluated on the same split of the same data?")
    others = pairs.filter(pl.col("candidates") != pl.col("candidates_second"))
    if len(others):
        raise UserError(
            "the runs ranked among other candidates, first ({head!r}, {relation!r}, {tail!r}), {side}: {candidates:,} "
            "against {candidates_second:,}; compare runs of one ranking.filter and one ranking.candidates".format(
                **others.row(0, named=True)
            )
        )
    pairs = pairs.with_columns(cluster=pl.struct("head", "relation", "tail", "again").rank("dense"))
    values = {}
    old, new = (torch.tensor(pairs[name].to_numpy()) for name in ("realistic", "realistic_second"))
    cluster = torch.tensor(pairs["cluster"].to_numpy()).long() - 1
    for name, of_rank in {"mrr": _reciprocal, "mr": lambda r: r, **{f"hits@{k}": _hit(k) for k in hits}}.items():
        a, b = of_rank(old), of_rank(new)
        values |= {f"{name}/first": mean(a), f"{name}/second": mean(b)}
        of_triples = compare_means(_by_cluster(b - a, cluster), resamples, seed)
        values |= {f"{name}/{key}": value for key, value in of_triples.items()}
    values |= {
        "wins": int((new < old).sum()),
        "losses": int((new > old).sum()),
        "draws": int((new == old).sum()),
        "num_queries": len(pairs),
        "num_unpaired": len(first) + len(second) - 2 * len(pairs),
    }
    rows = []
    for relation in pairs["relation"].unique().sort():
        mine = torch.tensor((pairs["relation"] == relation).to_numpy())
        a, b = _reciprocal(old[mine]), _reciprocal(new[mine])
        _, own = torch.unique(cluster[mine], return_inverse=True)
        rows.append(
            {
                "relation": relation,
                "queries": int(mine.sum()),
                "wins": int((b > a).sum()),
                "losses": int((b < a).sum()),
                "first": mean(a),
                "second": mean(b),
                **compare_means(_by_cluster(b - a, own), resamples, seed),
            }
        )
    return values, pl.DataFrame(rows).sort("queries", "relation", descending=[True, False])


def _reciprocal(ranks: Tensor) -> Tensor:
    return 1 / ranks


def _hit(k: int):
    return lambda ranks: (ranks <= k).double()


def _by_cluster(values: Tensor, cluster: Tensor) -> Tensor:
    """[C] means of the [B] values of each cluster; as many queries in each as a rule, so that their mean is that of
    all queries."""
    number = torch.bincount(cluster)
    return torch.zeros(len(number), dtype=torch.float64).index_add_(0, cluster, values.double()) / number


def _check(cfg: DictConfig) -> None:
    runs, drop, significance = cfg.compare.runs, cfg.alert.mrr_drop, cfg.alert.significance
    if not isinstance(runs, ListConfig) or len(runs) < 2:
        raise UserError(f"compare.runs={runs}: must be a list of two or more folders of runs, [DIR,DIR]")
    if type(cfg.compare.resamples) is not int or cfg.compare.resamples < 1:
        raise UserError(f"compare.resamples={cfg.compare.resamples}: must be a whole number, at least 1")
    if drop is not None and (isinstance(drop, bool) or not isinstance(drop, int | float) or not 0 <= drop <= 1):
        raise UserError(f"alert.mrr_drop={drop}: must be a number from 0 to 1, or null")
    if isinstance(significance, bool) or not isinstance(significance, int | float) or not 0 < significance < 1:
        raise UserError(f"alert.significance={significance}: must be a number between 0 and 1")


def _ranks(name: str) -> pl.DataFrame:
    path = Path(name) / "ranks.parquet"
    if not path.is_file():
        raise UserError(f"compare.runs: {name} has no ranks.parquet; name folders of runs")
    try:
        return pl.read_parquet(path, columns=[*_QUERY, "realistic", "candidates"])
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: not the ranks of a run ({str(error).splitlines()[0]})") from error


def _is_sampled(name: str) -> bool:
    """Whether a run's metrics are of a sample."""
    path = Path(name) / "metrics.json"
    try:
        return any("/sampled/" in key for key in json.loads(path.read_text()))
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not the metrics of a run ({str(error).splitlines()[0]})") from error


def _alert(cfg: DictConfig, metrics: dict[str, float], prefix: str, names: list[str]) -> None:
    """Of the last run, which is the newest."""
    drop, p_value = cfg.alert.mrr_drop, metrics[f"{prefix}/p_value"]
    difference = metrics[f"{prefix}/difference"]
    if drop is not None and difference <= -drop and difference < 0 and p_value < cfg.alert.significance:
        raise Alert(
            f"the MRR of {names[-1]} is lower by {-difference:.4f} than that of {names[0]} (p = {p_value:.4f}), "
            f"alert.mrr_drop={drop}"
        )


def _ranks_section(names: list[str], frames: list[pl.DataFrame]) -> str:
    """The ranks of all runs, in one picture each for how they are spread and for Hits@K."""
    short = [Path(name).name or name for name in names]
    labels = short if len(set(short)) == len(short) else names
    series = {
        label: frame["realistic"].cast(pl.Float64).to_numpy() for label, frame in zip(labels, frames, strict=True)
    }
    return page.section("Ranks", page.figures(sections.rank_figures(series)))


def _section(table: pl.DataFrame) -> str:
    rows = [
        [
            page.label(row["relation"]),
            page.label(row["run"]),
            f"{row['queries']:,}",
            f"{row['wins']:,}",
            f"{row['losses']:,}",
            *(f"{row[name]:.4f}" for name in ("first", "second", "difference", "ci_low", "ci_high", "p_value")),
        ]
        for row in table.head(200).iter_rows(named=True)
    ]
    header = ["relation", "run", "queries", "wins", "losses", "MRR before", "after", "difference", "low", "high", "p"]
    about = page.note("p-values are of single relations: among many some are small by chance.")
    return page.section("MRR by relation", about, page.table(header, rows))
