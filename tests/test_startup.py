"""What a start loads: nothing heavy before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys

import runs

HEAVY = ("torch", "polars", "numpy", "pytorch_lightning", "wandb", "matplotlib", "scipy", "pandas")


def test_help_loads_nothing_heavy_and_takes_less_than_two_seconds_of_a_processor():
    path = os.pathsep.join([str(runs.REPOSITORY), os.environ.get("PYTHONPATH", "")])
    started = subprocess.Popen(
        [sys.executable, "-X", "importtime", runs.script("train"), "--help"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started.stderr:
        loaded = {line.rsplit("|", 1)[-1].strip() for line in started.stderr}
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0
    assert "hydra" in loaded
    assert not loaded & set(HEAVY)
    assert used.ru_utime + used.ru_stime < 2
