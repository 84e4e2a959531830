"""Loggers: W&B runs offline for real, TensorBoard and CSV files are read back."""

from __future__ import annotations

import csv
import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import hydra
import numpy as np
import polars as pl
import pytest
import wandb_file
import yaml
from hydra.errors import InstantiationException
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from kgc import dashboard, tracking
from kgc.errors import UserError

CONF = Path(__file__).parents[1] / "conf" / "logger"
RANKS = pl.DataFrame(
    {
        "relation": ["likes", "likes", "knows"],
        "side": ["tail", "head", "tail"],
        "realistic": [1.0, 2.5, 100.0],
    }
)
BY_RELATION = pl.DataFrame({"relation": ["likes", "knows"], "count": [2, 1], "mrr": [0.7, 0.01]})
METRICS = {"test/mrr": 0.47, "test/mr": 34.5, "test/hits@1": 1 / 3}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a key whose home is empty; nobody answers on the terminal."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked for a key"))
    monkeypatch.setattr("getpass.getpass", lambda *_: pytest.fail("asked for a key"))


def instantiate(choice: str, folder: Path, **changes: object) -> list[Logger]:
    config = yaml.safe_load((CONF / f"{choice}.yaml").read_text()) | changes
    try:
        return hydra.utils.instantiate(config, save_dir=folder, name="a-run")
    except InstantiationException as error:
        raise error.__cause__ from None


def close(loggers: list[Logger], step: int | None = 20) -> None:
    dashboard.log_summary(loggers, METRICS, RANKS, {"by_relation": BY_RELATION}, step=step)
    tracking.finish(loggers, failed=False)


def test_mode_is_offline_for_a_user_who_is_not_logged_in() -> None:
    assert tracking.wandb_mode() == "offline"


def test_mode_comes_from_the_environment_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.wandb_mode() == "disabled"
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(UserError, match=r"WANDB_MODE is `of`; choices: online, offline"):
        tracking.wandb_mode()


def test_mode_is_online_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert tracking.wandb_mode() == "online"


