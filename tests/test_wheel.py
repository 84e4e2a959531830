"""The wheel, installed outside the checkout: its two commands, with the configs and data that it brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import runs

ROOT = runs.REPOSITORY


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path):
    """The environment has the wheel, and the other packages of the one that runs the tests."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KGC_DATA")}

    def run(*words: str | Path, cwd: Path = tmp_path) -> str:
        done = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("kgc-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"kgc/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")} <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "kgc").rglob("*.py")} <= names
    assert not [name for name in names if name.startswith(("tests/", "conf/"))]

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run(python, "-c", "import kgc; print(kgc.__path__[0])").strip() == str(packages / "kgc")

    train, evaluate = (tmp_path / "venv" / "bin" / name for name in ("kgc-train", "kgc-evaluate"))
    words = ["dataset=nations", "model.dim=8", "trainer=cpu", "trainer.max_epochs=1", "logger=none"]
    run(train, *words, "hydra.run.dir=run")
    run(evaluate, "checkpoint=run/checkpoints/best.ckpt", "trainer=cpu", "hydra.run.dir=evaluated")
    numbers = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("run", "evaluated")]
    assert numbers[0]["test/mrr"] == numbers[1]["test/mrr"]
    assert "experiment" in run(train, "--help")


def test_the_commands_are_declared():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"kgc-train": "kgc.cli:train", "kgc-evaluate": "kgc.cli:evaluate"}
