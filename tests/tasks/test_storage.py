"""When a run's state is saved, and folders that cannot be written to or have no room."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runs
import torch

from kgc import callbacks
from kgc.callbacks import Checkpoints
from kgc.module import KGEModule
from kgc.objectives import NegativeSampling
from kgc.tasks import output, storage, train

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than a tiny run."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


class Crash(Exception):
    """A process that ends without a word."""


def last_of(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def before_step(patch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Something happens at the beginning of a step, from 0, of the runs that follow."""
    original, calls = KGEModule.training_step, iter(range(10**6))

    def watched(self: KGEModule, *arguments: Any) -> torch.Tensor:
        if next(calls) == step:
            action()
        return original(self, *arguments)

    patch.setattr(KGEModule, "training_step", watched)


def crashed(folder: Path, step: int, words: list[str]) -> None:
    """A run that ends at the beginning of a step."""

    def crash() -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, step, crash)
        with pytest.raises(Crash):
            runs.train(folder, *words)


def assert_resumed_is_straight(folder: Path, words: list[str], other: Path) -> None:
    runs.resume(last_of(folder))
    runs.train(other, *words)
    for name in ("last.ckpt", "best.ckpt"):
        runs.assert_same(*(runs.trained(f / "checkpoints" / name) for f in (folder, other)))


# When.


def test_a_run_killed_before_its_first_validation_goes_on(tmp_path):
    """Validated in the third epoch only; four steps an epoch."""
    words = ["trainer.max_epochs=3", "trainer.val_every=3", "batch_size=400", "test=false"]
    crashed(tmp_path / "run", 4 + 1, words)
    assert runs.content(last_of(tmp_path / "run"))["global_step"] == 4
    assert not (tmp_path / "run" / "checkpoints" / "best.ckpt").exists()
    assert_resumed_is_straight(tmp_path / "run", words, tmp_path / "straight")


def test_without_valid_split_epochs_are_saved(tmp_path):
    splits = runs.bundled("nations")
    data = runs.write_splits(tmp_path / "data", train=splits["train"])
    words = ["dataset=folder", f"dataset.path={data}", "trainer.max_epochs=2", "batch_size=400"]
    crashed(tmp_path / "run", 4, words)
    assert_resumed_is_straight(tmp_path / "run", words, tmp_path / "straight")


@pytest.mark.parametrize(
    ("cost", "saved"),
    [(0.095, [1, 11, 21]), (0.009, list(range(1, 26))), (1000.0, [1])],
    ids=["a tenth of an epoch", "a hundredth", "long"],
)
def test_saving_takes_a_hundredth_of_the_time(cost, saved, tmp_path):
    """25 epochs of a second, on a clock of the test's own; neither the first nor the rest is validated."""
    now, epochs = [0.0], []
    checkpoints = Checkpoints(tmp_path, clock=lambda: now[0])

    def write(path: Path) -> None:
        epochs.append(trainer.current_epoch + 1)
        now[0] += cost
        path.touch()

    trainer = SimpleNamespace(
        max_epochs=100,
        is_global_zero=True,
        save_checkpoint=write,
        strategy=SimpleNamespace(barrier=lambda: None, reduce_boolean_decision=lambda value, all: value),
    )
    module = SimpleNamespace(history=[{}])
    checkpoints.on_train_start(trainer, module)
    for trainer.current_epoch in range(25):
        now[0] += 1
        checkpoints.on_train_epoch_end(trainer, module)
    assert epochs == saved


