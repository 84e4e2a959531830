"""Settings of the whole suite, and the devices that tests run on."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Test tensors are tiny: threads cost more than they give, here and in processes that tests start, and pytest-xdist uses
# the cores better.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples in every run: a red suite means a change, not bad luck; a database of past failures would add
# nothing. `pytest --hypothesis-profile=search` looks further, at random.
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "search", max_examples=1000, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and with `-m gpu` the first CUDA device."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def denormals_are_numbers() -> Iterator[None]:
    """Runs inside the process flush denormals; the next test shall not."""
    yield
    torch.set_flush_denormal(False)
