"""What befalls runs: killed at random moments, a checkpoint cut off, a clock set back, two runs in one folder."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import runs
from test_resume import assert_same_run, last_of

from kgc.errors import UserError
from kgc.tasks import output

WORDS = ["trainer.max_epochs=4", "model=transe", "sampler=bernoulli", "optimizer=sgd", "optimizer.momentum=0.9"]


@pytest.mark.parametrize("number", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_random_moments(number, tmp_path):
    """SIGKILL after a random share of the time that a run takes; the same command, or its resume, ends as it would."""
    runs.train(tmp_path / "straight", *WORDS)
    script = Path(__file__).with_name("killing.py")
    chain = runs.process(tmp_path, script, tmp_path / "kills", f"kills={number}", *WORDS, timeout=1800)
    assert chain.code == 0, chain.err
    assert int(chain.out) >= number * 2 // 3  # the others had ended by then
    for run in range(number):
        assert_same_run(tmp_path / "kills" / str(run), tmp_path / "straight")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_checkpoint_that_is_cut_off_falls_back_to_the_one_before(share, tmp_path, capsys):
    runs.train(tmp_path / "straight", *WORDS)
    runs.train(tmp_path / "run", *WORDS[1:], "trainer.max_epochs=3")
    last, best = last_of(tmp_path / "run"), tmp_path / "run" / "checkpoints" / "best.ckpt"
    whole = last.read_bytes()
    last.write_bytes(whole[: int(len(whole) * share)])
    said = runs.command(capsys, tmp_path, "evaluate", f"checkpoint={last}", "trainer=cpu").mistake()
    assert said.startswith(f"checkpoint={last}: not a complete checkpoint of kgc (")  # other weights are other numbers
    runs.resume(last, "trainer.max_epochs=4")
    log = (tmp_path / "run" / "train.log").read_text()
    warning = rf"warning: checkpoint={re.escape(str(last))}: not a complete checkpoint of kgc \(.*\); going on from "
    assert re.search(rf"{warning}{re.escape(str(best))}, of epoch [123]\n", log), log
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_without_another_one_it_is_refused(tmp_path):
    runs.train(tmp_path / "run", *WORDS, "test=false")
    last, best = last_of(tmp_path / "run"), tmp_path / "run" / "checkpoints" / "best.ckpt"
    for path in (last, best):
        path.write_bytes(path.read_bytes()[:1000])
    for path in (last, best):
        with pytest.raises(UserError, match=f"^checkpoint={re.escape(str(path))}: not a complete checkpoint"):
            runs.resume(path)
    best.unlink()
    with pytest.raises(UserError, match=f"^checkpoint={re.escape(str(last))}: not a complete checkpoint"):
        runs.resume(last)


def test_a_clock_that_is_set_back(tmp_path, monkeypatch):
    """An hour at every look: nothing is measured by the time of day, and nothing depends on the age of a file."""
    runs.train(tmp_path / "straight", *WORDS)
    calls = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600 * next(calls))
    runs.train(tmp_path / "run", *WORDS[1:], "trainer.max_epochs=2")
    os.utime(last_of(tmp_path / "run"), (0, 0))  # as if it were older than all that went before
    metrics = runs.resume(last_of(tmp_path / "run"), "trainer.max_epochs=4")
    assert 0 < metrics["train/seconds"] < 600
    assert 0 <= metrics["test/seconds"] < 600
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_two_runs_in_one_folder_are_refused(tmp_path):
    """While one is at work, neither a new one, nor its resume, nor an evaluation may write there."""
    runs.train(tmp_path / "run", *WORDS, "test=false")
    last = last_of(tmp_path / "run")
    (tmp_path / "other").mkdir()
    said = "another run is writing to {}; choose another hydra.run.dir"
    held = [output._claimed(tmp_path / name) for name in ("run", "other")]
    try:
        with pytest.raises(UserError) as resumed:
            runs.resume(last, "trainer.max_epochs=5")
        with pytest.raises(UserError) as begun:
            runs.train(tmp_path / "other", *WORDS)
        with pytest.raises(UserError) as evaluated:
            runs.evaluate(tmp_path / "other", f"checkpoint={last}")
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert str(resumed.value) == said.format(tmp_path / "run")
    assert str(begun.value) == str(evaluated.value) == said.format(tmp_path / "other")
    assert not (tmp_path / "other" / "checkpoints").exists()
    assert runs.resume(last, "trainer.max_epochs=5")["train/epochs"] == 5
