"""Two processes of one machine: one run, one set of files, the digits of one process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import wandb_file

from kgc.errors import UserError
from kgc.tasks import train
from kgc.tasks.launch import processes_wanted, shared_folder

WORDS = ["dataset=nations", "model.dim=8", "trainer=ddp_cpu", "trainer.val_every=1", "batch_size=100"]
LOGGERS = ["logger=[wandb,csv]", "logger.wandb.mode=offline"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of two processes by command, and how it ended."""
    folder = tmp_path_factory.mktemp("distributed")
    done = runs.process(folder, runs.script("train"), *WORDS, *LOGGERS, "trainer.max_epochs=2", "hydra.run.dir=a run")
    return SimpleNamespace(folder=folder / "a run", done=done)


def test_a_run_leaves_the_files_of_a_run(trained):
    assert trained.done.code == 0, trained.done.err
    files = {str(path.relative_to(trained.folder)) for path in trained.folder.rglob("*") if path.is_file()}
    files = {name for name in files if not name.startswith("wandb/")}
    assert files == {
        "metrics.json",
        "ranks.parquet",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "report.html",
        "train.log",
        "csv/version_0/metrics.csv",
        "csv/version_0/hparams.yaml",
    }
    assert {path.name for path in trained.folder.parent.iterdir()} == {"a run"}
    values = runs.metrics(trained.folder)
    assert values["test/num_queries"] == 402
    assert values["train/epochs"] == 2


def test_nothing_is_logged_twice(trained):
    """The only W&B run has one row an epoch, and all numbers of metrics.json."""
    run = wandb_file.run_in(trained.folder)
    assert [row["epoch"] for row in run.history if "train/loss" in row] == [1, 2]
    assert list(run.curve("valid/mrr")) == [1, 2]
    assert {key: run.summary[key] for key in runs.metrics(trained.folder)} == runs.metrics(trained.folder)
    assert run.config["trainer"]["devices"] == 2


def test_console_lines_are_not_doubled(trained):
    lines = trained.done.out.splitlines()
    assert sum(line.startswith("14 entities") for line in lines) == 1
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["1/2", "2/2"]
    assert sum(line.strip().startswith("both sides") for line in lines) == 1
    assert sum("on cpu x 2" in line for line in lines) == 1


def test_console_says_nothing_that_the_user_cannot_change(trained):
    assert trained.done.err == ""
    assert "deprecated" not in trained.done.out
    log = (trained.folder / "train.log").read_text().splitlines()
    assert [line.rstrip() for line in log] == [line.rstrip() for line in trained.done.out.splitlines()]


def test_each_process_takes_its_share_of_an_epoch(trained):
    """1,592 triples, 796 a process, 8 steps of 100."""
    content = runs.content(trained.folder / "checkpoints" / "last.ckpt")
    assert content["global_step"] == 2 * 8
    losses = [row["train/loss"] for row in content["kgc"]["history"]]
    assert losses[1] < losses[0]


def test_ranks_are_those_of_one_process(trained, tmp_path):
    checkpoint = f"checkpoint='{trained.folder}/checkpoints/best.ckpt'"
    for split in ("test", "valid"):
        alone = runs.evaluate(tmp_path / split, checkpoint, f"split={split}")
        assert runs.digits(alone) == runs.digits(runs.metrics(trained.folder), split)
    assert runs.ranks(tmp_path / "test").equals(runs.ranks(trained.folder))


def test_batch_statistics_are_one_for_both_processes(tmp_path):
    """Validation in training, whose queries both processes share, and the saved state see the same ones."""
    network = ["model=conve", "model.height=2", "model.channels=4", "model.kernel=2"]
    runs.train(tmp_path / "run", *WORDS, *network, "logger=csv", "trainer.max_epochs=1")
    row = runs.content(tmp_path / "run" / "checkpoints" / "last.ckpt")["kgc"]["history"][-1]
    alone = runs.evaluate(tmp_path / "alone", f"checkpoint='{tmp_path}/run/checkpoints/last.ckpt'", "split=valid")
    assert row["valid/mrr"] == alone["valid/mrr"]


@pytest.mark.slow
def test_evaluation_by_two_processes(trained, tmp_path):
    checkpoint = f"checkpoint='{trained.folder}/checkpoints/best.ckpt'"
    before = signal.getsignal(signal.SIGINT)
    both = runs.evaluate(tmp_path / "both", checkpoint, "trainer=ddp_cpu")
    assert runs.digits(both) == runs.digits(runs.metrics(trained.folder), "test")
    assert runs.ranks(tmp_path / "both").equals(runs.ranks(trained.folder))
    assert (tmp_path / "both" / "evaluate.log").read_text().count("14 entities") == 1
    assert signal.getsignal(signal.SIGINT) == before  # the next trial of a sweep must hear Ctrl-C


def test_a_sample_ranked_by_two_processes(trained, tmp_path):
    words = [f"checkpoint='{trained.folder}/checkpoints/best.ckpt'", "ranking.limit=50", "split=train"]
    alone = runs.evaluate(tmp_path / "alone", *words)
    both = runs.evaluate(tmp_path / "both", *words, "trainer=ddp_cpu")
    assert runs.digits(both) == runs.digits(alone)
    assert alone["train/sampled/num_queries"] == 100
    assert runs.ranks(tmp_path / "both").equals(runs.ranks(tmp_path / "alone"))


