"""What is said of a test in progress: queries per second and the time left, on a terminal and in a log."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from kgc.console import ProgressLine, Terminal


class Clock:
    """Seconds that pass when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Batches(list):
    """Batches of so many queries each, of which others may be ranked by other processes."""

    def __init__(self, *sizes: int, num_queries: int):
        super().__init__((None, [0] * size, None) for size in sizes)
        self.num_queries = num_queries


def started(terminal: Terminal, clock: Clock, batches: Batches) -> tuple[ProgressLine, SimpleNamespace]:
    line, module = ProgressLine(terminal, clock), SimpleNamespace(progress=None)
    line.on_test_start(SimpleNamespace(test_dataloaders=batches), module)
    return line, module


@pytest.fixture
def log(tmp_path: Path) -> tuple[Terminal, Path]:
    path = tmp_path / "run.log"
    terminal = Terminal(path)
    yield terminal, path
    terminal.close()


def test_plain_lines_come_every_ten_seconds_with_rate_and_time_left(log, capsys):
    terminal, path = log
    clock = Clock()
    line, module = started(terminal, clock, Batches(8000, 8000, num_queries=16000))
    for _ in range(16):  # 1,000 queries every 4 seconds
        clock.now += 4
        module.progress(1000)
    expected = [
        "ranked 3,000/16,000 queries  250 queries/s  0:00:52 left",
        "ranked 6,000/16,000 queries  250 queries/s  0:00:40 left",
        "ranked 9,000/16,000 queries  250 queries/s  0:00:28 left",
        "ranked 12,000/16,000 queries  250 queries/s  0:00:16 left",
        "ranked 15,000/16,000 queries  250 queries/s  0:00:04 left",
    ]
    assert path.read_text().splitlines() == expected
    assert capsys.readouterr().out.splitlines() == expected
    line.on_test_end(None, module)
    assert module.progress is None


def test_a_quick_test_says_nothing(log):
    terminal, path = log
    clock = Clock()
    _, module = started(terminal, clock, Batches(10, num_queries=10))
    clock.now += 9
    module.progress(10)
    assert path.read_text() == ""


def test_the_first_of_two_processes_speaks_for_both(log):
    terminal, path = log
    clock = Clock()
    # 3 batches for two processes: each has two, one is ranked twice and counts once.
    _, module = started(terminal, clock, Batches(100, 100, num_queries=300))
    clock.now += 10
    module.progress(100)
    assert path.read_text().splitlines() == ["ranked 150/300 queries  15 queries/s  0:00:10 left"]


@pytest.fixture
def screen(monkeypatch) -> tuple[Terminal, io.StringIO]:
    """A terminal, and what a user sees there."""
    terminal, shown = Terminal(), io.StringIO()
    monkeypatch.setattr(terminal, "screen", Console(file=shown, force_terminal=True, width=120, color_system=None))
    return terminal, shown


def test_a_terminal_shows_a_bar_over_the_epochs(screen):
    terminal, shown = screen
    line = ProgressLine(terminal)
    trainer, module = SimpleNamespace(max_epochs=4, current_epoch=0), SimpleNamespace(history=[])
    line.on_train_start(trainer, module)
    module.history.append({"epoch": 1, "train/loss": 0.25, "train/examples_per_second": 1234.0, "valid/mrr": 0.5})
    line.on_train_epoch_end(trainer, module)
    line._bar.refresh()
    line.on_train_end(trainer, module)
    assert "1/4" in shown.getvalue()
    assert "loss 0.2500  valid MRR 0.5000 (best 0.5000)  1,234 examples/s" in shown.getvalue()


def test_a_terminal_shows_a_bar_with_the_rate(screen):
    terminal, shown = screen
    clock = Clock()
    line, module = started(terminal, clock, Batches(500, 500, num_queries=1000))
    clock.now += 2
    module.progress(500)
    line._bar.refresh()
    line.on_test_end(None, module)
    assert "500/1000" in shown.getvalue()
    assert "250 queries/s" in shown.getvalue()
    assert "ranked" not in shown.getvalue()


def test_an_error_takes_the_bar_away(screen):
    terminal, shown = screen
    line, module = started(terminal, Clock(), Batches(5, num_queries=5))
    line.on_exception(None, module, RuntimeError())
    assert module.progress is None
    assert shown.getvalue().endswith("\x1b[2K")  # the bar's line is erased
