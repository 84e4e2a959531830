"""Memory that is too small: the batch size that fits, and one line where something does not.

The allocator is a mock: a step of more examples than its limit raises what CUDA's does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
import torch
from omegaconf import OmegaConf
from pytorch_lightning.strategies import SingleDeviceStrategy

from kgc.errors import UserError
from kgc.objectives import NegativeSampling
from kgc.sampling.processes import gathered, rehearsal, summed, together
from kgc.tasks import memory, output


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than a tiny run."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


def last_of(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def full_above(patch: pytest.MonkeyPatch, limit: int) -> list[int]:
    """Makes steps of more than `limit` examples fail; returns the sizes of all steps, as they are done."""
    original, sizes = NegativeSampling.loss, []

    def loss(self, model, index, step, generator):
        sizes.append(len(index))
        if len(index) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(self, model, index, step, generator)

    patch.setattr(NegativeSampling, "loss", loss)
    return sizes


@pytest.mark.parametrize(
    ("full", "limit", "found", "tried"),
    [
        (300, 1592, 259, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 384, 320, 288, 304]),  # 0.9 · 288
        (512, 1592, 460, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 768, 640, 576, 544]),
        (10**9, 1592, 1592, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1592]),
        (1591, 1592, 1368, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1592, 1308, 1450, 1521]),
        (5, 5, 5, [1, 2, 4, 5]),
        (5, 1, 1, [1]),
        (1, 9, 1, [1, 2]),
    ],
)
def test_sizes_are_doubled_until_memory_is_full_and_then_halved_between(full, limit, found, tried):
    seen = []

    def step(size: int) -> None:
        seen.append(size)
        if size > full:
            raise torch.OutOfMemoryError

    assert memory.doubled(step, limit) == found
    assert seen == tried


def test_other_faults_are_not_taken_for_full_memory():
    def step(size: int) -> None:
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        memory.doubled(step, 9)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model=transe", "model.entity_dropout=0.3", "sampler=bernoulli", "optimizer=adagrad", "optimizer.sparse=true"],
        ["model=complex", "trainer.accumulate_grad_batches=3", "trainer.precision=bf16-mixed", "scheduler=warmup"],
        ["sampler=kbgan"],
        ["sampler=cache", "optimizer=adagrad"],
    ],
    ids=["adam", "sparse", "accumulated", "kbgan", "cache"],
)
def test_the_run_is_that_of_the_size_by_hand(words, tmp_path, monkeypatch, capsys):
    runs.train(tmp_path / "by hand", *words, "batch_size=259")
    monkeypatch.setattr(memory, "reports_memory", lambda device: True)
    sizes = full_above(monkeypatch, 300)
    runs.train(tmp_path / "found", *words, "trainer.auto_batch=true")
    assert sizes.count(512) == 1
    assert sizes[-1] == 1592 % 259
    first, second = (runs.trained(last_of(tmp_path / name)) for name in ("by hand", "found"))
    runs.assert_same(first, second)
    assert runs.digits(runs.metrics(tmp_path / "by hand")) == runs.digits(runs.metrics(tmp_path / "found"))
    assert "auto_batch found batch_size=259" in capsys.readouterr().out
    configs = [OmegaConf.load(tmp_path / name / "config.yaml") for name in ("by hand", "found")]
    assert configs[0] == configs[1]
    assert (configs[1].batch_size, configs[1].trainer.auto_batch) == (259, False)


def test_a_resume_takes_the_size_that_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "reports_memory", lambda device: True)
    full_above(monkeypatch, 300)
    runs.train(tmp_path, "trainer.auto_batch=true", "trainer.max_epochs=1")
    monkeypatch.setattr(memory, "doubled", lambda *_: pytest.fail("searched again"))
    runs.resume(last_of(tmp_path), "trainer.max_epochs=2")
    assert OmegaConf.load(tmp_path / "config.yaml").batch_size == 259
    assert runs.content(last_of(tmp_path))["global_step"] == 2 * -(-1592 // 259)


@pytest.mark.parametrize("sampler", ["uniform", *(pytest.param(s, marks=pytest.mark.slow) for s in ("kbgan", "cache"))])
def test_processes_agree_on_the_smallest(sampler, tmp_path):
    """The first process has memory for 512 examples, the second for 256; nobody waits for a step that failed."""
    done = runs.process(
        tmp_path,
        Path(__file__).with_name("agreeing.py"),
        tmp_path / "run",
        *(f"sampler={sampler}", "trainer=ddp_cpu", "trainer.auto_batch=true", "trainer.max_epochs=1", "test=false"),
    )
    assert done.code == 0, done.err
    assert "auto_batch found batch_size=230" in done.out
    assert OmegaConf.load(tmp_path / "run" / "config.yaml").batch_size == 230
    assert runs.content(last_of(tmp_path / "run"))["global_step"] == -(-796 // 230)


def test_a_rehearsal_exchanges_nothing_and_takes_the_same_room():
    part = torch.tensor([[1, 2], [3, 4]])
    with rehearsal(3):
        assert not together()
        assert gathered(part).tolist() == 3 * part.tolist()
        assert summed(part) is part
    assert gathered(part) is part


def test_a_process_without_memory_says_so_to_all(tmp_path, monkeypatch):
    """None that fits counts as 0, the smallest of all, so that each process raises and none waits."""
    monkeypatch.setattr(memory, "reports_memory", lambda device: True)
    full_above(monkeypatch, 0)
    said = []
    monkeypatch.setattr(
        SingleDeviceStrategy, "reduce", lambda self, tensor, *_, **__: said.append(int(tensor)) or tensor
    )
    with pytest.raises(UserError, match="out of memory"):
        runs.train(tmp_path, "trainer.auto_batch=true")
    assert said == [0]


def test_not_even_one_example_fits(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "reports_memory", lambda device: True)
    full_above(monkeypatch, 0)
    message = runs.command(capsys, tmp_path, "train", *runs.TINY, "trainer.auto_batch=true").mistake()
    assert "sampler.num_negatives=4" in message
    assert "model.dim=8" in message


# One line.


def test_full_memory_in_training_is_one_line_and_the_state_is_kept(tmp_path, monkeypatch, capsys):
    """The second epoch's third step does not fit."""
    original, calls = NegativeSampling.loss, iter(range(10**6))

    def loss(self, *arguments):
        if next(calls) == 7 + 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(self, *arguments)

    monkeypatch.setattr(memory, "reports_memory", lambda device: True)
    with monkeypatch.context() as patch:
        patch.setattr(NegativeSampling, "loss", loss)
        message = runs.command(capsys, tmp_path, "train", *runs.TINY, "hydra.run.dir=run").mistake()
    for words in (
        "out of memory",
        "batch_size=256",
        "sampler.num_negatives=4",
        "model.dim=8",
        "trainer.auto_batch=true",
    ):
        assert words in message
    last = last_of(tmp_path / "run")
    assert f"checkpoint={last_of(Path('run'))}" in message.replace(str(tmp_path) + "/", "")
    assert runs.content(last)["epoch"] == 0
    assert message in (tmp_path / "run" / "train.log").read_text()
    runs.resume(last)
    runs.train(tmp_path / "straight")
    runs.assert_same(runs.trained(last), runs.trained(last_of(tmp_path / "straight")))


