"""The README's table of models."""

from __future__ import annotations

import pytest
import table

from kgc.paths import config_dir

FILES = sorted((config_dir() / "model").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_readme_describes_the_model(path):
    row = table.row(path)
    readme = table.README.read_text(encoding="utf-8").split(table.BEGIN)[1].split(table.END)[0]
    assert row in readme, f"run `python tests/models/table.py`: the README lacks\n{row}"


def test_the_readme_describes_no_more():
    readme = table.README.read_text(encoding="utf-8").split(table.BEGIN)[1].split(table.END)[0]
    assert readme == table.table(), "run `python tests/models/table.py`"


@pytest.mark.parametrize(
    ("name", "parameters"), [("distmult", 256 * (14_541 + 237)), ("rescal", 256 * 14_541 + 256**2 * 237)]
)
def test_parameters_are_those_of_both_tables(name, parameters):
    assert f"| {parameters / 1e6:.1f} |" in table.row(config_dir() / "model" / f"{name}.yaml")


@pytest.mark.parametrize("line", ["_target_: kgc.models.foo.Foo", "# Foo.", "# Foo: ⟨h, t⟩.", "# Foo: ⟨h, t⟩ (Bar)."])
def test_a_file_that_does_not_describe_its_model_is_told_how(line, tmp_path):
    path = tmp_path / "foo.yaml"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"foo\.yaml begins with .*; its first line must say `# NAME: score function"):
        table.described(path)
