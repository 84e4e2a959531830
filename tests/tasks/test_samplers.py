"""Every choice of the group `sampler` in runs: it trains, its keys count, what it learns stays out of evaluation."""

from __future__ import annotations

import pytest
import runs
import torch

from kgc.errors import UserError
from kgc.paths import config_dir
from kgc.tasks import output
from kgc.tasks.build import read_checkpoint

NAMES = sorted(path.stem for path in (config_dir() / "sampler").glob("*.yaml"))
TINY = ["trainer.max_epochs=1", "batch_size=400"]
COMPLEX = "sampler.proposal.generator._target_=kgc.models.complex.ComplEx"


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def types(tmp_path_factory, monkeypatch):
    """Two types of nations, and two nations without one, for `same_type`."""
    path = tmp_path_factory.mktemp("types") / "types.tsv"
    nations = sorted({end for head, _, tail in runs.bundled("nations")["train"] for end in (head, tail)})[2:]
    path.write_text("".join(f"{nation}\t{'ab'[place % 2]}\n" for place, nation in enumerate(nations)))
    monkeypatch.setattr(runs, "TINY", [*runs.TINY, f"annotations.entity_types={path}"])


def test_the_promised_samplers_are_there():
    promised = "uniform bernoulli adversarial shared in_batch degree typed same_type kbgan cache"
    assert set(promised.split()) <= set(NAMES)


@pytest.mark.parametrize("mask", ["true", "false"])
@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_trains(name, mask, tmp_path):
    words = [*TINY, "trainer.max_epochs=2", f"sampler={name}", f"sampler.mask_known={mask}"]
    values = runs.train(tmp_path, *words)
    assert values["test/num_queries"] == 402
    assert 1 / 14 < values["test/mrr"] < 1
    losses = [row["train/loss"] for row in runs.content(tmp_path / "checkpoints" / "last.ckpt")["kgc"]["history"]]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_last_batch_of_one_triple(name, tmp_path):
    """1,592 triples in 37 batches of 43 and one of one."""
    runs.train(
        tmp_path, "trainer.max_epochs=1", "batch_size=43", f"sampler={name}", "sampler.mask_known=true", "test=false"
    )
    content = runs.content(tmp_path / "checkpoints" / "last.ckpt")
    assert content["global_step"] == 38
    assert all(table.isfinite().all() for table in content["state_dict"].values() if table.is_floating_point())


P = "sampler.proposal."
CHANGES = {
    "names": [[f"sampler={name}"] for name in NAMES],
    "shared": [[], [P + "share=64"], [P + "share=128", "sampler.num_negatives=8"]],
    "in_batch": [
        ["sampler.num_negatives=100"],
        ["sampler.num_negatives=1024"],
        ["sampler.num_negatives=1024", "sampler.mask_known=true"],
        ["sampler.num_negatives=1024", P + "log_q=true"],
    ],
    "degree": [[], [P + "power=2"], [P + "floor=500"], [P + "share=null"]],
    "kbgan": [[], [P + "generator.dim=8"], [COMPLEX], [P + "pool_size=5"], [P + "share=32"]],
    "kbgan, later": [["trainer.max_epochs=2"], ["trainer.max_epochs=2", P + "decay=0"]],
    "cache": [[], [P + "cache_size=5"], [P + "random_size=5"]],
    "cache, later": [["trainer.max_epochs=3"], ["trainer.max_epochs=3", P + "every=2"]],
}


@pytest.mark.parametrize("choice", CHANGES)
def test_every_key_changes_what_is_learnt(choice, tmp_path):
    learnt: dict[bytes, list[str]] = {}
    for number, keys in enumerate(CHANGES[choice]):
        words = keys if choice == "names" else [f"sampler={choice.split(',')[0]}", *keys]
        folder = tmp_path / str(number)
        runs.train(folder, *TINY, "test=false", *words)
        weights = runs.content(folder / "checkpoints" / "last.ckpt")["state_dict"]["model.entity.weight"]
        assert weights.isfinite().all(), words
        assert weights.numpy().tobytes() not in learnt, (words, learnt[weights.numpy().tobytes()])
        learnt[weights.numpy().tobytes()] = words


