"""The README's commands and code, run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import runs
from hydra import compose, initialize_config_dir

from kgc.cli import with_several_loggers
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


def first_choice(word: str) -> str:
    """Of a sweep's `key=a,b` the first; a list in brackets stays whole."""
    return re.sub(r",(?![^\[]*\]).*", "", word)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(command):
    words = shlex.split(command)
    name = words[1].removesuffix(".py")
    overrides = with_several_loggers([first_choice(w) for w in words[2:] if not w.startswith("-")])
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        compose(name, overrides=overrides)


OWN = [command for command in COMMANDS if "columns=[" in command or "FILE" in command or "task=inspect" in command]


@pytest.mark.parametrize("command", OWN)
def test_commands_for_data_of_ones_own_run(command, tmp_path):
    """DIR and FILE are of UMLS, with columns subject, predicate, object, part and year where names are asked for."""
    splits = {split: rows[:400] for split, rows in runs.bundled("umls").items()}
    frames = {
        split: pl.DataFrame(rows, schema=["subject", "predicate", "object"], orient="row").with_columns(
            part=pl.lit(split), year=pl.int_range(pl.len()) % 30 + 1990
        )
        for split, rows in splits.items()
    }
    whole = pl.concat(frames.values())
    whole.write_csv(tmp_path / "all.csv")
    whole.select(whole.columns[:3]).write_csv(tmp_path / "all.tsv", separator="\t", include_header=False)
    names = dict(zip(whole.columns, ["head", "relation", "tail"], strict=False))
    whole.rename(names).write_parquet(tmp_path / "all.parquet")
    for split, frame in frames.items():
        frame.write_csv(tmp_path / f"{split}.csv", include_header="columns=[" in command)
        if "columns=[" not in command:
            frame.select(frame.columns[:3]).write_csv(tmp_path / f"{split}.csv", include_header=False)
    words = [w.replace("=FILE", f"={tmp_path}/all").replace("=DIR", f"={tmp_path}") for w in shlex.split(command)]
    if words[1] == "train.py":
        metrics = runs.train(tmp_path / "run", *words[2:], "trainer.max_epochs=1", "model.dim=4")
        assert metrics["test/num_queries"] > 0
    else:
        metrics = runs.evaluate(tmp_path / "run", *words[2:])
        assert metrics["data/entities"] > 0


def test_there_are_such_commands():
    assert len(OWN) == 6


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
