"""The README's table of models, made of `conf/model/*.yaml` and of the models they name.

    python tests/models/table.py    writes it anew

The first line of a model's file is `# NAME: score function (SOURCE YEAR).`; all else is asked of the model itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from omegaconf import OmegaConf

from kgc.models.projected import Projected
from kgc.paths import config_dir
from kgc.tasks.build import build_model

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- python tests/models/table.py writes this table -->\n", "<!-- end of the table -->\n"
ENTITIES, RELATIONS, DIM = 14_541, 237, 256  # FB15k-237

# What follows the year or the closing full stop is not for the table.
_FIRST_LINE = re.compile(r"# (?P<name>[^:]+): (?P<score>.+) \((?P<source>[^();]+ \d{4})(?:; [^()]*)?\)\.(?: .*)?")


def described(path: Path) -> dict[str, str]:
    """Name, score function and source of a model, from the first line of its config file.

    Raises:
        ValueError: the line has another form.
    """
    line = path.read_text(encoding="utf-8").split("\n", 1)[0]
    if not (match := _FIRST_LINE.fullmatch(line)):
        raise ValueError(
            f"{path.name} begins with {line!r}; its first line must say `# NAME: score function (AUTHORS YEAR).`, from "
            "which the README's table is made"
        )
    return match.groupdict()


def row(path: Path) -> str:
    """A line of the table."""
    words = described(path)
    cfg = OmegaConf.create({"model": OmegaConf.load(path)})
    if "dim" in cfg.model:
        cfg.model.dim = DIM
    with torch.device("meta"):  # sizes without memory
        model = build_model(cfg, ENTITIES, RELATIONS)
    similarity = getattr(model, "similarity", None)
    if similarity is None:
        compared = "walks the graph"
    elif isinstance(similarity, Projected):
        compared = f"`{type(similarity.similarity).__name__}`, projected"
    else:
        compared = f"`{type(similarity).__name__}`"
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    cells = [
        f"{words['name']} `{path.stem}`",
        words["score"].replace("|", r"\|"),
        compared,
        "tail" if cfg.model.get("reciprocal") else "both",  # where the file needs reciprocal relations to begin with
        "none" if not parameters else f"{parameters:.1f}" if parameters > 0.05 else f"{parameters:.2f}",
        words["source"],
    ]
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    """The table in Markdown."""
    head = "| model | score | similarity | sides | parameters, millions | source |\n"
    rule = "| --- | --- | --- | --- | ---: | --- |\n"
    return head + rule + "".join(row(path) for path in sorted((config_dir() / "model").glob("*.yaml")))


def main() -> None:
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
