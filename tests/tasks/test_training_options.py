"""Options of training in whole runs: what must not change the result does not, and what is resumed goes on exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import runs
import torch

from kgc.module import KGEModule
from kgc.tasks import output


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than a tiny run."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


def last_of(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return runs.content(last_of(folder))["state_dict"]


def close(first: Path, second: Path) -> bool:
    """Whether two runs came to the same weights, up to rounding."""
    pairs = zip(weights(first).values(), weights(second).values(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


# Sparse gradients.

SPARSE = ["model=distmult", "sampler.mask_known=true", "regularizer=n3", "model.entity_dropout=0.2", "test=false"]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_sparse_gradients_change_no_result(optimizer, tmp_path):
    words = [*SPARSE, f"optimizer={optimizer}", "optimizer.lr=0.3"]
    for sparse in ("true", "false"):
        runs.train(tmp_path / sparse, *words, f"optimizer.sparse={sparse}")
    assert close(tmp_path / "true", tmp_path / "false")


def test_sparse_gradients_are_sparse_whatever_the_number_of_negatives(tmp_path, monkeypatch):
    """As many candidates as there are entities would be picked from the scores of all, were gradients dense."""
    seen = []
    original = KGEModule.on_before_optimizer_step

    def watched(self: KGEModule, optimizer: torch.optim.Optimizer) -> None:
        original(self, optimizer)
        seen.append([p.grad.is_sparse and p.grad.is_coalesced() for p in self.model.parameters()])

    monkeypatch.setattr(KGEModule, "on_before_optimizer_step", watched)
    words = [*SPARSE, "sampler.num_negatives=20", "trainer.max_epochs=1"]
    runs.train(tmp_path, *words, "optimizer.sparse=true", "trainer.accumulate_grad_batches=2")
    assert seen == [[True, True]] * 4  # 7 batches


# Accumulation.


@pytest.mark.parametrize(("batches", "steps"), [(4, 4), (3, 6)])
@pytest.mark.parametrize("objective", ["one_vs_all", "k_vs_all"])
def test_accumulated_batches_are_one_batch(objective, batches, steps, tmp_path):
    """With last batches that are smaller, and too few of them for a step: 1,592 triples in batches of 100."""
    words = ["model=distmult", f"objective={objective}", "optimizer=sgd", "optimizer.lr=1", "scheduler=warmup"]
    words += ["regularizer=n3", "trainer.gradient_clip=0.05", "scheduler.warmup=1.5", "test=false"]
    accumulated = [*words, "batch_size=100", f"trainer.accumulate_grad_batches={batches}"]
    runs.train(tmp_path / "accumulated", *accumulated)
    runs.train(tmp_path / "whole", *words, f"batch_size={100 * batches}")
    runs.train(tmp_path / "small", *words, "batch_size=100")
    assert close(tmp_path / "accumulated", tmp_path / "whole")
    assert not close(tmp_path / "small", tmp_path / "whole")
    first, second = (runs.content(last_of(tmp_path / name)) for name in ("accumulated", "whole"))
    assert first["global_step"] == second["global_step"]
    if objective == "one_vs_all":
        assert first["global_step"] == 2 * steps
    losses = ([row["train/loss"] for row in content["kgc"]["history"]] for content in (first, second))
    assert next(losses) == pytest.approx(next(losses), rel=1e-5)


@pytest.mark.parametrize("call", [0, 5, 7, 13, 15])
def test_a_stop_between_accumulated_batches_loses_nothing(call, tmp_path, monkeypatch):
    """Ctrl-C in the first, in a middle, and in the last batch of a step of four, of 14 batches an epoch."""
    words = ["batch_size=120", "trainer.accumulate_grad_batches=4", "optimizer=adagrad"]
    runs.train(tmp_path / "straight", *words)
    original, calls = KGEModule.training_step, iter(range(10**6))

    def interrupted(self: KGEModule, *arguments: object) -> torch.Tensor:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(KGEModule, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runs.train(tmp_path / "stopped", *words)
    # Four steps an epoch, of 4 + 4 + 4 + 2 batches.
    assert runs.content(last_of(tmp_path / "stopped"))["global_step"] == {0: 1, 5: 2, 7: 2, 13: 4, 15: 5}[call]
    runs.resume(last_of(tmp_path / "stopped"))
    first, second = (runs.trained(last_of(tmp_path / name)) for name in ("stopped", "straight"))
    runs.assert_same(first, second)
    assert runs.digits(runs.metrics(tmp_path / "stopped")) == runs.digits(runs.metrics(tmp_path / "straight"))


# Learning rates.


def rates(folder: Path) -> list[float]:
    return [row["train/lr"] for row in runs.content(last_of(folder))["kgc"]["history"]]


def test_warm_up_over_fractions_of_epochs(tmp_path):
    """Seven steps an epoch; the rate of an epoch's last step is logged: 7/14 and 14/14 of it."""
    words = ["scheduler=warmup", "scheduler.warmup=2", "optimizer.lr=0.4", "trainer.max_epochs=3", "test=false"]
    runs.train(tmp_path, *words)
    assert rates(tmp_path) == pytest.approx([0.2, 0.4, 0.4])


