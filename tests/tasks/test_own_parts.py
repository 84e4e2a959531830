"""The README's sampler and data set of a user's own: files outside the package."""

from __future__ import annotations

import re
import sys

import pytest
import runs
import torch

from kgc.errors import UserError

README = (runs.REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"^```python\n(# my_sampler\.py\n.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
OWN = ["sampler=uniform", "sampler.proposal._target_=my_sampler.Rare"]


@pytest.fixture(autouse=True)
def my_sampler(tmp_path, monkeypatch):
    """The file of the README, where Python finds it."""
    (tmp_path / "my_sampler.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_sampler", raising=False)


def test_the_sampler_draws_rare_entities(tmp_path):
    """Entity 0 has three places, 1 and 2 have one, 3 has none: weights 1/4, 1/2, 1/2, 1."""
    from my_sampler import Rare

    data = runs.write_splits(tmp_path / "data", train=[("0", "r", "0"), ("0", "r", "1")], valid=[("2", "r", "3")])
    from kgc.data.catalogue import load_folder

    graph = load_folder(data)
    proposal = Rare()
    proposal.setup(graph, torch.device("cpu"))
    drawn = proposal.entities((40_000,), torch.Generator().manual_seed(0))
    weights = torch.tensor([1 / 4, 1 / 2, 1, 1], dtype=torch.float64)
    share = torch.bincount(drawn, minlength=4).double() / len(drawn)
    torch.testing.assert_close(share, weights / weights.sum(), atol=0.01, rtol=0)


def test_the_sampler_trains_and_is_evaluated_by_who_trusts_it(tmp_path):
    assert f"python train.py {' '.join(OWN)}" in README
    runs.train(tmp_path / "run", *OWN, "trainer.max_epochs=1", "test=false")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with pytest.raises(UserError, match=r"`my_sampler\.Rare`, which is not of kgc"):
        runs.resume(last, "trainer.max_epochs=2")
    assert runs.resume(last, "trainer.max_epochs=2", "trust=my_sampler")["train/epochs"] == 2


def test_a_data_set_is_a_file(tmp_path):
    data = runs.write_splits(tmp_path / "data", **runs.bundled("nations"))
    (tmp_path / "my_conf" / "dataset").mkdir(parents=True)
    content = f"_target_: kgc.data.catalogue.load_folder\npath: {data}\n"
    (tmp_path / "my_conf" / "dataset" / "facts.yaml").write_text(content)
    words = [f"hydra.searchpath=[file://{tmp_path / 'my_conf'}]", "dataset=facts", "trainer.max_epochs=1"]
    assert runs.train(tmp_path / "run", *words)["test/num_queries"] == 402
