"""Runs whose entities lie on several processes, and runs of which a process dies: real processes over gloo."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import runs
import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from kgc.checkpoint_folder import is_folder, read_folder
from kgc.errors import UserError
from kgc.tasks.build import read_checkpoint
from kgc.tasks.consolidate import main as consolidate

CHECKPOINTS = ("best.ckpt", "last.ckpt")


def scenario(name: str, factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = factory.mktemp(name)
    done = runs.process(folder, Path(__file__).with_name("sharded_work.py"), name, folder, timeout=900)
    assert done.code == 0, (done.err, done.out[-1000:])
    return folder, json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    return scenario("follow", tmp_path_factory)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scenario("evaluate", tmp_path_factory)[0]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    return scenario("kill", tmp_path_factory)


def content(run: Path, name: str = "last.ckpt") -> dict:
    """A checkpoint of either form, whole."""
    path = run / "checkpoints" / name
    return read_folder(path) if is_folder(path) else runs.content(path)


def assert_follows(run: Path, other: Path, steps: int, digits: float = 1e-5) -> None:
    """Losses, weights and the optimizer's state of two runs are the same but for rounding."""
    first, second = content(run), content(other)
    assert first["global_step"] == second["global_step"] == steps
    for one, two in zip(first["kgc"]["history"], second["kgc"]["history"], strict=True):
        assert one["train/loss"] == pytest.approx(two["train/loss"], rel=digits)
        assert one.get("valid/mrr", 0.0) == pytest.approx(two.get("valid/mrr", 0.0), rel=digits)
    assert first["state_dict"].keys() == second["state_dict"].keys()
    for name, weights in first["state_dict"].items():
        torch.testing.assert_close(weights, second["state_dict"][name], rtol=0, atol=digits, msg=name)
    states = [checkpoint["optimizer_states"][0]["state"] for checkpoint in (first, second)]
    assert states[0].keys() == states[1].keys()
    for key, state in states[0].items():
        for name, value in state.items():
            torch.testing.assert_close(value, states[1][key][name], rtol=1e-3, atol=digits, msg=name)


def test_a_sharded_run_follows_that_of_one_process(followed):
    folder, _ = followed
    assert_follows(folder / "two", folder / "one", 56)
    moved = content(folder / "one")["state_dict"]["model.entity.weight"].abs().mean()
    assert moved > 0.01  # of numbers that small 1e-5 would say nothing


def test_a_run_goes_on_in_other_forms(followed):
    """By three processes instead of two, by one, from one file made of the folder, and from one process by two."""
    folder, _ = followed
    for name in ("grown", "shrunk", "whole", "cut"):
        assert_follows(folder / name, folder / "on", 63)
    forms = {name: is_folder(folder / name / "checkpoints" / "last.ckpt") for name in ("grown", "shrunk", "cut")}
    assert forms == {"grown": True, "shrunk": False, "cut": True}


def test_one_file_is_that_of_one_process(followed):
    """Keys, shapes and plain data: what reads one reads the other."""
    folder, _ = followed
    whole, one = (content(folder / name) for name in ("shrunk", "on"))
    assert whole.keys() == one.keys()
    assert [p["params"] for p in whole["optimizer_states"][0]["param_groups"]] == [
        p["params"] for p in one["optimizer_states"][0]["param_groups"]
    ]
    assert whole["state_dict"]["model.entity.weight"].shape == one["state_dict"]["model.entity.weight"].shape


def test_groups_that_share_a_table_train_data_parallel(followed):
    """Two groups of two, with clipped and accumulated gradients, take the steps of two processes of ddp."""
    folder, _ = followed
    assert_follows(folder / "groups", folder / "ddp", 4)


def test_sparse_steps_of_two_processes(followed):
    folder, _ = followed
    assert_follows(folder / "sparse", folder / "sparse one", 7)