def test_a_table_of_its_own_rate_moves_by_it(tmp_path):
    words = ["model=distmult", "optimizer=sgd", "trainer.max_epochs=1", "test=false", "optimizer.lr=1e-20"]
    runs.train(tmp_path / "still", *words)
    runs.train(tmp_path / "relation", *words, "optimizer.groups.relation.lr=0.1")
    still, moved = weights(tmp_path / "still"), weights(tmp_path / "relation")
    assert still["model.entity.weight"].equal(moved["model.entity.weight"])
    assert not still["model.relation.weight"].equal(moved["model.relation.weight"])


def test_a_resume_follows_the_rate_of_one_table(tmp_path):
    """Constant rates: the second epoch is that of a run with the new rates."""
    words = ["model=distmult", "optimizer=sgd", "optimizer.lr=0.1", "test=false"]
    runs.train(tmp_path, *words, "optimizer.groups.relation.lr=0.2", "trainer.max_epochs=1")
    before = weights(tmp_path)
    runs.resume(last_of(tmp_path), "trainer.max_epochs=2", "optimizer.groups.relation.lr=1e-20", "optimizer.lr=0.3")
    groups = runs.content(last_of(tmp_path))["optimizer_states"][0]["param_groups"]
    assert {group["name"]: group["lr"] for group in groups} == {"entity": 0.3, "relation": pytest.approx(1e-20)}
    after = weights(tmp_path)
    assert before["model.relation.weight"].equal(after["model.relation.weight"])
    assert not before["model.entity.weight"].equal(after["model.entity.weight"])


# Precision.


def test_ranks_of_a_run_in_mixed_precision_are_those_of_fp32(tmp_path):
    """The test at the end, and each validation, see what `evaluate.py` sees."""
    runs.train(tmp_path / "run", "model=complex", "loss=info_nce", "trainer.precision=bf16-mixed")
    for split in ("test", "valid"):
        words = [f"checkpoint='{tmp_path}/run/checkpoints/best.ckpt'", f"split={split}"]
        again = runs.evaluate(tmp_path / split, *words)
        assert runs.digits(again) == runs.digits(runs.metrics(tmp_path / "run"), split)
    assert runs.ranks(tmp_path / "test").equals(runs.ranks(tmp_path / "run"))
    history = runs.content(last_of(tmp_path / "run"))["kgc"]["history"]
    assert max(row["valid/mrr"] for row in history) == runs.metrics(tmp_path / "run")["valid/mrr"]
    assert all(table.dtype == torch.float32 for table in weights(tmp_path / "run").values())
