"""`wandb sweep`, `wandb agent` and `wandb sync` themselves, with a stand-in for their server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import runs
import wandb_server
import yaml

from kgc.paths import config_dir

QUICK = ["model=distmult", "model.dim=8", "optimizer=sgd", "trainer=cpu", "trainer.max_epochs=2", "trainer.val_every=1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `train.py` and a sweep file whose command has been edited for quick trials."""
    (tmp_path / "train.py").write_text((runs.REPOSITORY / "train.py").read_text())
    sweep = yaml.safe_load((config_dir() / "sweep" / "random.yaml").read_text())
    sweep["command"] = [word.replace("dataset=umls", "dataset=nations") for word in sweep["command"]]
    sweep["command"][-1:-1] = QUICK  # of two words for a key the last counts
    (tmp_path / "quick.yaml").write_text(yaml.safe_dump(sweep))
    return tmp_path


def wandb(server: wandb_server.Server, folder: Path, *words: str) -> str:
    """Runs W&B's command line as a user with a key, in an empty home; returns what it printed."""
    (folder / "home").mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    environment |= {
        "HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(runs.REPOSITORY),
        "WANDB_API_KEY": "a" * 40,
        "WANDB_BASE_URL": server.url,
        "WANDB_ERROR_REPORTING": "false",
    }
    command = [sys.executable, "-m", "wandb", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_sweep_and_agent(folder):
    """Two trials, one of which diverges: both runs are named, filed and closed, with the server's parameters."""
    choices = [
        {"optimizer.lr": 0.01, "batch_size": 512, "sampler": "bernoulli", "sampler.num_negatives": 8, "seed": 3},
        {"optimizer.lr": 1e30, "batch_size": 512, "sampler": "uniform", "sampler.num_negatives": 8, "seed": 4},
    ]
    with wandb_server.serving(choices) as server:
        said = wandb(server, folder, "sweep", "--project", "kgc", "quick.yaml")
        assert re.search(r"Run sweep agent with: wandb agent somebody/kgc/sweep0", re.sub(r"\x1b\[[\d;]*m", "", said))
        assert yaml.safe_load(server.sweeps["sweep0"])["early_terminate"]["type"] == "hyperband"
        wandb(server, folder, "agent", "somebody/kgc/sweep0")
    assert set(server.runs) == {"run0", "run1"}
    good, bad = server.runs["run0"], server.runs["run1"]
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert (good.about["sweep"], good.about["groupName"]) == ("sweep0", "sweep0")
    assert good.about["tags"] == ["distmult", "nations", "bernoulli"]
    home = folder / "outputs" / good.about["displayName"]
    values = runs.metrics(home)
    assert good.summary["valid/mrr"] == values["valid/mrr"]
    assert good.summary["test/mrr"] == values["test/mrr"]
    assert sum("valid/mrr" in row for row in good.history) >= 2
    for name, chosen in zip(("run0", "run1"), choices, strict=True):
        config = server.runs[name].config
        assert {key: config[key] for key in chosen} == chosen
        assert config["model.dim"] == 8


def test_sync_of_an_offline_run(folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = runs.process(folder, "train.py", "dataset=nations", "hydra.run.dir=run", *QUICK)
    assert (done.code, done.err) == (0, "")
    (offline,) = (folder / "run" / "wandb").glob("offline-run-*")
    with wandb_server.serving() as server:
        wandb(server, folder, "sync", str(offline))
    (run,) = server.runs.values()
    assert run.about["displayName"] == "run"
    assert run.exit_code == 0
    assert run.summary["test/mrr"] == runs.metrics(folder / "run")["test/mrr"]
    assert run.config["model"]["dim"] == 8