@pytest.mark.parametrize(("name", "state"), [("kbgan", "generator.entity.weight"), ("cache", "_extra_state")])
def test_what_a_sampler_learns_is_saved_and_not_evaluated(name, state, tmp_path):
    values = runs.train(tmp_path / "run", *TINY, f"sampler={name}")
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    content = runs.content(best)
    assert content["state_dict"][f"objective.sampler.proposal.{state}"].any()
    assert set(read_checkpoint(str(best)).state) == {"entity.weight", "relation.weight"}
    evaluated = runs.evaluate(tmp_path / "evaluated", f"checkpoint='{best}'")
    assert runs.digits(evaluated) == runs.digits(values, "test")


def test_the_generator_is_trained_by_the_optimizer(tmp_path):
    """Its two tables stand after the model's, with moments of their own, and move."""
    tables = []
    for epochs in (1, 2):
        folder = tmp_path / str(epochs)
        runs.train(folder, *TINY, f"trainer.max_epochs={epochs}", "sampler=kbgan", "sampler.proposal.generator.dim=6")
        content = runs.content(folder / "checkpoints" / "last.ckpt")
        tables.append(content["state_dict"]["objective.sampler.proposal.generator.entity.weight"])
        moments = content["optimizer_states"][0]["state"]
        assert [list(moments[i]["exp_avg"].shape) for i in range(4)] == [[14, 8], [55, 4], [14, 6], [55, 6]]
        assert moments[2]["exp_avg"].any()
    assert tables[0].shape == (14, 6)
    assert not torch.equal(*tables)


# Mistakes.


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["sampler=shared", "sampler.proposal.share=0"], "sampler.proposal.share=0"),
        (["sampler=degree", "sampler.proposal.power=big"], "sampler.proposal.power=big"),
        (["sampler=in_batch", "sampler.proposal.log_q=1"], "sampler.proposal.log_q=1"),
        (["sampler=kbgan", "sampler.proposal.decay=2"], "sampler.proposal.decay=2"),
        (["sampler=kbgan", "sampler.proposal.generator.dim=0"], "sampler.proposal.generator.dim=0"),
        (["sampler=kbgan", COMPLEX, "sampler.proposal.generator.dim=7"], "sampler.proposal.generator."),
        (["sampler=kbgan", "sampler.proposal.generator=null"], "sampler.proposal.generator: "),
        (["sampler=cache", "sampler.proposal.cache_size=0"], "sampler.proposal.cache_size=0"),
    ],
)
def test_a_mistake_is_named(words, key, tmp_path):
    with pytest.raises(UserError) as error:
        runs.train(tmp_path, *TINY, *words)
    assert str(error.value).startswith(key)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("kbgan", ["sampler=kbgan", "sampler.proposal.generator.dim=8"], "generator.dim=8"),
        ("kbgan", ["sampler=uniform"], "generator."),
        ("uniform", ["sampler=kbgan"], "generator."),
        ("cache", ["sampler=cache", "sampler.proposal.cache_size=7"], "cache_size=7"),
        ("cache", ["sampler=typed"], "cache_size="),
    ],
)
def test_a_resume_keeps_what_was_learnt(before, after, key, tmp_path):
    runs.train(tmp_path, *TINY, f"sampler={before}")
    with pytest.raises(UserError) as error:
        runs.resume(tmp_path / "checkpoints" / "last.ckpt", *after, "trainer.max_epochs=2")
    assert str(error.value).startswith(f"sampler.proposal.{key}")


def test_a_resume_may_change_what_is_not_learnt(tmp_path):
    runs.train(tmp_path, *TINY, "sampler=shared")
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert runs.resume(last, "sampler=degree", "sampler.proposal.power=1", "trainer.max_epochs=2")["train/epochs"] == 2
