"""Runs of several processes, forked from a server that has everything imported: a process costs what its work costs.

    python sharded_work.py SCENARIO FOLDER

leaves runs in FOLDER, and what else the tests of the scenario want to know in FOLDER/found.json.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import runs
import torch
import torch.distributed.tensor
from forks import ended
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from kgc.callbacks import CheckpointFiles
from kgc.checkpoint_folder import read_folder
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.objectives import NegativeSampling
from kgc.tasks import link_prediction, train
from kgc.tasks.consolidate import consolidate

# 7 steps an epoch.
WORDS = ["trainer.max_epochs=8", "trainer.val_every=4", "trainer.patience=null", "sampler=adversarial", "test=false"]
SHARDED = ["trainer=sharded_cpu", "trainer.devices=2"]
LAST = Path("checkpoints", "last.ckpt")
PRELOADED = [
    "runs",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "kgc.tasks.train",
    "kgc.tasks.evaluate",
]
FORKS = multiprocessing.get_context("forkserver")


def follow(folder: Path) -> dict[str, Any]:
    """Trainings of the same steps by one and by several processes, gone on with in other forms, and their ranks."""
    one, two = folder / "one", folder / "two"
    runs.train(one, *WORDS)
    runs.train(two, *WORDS, *SHARDED)
    consolidate(two / LAST, folder / "whole" / LAST)
    shutil.copytree(two, folder / "grown")
    shutil.copytree(one, folder / "cut")
    shutil.copytree(two, folder / "shrunk")
    more = "trainer.max_epochs=9"
    runs.resume(one / LAST, more, run_dir=folder / "on")
    alone = ["trainer=cpu", "trainer.devices=1"]
    runs.resume(folder / "whole" / LAST, more, *alone)
    runs.resume(folder / "shrunk" / LAST, more, *alone)  # a folder gives way to a file
    runs.resume(folder / "grown" / LAST, more, "trainer.devices=3")
    runs.resume(folder / "cut" / LAST, more, *SHARDED)  # a file gives way to a folder
    clipped = [*WORDS, "trainer.max_epochs=2", "trainer.gradient_clip=0.05", "trainer.accumulate_grad_batches=2"]
    runs.train(folder / "groups", *clipped, *SHARDED, "trainer.devices=4", "trainer.shards=2")
    runs.train(folder / "ddp", *clipped, "trainer=ddp_cpu")
    sparse = ["optimizer=adagrad", "optimizer.sparse=true", "trainer.max_epochs=1"]
    runs.train(folder / "sparse", *WORDS, *SHARDED, *sparse)
    runs.train(folder / "sparse one", *WORDS, *sparse)
    return {"refused": refused(folder)}


def refused(folder: Path) -> dict[str, str]:
    """What processes that share a table refuse, and how."""
    wrong = {
        "encoder": ["model=rgcn", "objective=one_vs_all"],
        "paths": ["model=nbfnet", "objective=one_vs_all"],
        "batch": ["trainer.auto_batch=true"],
        "shards": ["trainer.shards=2", "trainer.devices=3"],
        "few": ["trainer.devices=8"],
    }
    found = {}
    for name, words in wrong.items():
        try:
            runs.train(folder / name, *WORDS, *SHARDED, *words)
        except UserError as error:
            found[name] = str(error)
    return found


def evaluate(folder: Path) -> dict[str, Any]:
    """Ranks of one checkpoint by 1 to 4 processes in both forms."""
    words = ["model=complex", "objective=one_vs_all", "trainer.max_epochs=1", "test=false"]
    runs.train(folder / "run", *words, *SHARDED)
    best = f"checkpoint='{folder}/run/checkpoints/best.ckpt'"
    runs.write_splits(
        folder / "little", train=runs.bundled("nations")["train"], test=runs.bundled("nations")["test"][:1]
    )
    little = ["dataset=folder", f"dataset.path='{folder}/little'"]
    for name, more in (("", []), ("little ", little)):
        runs.evaluate(folder / f"{name}alone", best, *more)
        for processes in (2, 3, 4) if not name else (4,):
            for form in ("ddp", "sharded"):
                words = [f"trainer={form}_cpu", f"trainer.devices={processes}"]
                runs.evaluate(folder / f"{name}{form} {processes}", best, *more, *words)
    runs.evaluate(folder / "groups", best, "trainer=sharded_cpu", "trainer.devices=4", "trainer.shards=2")
    runs.evaluate(folder / "block", best, "ranking.precision=block", "ranking.block=16")
    more = ["trainer=sharded_cpu", "trainer.devices=3"]
    runs.evaluate(folder / "block 3", best, "ranking.precision=block", "ranking.block=16", *more)
    vectors = vectors_of(folder / "run" / "checkpoints" / "best.ckpt", folder / "vectors")
    runs.evaluate(folder / "vectors 1", *vectors)
    runs.evaluate(folder / "vectors 3", *vectors, *more)
    return {}


def vectors_of(checkpoint: Path, folder: Path) -> list[str]:
    """The words that evaluate the vectors of a checkpoint as if they came from elsewhere."""
    folder.mkdir()
    content = read_folder(checkpoint)
    words = ["model=complex", "dataset=nations"]
    for name in ("entity", "relation"):
        several = {"entity": "entities", "relation": "relations"}[name]
        np.save(folder / f"{several}.npy", content["state_dict"][f"model.{name}.weight"].numpy())
        (folder / f"{several}.txt").write_text("\n".join(content["kgc"][several]))
        words += [
            f"embeddings.{several}='{folder}/{several}.npy'",
            f"embeddings.{name}_labels='{folder}/{several}.txt'",
        ]
    return words


# Where a process is killed: (class, method), which of its calls is the last, and in which process.
Death = tuple[type, str, int, int]


def work(task: str, death: Death | None, *arguments: Any) -> Any:
    """One process of a run, which may die."""
    run, place = RUNS[task]
    torch.set_num_threads(1)
    train.write_run = link_prediction.write_run = write_little
    if death is not None:
        owner, name, number, rank = death
        original = getattr(owner, name)
        calls = []

        def method(*arguments: Any, **options: Any) -> Any:
            calls.append(None)
            if len(calls) == number and os.environ["RANK"] == str(rank):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        setattr(owner, name, method)
    with open(f"{arguments[place]}.pids", "a") as file:
        file.write(f"{os.getpid()}\n")
    return run(*arguments)


# What a process of a task runs, and which of its arguments names the folder.
RUNS = {"train": (train.run, 2), "evaluate": (link_prediction.run, 1)}


def dying(death: Death | None) -> None:
    """The runs that follow die so, or not at all."""
    train.run, link_prediction.run = (functools.partial(work, task, death) for task in RUNS)


def killed(start: Callable[[], Any], death: Death) -> dict[str, Any]:
    """What a run says of which a process is killed, and how many seconds it went on."""
    dying(death)
    began = time.monotonic()
    try:
        start()
        return {"said": None}
    except RuntimeError as error:
        return {"said": str(error), "seconds": time.monotonic() - began}
    finally:
        dying(None)


def kill(folder: Path) -> dict[str, Any]:
    """Runs of which one process is killed, and what goes on from them."""
    sizes = [*WORDS, "trainer.val_every=1", "trainer.max_epochs=3"]
    found: dict[str, Any] = {"parent": parent_killed(folder / "orphans", [*sizes, *SHARDED, "trainer.max_epochs=9999"])}
    runs.train(folder / "sharded", *sizes, *SHARDED)
    ddp = ["trainer=ddp_cpu"]
    runs.train(folder / "ddp", *sizes, *ddp)
    cases = {
        "training": (SHARDED, (NegativeSampling, "loss", 17, 1)),
        "validation": (SHARDED, (KGEModule, "rank_step", 4, 1)),
        "writing": (SHARDED, (FileSystemWriter, "write_data", 4, 1)),  # two states an epoch
        "ddp training": (ddp, (NegativeSampling, "loss", 10, 1)),
        "ddp writing": (ddp, (CheckpointFiles, "save_checkpoint", 4, 0)),
    }
    for name, (form, death) in cases.items():
        run = folder / name
        found[name] = killed(lambda run=run, form=form: runs.train(run, *sizes, *form), death)
        runs.resume(run / LAST)
    best = f"checkpoint='{folder}/sharded/checkpoints/best.ckpt'"
    words = ["trainer=sharded_cpu", "trainer.devices=3"]
    found["evaluation"] = killed(
        lambda: runs.evaluate(folder / "evaluation", best, *words), (KGEModule, "rank_step", 1, 1)
    )
    return found


def parent_killed(folder: Path, words: list[str]) -> bool:
    """Whether the processes of a run end when the one that started them is killed."""
    starter = FORKS.Process(target=start, args=(folder, words))
    starter.start()
    parent = starter.pid
    while not (folder / LAST / "meta.pt").exists():
        assert not ended(parent, 0.1)
    workers = [int(pid) for pid in Path(f"{folder}.pids").read_text().split()]
    os.kill(parent, signal.SIGKILL)
    starter.join()
    return len(workers) == 2 and all(ended(pid, 60) for pid in workers)


def start(folder: Path, words: list[str]) -> None:
    """A run whose processes are forked from this one, which has no threads yet."""
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda kind: context
    dying(None)
    runs.train(folder, *words)


def main(scenario: str, folder: Path) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    multiprocessing.get_context = lambda kind: FORKS
    dying(None)
    train.write_run = link_prediction.write_run = write_little
    found = {"follow": follow, "evaluate": evaluate, "kill": kill}[scenario](folder)
    (folder / "found.json").write_text(json.dumps(found))


def write_little(cfg: Any, module: Any, metrics: dict, ranks: Any, session: Any, words: Any = None) -> None:
    """A run's numbers, without its pictures."""
    from kgc.tasks.output import write_json, write_parquet

    write_json(session.run_dir / "metrics.json", metrics)
    write_parquet(session.run_dir / "ranks.parquet", ranks)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
