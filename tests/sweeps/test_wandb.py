"""Sweeps of W&B: trials as its agent starts them, and trials of Hydra's sweeps, in the files that the client writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import runs
import wandb_file
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args
from wandb.sdk.lib.config_util import save_config_file_from_dict

from kgc.paths import config_dir

QUICK = ["dataset=nations", "trainer=cpu", "trainer.max_epochs=2", "trainer.val_every=1", "sampler.num_negatives=4"]


def agent(folder: Path, name: str, parameters: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a trial of `conf/sweep/NAME.yaml` as `wandb agent` does (`_command_run` in wandb/wandb_agent.py): the same
    macros, environment and file of parameters.

    Args:
        parameters: what the server has chosen.
        words: put into the file's command, as a user would edit it.
    """
    sweep = yaml.safe_load((config_dir() / "sweep" / f"{name}.yaml").read_text())
    sweep["command"][-1:-1] = words
    chosen = {key: {"value": value} for key, value in parameters.items()}
    path = folder / "wandb" / "sweep-abc123" / "config-run1.yaml"
    save_config_file_from_dict(str(path), chosen)
    macros = create_sweep_command_args({"args": chosen})
    macros |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
    command: list[str] = []
    for part in create_sweep_command(sweep["command"]):
        command += macros.get(part[2:-1], []) if part.startswith("${") else [part]
    (folder / "train.py").write_text((runs.REPOSITORY / "train.py").read_text())
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(runs.REPOSITORY),
            "WANDB_MODE": "offline",
            "WANDB_SWEEP_ID": "abc123",
            "WANDB_RUN_ID": "run1",
            "WANDB_SWEEP_PARAM_PATH": str(path),
            "WANDB_DIR": str(folder),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_trial_of_an_agent(tmp_path):
    """The grid's command line: parameters that are groups, and the whole resolved config beside them."""
    done = agent(tmp_path, "grid", {"model": "distmult", "sampler": "bernoulli"}, "model.dim=8", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "outputs").iterdir()
    run = wandb_file.run_in(folder)
    assert (run.id, run.name, run.group, run.exit_code) == ("run1", folder.name, "abc123", 0)
    assert folder.name.endswith("_distmult_nations")
    assert run.tags == ["distmult", "nations", "bernoulli"]
    # What the sweep chose has kept its name and value, or its server would choose it again and again.
    assert (run.config["model"], run.config["sampler"]) == ("distmult", "bernoulli")
    resolved = yaml.safe_load((folder / "config.yaml").read_text())
    for key, value in leaves(resolved).items():
        if key not in ("model", "sampler"):
            assert run.config[key] == value, key
    assert run.config["model.dim"] == 8
    values = runs.metrics(folder)
    for key in ("valid/mrr", "test/mrr", "test/hits@10"):
        assert run.summary[key] == values[key]
    assert sum("valid/mrr" in row for row in run.history) >= 2  # Hyperband counts them


def test_a_trial_of_an_agent_that_fails_is_closed_as_failed(tmp_path):
    """It diverges in training, after the run was opened: exit code 2, one line, and a closed run."""
    words = ["model.dim=8", *QUICK, "optimizer=sgd", "model=distmult"]
    done = agent(tmp_path, "random", {"optimizer.lr": 1e30, "seed": 3}, *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    (folder,) = (tmp_path / "outputs").iterdir()
    run = wandb_file.run_in(folder)
    assert run.exit_code == 1
    assert (run.config["optimizer.lr"], run.config["seed"]) == (1e30, 3)


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    return {k: v for name, child in node.items() for k, v in leaves(child, f"{prefix}.{name}".lstrip(".")).items()}


def test_trials_of_a_sweep_of_hydras(tmp_path, capsys, monkeypatch):
    """One run each, closed, named by its folder, grouped by the sweep; a failing one is closed as failed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = ["-m", "hydra.sweep.dir=my sweep", "model=distmult", "model.dim=8", *QUICK, "optimizer=sgd"]
    done = runs.command(capsys, tmp_path, "train", *words, "optimizer.lr=0.1,1e30", "logger.tags=[mine]")
    assert done.code == 2
    for number, exit_code in ((0, 0), (1, 1)):
        folder = tmp_path / "my sweep" / f"{number}_distmult_nations"
        run = wandb_file.run_in(folder)
        assert (run.name, run.group, run.exit_code) == (folder.name, "my sweep", exit_code)
        assert run.tags == ["mine", "distmult", "nations", "adversarial"]
        assert run.config["optimizer"]["lr"] == (0.1, 1e30)[number]
        assert run.config["model"]["dim"] == 8
