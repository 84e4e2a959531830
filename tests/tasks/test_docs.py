"""The pages about config groups: every key of every file with its default and its meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kgc.paths import config_dir
from kgc.tasks import docs

FILES = [(group, path) for group in docs.groups() for path in sorted((config_dir() / group).glob("*.yaml"))]
FILES = [(group, path) for group, path in FILES if group != "experiment"]
FILES += [("", config_dir() / f"{name}.yaml") for name in docs.COMMANDS]


def leaves(node: object, prefix: str = "") -> dict[str, object]:
    """Values by dotted key as PyYAML reads them; mappings on one line (`{lr: null}`) are told apart below."""
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    return {k: v for key, value in node.items() for k, v in leaves(value, f"{prefix}.{key}".lstrip(".")).items()}


@pytest.mark.parametrize(("group", "path"), FILES, ids=[f"{group}-{path.stem}" for group, path in FILES])
def test_every_key_has_its_default_and_a_meaning(group, path):
    keys = docs.group_keys(group)[path.stem] if group else docs.keys(path)
    content = {k: v for k, v in (yaml.safe_load(path.read_text()) or {}).items() if k not in ("defaults", "hydra")}
    if group == "dataset":
        content = {k: v for k, v in content.items() if k not in ("source", "expected")}
    told = leaves({})
    for key in keys:
        assert key.meaning, key
        told |= leaves(yaml.safe_load(key.default), key.name)
    wanted = {k: v for k, v in leaves(content).items() if not any(part.startswith("_") for part in k.split("."))}
    assert told == {"": {}} | wanted or not wanted


def test_a_page_as_it_is():
    page = docs.page("scheduler")
    assert page.startswith("# scheduler\n")
    words = "epochs (0.5: half of one) in which the learning rate rises in every step, from near 0"
    assert f"| `scheduler.warmup` | `0` | {words} |" in page
    assert "| `scheduler` | `null` | the learning rate is optimizer.lr in every step |" in page
    assert "| `trainer.devices` | `2` | processes on this machine, one a device |" in docs.page("trainer")
    assert "Code: `kgc.models.transe.TransE`." in docs.page("model")
    assert "Expected: 135 entities, 46 relations, 5,216 train" in docs.page("dataset")
    assert "| `batch_size` | `256` | training examples" in docs.page("train")


def test_docstrings_say_what_comments_do_not(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "# A thing.\n# Of two lines.\n_target_: kgc.losses.pairwise.Margin\nmargin: 1.0\nlist:   # of\n"
        "  a: [1,\n    2]  # two\n  b: '# no comment'\n"
        "text: x  # first\n         # second\nblock:\n  - 1\n  - 2\nlast: 3\n"
    )
    assert docs.about(path) == "A thing. Of two lines."
    keys = {key.name: (key.default, key.meaning) for key in docs.keys(path)}
    assert keys["list.a"] == ("[1, 2]", "two")
    assert keys["list.b"] == ("'# no comment'", "of")
    assert keys["text"] == ("x", "first second")
    assert keys["last"] == ("3", "")
    assert keys["margin"][0] == "1.0"
    assert keys["margin"][1]


def test_pages_are_written(tmp_path):
    command = [sys.executable, "-m", "kgc.tasks.docs", str(tmp_path / "pages")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {path.stem for path in (tmp_path / "pages").glob("*.md")}
    folders = {path.name for path in config_dir().iterdir() if path.is_dir()}
    assert names == {"train", "evaluate"} | folders - {"hydra", "sweep"}  # Hydra's own groups, and W&B's format
    assert done.stdout == f"{len(names)} pages written to {tmp_path / 'pages'}\n"
    assert (tmp_path / "pages" / "model.md").read_text() == docs.page("model")
    usage = subprocess.run(command[:-1], capture_output=True, text=True, check=False)
    assert (usage.returncode, usage.stderr) == (1, "usage: python -m kgc.tasks.docs FOLDER\n")
    assert Path(config_dir() / "model").is_dir()
