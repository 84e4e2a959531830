"""Runs in Slurm's jobs, with stand-ins for `srun`, `sbatch` and `scontrol` on the path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs
from hydra import compose, initialize_config_dir

from kgc import cli, cluster
from kgc.paths import config_dir
from kgc.tasks.launch import nodes_here

# Starts what follows its own options as so many tasks, and hands signals on to them, as srun does.
SRUN = """
import os, signal, subprocess, sys
words = sys.argv[1:]
number = int(os.environ.get("FAKE_TASKS", "1"))
while words and not words[0].startswith("/"):
    words.pop(0)
    if words and words[0].endswith("_log.out") or words and words[0].endswith("_log.err"):
        words.pop(0)
tasks = []
for rank in range(number):
    own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_NTASKS": number,
           "SLURM_NTASKS_PER_NODE": number, "SLURM_NNODES": 1, "SLURM_NODELIST": "127.0.0.1",
           "SLURM_STEP_ID": 0, "MASTER_ADDR": "127.0.0.1"}
    environment = os.environ | {name: str(value) for name, value in own.items()}
    tasks.append(subprocess.Popen(words, env=environment))
def hand_on(number, frame):
    for task in tasks:
        task.send_signal(number)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, hand_on)
open(os.environ["FAKE_LOG"] + ".started", "w").write(str(os.getpid()))
sys.exit(max(abs(task.wait()) for task in tasks))
"""

# Writes down what it is called with; says the state that the test wants.
SCONTROL = """
import os, sys
with open(os.environ["FAKE_LOG"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "show":
    print("JobId=4100 JobName=kgc JobState=" + os.environ.get("FAKE_STATE", "RUNNING") + " Reason=None")
"""

# Runs the jobs of a script one after the other, once it has said their number.
SBATCH = """
import os, re, subprocess, sys
script = open(sys.argv[-1]).read()
with open(os.environ["FAKE_LOG"], "a") as file:
    file.write(script)
copy = os.environ["FAKE_LOG"] + ".sh"  # the file is moved away when its job has a number
open(copy, "w").write(script)
print("Submitted batch job 4100", flush=True)
if os.fork():
    os._exit(0)
os.setsid()
for descriptor in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
array = re.search(r"^#SBATCH --array=(\\d+)-(\\d+)", script, re.M)
for task in range(int(array[1]), int(array[2]) + 1) if array else [None]:
    own = {"SLURM_JOB_ID": "4100", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "127.0.0.1"}
    if task is not None:
        own |= {"SLURM_ARRAY_JOB_ID": "4100", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_JOB_ID": str(4100 + task)}
    subprocess.run(["bash", copy], env=os.environ | own)
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """The file in which the stand-ins write down what they were asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH), ("sacct", "")):
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "asked"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(runs.REPOSITORY), str(runs.REPOSITORY / "tests")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


@pytest.fixture
def job(slurm, monkeypatch) -> Path:
    """This process is the task of a job."""
    for name, value in {"JOB_ID": "4100", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "NTASKS": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return slurm


def asked(log: Path) -> list[str]:
    return log.read_text().splitlines()


def test_outside_of_a_job_there_is_none(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM", "TORCHELASTIC", "SUBMITIT"))]:
        monkeypatch.delenv(name)
    assert not cluster.in_job()
    assert not cluster.was_requeued()
    assert nodes_here() == 1
    assert cluster.stop_signals() == []


def test_what_slurm_and_torchrun_say(monkeypatch, job):
    assert cluster.in_job()
    assert cluster.stop_signals() == [signal.SIGUSR1]
    monkeypatch.setenv("SLURM_NNODES", "3")
    assert nodes_here() == 3
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert not cluster.was_requeued()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert cluster.was_requeued()
    assert cluster.job_id() == "4100"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4099")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    assert cluster.job_id() == "4099_7"
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    assert cluster.stop_signals() == [signal.SIGUSR1, signal.SIGUSR2]
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name)
    for name, value in (("LOCAL_RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert nodes_here() == 2


def test_what_goes_back_into_the_queue(monkeypatch, job):
    assert cluster.requeue(signal.SIGINT, {}) == "job 4100 stays ended: it was stopped by hand"
    assert cluster.requeue(signal.SIGUSR1, {}) == "job 4100 is back in the queue and goes on from there"
    assert asked(job) == ["requeue 4100"]
    assert "back in the queue" in cluster.requeue(signal.SIGTERM, {})
    assert asked(job)[1:] == ["show job -o 4100", "requeue 4100"]
    monkeypatch.setenv("FAKE_STATE", "CANCELLED+")
    assert cluster.requeue(signal.SIGTERM, {}) == "job 4100 was cancelled"
    assert asked(job)[3:] == ["show job -o 4100"]
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    called = []
    handlers = {signal.SIGUSR2: lambda number, frame: called.append(number)}
    assert cluster.requeue(signal.SIGUSR2, handlers) == "job 4100 was given back to its sweep"
    assert called == [signal.SIGUSR2]
    assert len(asked(job)) == 4


def test_without_scontrol_a_line_says_so(monkeypatch, job, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "warning: job 4100 could not be put back into the queue (there is no scontrol)"
    assert cluster.requeue(signal.SIGUSR1, {}) == said


class Signals:
    """Sends this process a signal at the end of a step."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch, step: int = 10):
        from kgc.module import KGEModule

        loss = KGEModule.training_step

        def training_step(module, index, batch_idx):
            if module.trainer.global_step == step:
                os.kill(os.getpid(), number)
            return loss(module, index, batch_idx)

        monkeypatch.setattr(KGEModule, "training_step", training_step)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_saves_and_requeues_and_the_second_start_goes_on(number, job, tmp_path, monkeypatch):
    before = signal.getsignal(number)
    straight = runs.train(tmp_path / "straight")
    with pytest.MonkeyPatch.context() as patch:
        Signals(number, patch)
        with pytest.raises(KeyboardInterrupt):
            runs.train(tmp_path / "run")
    assert signal.getsignal(number) == before
    assert asked(job)[-1] == "requeue 4100"
    assert "job 4100 is back in the queue" in (tmp_path / "run" / "train.log").read_text()
    assert runs.content(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 11
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    again = runs.train(tmp_path / "run")  # the same command
    assert runs.digits(again, "test") == runs.digits(straight, "test")
    last = (folder / "checkpoints" / "last.ckpt" for folder in (tmp_path / "run", tmp_path / "straight"))
    first, second = map(runs.trained, last)
    runs.assert_same(first["weights"], second["weights"])
    assert again["train/epochs"] == straight["train/epochs"]


def test_a_job_that_shall_not_come_back(job, tmp_path, monkeypatch):
    Signals(signal.SIGUSR1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "run", "trainer.requeue=false")
    assert asked(job) == []
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_a_cancelled_job_stays_ended(job, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STATE", "CANCELLED")
    Signals(signal.SIGTERM, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "run")
    assert asked(job) == ["show job -o 4100"]


@pytest.mark.slow
def test_two_tasks_of_srun_stop_together_and_go_on(slurm, tmp_path, monkeypatch):
    """Within an epoch of some 400 steps, by USR1, then by the same command as Slurm starts it again."""
    command = [
        *("srun", "--ntasks-per-node=2", sys.executable, runs.script("train"), "dataset=umls", "model=distmult"),
        *("model.dim=8", "sampler.num_negatives=2", "batch_size=4", "trainer=ddp_cpu", "trainer.max_epochs=2"),
        *("trainer.val_every=2", "logger=none", "hydra.run.dir=run"),
    ]
    monkeypatch.setenv("FAKE_TASKS", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "4100")
    log, started = tmp_path / "run" / "train.log", Path(f"{slurm}.started")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 240
        while not (log.exists() and "run  " in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.2)
            assert process.poll() is None, process.communicate()[0]
        time.sleep(5)
        os.kill(int(started.read_text()), signal.SIGUSR1)
        out = process.communicate(timeout=240)[0]
    finally:
        process.kill()
    assert "job 4100 is back in the queue" in out, out
    assert asked(slurm) == ["requeue 4100"]
    saved = runs.content(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert 0 < saved["global_step"] < 2 * 652
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.metrics(tmp_path / "run")["train/epochs"] == 2


def test_the_trials_of_a_sweep_are_jobs(slurm, tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the launcher is not installed")
    words = [w for w in runs.TINY if not w.startswith(("model.dim", "trainer.max_epochs"))]
    done = runs.process(
        tmp_path,
        *(runs.script("train"), "-m", "hydra/launcher=slurm", "hydra.launcher.partition=gpu", "hydra.sweep.dir=sweep"),
        *("hydra.launcher.timeout_min=30", *words, "trainer.max_epochs=1", "model.dim=4,6"),
        timeout=1200,
    )
    assert done.code == 0, done.err
    folders = sorted(path for path in (tmp_path / "sweep").iterdir() if path.name[0] in "01")
    assert [path.name for path in folders] == ["0_rotate_nations", "1_rotate_nations"]
    assert all(runs.metrics(folder)["test/num_queries"] == 402 for folder in folders)
    script = slurm.read_text()
    for line in ("--array=0-1%2", "--partition=gpu", "--time=30", "--signal=USR2@120", "--cpus-per-task=4"):
        assert f"#SBATCH {line}" in script, script


def test_the_config_of_the_launcher():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="the launcher is not installed")
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=["hydra/launcher=slurm"], return_hydra_config=True)
    launcher = cfg.hydra.launcher
    assert launcher._target_ == "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
    assert (launcher.max_num_timeout, launcher.signal_delay_s, launcher.array_parallelism) == (100, 120, 16)


def test_without_the_launcher_one_line_says_how_to_get_it():
    error = Exception("In 'hydra/launcher/slurm': Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options")
    assert cli._config_message(error).endswith("need Hydra's launcher for it: pip install 'kgc[slurm]'")