def test_what_cannot_be_shared_is_refused_in_one_sentence(followed):
    _, found = followed
    refused = found["refused"]
    assert refused.keys() == {"encoder", "paths", "batch", "shards", "few"}
    assert "RGCN" in refused["encoder"]
    assert "NBFNet" in refused["paths"]
    assert all("trainer=ddp" in refused[name] for name in ("encoder", "paths", "few"))
    assert refused["batch"].startswith("trainer.auto_batch=true")
    assert refused["shards"] == "trainer.shards=2: does not divide the 3 processes of the run"
    assert all("\n" not in message for message in refused.values())


# Ranks.


@pytest.mark.parametrize("name", ["", "little "])
def test_ranks_by_any_number_of_processes_are_the_same_digits(evaluated, name):
    alone, rows = runs.metrics(evaluated / f"{name}alone"), runs.ranks(evaluated / f"{name}alone")
    assert len(rows) == (2 if name else 402)
    others = [path for path in evaluated.iterdir() if path.name.startswith((f"{name}ddp", f"{name}sharded"))]
    others = [path for path in others if path.is_dir()]
    assert len(others) == (2 if name else 6)
    for other in [*others, *([] if name else [evaluated / "groups"])]:
        assert runs.digits(runs.metrics(other)) == runs.digits(alone), other.name
        assert runs.ranks(other).equals(rows), other.name


def test_ranks_of_blocks_are_the_same_digits(evaluated):
    assert runs.digits(runs.metrics(evaluated / "block 3")) == runs.digits(runs.metrics(evaluated / "block"))
    assert runs.ranks(evaluated / "block 3").equals(runs.ranks(evaluated / "block"))


def test_vectors_from_elsewhere_are_spread_too(evaluated):
    alone = runs.metrics(evaluated / "alone")
    for name in ("vectors 1", "vectors 3"):
        assert runs.digits(runs.metrics(evaluated / name)) == runs.digits(alone), name
        assert runs.ranks(evaluated / name).equals(runs.ranks(evaluated / "alone"))


# Checkpoints.


def test_a_checkpoint_runs_no_code(evaluated, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    run = shutil.copytree(evaluated / "run", tmp_path / "run")
    best = run / "checkpoints" / "best.ckpt"
    (index,) = best.rglob(".metadata")
    index.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match=r"not a complete checkpoint.*none of its records"):
        read_checkpoint(str(best))
    assert not (tmp_path / "exploded").exists()


def test_only_members_of_an_enum_are_taken_by_name(evaluated, tmp_path):
    class Attribute:
        def __reduce__(self):
            return (getattr, (TensorStorageMetadata, "__init__"))

    run = shutil.copytree(evaluated / "run", tmp_path / "run")
    best = run / "checkpoints" / "best.ckpt"
    (index,) = best.rglob(".metadata")
    index.write_bytes(pickle.dumps(Attribute()))
    with pytest.raises(UserError, match=r"not a complete checkpoint.*takes __init__ of what is none of its records"):
        read_checkpoint(str(best))


def test_a_damaged_checkpoint_is_one_sentence(evaluated, tmp_path):
    run = shutil.copytree(evaluated / "run", tmp_path / "run")
    best = run / "checkpoints" / "best.ckpt"
    for file in best.rglob("*.distcp"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="not a complete checkpoint"):
        runs.evaluate(tmp_path / "evaluated", f"checkpoint='{best}'")