@pytest.mark.parametrize("name", [".netrc", "_netrc", "elsewhere"])
def test_mode_is_online_with_an_entry_for_the_server_in_netrc(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home" / name
    path.write_text("machine example.org login user password secret\n")
    if name == "elsewhere":
        monkeypatch.setenv("NETRC", str(path))
    assert tracking.wandb_mode() == "offline"
    path.write_text(f"machine api.wandb.ai login user password {'0' * 40}\n")
    assert tracking.wandb_mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert tracking.wandb_mode() == "offline"
    path.write_text(f"machine wandb.example.org:8080 login user password {'0' * 40}\n")
    assert tracking.wandb_mode() == "online"
    path.write_text("not a netrc file")
    assert tracking.wandb_mode() == "offline"


def test_the_server_may_come_from_the_settings_of_wandb_login(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    (home / ".netrc").write_text(f"machine wandb.example.org login user password {'0' * 40}\n")
    assert tracking.wandb_mode() == "online"


def test_online_without_a_key_is_an_error_and_not_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(UserError, match=r"run `wandb login`, set WANDB_API_KEY, or choose logger\.mode=offline"):
        instantiate("wandb", tmp_path / "run")
    with pytest.raises(UserError, match="needs an API key"):
        instantiate("wandb", tmp_path / "run", mode="online")
    with pytest.raises(UserError, match=r"logger\.mode is `sometimes`; choices"):
        instantiate("wandb", tmp_path / "run", mode="sometimes")


def test_a_malformed_key_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UserError, match=r"^W&B could not open a run: .*API key.*logger\.mode=offline") as error:
        instantiate("wandb", tmp_path / "run")
    assert "\n" not in str(error.value)


def test_wandb_run_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kgc"):
        loggers = instantiate("wandb", tmp_path / "run", tags=["nightly"], group="ablation")
    tracking.log_config(loggers, {"model": {"dim": 31415}, "seeds": [1, 2]})
    loggers[0].log_metrics({"train/loss": 0.5}, step=10)
    close(loggers)
    tracking.finish(loggers, failed=False)  # a second time is harmless

    run = wandb_file.run_in(tmp_path / "run")
    assert (run.name, run.tags, run.group, run.project) == ("a-run", ["nightly"], "ablation", "kgc")
    assert run.config["model"] == {"dim": 31415}
    assert run.history[0]["train/loss"] == 0.5
    assert run.history[0]["trainer/global_step"] == 10
    assert {key: run.summary[key] for key in METRICS} == METRICS
    assert sum(run.history[-1]["test/log10_rank"]["values"]) == 3
    assert run.exit_code == 0
    (table,) = (tmp_path / "run").glob("wandb/offline-run-*/files/media/table/test/by_relation*.json")
    stored = json.loads(table.read_text())
    assert stored["columns"] == ["relation", "count", "mrr"]
    assert stored["data"] == [["likes", 2, 0.7], ["knows", 1, 0.01]]

    (message,) = (record.getMessage() for record in caplog.records if record.name == "kgc.tracking")
    assert f"wandb sync {tmp_path / 'run' / 'wandb' / 'offline-run-'}" in message
    assert "wandb:" not in "".join(capfd.readouterr())
    assert not {"WANDB_MODE", "WANDB_DATA_DIR"} & set(os.environ)  # a later run of this process decides for itself
    assert not list((tmp_path / "home").rglob("artifacts/staging/*"))


def test_the_next_wandb_run_is_a_new_one(tmp_path: Path) -> None:
    trials = ("one", "two", "three")
    for trial in trials:
        loggers = instantiate("wandb", tmp_path / trial)
        loggers[0].log_metrics({f"valid/{trial}": 0.5}, step=1)
        if trial != "two":  # a trial that crashes before `finish` must not swallow the next one
            tracking.finish(loggers, failed=trial == "three")
    for trial in trials:
        run = wandb_file.run_in(tmp_path / trial)
        assert [key for row in run.history for key in row if key.startswith("valid/")] == [f"valid/{trial}"]
        assert run.exit_code == int(trial == "three")
    assert len({next((tmp_path / trial).glob("wandb/offline-run-*")).name for trial in trials}) == 3


def test_wandb_table_is_cut(tmp_path: Path) -> None:
    many = pl.DataFrame({"relation": [f"r{i}" for i in range(1500)], "count": [1] * 1500})
    loggers = instantiate("wandb", tmp_path)
    dashboard.log_summary(loggers, {}, RANKS, {"by_relation": many}, split="valid")
    tracking.finish(loggers, failed=False)
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/valid/by_relation*.json")
    stored = json.loads(table.read_text())["data"]
    assert len(stored) == 1000
    assert stored[-1] == ["r999", 1]


def test_wandb_disabled_writes_nothing(tmp_path: Path) -> None:
    loggers = instantiate("wandb", tmp_path, mode="disabled")
    tracking.log_config(loggers, {"seed": 1})
    close(loggers)
    assert not list(tmp_path.rglob("*.wandb"))


def test_csv(tmp_path: Path) -> None:
    for _ in range(2):  # a resumed run leaves the first run's file alone
        loggers = instantiate("csv", tmp_path)
        tracking.log_config(loggers, {"seed": 7})
        loggers[0].log_metrics({"train/loss": 0.5}, step=10)
        close(loggers)
    for version in ("version_0", "version_1"):
        with (tmp_path / "csv" / version / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["step"] for row in rows] == ["10", "20"]
        assert float(rows[0]["train/loss"]) == 0.5
        assert {key: float(rows[1][key]) for key in METRICS} == METRICS
        assert yaml.safe_load((tmp_path / "csv" / version / "hparams.yaml").read_text()) == {"seed": 7}


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = instantiate("tensorboard", tmp_path)
    tracking.log_config(loggers, {"model": {"dim": 8}})
    loggers[0].log_metrics({"train/loss": 0.5}, step=10)
    close(loggers)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"train/loss", "hp/mrr", *METRICS} <= set(events.Tags()["scalars"])
    assert events.Scalars("test/mrr")[0].value == np.float32(0.47)
    assert events.Scalars("test/mrr")[0].step == 20
    histogram = events.Histograms("test/log10_rank")[0].histogram_value
    assert sum(histogram.bucket) == 3
    assert yaml.safe_load((tmp_path / "tensorboard" / "hparams.yaml").read_text()) == {"model": {"dim": 8}}


