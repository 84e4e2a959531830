"""The README's commands and code, run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from kgc.paths import config_dir

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (python (?:train|evaluate)\.py.*?)$(?<!\\)", re.sub(r"\\\n\s*", "", README), re.MULTILINE)
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_is_something_to_run():
    assert len(COMMANDS) >= 8
    assert len(BLOCKS) >= 4


def test_the_two_set_up_commands_stand_first():
    assert re.findall(r"^    (pip install .*)$", README, re.MULTILINE) == [
        "pip install -e . && python train.py",
        "pip install -e '.[test]' && pytest",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(command):
    words = shlex.split(command)
    name = words[1].removesuffix(".py")
    overrides = [w if "[" in w else w.split(",")[0] for w in words[2:] if not w.startswith("-")]  # of a sweep the first
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        compose(name, overrides=overrides)


def test_the_code_runs_and_says_what_it_says(capsys):
    names: dict = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    said = re.findall(r"^print\(.*\)  # (.*)$", "".join(BLOCKS), re.MULTILINE)
    assert len(said) >= 3
    assert capsys.readouterr().out.splitlines() == said


def test_the_default_job_trains_and_its_checkpoint_is_evaluated(tmp_path):
    """The default command itself, only with fewer epochs, then `evaluate.py` on what it left."""

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder = tmp_path / "a run"
    run("train.py", "trainer.max_epochs=1", f"hydra.run.dir='{folder}'")
    best = folder / "checkpoints" / "best.ckpt"
    out = run("evaluate.py", f"checkpoint='{best}'", f"hydra.run.dir='{tmp_path / 'evaluated'}'")
    assert "1,322 queries" in out
    assert {p.name for p in folder.iterdir()} >= {
        "metrics.json",
        "ranks.parquet",
        "report.html",
        "config.yaml",
        "train.log",
    }
