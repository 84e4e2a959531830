"""Files from strangers: nothing in a checkpoint or a table of vectors is run."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch

from kgc.errors import UserError


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    runs.train(folder, "trainer.max_epochs=1", "test=false")
    return folder / "checkpoints" / "last.ckpt"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that code in a checkpoint would make."""
    return tmp_path / "mark"


def refused(checkpoint: Path, folder: Path) -> str:
    """What both commands say about a checkpoint that neither of them takes."""
    with pytest.raises(UserError) as evaluated:
        runs.evaluate(folder / "evaluated", f"checkpoint='{checkpoint}'")
    with pytest.raises(UserError) as resumed:
        runs.resume(checkpoint, "trainer.max_epochs=2")
    assert str(evaluated.value) == str(resumed.value)
    assert str(checkpoint) in str(evaluated.value)
    return str(evaluated.value)


def with_config(checkpoint: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint with another config inside."""
    content = runs.content(checkpoint)
    change(content["kgc"]["config"])
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def test_the_copy_itself_is_taken(trained, tmp_path):
    """What is refused below is refused for what was put into it."""
    same = with_config(trained, tmp_path / "run" / "checkpoints" / "last.ckpt", lambda config: None)
    assert runs.evaluate(tmp_path / "evaluated", f"checkpoint={same}")["test/num_queries"] == 402
    assert runs.resume(same, "trainer.max_epochs=2")["train/epochs"] == 2


def test_the_bomb_works(mark):
    """As above."""
    pickle.loads(pickle.dumps(Bomb(f"touch {mark}")))
    assert mark.exists()


@pytest.mark.parametrize("where", ["alone", "as kgc", "among weights", "in the config", "as a label"])
def test_code_in_a_checkpoint_is_not_run(where, trained, tmp_path, mark):
    bomb = Bomb(f"touch {mark}")
    content = runs.content(trained)
    if where == "alone":
        content = bomb
    elif where == "as kgc":
        content["kgc"] = bomb
    elif where == "among weights":
        content["state_dict"]["model.extra"] = bomb
    elif where == "in the config":
        content["kgc"]["config"]["model"]["dim"] = bomb
    else:
        content["kgc"]["entities"][0] = bomb
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save(content, path)
    assert "not a complete checkpoint" in refused(path, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_plain_pickle_is_not_run(protocol, tmp_path, mark):
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps({"kgc": Bomb(f"touch {mark}")}, protocol))
    refused(path, tmp_path)
    assert not mark.exists()


def place(config: dict[str, Any], where: str, node: Any) -> None:
    *folders, name = where.split("/")
    for folder in folders:
        config = config.setdefault(folder, {})
    config[name] = node


PLACES = [
    "model",
    "dataset",
    "objective",
    "optimizer",
    "model/dim",
    "model/entity_init",
    "dataset/name",
    "objective/sampler/sides",
    "objective/loss/margin",
    "optimizer/betas",
    "trainer/devices",
    "ranking/block",
    "seed",
    "anything",
]


@pytest.mark.parametrize("where", PLACES)
def test_a_config_that_names_a_stranger_is_refused(where, trained, tmp_path, mark):
    node = {"_target_": "os.system", "_args_": [f"touch {mark}"], "command": f"touch {mark}"}
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    message = refused(with_config(trained, path, lambda config: place(config, where, node)), tmp_path)
    assert "os.system" in message
    assert not mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "subprocess.call",
        "builtins.exec",
        "torchx.anything",
        "kgcx.anything",
        "torch.os.system",
        "torch.hub.os.system",
        "kgc.callbacks.os.system",
        "kgc.tasks.output.os.system",
        "${oc.env:SHELL}",
    ],
)
@pytest.mark.parametrize("shape", ["node", "list", "nested list"])
def test_no_name_leads_out_of_the_package(target, shape, trained, tmp_path, mark):
    """A module of ours or torch's has other modules as attributes: `torch.os` is `os`."""
    node: Any = {"_target_": target, "_args_": [f"touch {mark}"]}
    node = {"node": node, "list": [node], "nested list": [[node], 1]}[shape]
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with_config(trained, path, lambda config: place(config, "optimizer/betas", node))
    with_config(trained, path, lambda config: place(config, "model/entity_init", node))
    refused(path, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("function", ["torch.hub.load", "torch.load"])
def test_no_function_of_torch_runs_code_from_elsewhere(function, trained, tmp_path, mark):
    """`torch.hub.load` runs a file of a folder or of GitHub, `torch.load` a pickle that came with the checkpoint."""
    (tmp_path / "hubconf.py").write_text(f"from pathlib import Path\n\ndef bomb():\n    Path({str(mark)!r}).touch()\n")
    torch.save(Bomb(f"touch {mark}"), tmp_path / "bomb.pt")
    arguments = {
        "torch.hub.load": {"repo_or_dir": str(tmp_path), "model": "bomb", "source": "local"},
        "torch.load": {"f": str(tmp_path / "bomb.pt"), "weights_only": False},
    }
    node = {"_target_": function} | arguments[function]
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with_config(trained, path, lambda config: place(config, "model/entity_init", node))
    try:
        message = refused(path, tmp_path)
    finally:
        assert not mark.exists(), "code was run"
    assert function in message


def test_weights_that_do_not_fit_are_one_line(trained, tmp_path):
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with_config(trained, path, lambda config: place(config, "model/dim", 6))
    with pytest.raises(UserError, match=r"last\.ckpt"):
        runs.evaluate(tmp_path / "evaluated", f"checkpoint='{path}'")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated(share, trained, tmp_path):
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    whole = trained.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "not a complete checkpoint" in refused(path, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"state_dict": {}},
        {"kgc": None, "state_dict": {}},
        {"kgc": {}, "state_dict": {}},
        {"kgc": {"config": {}, "entities": ["a", "a"], "relations": [], "digest": ""}, "state_dict": {}},
        {"kgc": {"config": {}, "entities": ["a"], "relations": ["r"], "digest": ""}, "state_dict": {}},
        {"kgc": {"config": {}, "entities": ["a"], "relations": ["r"]}, "state_dict": {}},
    ],
    ids=range(8),
)
def test_checkpoints_of_something_else(content, tmp_path):
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    torch.save(content, path)
    refused(path, tmp_path)


