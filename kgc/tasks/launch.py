"""Several processes for one run: the config is composed once, and every process gets the same one."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from omegaconf import DictConfig

from kgc.errors import UserError

# Seconds that processes get to end by themselves when one has failed: they may wait for it in a collective call.
_GRACE = 5.0

_RUN_ID = "kgc"  # of processes that `launch` starts

# Processes that any machine may start; more than these want a core each.
_MOST = 16


def launched() -> bool:
    """Whether this is one of the processes that torchrun, Slurm or `launch` started for a run."""
    return "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ


def processes_here() -> int:
    """How many processes work on the run of this one."""
    return int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or 1) if launched() else 1


def nodes_here() -> int:
    """How many machines they are on."""
    if launched() and "LOCAL_WORLD_SIZE" in os.environ:
        return processes_here() // int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("SLURM_NNODES") or 1) if launched() else 1


def rank_here() -> int:
    """The number of this process among them."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def shared_folder(cfg: DictConfig, folder: str) -> str:
    """The run's folder, the first process's on each: its name holds the second at which a process began.

    Connects the processes that torchrun or Slurm started, as Lightning would later.

    Raises:
        UserError: they are fewer than the config asks for, or the others do not run this command.
    """
    _check_launcher(cfg)
    if processes_here() == 1 or os.environ.get("TORCHELASTIC_RUN_ID") == _RUN_ID:
        return folder
    import torch
    from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
    from lightning_fabric.utilities.distributed import _init_dist_connection

    cuda = cfg.trainer.accelerator != "cpu" and torch.cuda.is_available()
    environment = TorchElasticEnvironment() if TorchElasticEnvironment.detect() else SLURMEnvironment()
    if cuda:
        torch.cuda.set_device(environment.local_rank())
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # each process would say that it is there
    _init_dist_connection(environment, cfg.trainer.backend or ("nccl" if cuda else "gloo"))
    folders = [folder]
    torch.distributed.broadcast_object_list(folders, 0)
    if folders[0] != folder and os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)  # Hydra made it
    return folders[0]


def _check_launcher(cfg: DictConfig) -> None:
    """A run of fewer processes than asked for would pass for the one that was; one that waits for others never ends."""
    if not launched() or os.environ.get("TORCHELASTIC_RUN_ID") == _RUN_ID:
        return
    by_slurm = "LOCAL_RANK" not in os.environ
    if by_slurm and processes_here() > 1 and "SLURM_STEP_ID" not in os.environ:
        raise UserError(
            f"Slurm started this command once in a job of {processes_here()} tasks: start it with srun, once for each"
        )
    here, devices = processes_here(), cfg.trainer.devices
    if devices in (-1, "-1", "auto"):
        import torch

        cuda = cfg.trainer.accelerator in ("gpu", "auto") and torch.cuda.is_available()
        here //= nodes_here()
        devices = torch.cuda.device_count() if cuda else 1
    if isinstance(devices, int) and devices > here:
        more = "--ntasks-per-node (hydra.launcher.tasks_per_node)" if by_slurm else "--nproc-per-node"
        raise UserError(
            f"trainer.devices={cfg.trainer.devices}: {devices} processes are wanted here, and "
            f"{'Slurm' if by_slurm else 'torchrun'} started {here}; set {more} to {devices}"
        )


def processes_wanted(cfg: DictConfig) -> int:
    """How many processes this machine shall run for `cfg.trainer`; 1 in a process of torchrun or Slurm."""
    if launched():
        return 1
    devices = cfg.trainer.devices
    if devices in (-1, "-1", "auto"):
        import torch

        cuda = cfg.trainer.accelerator in ("gpu", "auto") and torch.cuda.is_available()
        return max(1, torch.cuda.device_count()) if cuda else 1
    if isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1:
        most = max(_MOST, os.cpu_count() or 1)
        if devices > most:
            raise UserError(f"trainer.devices={devices}: this machine runs at most {most} processes; lower it")
        return devices
    raise UserError(f"trainer.devices={devices}: must be a positive number, or -1 for all GPUs")


def launch(function: Callable[..., Any], processes: int, *arguments: Any) -> Any:
    """Runs `function(*arguments)` in so many processes and returns what the first of them returned.

    When one process fails the others are ended. The first Ctrl-C or SIGTERM is passed on, so that the processes can
    stop cleanly together; a second one ends them. `function` must be importable by name, arguments and results
    picklable.

    Raises:
        UserError: a process reported one.
        KeyboardInterrupt: the run was stopped by a signal.
        RuntimeError: a process failed otherwise; its own traceback is on stderr.
    """
    from lightning_fabric.plugins.environments.lightning import find_free_network_port

    context = multiprocessing.get_context("spawn")
    port = find_free_network_port()
    pipes, workers = [], []
    for rank in range(processes):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(sender, rank, processes, port, function, arguments))
        worker.start()
        sender.close()
        pipes.append(receiver)
        workers.append(worker)
    asked: list[int] = []
    grace = 0.0

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt
        for worker in workers:
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGUSR1)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        outcomes = _collect(pipes)
        grace = 0.0 if any(kind == "mistake" for kind, _ in outcomes.values()) else _GRACE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        ends = _end(workers, grace)
    for kind, value in outcomes.values():
        if kind == "mistake":
            raise UserError(value)
    if any(kind != "done" for kind, _ in outcomes.values()):
        if asked:
            raise KeyboardInterrupt
        rank = next(rank for rank, outcome in outcomes.items() if outcome[0] != "done")
        raise RuntimeError(f"process {rank} of the run failed{_how(ends[rank])}; the others were ended")
    return outcomes[0][1]


def _collect(pipes: list[Connection]) -> dict[int, tuple[str, Any]]:
    """What each process reported, until all have or one has failed."""
    outcomes: dict[int, tuple[str, Any]] = {}
    while len(outcomes) < len(pipes):
        for pipe in wait([p for rank, p in enumerate(pipes) if rank not in outcomes]):
            try:
                outcomes[pipes.index(pipe)] = pipe.recv()
            except EOFError:  # it ended without a word
                outcomes[pipes.index(pipe)] = ("failed", None)
        if any(kind != "done" for kind, _ in outcomes.values()):
            break
    return outcomes


def _how(code: int | None) -> str:
    """How a process ended that did not end by itself."""
    return f" (killed by {signal.Signals(-code).name})" if code is not None and code < 0 else ""


def _end(workers: list[Any], grace: float) -> list[int | None]:
    """Ends what is still running; returns the exit codes of those that ended by themselves."""
    deadline = time.monotonic() + grace
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    ends = [worker.exitcode for worker in workers]
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()
    return ends


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone: nobody would read its result, or stop it."""
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(
    pipe: Connection, rank: int, processes: int, port: int, function: Callable[..., Any], arguments: tuple
) -> None:
    """One process: the environment that Lightning reads as torchrun's, then the function."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": _RUN_ID,
    }
    import torch
    from pytorch_lightning.utilities import rank_zero_only

    # Lightning learnt this process's rank when it was imported, which was before.
    rank_zero_only.rank = rank
    # A terminal's Ctrl-C reaches all processes; the first one passes it on as another signal, so that it comes once,
    # and not as SIGTERM, in which Lightning's handler makes a collective call.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    try:
        pipe.send(("done", function(*arguments)))
    except UserError as error:
        pipe.send(("mistake", str(error)))
        # Its end would break the connections of processes that wait for it, each with a traceback of its own: the
        # first process ends them all.
        time.sleep(60)
    except KeyboardInterrupt:
        pipe.send(("stopped", None))
