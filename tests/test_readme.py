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
    """Of a sweep's `key=a,b` the first, of an interval its lower end; a list in brackets stays whole."""
    word = re.sub(r"=.*interval\(([^,]*),.*", r"=\1", word)
    return re.sub(r",(?![^\[]*\]).*", "", word)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(command):
    words = shlex.split(command)
    name = words[1].removesuffix(".py")
    overrides = with_several_loggers([first_choice(w) for w in words[2:] if not w.startswith("-")])
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        compose(name, overrides=overrides)


TUTORIAL = [c for c in COMMANDS if re.search(r"hydra\.run\.dir=outputs/(seen|facts|again|predicted)$", c)]
MARKS = ("columns=[", "FILE", "task=inspect", "annotations.")
OWN = [command for command in COMMANDS if any(mark in command for mark in MARKS) and command not in TUTORIAL]


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
    for name, line in (("NAMES", "{}\tNAME\n"), ("TYPES", "{}\ttype\n"), ("NUMBERS", "{}\tsize\t1\n")):
        entities = {end for head, _, tail in splits["train"] for end in (head, tail)}
        (tmp_path / f"{name}.tsv").write_text("".join(line.format(entity) for entity in sorted(entities)))
    words = [w.replace("=FILE", f"={tmp_path}/all").replace("=DIR", f"={tmp_path}") for w in shlex.split(command)]
    words = [re.sub(r"=([A-Z]+\.tsv)$", rf"={tmp_path}/\1", word) for word in words]
    if words[1] == "train.py":
        metrics = runs.train(tmp_path / "run", *words[2:], "trainer.max_epochs=1", "model.dim=4")
        assert metrics["test/num_queries"] > 0
    else:
        metrics = runs.evaluate(tmp_path / "run", *words[2:])
        assert metrics["data/entities"] > 0


def test_there_are_such_commands():
    assert len(OWN) == 8
    assert len(TUTORIAL) == 4


def test_the_tutorial(tmp_path, capsys):
    """Its commands one after the other, on facts of Nations; only the logger, the device and the length are given."""
    facts = [row for rows in runs.bundled("nations").values() for row in rows]
    frame = pl.DataFrame(facts, schema=["subject", "predicate", "object"], orient="row").unique()
    frame.with_columns(since=1900 + pl.int_range(pl.len()) % 90).write_csv(tmp_path / "facts.csv")
    (tmp_path / "names.csv").write_text('usa,United States\nuk,"United Kingdom, the"\n')
    said = []
    for command in TUTORIAL:
        _, script, *words = shlex.split(command)
        words += ["trainer=cpu", "logger=none"]
        words += ["trainer.max_epochs=2", "trainer.val_every=1"] if script == "train.py" else []
        outcome = runs.command(capsys, tmp_path, script.removesuffix(".py"), *words)
        assert outcome.code == 0, outcome.err
        said.append(outcome.out)
    first, again = (runs.metrics(tmp_path / "outputs" / name) for name in ("facts", "again"))
    assert first["test/num_queries"] > 300
    assert runs.digits(again) == {key: value for key, value in runs.digits(first).items() if key in again}
    answers = pl.read_csv(tmp_path / "outputs" / "predicted" / "predictions.csv")
    assert set(answers["head_name"]) == {"United States"}
    assert 1 <= len(answers) <= 5
    assert {"rank", "score", "probability"} <= set(answers.columns)
    header = re.search(r"^```text\n(subject,.*)\n(usa,.*)\n(uk,.*)\n```", README, re.MULTILINE)
    assert header[1] == (tmp_path / "facts.csv").read_text().split("\n")[0]
    assert tuple(header[2].split(",")[:3]) in facts


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