def test_a_mistake_that_one_process_meets_ends_all(tmp_path):
    """A score that is no number turns up in a batch of queries that one of them ranks; the other must not wait."""
    names = [f"e{number:03}" for number in range(200)]
    others = [
        (names[i], f"r{j}", names[(i * (j + 2) + k) % 200]) for j in range(4) for k in range(11) for i in range(200)
    ]
    lost = ("lost", "r0", "e000")  # sorted by relation, it is in the first of two batches for either end
    runs.write_splits(tmp_path / "data", train=others[:1], test=[lost, *others])
    vectors = np.random.default_rng(0).normal(size=(201, 4))
    vectors[-1] = np.nan
    np.save(tmp_path / "entities.npy", vectors)
    np.save(tmp_path / "relations.npy", vectors[:4])
    (tmp_path / "entities.txt").write_text("\n".join([*names, "lost"]))
    (tmp_path / "relations.txt").write_text("r0\nr1\nr2\nr3")
    done = runs.process(
        tmp_path,
        runs.script("evaluate"),
        *("trainer=ddp_cpu", "model=distmult", "dataset=folder", "dataset.path=data"),
        *("embeddings.entities=entities.npy", "embeddings.relations=relations.npy"),
        *("embeddings.entity_labels=entities.txt", "embeddings.relation_labels=relations.txt"),
        timeout=60,
    )
    assert "('lost', 'r0', 'e000')" in done.mistake()


def test_ctrl_c_keeps_the_state_and_a_resume_ends_the_run(tmp_path):
    """Ctrl-C reaches every process of the terminal's group."""
    path = os.pathsep.join([str(runs.REPOSITORY), str(runs.REPOSITORY / "tests")])
    process = subprocess.Popen(
        [
            sys.executable,
            runs.script("train"),
            *WORDS,
            "logger=csv",
            "trainer.max_epochs=100000",
            "trainer.patience=null",
            "hydra.run.dir=run",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    try:
        began = time.monotonic()
        while not last.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() - began < 200
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    epochs = len(runs.content(last)["kgc"]["history"])
    assert re.search(rf"^epoch {epochs}/", out, flags=re.MULTILINE), (epochs, out[-300:])
    values = runs.resume(last, "trainer.devices=1", "trainer.strategy=auto", f"trainer.max_epochs={epochs + 1}")
    assert values["train/epochs"] == epochs + 1
    assert "Traceback" not in err, err
    assert process.returncode == 130
    assert "stopped; the state is saved" in out


def test_a_resumed_run_has_the_processes_it_had(trained, tmp_path, monkeypatch):
    """The line that a stopped run says to go on with, `python train.py checkpoint=…`, names no trainer."""
    shutil.copytree(trained.folder, tmp_path / "run")
    started = []
    monkeypatch.setattr(train, "launch", lambda function, processes, *_: started.append(processes) or {})
    monkeypatch.setattr(train, "run", lambda *_: started.append(1) or {})
    runs.resume(tmp_path / "run" / "checkpoints" / "last.ckpt", "trainer.max_epochs=3")
    assert started == [2]


def test_processes_of_torchrun_share_the_folder_of_the_first(trained, tmp_path):
    """Folders are named by the second in which a process starts; these two are made to differ. Each is a machine."""
    started = []
    for rank in (1, 0):
        path = os.pathsep.join([str(runs.REPOSITORY), str(runs.REPOSITORY / "tests")])
        ranks = {"RANK": rank, "GROUP_RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "none"}
        meeting = started[0][1] if started else meeting
        words = [f"hydra.run.dir=run{rank}", f"checkpoint='{trained.folder}/checkpoints/best.ckpt'", "trainer=ddp_cpu"]
        process = subprocess.Popen(
            [sys.executable, runs.script("evaluate"), *words],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            | {k: str(v) for k, v in (ranks | meeting).items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((process, meeting))
    for process, _ in started:
        _, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["run0"]
    assert runs.digits(runs.metrics(tmp_path / "run0")) == runs.digits(runs.metrics(trained.folder), "test")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# How many processes.


def config(devices: object, accelerator: str = "cpu") -> SimpleNamespace:
    return SimpleNamespace(trainer=SimpleNamespace(devices=devices, accelerator=accelerator))


@pytest.mark.parametrize(("devices", "expected"), [(1, 1), (2, 2), (7, 7), (-1, 1), ("-1", 1), ("auto", 1)])
def test_processes_wanted_on_cpus(devices, expected, monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert processes_wanted(config(devices)) == expected


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_PROCID"])
def test_a_process_of_another_launcher_starts_no_more(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert processes_wanted(config(8)) == 1


@pytest.mark.parametrize(
    ("environment", "devices", "words"),
    [
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
            4,
            "Slurm started 1; .*tasks_per_node. to 4",
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 1, "once in a job of 4 tasks: start it with srun"),
        (
            {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            3,
            "torchrun started 2; set --nproc-per-node",
        ),
    ],
)
def test_fewer_processes_than_asked_for_are_a_mistake(environment, devices, words, monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words):
        shared_folder(config(devices), "folder")


@pytest.mark.parametrize("devices", [0, -2, "two", 1.5, None, [0, 1]])
def test_devices_that_are_no_number(devices, monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"trainer\.devices"):
        processes_wanted(config(devices))
