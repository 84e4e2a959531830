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
    module.history.append({"epoch": 1, "train/loss": 0.25, "train/triples_per_second": 1234.0, "valid/mrr": 0.5})
    line.on_train_epoch_end(trainer, module)
    line._bar.refresh()
    line.on_train_end(trainer, module)
    assert "1/4" in shown.getvalue()
    assert "loss 0.2500  valid MRR 0.5000 (best 0.5000)  1,234 triples/s" in shown.getvalue()


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


def trained(line: ProgressLine, clock: Clock, seconds: float, batches: int) -> None:
    """Two epochs of so many batches, each of so many seconds, with a validation after each."""
    trainer = SimpleNamespace(max_epochs=2, current_epoch=0, train_dataloader=[None] * batches)
    module = SimpleNamespace(history=[])
    line.on_train_start(trainer, module)
    for epoch in range(2):
        trainer.current_epoch = epoch
        for batch in range(batches):
            clock.now += seconds
            line.on_train_batch_end(trainer, module, None, None, batch)
        row = {"epoch": epoch + 1, "train/loss": 0.5, "train/triples_per_second": 10.0, "valid/mrr": 0.25 - epoch / 10}
        module.history.append(row)
        line.on_train_epoch_end(trainer, module)
    line.on_train_end(trainer, module)


def test_long_epochs_speak_once_a_minute_with_the_time_left(log):
    terminal, path = log
    clock = Clock()
    trained(ProgressLine(terminal, clock), clock, 25, 4)
    assert path.read_text().splitlines() == [
        "epoch 0.75/2  0:02:05 left",
        "epoch 1/2  loss 0.5000  valid MRR 0.2500 (best 0.2500)  10 triples/s  0:01:40 left",
        "epoch 1.75/2  loss 0.5000  valid MRR 0.2500 (best 0.2500)  10 triples/s  0:00:25 left",
        "epoch 2/2  loss 0.5000  valid MRR 0.1500 (best 0.2500)  10 triples/s",
    ]


def test_quick_epochs_say_one_line_a_validation(log):
    terminal, path = log
    clock = Clock()
    trained(ProgressLine(terminal, clock), clock, 1, 4)
    assert [text.split("  ")[0] for text in path.read_text().splitlines()] == ["epoch 1/2", "epoch 2/2"]


def test_the_bar_moves_inside_an_epoch(screen):
    terminal, shown = screen
    clock = Clock()
    line = ProgressLine(terminal, clock)
    trainer = SimpleNamespace(max_epochs=4, current_epoch=1, train_dataloader=[None] * 10)
    line.on_train_start(trainer, SimpleNamespace(history=[]))
    clock.now += 1
    line.on_train_batch_end(trainer, None, None, None, 4)
    assert line._bar.tasks[0].completed == 1.5
    line.on_train_end(trainer, None)
    assert "1/4" in shown.getvalue() or "2/4" in shown.getvalue()


def test_quiet_prints_warnings_only_and_logs_everything(tmp_path, capsys):
    terminal = Terminal(tmp_path / "run.log", quiet=True)
    terminal.say("a line")
    terminal.say("warning: a mistake")
    assert not terminal.interactive
    terminal.close()
    assert capsys.readouterr().out == "warning: a mistake\n"
    assert (tmp_path / "run.log").read_text() == "a line\nwarning: a mistake\n"


@pytest.mark.parametrize(("name", "value", "coloured"), [("NO_COLOR", "1", False), ("NO_COLOR", "", True)])
def test_no_color_is_respected(name, value, coloured, monkeypatch, capsys):
    from rich.text import Text

    monkeypatch.setenv("FORCE_COLOR", "1")  # as if there were a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    Terminal().say(Text("red", style="red"))
    assert ("\x1b[31m" in capsys.readouterr().out) is coloured


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert not Terminal().interactive
