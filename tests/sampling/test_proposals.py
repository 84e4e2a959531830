"""Where candidates come from: every entity equally often, the first and the last included."""

from __future__ import annotations

import oracle
import pytest
import torch

from kgc.data.graph import KnowledgeGraph
from kgc.data.vocabulary import Vocabulary
from kgc.sampling.proposals import Proposal, SharedUniform, Uniform
from kgc.types import Queries, Side, Triples

# Chi-square, p = 0.001, of printed tables: degrees of freedom to critical value.
CRITICAL = {1: 10.83, 9: 27.88}


def ready(proposal: Proposal, entities: int, device: torch.device | str = "cpu") -> Proposal:
    labels = Vocabulary([f"e{i}" for i in range(entities)])
    nothing = Triples.empty()
    proposal.setup(KnowledgeGraph("tiny", labels, Vocabulary(["r"]), nothing, nothing, nothing), torch.device(device))
    return proposal


def queries(number: int, device: torch.device | str = "cpu") -> Queries:
    zero = torch.zeros(number, dtype=torch.int64, device=device)
    return Queries(zero, zero, Side.TAIL)


@pytest.mark.parametrize("entities", [2, 10])
@pytest.mark.parametrize("kind", [Uniform, SharedUniform])
def test_every_entity_is_drawn_equally_often(kind, entities, device):
    generator = torch.Generator(device).manual_seed(3)
    drawn = ready(kind(), entities, device).draw(queries(4, device), 5000, generator)
    assert drawn.device.type == device.type
    counts = torch.bincount(drawn.flatten().cpu(), minlength=entities).tolist()
    assert len(counts) == entities
    assert oracle.chi_square(counts, [drawn.numel() / entities] * entities) < CRITICAL[entities - 1]


def test_each_query_has_candidates_of_its_own_that_are_independent():
    drawn = ready(Uniform(), 10).draw(queries(5000), 2, torch.Generator().manual_seed(4))
    assert drawn.shape == (5000, 2)
    equal = int((drawn[:, 0] == drawn[:, 1]).sum())  # with replacement: one in ten
    neighbours = int((drawn[:-1, 0] == drawn[1:, 0]).sum())
    for count in (equal, neighbours):
        assert oracle.chi_square([count, 5000 - count], [500, 4500]) < CRITICAL[1]


def test_a_shared_pool_is_one_list_for_all_queries():
    assert ready(SharedUniform(), 10).draw(queries(7), 4, torch.Generator().manual_seed(0)).shape == (4,)


@pytest.mark.parametrize("kind", [Uniform, SharedUniform])
def test_draws_are_decided_by_the_generator(kind):
    proposal = ready(kind(), 1000)
    first, again, other = (proposal.draw(queries(3), 20, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unfinished_proposals_say_so():
    for call in (
        lambda: ready(Proposal(), 2),
        lambda: Proposal().draw(queries(1), 1, torch.Generator()),
    ):
        with pytest.raises(NotImplementedError):
            call()
