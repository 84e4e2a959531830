"""Checkpoints of yesterday: parameters keep their names and layouts, and give the scores they gave."""

from __future__ import annotations

import pytest
import stored
import torch


@pytest.mark.parametrize("name", stored.names())
def test_a_stored_checkpoint_loads_and_scores_as_it_did(name):
    file = stored.file_of(name)
    assert file.exists(), f"{file.name} is missing: `python tests/models/stored.py` writes it"
    assert file.stat().st_size < 20_000, "meant to be tiny: write it anew with options that make it so"
    options, state, scores = stored.read(name)
    model = stored.build(name, options)
    model.load_state_dict(state)  # strict: names and shapes are the same
    torch.testing.assert_close(stored.scores(model), scores, rtol=1e-9, atol=1e-9)


def test_every_stored_checkpoint_is_of_a_model():
    assert {file.stem for file in stored.FOLDER.iterdir()} == set(stored.names())