def test_tensorboard_names_an_estimate_as_one(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = instantiate("tensorboard", tmp_path)
    tracking.log_config(loggers, {"model": {"dim": 8}})
    metrics = {"test/sampled/mrr": 0.47, "test/sampled/mrr_low": 0.4}
    dashboard.log_summary(loggers, metrics, RANKS, {"by_relation": BY_RELATION}, split="test/sampled")
    tracking.finish(loggers, failed=False)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {tag for tag in events.Tags()["scalars"] if tag.endswith("mrr")} == {"test/sampled/mrr", "hp/sampled/mrr"}


@pytest.mark.parametrize("package", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_its_cure(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"pip install 'kgc\[{package}\]'"):
        instantiate(package, tmp_path)
    nodes = {package: yaml.safe_load((CONF / f"{package}.yaml").read_text())}
    with pytest.raises(UserError, match=rf"pip install 'kgc\[{package}\]'"):
        tracking.several_loggers(tmp_path, use=[package], **nodes)


def test_several_are_those_that_were_asked_for(tmp_path: Path) -> None:
    nodes = {name: yaml.safe_load((CONF / f"{name}.yaml").read_text()) for name in tracking.TRACKERS}
    loggers = tracking.several_loggers(tmp_path, "a-run", use=["csv", "tensorboard", "csv"], **nodes)
    assert [type(logger).__name__ for logger in loggers] == ["CSVLogger", "TensorBoardLogger"]
    for use in ([], "csv", ["csv", "paper"]):
        with pytest.raises(UserError, match=r"logger\.use=.*must be a list of wandb, csv, tensorboard, mlflow"):
            tracking.several_loggers(tmp_path, use=use, **nodes)


def test_best_and_last() -> None:
    history = [
        {"epoch": 1, "train/loss": 3.0},
        {"epoch": 2, "train/loss": 2.0, "valid/mrr": 0.6},
        {"epoch": 3, "train/loss": 1.0, "valid/mrr": 0.5},
        {"epoch": 4, "train/loss": float("nan")},
    ]
    assert dashboard.best_and_last(history) == {
        "best/epoch": 2,
        "best/valid/mrr": 0.6,
        "last/valid/mrr": 0.5,
        "last/epoch": 4,
    }
    assert dashboard.best_and_last([]) == {}


def test_hits_curve_counts_ranks() -> None:
    curve = dashboard.hits_table(RANKS)
    for side, ranks in (("both", [1.0, 2.5, 100.0]), ("tail", [1.0, 100.0]), ("head", [2.5])):
        for row in curve.filter(pl.col("side") == side).iter_rows(named=True):
            assert row["hits"] == pytest.approx(sum(rank <= row["k"] for rank in ranks) / len(ranks))
    assert curve["k"].max() == 100


def test_no_logger(tmp_path: Path) -> None:
    assert instantiate("none", tmp_path) == []
    tracking.log_config([], {"seed": 1})
    close([])
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_any_mix_of_loggers_and_no_ranks(tmp_path: Path) -> None:
    loggers = [*instantiate("csv", tmp_path), *instantiate("wandb", tmp_path), *instantiate("tensorboard", tmp_path)]
    tracking.log_config(loggers, {"seed": 1})
    dashboard.log_summary(loggers, METRICS, RANKS.clear(), {"by_relation": BY_RELATION.clear()})
    tracking.finish(loggers, failed=True)
    run = wandb_file.run_in(tmp_path)
    assert run.summary["test/mrr"] == METRICS["test/mrr"]
    assert run.exit_code == 1


def test_other_processes_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    loggers = [*instantiate("csv", tmp_path), *instantiate("wandb", tmp_path), *instantiate("tensorboard", tmp_path)]
    tracking.log_config(loggers, {"seed": 1})
    close(loggers)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("ranks", "filled"),
    [([1.0, 1.5, 10.0], {0: 1, 11: 1, 63: 1}), ([1.0, 100.0], {0: 1, 63: 1}), ([], {})],
)
def test_histogram_counts_every_rank_once(ranks: list[float], filled: dict[int, int]) -> None:
    frame = pl.DataFrame({"realistic": ranks}, schema={"realistic": pl.Float64})
    counts, edges = dashboard._histogram(frame)
    assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == filled  # log10(1.5) · 64 = 11.27
    assert (len(edges), edges[0]) == (65, 0.0)


def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    loggers = instantiate("mlflow", tmp_path)
    tracking.log_config(loggers, {"model": {"dim": 8}})
    loggers[0].log_metrics({"valid/hits@10": 0.5}, step=10)
    close(loggers)
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'kgc'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a-run", "FINISHED")
    assert run.data.params["model/dim"] == "8"
    assert run.data.metrics["test/hits_at_1"] == METRICS["test/hits@1"]
    (point,) = client.get_metric_history(run.info.run_id, "valid/hits_at_10")
    assert (point.step, point.value) == (10, 0.5)


def test_online_the_data_set_is_an_input_of_the_run(tmp_path: Path) -> None:
    """The artifacts that W&B's client is handed, in order; offline it refuses inputs."""
    handed: list[tuple[str, object]] = []
    run = SimpleNamespace(
        id="abc",
        offline=False,
        disabled=False,
        use_artifact=lambda artifact: handed.append(("used", artifact)),
        log_artifact=lambda artifact: handed.append(("logged", artifact)),
    )
    logger = SimpleNamespace(artifacts=("best", "last", "ranks"), experiment=run, save_dir=str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    for name in ("checkpoints/best.ckpt", "ranks.parquet"):  # no last.ckpt: what is not there is left out
        (tmp_path / name).write_bytes(b"content")
    data = {"name": "my graph/1", "digest": "0123", "entities": 7}
    dashboard.log_artifacts([logger, SimpleNamespace()], tmp_path, data)
    assert [(how, a.type, a.name) for how, a in handed] == [
        ("used", "dataset", "my_graph_1"),
        ("logged", "model", "abc-best"),
        ("logged", "ranks", "abc-ranks"),
    ]
    assert handed[0][1].metadata == data
    assert list(handed[0][1].manifest.entries) == ["dataset.json"]
    assert handed[1][1].metadata == {"data": data}
    run.offline = True
    handed.clear()
    dashboard.log_artifacts([logger], tmp_path, data)
    assert [how for how, _ in handed] == ["logged", "logged"]
