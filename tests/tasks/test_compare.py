"""`task=compare` from the command line, against scipy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import runs
import torch

from kgc.metrics.comparison import permutation_p_value


def write_ranks(folder: Path, ranks: np.ndarray, order: int = 0, candidates: int = 12, sampled: bool = False) -> str:
    """[triples, 2] ranks of head and tail queries; every third triple has relation r0."""
    n = len(ranks)
    folder.mkdir()
    columns = {"head": [f"h{i}" for i in range(n)], "relation": [f"r{i % 3}" for i in range(n)], "tail": ["t"] * n}
    frame = pl.concat(
        [
            pl.DataFrame(
                {**columns, "side": side, "realistic": ranks[:, j].astype(float), "candidates": [candidates] * n}
            )
            for j, side in enumerate(("head", "tail"))
        ]
    )
    frame.sample(fraction=1, shuffle=True, seed=order).write_parquet(folder / "ranks.parquet")
    (folder / "metrics.json").write_text(json.dumps({"test/sampled/mrr" if sampled else "test/mrr": 0.5}))
    return str(folder)


def ranks_of(seed: int, n: int = 120) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 12, (n, 2))


def test_differences_and_p_values_are_those_of_scipy(tmp_path, capsys):
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    old = ranks_of(0)
    new = np.maximum(1, old + np.random.default_rng(1).integers(-3, 3, old.shape))
    dirs = f"[{write_ranks(tmp_path / 'a', old)},{write_ranks(tmp_path / 'b', new, 1)}]"
    words = ["task=compare", f"compare.runs={dirs}", "hydra.run.dir=out", "compare.resamples=4000"]
    done = runs.command(capsys, tmp_path, "evaluate", *words)
    assert done.code == 0, done.err
    metrics = runs.metrics(tmp_path / "out")
    values = {"mrr": lambda r: 1 / r, "mr": lambda r: r, "hits@3": lambda r: (r <= 3) * 1.0}
    for name, of_rank in values.items():
        difference = (of_rank(new) - of_rank(old)).mean(1)
        assert metrics[f"compare/{name}/difference"] == pytest.approx(difference.mean())
        assert metrics[f"compare/{name}/first"] == pytest.approx(of_rank(old).mean())
        peer = stats.permutation_test(
            (difference,), np.mean, permutation_type="samples", n_resamples=4000, rng=0, alternative="two-sided"
        )
        assert metrics[f"compare/{name}/p_value"] == pytest.approx(peer.pvalue, abs=0.03), name
        interval = stats.bootstrap((difference,), np.mean, n_resamples=4000, method="percentile", rng=0)
        low, high = interval.confidence_interval
        width = high - low
        assert metrics[f"compare/{name}/ci_low"] == pytest.approx(low, abs=width / 15)
        assert metrics[f"compare/{name}/ci_high"] == pytest.approx(high, abs=width / 15)
    assert metrics["compare/wins"] == (new < old).sum()
    assert metrics["compare/losses"] == (new > old).sum()
    assert metrics["compare/num_unpaired"] == 0
    assert "r0" in (tmp_path / "out" / "comparison.html").read_text()
    row = pl.read_parquet(tmp_path / "out" / "relations.parquet").filter(pl.col("relation") == "r1").row(0, named=True)
    assert row["difference"] == pytest.approx((1 / new[1::3] - 1 / old[1::3]).mean())
    assert row["wins"] == (new[1::3] < old[1::3]).sum()


def test_p_values_of_few_pairs_are_those_of_all_exchanges():
    differences = torch.tensor([0.5, 0.2, -0.1, 0.4])
    signs = np.array(list(np.ndindex(2, 2, 2, 2))) * 2 - 1
    sums = np.abs(signs @ differences.numpy().astype(float))
    exact = (sums >= 1.0 - 1e-6).mean()
    assert permutation_p_value(differences, 20_000) == pytest.approx(exact, abs=0.01)
    assert permutation_p_value(torch.zeros(5), 100) == 1.0


@pytest.mark.parametrize(("worse", "drop", "code"), [(4, 0.02, 3), (4, 0.9, 0), (-4, 0.02, 0), (4, "null", 0)])
def test_an_alert_is_exit_code_3(tmp_path, capsys, worse, drop, code):
    old = ranks_of(0) + 4
    dirs = f"[{write_ranks(tmp_path / 'a', old)},{write_ranks(tmp_path / 'b', old + worse)}]"
    words = ["task=compare", f"compare.runs={dirs}", "hydra.run.dir=out", f"alert.mrr_drop={drop}"]
    done = runs.command(capsys, tmp_path, "evaluate", *words, "compare.resamples=200")
    assert done.code == code, done.err
    assert (tmp_path / "out" / "metrics.json").exists()
    if code:
        assert done.err.startswith("alert: ")
        assert "alert.mrr_drop=0.02" in done.err


def test_three_runs_and_queries_that_one_of_them_lacks(tmp_path):
    old = ranks_of(0)
    dirs = [write_ranks(tmp_path / name, old[:n]) for name, n in (("a", 120), ("b", 100), ("c", 120))]
    words = ["task=compare", f"compare.runs=[{','.join(dirs)}]", "compare.resamples=50"]
    metrics = runs.evaluate(tmp_path / "out", *words)
    assert metrics["compare/2/num_unpaired"] == 40
    assert metrics["compare/2/num_queries"] == 200
    assert metrics["compare/3/mrr/difference"] == 0
    assert metrics["compare/3/mrr/p_value"] == 1
    assert metrics["compare/3/draws"] == 240


def test_what_is_known_of_a_sample_says_so(tmp_path):
    whole = write_ranks(tmp_path / "whole", ranks_of(0))
    part = write_ranks(tmp_path / "part", ranks_of(1)[:60], sampled=True)
    words = ["task=compare", f"compare.runs=[{whole},{part}]", "compare.resamples=50", "alert.mrr_drop=0.9"]
    metrics = runs.evaluate(tmp_path / "out", *words)
    assert metrics["compare/sampled/num_queries"] == 120
    assert all(name.startswith("compare/sampled/") for name in metrics)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["compare.runs=[DIR/a]"], ["compare.runs", "two or more"]),
        ([], ["compare.runs", "two or more"]),
        (["compare.runs=[DIR/a,DIR/none]"], ["none", "ranks.parquet"]),
        (["compare.runs=[DIR/a,DIR/other]"], ["no query in common"]),
        (
            ["compare.runs=[DIR/a,DIR/few]"],
            ["among other candidates, first ('h", "12 against 5;", "one ranking.candidates"],
        ),
        (["compare.runs=[DIR/a,DIR/a]", "alert.mrr_drop=2"], ["alert.mrr_drop=2"]),
        (["compare.runs=[DIR/a,DIR/a]", "compare.resamples=0"], ["compare.resamples=0"]),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, words, names):
    write_ranks(tmp_path / "a", ranks_of(0))
    write_ranks(tmp_path / "few", ranks_of(0), candidates=5, sampled=True)
    (tmp_path / "other").mkdir()
    frame = pl.read_parquet(tmp_path / "a" / "ranks.parquet").with_columns(head=pl.lit("nobody"))
    frame.write_parquet(tmp_path / "other" / "ranks.parquet")
    words = [word.replace("DIR", str(tmp_path)) for word in words]
    message = runs.command(capsys, tmp_path, "evaluate", "task=compare", *words).mistake()
    for name in names:
        assert name in message, message