def test_mistakes_of_consolidation(evaluated, tmp_path, capsys):
    best = evaluated / "run" / "checkpoints" / "best.ckpt"
    assert consolidate([str(tmp_path / "none"), str(tmp_path / "file")]) == 2
    assert "no checkpoint of a sharded run" in capsys.readouterr().err
    assert consolidate([str(best), str(tmp_path / "file")]) == 0
    assert consolidate([str(best), str(tmp_path / "file")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert consolidate([str(tmp_path / "file"), str(tmp_path / "other")]) == 2
    assert "one file already" in capsys.readouterr().err
    assert consolidate([]) == 2
    alone = runs.evaluate(tmp_path / "evaluated", f"checkpoint='{tmp_path / 'file'}'")
    assert runs.digits(alone) == runs.digits(runs.metrics(evaluated / "alone"))


# Processes that die.


@pytest.mark.parametrize("name", ["training", "validation", "writing", "evaluation", "ddp training", "ddp writing"])
def test_the_others_end_when_one_is_killed(killed, name):
    _, found = killed
    rank = 0 if name == "ddp writing" else 1
    assert found[name]["said"] == f"process {rank} of the run failed (killed by SIGKILL); the others were ended"
    assert found[name]["seconds"] < 60


@pytest.mark.parametrize("name", ["training", "validation", "writing", "ddp training", "ddp writing"])
def test_a_run_goes_on_after_a_kill_to_the_same_weights(killed, name):
    folder, _ = killed
    first, second = (content(folder / run) for run in (name, "ddp" if name.startswith("ddp") else "sharded"))
    assert first["global_step"] == second["global_step"]
    runs.assert_same(first["state_dict"], second["state_dict"])
    runs.assert_same(first["optimizer_states"], second["optimizer_states"])


def test_no_half_written_state_is_left(killed):
    folder, _ = killed
    for run in ("training", "validation", "writing"):
        for name in CHECKPOINTS:
            path = folder / run / "checkpoints" / name
            assert sorted(p.name for p in path.iterdir() if p.is_file()) == ["meta.pt"]
            assert len([p for p in path.iterdir() if p.is_dir()]) == 1


def test_processes_end_with_the_one_that_started_them(killed):
    assert killed[1]["parent"] is True


# Sweeps.


@pytest.mark.slow
def test_each_trial_of_a_sweep_has_one_folder_for_its_processes(tmp_path):
    words = ["dataset=nations", "model.dim=4", "trainer=ddp_cpu", "trainer.max_epochs=1", "logger=none", "seed=1"]
    done = runs.process(tmp_path, runs.script("train"), "-m", *words, "model=transe,distmult")
    assert done.code == 0, done.err
    (sweep,) = (tmp_path / "multirun").iterdir()
    trials = sorted(path.name for path in sweep.iterdir() if path.is_dir())
    assert trials == ["0_transe_nations", "1_distmult_nations"]
    for trial, target in zip(trials, ("TransE", "DistMult"), strict=True):
        run = sweep / trial
        assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
        config = content(run)["kgc"]["config"]
        assert config["model"]["_target_"].endswith(target)
        assert runs.metrics(run)["train/epochs"] == 1
        assert (run / "train.log").read_text().count("epoch 1/1") == 1
        assert "on cpu x 2" in (run / "train.log").read_text()


@pytest.mark.slow
def test_a_large_test_split_by_one_to_four_processes(tmp_path):
    """FB15k-237's 20,466 triples, which neither three nor four processes share evenly: the same digits and rows."""
    if not (Path(os.environ.get("KGC_DATA", "")) / "fb15k237").is_dir():
        pytest.skip("no FB15k-237 in KGC_DATA")
    words = ["dataset=fb15k237", "model=complex", "model.dim=8", "trainer.max_epochs=1", "test=false"]
    runs.train(tmp_path / "run", *words, "sampler=shared", "sampler.num_negatives=16", "batch_size=4096")
    checkpoint = f"checkpoint='{tmp_path}/run/checkpoints/best.ckpt'"
    alone = runs.evaluate(tmp_path / "alone", checkpoint)
    assert alone["test/num_queries"] == 2 * 20_466
    for trainer in ("ddp_cpu", "sharded_cpu"):
        for devices in (2, 3, 4):
            folder = tmp_path / f"{trainer}{devices}"
            several = runs.evaluate(folder, checkpoint, f"trainer={trainer}", f"trainer.devices={devices}")
            assert runs.digits(several) == runs.digits(alone), (trainer, devices)
            assert runs.ranks(folder).equals(runs.ranks(tmp_path / "alone")), (trainer, devices)