def test_an_objective_without_sampler_names_none(tmp_path, monkeypatch):
    def build(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kgc.tasks.train.build_training", build)
    with pytest.raises(UserError, match=r"batch_size=256, model\.dim=8") as caught:
        runs.train(tmp_path, "objective=one_vs_all")
    assert "num_negatives" not in str(caught.value)
    assert "auto_batch" not in str(caught.value)  # a CPU
    assert "checkpoint" not in str(caught.value)  # nothing was saved


def test_the_allocator_of_cpus_is_understood():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.float64)
    assert memory.lacks_memory(caught.value)
    assert not memory.lacks_memory(RuntimeError("shapes"))


def test_other_faults_keep_their_traceback(tmp_path, monkeypatch):
    def loss(*_: object) -> None:
        raise RuntimeError("shapes")

    monkeypatch.setattr(NegativeSampling, "loss", loss)
    with pytest.raises(RuntimeError, match="shapes"):
        runs.train(tmp_path)


@pytest.mark.gpu
def test_a_gpu_says_when_its_memory_is_full(tmp_path, device):
    """A share of the memory, so that a small model fills it."""
    if device.type == "cpu":
        pytest.skip("a CPU does not")
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        words = ["trainer=gpu", "model=transe", "model.dim=4096", "sampler.num_negatives=64", "optimizer.sparse=true"]
        runs.train(tmp_path, *words, "trainer.auto_batch=true", "trainer.max_epochs=1")
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
    assert 1 <= OmegaConf.load(tmp_path / "config.yaml").batch_size < 1592
