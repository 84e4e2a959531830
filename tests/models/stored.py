"""Stored checkpoints: a tiny one of each model of `conf/model/`, with the scores it gave when it was written.

python tests/models/stored.py                   writes those that are missing
python tests/models/stored.py NAME [KEY=VALUE]  writes one anew, with options of its config (dim is 8 if not given):
                                                checkpoints of users no longer load then, so say so to them
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file
from small import SMALL
from torch import Tensor

from kgc.models.base import KGEModel
from kgc.paths import config_dir
from kgc.tasks.build import build_model
from kgc.types import Queries, Triples

FOLDER = Path(__file__).parent / "stored"
ENTITIES, RELATIONS = 5, 2
# What models over a graph walk over.
FACTS = Triples(*torch.tensor([[0, 0, 1], [1, 1, 2], [0, 1, 2], [2, 0, 3], [3, 1, 0], [1, 0, 4], [4, 0, 2]]).T)
SCORES = "scores"  # the name of [20, 5] float64 scores among the parameters


def names() -> list[str]:
    """Of all models."""
    return sorted(path.stem for path in (config_dir() / "model").glob("*.yaml"))


def file_of(name: str) -> Path:
    """Where the checkpoint of a model is stored."""
    return FOLDER / f"{name}.safetensors"


def build(name: str, options: list[str]) -> KGEModel:
    """A tiny model; options are `dim=8` and the like."""
    cfg = OmegaConf.merge(OmegaConf.load(config_dir() / "model" / f"{name}.yaml"), OmegaConf.from_dotlist(options))
    return build_model(OmegaConf.create({"model": cfg}), ENTITIES, RELATIONS, FACTS).eval()


def scores(model: KGEModel) -> Tensor:
    """[20, 5] float64 scores of all entities, for all queries there are."""
    anchor, relation, side = zip(*itertools.product(range(ENTITIES), range(RELATIONS), range(2)), strict=True)
    with torch.no_grad():
        return model.double().score(Queries(torch.tensor(anchor), torch.tensor(relation), torch.tensor(side)))


def read(name: str) -> tuple[list[str], dict[str, Tensor], Tensor]:
    """The stored options, state dict and scores."""
    with safe_open(file_of(name), "pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["options"]), state, state.pop(SCORES)


def write(name: str, options: list[str]) -> None:
    """Stores a model with random parameters of the size of 1."""
    known = OmegaConf.load(config_dir() / "model" / f"{name}.yaml")
    small = {"dim": 8} | SMALL.get(name, {})
    given = {option.split("=")[0] for option in options}
    options = [f"{key}={value}" for key, value in small.items() if key in known and key not in given] + options
    model, generator = build(name, options), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    if hasattr(model, "mine"):
        model.mine()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    FOLDER.mkdir(exist_ok=True)
    save_file(state | {SCORES: scores(model)}, file_of(name), {"options": json.dumps(options)})
    print(f"{file_of(name).name}: {file_of(name).stat().st_size:,} bytes")


def main() -> None:
    if sys.argv[1:]:
        write(sys.argv[1], sys.argv[2:])
    else:
        for name in names():
            if not file_of(name).exists():
                write(name, [])


if __name__ == "__main__":
    main()
