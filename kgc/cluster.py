"""What a run knows of the cluster it runs on: Slurm's jobs, how they are told to stop, and how they go on.

A job that is to be pre-empted, or whose time is up, gets a signal: SIGTERM, or what `sbatch --signal=USR1@120` asked
for. A run then saves its state and puts the job back into the queue; the job's second start, which Slurm counts in
`SLURM_RESTART_COUNT`, goes on from the state.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

_SECONDS = 60.0  # that `scontrol` may take


def in_job() -> bool:
    """Whether this is a process of a Slurm job."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_PROCID" in os.environ


def in_submitit() -> bool:
    """Whether Hydra's launcher submitted this process as a trial of a sweep."""
    return "SUBMITIT_EXECUTOR" in os.environ


def stop_signals() -> list[signal.Signals]:
    """The signals, besides Ctrl-C and SIGTERM, that ask a run to stop: those of a cluster."""
    if not in_job():
        return []
    found = [signal.SIGUSR1]
    if in_submitit():
        found.append(_submitit_signal())
    return list(dict.fromkeys(found))


def was_requeued() -> bool:
    """Whether this job was started before, and put back into the queue."""
    return in_job() and int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0


def job_id() -> str:
    """The job's id as `scontrol` takes it; that of an array's task is `ARRAY_TASK`."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def requeue(number: int, handlers: Mapping[int, Callable[..., Any] | int | None]) -> str:
    """Puts this job back into the queue after a signal, and returns what was done, in words.

    Args:
        number: the signal. After SIGTERM a job stays ended that its user cancelled.
        handlers: what was to be called at signals before the run took them over: the launcher of a sweep has one there
            that submits the trial again, which ends this process.
    """
    if number == signal.SIGINT:
        return f"job {job_id()} stays ended: it was stopped by hand"
    if number == signal.SIGTERM and _state().startswith("CANCELLED"):
        return f"job {job_id()} was cancelled"
    if in_submitit() and callable(again := handlers.get(_submitit_signal())):
        again(_submitit_signal(), None)
        return f"job {job_id()} was given back to its sweep"
    done = _scontrol("requeue", job_id())
    if done is None or done.returncode:
        reason = "there is no scontrol" if done is None else done.stderr.strip() or f"exit code {done.returncode}"
        return f"warning: job {job_id()} could not be put back into the queue ({reason})"
    return f"job {job_id()} is back in the queue and goes on from there"


def _state() -> str:
    """The job's state as Slurm has it, such as RUNNING, PREEMPTED or CANCELLED; nothing where it does not say."""
    done = _scontrol("show", "job", "-o", job_id())
    words = done.stdout.split() if done is not None and not done.returncode else []
    return next((word.removeprefix("JobState=") for word in words if word.startswith("JobState=")), "")


def _scontrol(*words: str) -> subprocess.CompletedProcess[str] | None:
    if shutil.which("scontrol") is None:
        return None
    try:
        return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _submitit_signal() -> signal.Signals:
    return getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}", signal.SIGUSR2)
