"""What fits into memory, by files of the system that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgc import limits
from kgc.errors import UserError

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /: 9 GiB available of 32."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {32 << 20} kB\nMemAvailable:   {9 << 20} kB\nHuge: no\n")
    monkeypatch.setattr(limits, "Path", lambda path: tmp_path / path.lstrip("/"))
    return tmp_path / "sys" / "fs" / "cgroup"


def test_what_the_system_calls_available(system):
    assert limits.free_memory() == 9 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "free"), [(4 * GIB, 3 * GIB, 2), ("max", 3 * GIB, 9), (40 * GIB, 0, 9), (GIB, 3 * GIB, 0)]
)
def test_the_limit_of_a_control_group(limit, used, free, system):
    """A gibibyte of what is used are files that can be dropped."""
    system.mkdir(parents=True)
    for name, value in {"max": limit, "current": used, "stat": f"anon 5\ninactive_file {GIB}"}.items():
        (system / f"memory.{name}").write_text(f"{value}\n")
    assert limits.free_memory() == free * GIB


def test_the_first_version_of_control_groups(system):
    (system / "memory").mkdir(parents=True)
    for name, value in {"limit_in_bytes": 5 * GIB, "usage_in_bytes": 2 * GIB, "stat": "total_inactive_file 0"}.items():
        (system / "memory" / f"memory.{name}").write_text(f"{value}\n")
    assert limits.free_memory() == 3 * GIB


def test_what_does_not_fit_is_named(system):
    limits.require_memory(9 * GIB, "model.dim=7", "the tables")
    with pytest.raises(
        UserError, match=r"model\.dim=7: the tables would take 9\.5 GiB, and 9\.0 GiB of memory are free"
    ):
        limits.require_memory(9 * GIB + GIB // 2, "model.dim=7", "the tables")


def test_this_machine_has_memory():
    assert limits.free_memory() > 0
    assert limits.lacks_memory(torch.OutOfMemoryError())