def test_other_files(trained, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "text.ckpt").write_text("kgc")
    with zipfile.ZipFile(folder / "zip.ckpt", "w") as archive:
        archive.writestr("a", "b")
    for path in (folder / "text.ckpt", folder / "zip.ckpt"):
        assert "not a complete checkpoint" in refused(path, tmp_path)
    assert "no such file" in refused(folder, tmp_path)
    assert "no such file" in refused(folder / "nowhere.ckpt", tmp_path)


def test_objects_in_npy_are_not_run(tmp_path, mark):
    data = runs.write_splits(tmp_path / "data", train=[("a", "r", "b")], test=[("b", "r", "a")])
    bombs = np.empty((2, 2), object)
    bombs.fill(Bomb(f"touch {mark}"))
    np.save(tmp_path / "objects.npy", bombs, allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Bomb(f"touch {mark}")))
    np.save(tmp_path / "relations.npy", np.ones((1, 2), "float32"))
    (tmp_path / "entities.txt").write_text("a\nb\n")
    (tmp_path / "relations.txt").write_text("r\n")
    for name in ("objects", "pickle"):
        with pytest.raises(UserError, match="not a readable"):
            runs.evaluate(
                tmp_path / "run",
                "model=distmult",
                "dataset=folder",
                f"dataset.path={data}",
                f"embeddings.entities={tmp_path}/{name}.npy",
                f"embeddings.relations={tmp_path}/relations.npy",
                f"embeddings.entity_labels={tmp_path}/entities.txt",
                f"embeddings.relation_labels={tmp_path}/relations.txt",
            )
        assert not mark.exists()
