"""The README's model of a user's own: a file outside the package, trained, evaluated and resumed."""

from __future__ import annotations

import re

import pytest
import runs
import torch

from kgc.errors import UserError
from kgc.types import Queries, Side

README = (runs.REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"^```python\n(# my_models\.py\n.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
OWN = ["model=distmult", "model._target_=my_models.Turn"]


@pytest.fixture(autouse=True)
def my_models(tmp_path, monkeypatch):
    """The file of the README, where Python finds it."""
    (tmp_path / "my_models.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_models", raising=False)


def test_the_command_of_the_readme_names_it():
    assert f"python train.py {' '.join(OWN)}" in README


def test_scores_are_those_of_its_formula():
    from my_models import Turn

    model = Turn(num_entities=6, num_relations=3, dim=8).double()
    head, relation, tail = torch.tensor([0, 5, 2]), torch.tensor([2, 0, 1]), torch.tensor([3, 5, 1])
    real, imaginary = model.entity.weight.chunk(2, dim=1)
    entities, turns = torch.complex(real, imaginary), torch.exp(1j * model.relation.weight)
    wanted = (entities[head] * turns[relation] * entities[tail].conj()).sum(1).real
    torch.testing.assert_close(model.score(Queries(head, relation, Side.TAIL), tail[:, None])[:, 0], wanted)
    torch.testing.assert_close(model.score(Queries(tail, relation, Side.HEAD), head[:, None])[:, 0], wanted)


def test_it_trains_and_its_checkpoint_is_evaluated_and_resumed_by_who_trusts_it(tmp_path):
    trained = runs.train(tmp_path / "run", *OWN, "objective=one_vs_all", "trainer.max_epochs=1")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    with pytest.raises(UserError, match=r"`my_models\.Turn`, which is not of kgc .* trust=MODULE"):
        runs.evaluate(tmp_path / "refused", f"checkpoint='{last}'")
    with pytest.raises(UserError, match="refused"):
        runs.evaluate(tmp_path / "refused", f"checkpoint='{last}'", "trust=my_model")
    evaluated = runs.evaluate(tmp_path / "evaluated", f"checkpoint='{last}'", "trust=my_models")
    assert evaluated["test/mrr"] == trained["test/mrr"]
    with pytest.raises(UserError, match="refused"):
        runs.resume(last, "trainer.max_epochs=2")
    runs.resume(last, "trainer.max_epochs=2", "trust=[my_models]")
    straight = tmp_path / "straight" / "checkpoints" / "last.ckpt"
    runs.train(straight.parent.parent, *OWN, "objective=one_vs_all", "trainer.max_epochs=2")
    runs.assert_same(runs.trained(last)["weights"], runs.trained(straight)["weights"])


def test_a_config_file_of_ones_own_is_found_on_the_search_path(tmp_path):
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "turn.yaml").write_text("_target_: my_models.Turn\ndim: 128\n")
    words = [f"hydra.searchpath=[file://{tmp_path / 'my_conf'}]", "model=turn"]
    trained = runs.train(tmp_path / "run", *words, "trainer.max_epochs=1")
    assert trained["train/epochs"] == 1
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert runs.resume(checkpoint, "trust=my_models", "trainer.max_epochs=2")["train/epochs"] == 2


def test_what_a_checkpoint_itself_trusts_is_not_asked(tmp_path):
    runs.train(tmp_path / "run", *OWN, "trainer.max_epochs=1", "trust=my_models", "test=false")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert runs.content(last)["kgc"]["config"]["trust"] == "my_models"
    for attempt in (lambda: runs.evaluate(tmp_path / "e", f"checkpoint='{last}'"), lambda: runs.resume(last)):
        with pytest.raises(UserError, match="refused"):
            attempt()