@pytest.mark.parametrize(
    "words",
    [
        ["scheduler=cosine", "scheduler.warmup=1.5", "optimizer=adagrad"],
        ["sampler=kbgan", "scheduler=warmup", "trainer.accumulate_grad_batches=3"],
        ["sampler=cache", "sampler.proposal.cache_size=6", "optimizer=adagrad", "trainer.accumulate_grad_batches=2"],
    ],
    ids=["warm-up", "kbgan accumulated", "cache accumulated"],
)
def test_a_long_epoch_is_saved_inside(words, tmp_path):
    """Every step that can be gone on from is saved, and saving changes nothing; seven batches an epoch."""
    words = [*words, "trainer.save_minutes=0", "test=false"]
    crashed(tmp_path / "run", 7 + 5, words)
    together = 3 if "kbgan" in words[0] else 2 if "cache" in words[0] else 1
    steps = -(-7 // together)
    assert runs.content(last_of(tmp_path / "run"))["global_step"] == steps + 5 // together
    assert_resumed_is_straight(tmp_path / "run", [*words, "trainer.save_minutes=null"], tmp_path / "straight")


def test_a_state_is_written_straight_to_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    callbacks.CheckpointFiles().save_checkpoint({"a": torch.arange(3)}, tmp_path / "file")
    assert runs.content(tmp_path / "file")["a"].tolist() == [0, 1, 2]


# Where.


@pytest.mark.parametrize("resumed", [False, True])
def test_a_folder_that_cannot_be_written_to_is_found_before_training(resumed, tmp_path, monkeypatch, capsys):
    if resumed:
        runs.train(tmp_path / "run", "trainer.max_epochs=1", "test=false")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.ckpt")}

    def refuse(*_: Any, dir: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr(storage.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(train, "build_graph", lambda *_: pytest.fail("it went on"))
    first = [*runs.TINY, "hydra.run.dir=run"]
    words = ["checkpoint=run/checkpoints/last.ckpt", "trainer.max_epochs=2"] if resumed else first
    message = runs.command(capsys, tmp_path, "train", *words).mistake()
    assert message.startswith(f"{tmp_path / 'run' / 'checkpoints'}: Read-only file system")
    assert "hydra.run.dir=DIR" in message
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.ckpt")} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path, capsys):
    runs.train(tmp_path / "run", "trainer.max_epochs=1", "test=false")
    (tmp_path / "run" / "checkpoints").chmod(0o500)
    words = ["checkpoint=run/checkpoints/last.ckpt", "trainer.max_epochs=2"]
    assert "Permission denied" in runs.command(capsys, tmp_path, "train", *words).mistake()


@pytest.mark.parametrize("folder", ["/dev/null/run", "/proc/nowhere/run"])
def test_a_folder_that_cannot_be_made(folder, tmp_path, capsys):
    message = runs.command(capsys, tmp_path, "train", *runs.TINY, f"hydra.run.dir={folder}").mistake()
    assert "hydra.run.dir=DIR" in message
    assert message.startswith(folder.rpartition("/")[0])


def test_a_disk_without_room_is_found_before_training(tmp_path, monkeypatch, capsys):
    """Two tables of 14 and 55 rows of 4,000 and 2,000 numbers, fp32, twice more in Adam: three files of 1.9 MiB."""
    words = [*runs.TINY, "model.dim=4000", "test=false", "hydra.run.dir=run"]
    needed = 3 * 3 * 4 * (14 * 4000 + 55 * 2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    monkeypatch.setattr(KGEModule, "training_step", lambda *_: pytest.fail("it trained"))
    message = runs.command(capsys, tmp_path, "train", *words).mistake()
    assert message.startswith(f"{tmp_path / 'run' / 'checkpoints'}: this run's checkpoints ")
    assert f"need {needed / MIB:,.0f} MiB" in message


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (["optimizer=adam"], 2),
        (["optimizer=adam", "optimizer.sparse=true"], 2),
        (["optimizer=sgd"], 0),
        (["optimizer=sgd", "optimizer.momentum=0.9"], 1),
        (["optimizer=adagrad"], 1),
        (["optimizer=rowwise_adagrad"], 1 / 500),
    ],
)
def test_the_size_of_a_checkpoint_is_foretold(words, share, tmp_path, monkeypatch):
    sizes, shares = [], []

    def watched(checkpoints: Checkpoints, module: KGEModule) -> None:
        sizes.append(storage.checkpoint_size(module))
        shares.append(storage.state_share(module))

    monkeypatch.setattr(train, "check_room", watched)
    runs.train(tmp_path, "model=distmult", "model.dim=500", *words, "trainer.max_epochs=1", "test=false")
    assert shares == [pytest.approx(share)]
    assert last_of(tmp_path).stat().st_size == pytest.approx(sizes[0], rel=0.15)


def test_a_file_that_grows_too_large_in_training_is_one_line(tmp_path, monkeypatch, capsys):
    """The system refuses files above a limit, as a full disk does, when the second epoch is saved."""
    words = [*runs.TINY, "model.dim=4000", "test=false", "hydra.run.dir=run", "batch_size=800"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def narrow() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))

    try:
        with monkeypatch.context() as patch:
            before_step(patch, 3, narrow)
            message = runs.command(capsys, tmp_path, "train", *words).mistake()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written" in message
    assert "checkpoint=" in message
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert runs.content(last_of(tmp_path / "run"))["epoch"] == 0
    runs.resume(last_of(tmp_path / "run"))
    runs.train(tmp_path / "straight", *[w for w in words if not w.startswith("hydra")])
    runs.assert_same(*(runs.trained(last_of(tmp_path / name)) for name in ("run", "straight")))


def test_results_that_cannot_be_written_leave_the_weights(tmp_path, monkeypatch, capsys):
    def full(path: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(output, "write_json", full)
        message = runs.command(capsys, tmp_path, "train", *runs.TINY, "hydra.run.dir=run").mistake()
    assert "No space left on device" in message
    assert "last.ckpt goes on from the last saved state" in message
    monkeypatch.setattr(NegativeSampling, "loss", lambda *_: pytest.fail("it trained"))
    assert runs.resume(last_of(tmp_path / "run"))["train/epochs"] == 2
