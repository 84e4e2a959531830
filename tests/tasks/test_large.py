"""What large graphs do that small ones do not: mapped ids, mapped weights, labels as bytes; with the same results."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import runs
import torch

from kgc.objectives import sorted_triples
from kgc.tasks.build import build_model, load_weights, read_checkpoint
from kgc.types import Triples

WORDS = [
    "dataset=synthetic",
    "dataset.num_entities=3000",
    "dataset.num_relations=5",
    "dataset.num_triples=20000",
    "dataset.num_valid=100",
    "dataset.num_test=100",
    "model=distmult",
    "model.dim=16",
    "sampler=shared",
    "sampler.num_negatives=256",
    "sampler.mask_known=true",
    "loss=cross_entropy",
    "optimizer=rowwise_adagrad",
    "optimizer.lr=0.3",
    "optimizer.sparse=true",
    "batch_size=500",
    "trainer.max_epochs=3",
    "trainer.val_every=3",
]


@pytest.fixture
def large(monkeypatch, tmp_path) -> Path:
    """Where ids are kept; from here on everything is large."""
    monkeypatch.setenv("KGC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kgc.data.vocabulary._MANY", 100)
    return tmp_path / "cache" / "graphs"


def test_a_large_graph_gives_the_digits_of_a_small_one(tmp_path, monkeypatch):
    small = runs.train(tmp_path / "small", *WORDS)
    assert isinstance(runs.content(tmp_path / "small" / "checkpoints" / "best.ckpt")["kgc"]["entities"], list)
    monkeypatch.setenv("KGC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kgc.data.vocabulary._MANY", 100)
    for folder in ("first", "second"):  # which makes the cache, and which finds it
        large = runs.train(tmp_path / folder, *WORDS, "dataset.cache=true")
        assert runs.digits(large) == runs.digits(small)
    assert len(list((tmp_path / "cache" / "graphs").iterdir())) == 1
    best = tmp_path / "second" / "checkpoints" / "best.ckpt"
    assert set(runs.content(best)["kgc"]["entities"]) == {"bytes", "sizes"}
    again = runs.evaluate(tmp_path / "evaluated", f"checkpoint={best}")
    assert runs.digits(again, "test") == runs.digits(small, "test")
    # The graph has something to learn: the MRR of random ranks among 3,000 is 8.6 / 3,000.
    assert small["test/mrr"] > 2 * 8.6 / 3000


def test_weights_are_used_where_they_lie_in_the_file(tmp_path):
    runs.train(tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    checkpoint = read_checkpoint(str(best))
    model = build_model(checkpoint.config, len(checkpoint.entities), len(checkpoint.relations))
    load_weights(model, checkpoint)
    assert model.entity.weight.data_ptr() == checkpoint.state["entity.weight"].data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in maps if line.endswith(str(best))]
    address = model.entity.weight.data_ptr()
    assert any(int(start, 16) <= address < int(stop, 16) for start, stop in spans)
    # Writing to the model does not write to the file.
    before = best.read_bytes()
    with torch.no_grad():
        model.entity.weight.zero_()
    assert best.read_bytes() == before


def test_the_best_weights_take_the_place_of_the_last(tmp_path, monkeypatch):
    """A table is there once when splits are ranked after training, not with another that the optimizer holds."""
    from kgc.tasks import train

    rank, tables = train.rank_split, []

    def rank_split(*arguments):
        gc.collect()
        found = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == (3000, 16)]
        tables.append({t.untyped_storage().data_ptr() for t in found if not t.is_sparse})
        return rank(*arguments)

    monkeypatch.setattr(train, "rank_split", rank_split)
    runs.train(tmp_path / "run", *WORDS, "trainer.max_epochs=1")
    assert [len(found) for found in tables] == [1, 1]


def test_a_resumed_run_of_a_large_graph(large, tmp_path):
    straight = runs.train(tmp_path / "straight", *WORDS, "dataset.cache=true")
    runs.train(tmp_path / "run", *WORDS, "dataset.cache=true", "trainer.max_epochs=1")
    again = runs.resume(tmp_path / "run" / "checkpoints" / "last.ckpt", "trainer.max_epochs=3")
    assert runs.digits(again, "test") == runs.digits(straight, "test")
    assert len(list(large.iterdir())) == 1


@pytest.mark.parametrize("size", [50, 2**31 - 1])  # one number a triple, and column by column
def test_triples_in_order(size):
    generator = torch.Generator().manual_seed(0)
    rows = [[int(torch.randint(high, (), generator=generator)) for high in (size, 300, size)] for _ in range(200)]
    rows.append([size - 1, 299, size - 1])
    triples = Triples(*torch.tensor(rows + rows[:20], dtype=torch.int32).T.contiguous())
    found = sorted_triples(triples)
    assert found.head.dtype == torch.int32
    columns = (found.head.tolist(), found.relation.tolist(), found.tail.tolist())
    assert list(zip(*columns, strict=True)) == sorted(map(tuple, rows + rows[:20]), key=lambda t: (t[1], t[0], t[2]))
