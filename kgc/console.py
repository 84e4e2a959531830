"""What the terminal shows, and its copy in `train.log`."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Checkpoint
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kgc.text import printable

_LOG_WIDTH = 120
_SECONDS_A_LINE = 10.0
_SECONDS_A_TURN = 0.25  # of the bar inside an epoch
_SECONDS_IN_AN_EPOCH = 60.0  # from one plain line to the next


class Terminal:
    """Prints to stdout and to a log file. Everything is silent on processes other than the first.

    Colours and bars are for terminals only, and colours only where `NO_COLOR` is not set.

    Args:
        path: the log file, appended to; None keeps none.
        active: False prints nothing.
        quiet: True prints warnings only; the log file has everything all the same.
    """

    def __init__(self, path: Path | None = None, active: bool = True, quiet: bool = False):
        self.quiet = quiet
        self.screen = Console(quiet=not active, highlight=False, soft_wrap=True)
        self.log_file = path.open("a", encoding="utf-8") if path and active else None
        self._log = Console(file=self.log_file, width=_LOG_WIDTH, color_system=None, highlight=False, soft_wrap=True)

    @property
    def interactive(self) -> bool:
        on = not (self.screen.quiet or self.quiet)
        return on and self.screen.is_terminal and not self.screen.is_dumb_terminal

    def say(self, what: RenderableType) -> None:
        """Shows a line or a table. Square brackets in labels are no markup, and escape codes in them are taken out."""
        if isinstance(what, str):
            what = printable(what)
        if not self.quiet or (isinstance(what, str) and what.startswith("warning: ")):
            self.screen.print(what, markup=False)
        if self.log_file is not None:
            self._log.print(what, markup=False)
        if self.log_file:
            self.log_file.flush()

    def note(self, what: str) -> None:
        """Writes a line to the log file only."""
        if self.log_file:
            self._log.print(printable(what), markup=False)

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Warnings and log records from libraries become lines here, each warning once."""
        handler = _Lines(self)
        names = ("kgc", "pytorch_lightning", "lightning_fabric", "lightning.pytorch")
        loggers = [logging.getLogger(name) for name in names]
        before = [(logger, logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(logging.INFO if logger.name == "kgc" else logging.WARNING)
        show = warnings.showwarning
        warnings.showwarning = lambda message, *_, **__: self.say(f"warning: {message}")
        try:
            with warnings.catch_warnings():
                # Lightning's call into torch, nothing a user could change.
                warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
                # What is logged has been reduced over the processes before.
                warnings.filterwarnings("ignore", message="It is recommended to use `self.log.*sync_dist")
                warnings.filterwarnings("ignore", message=".*torch.distributed.*is deprecated")
                yield
        finally:
            warnings.showwarning = show
            for logger, level, handlers, propagate in before:
                logger.setLevel(level)
                logger.handlers, logger.propagate = handlers, propagate

    def close(self) -> None:
        if self.log_file:
            self.log_file.close()
            self.log_file = None


class _Lines(logging.Handler):
    def __init__(self, terminal: Terminal):
        super().__init__()
        self.terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        self.terminal.say(f"{prefix}{record.getMessage()}")


class ProgressLine(Checkpoint):
    """One bar over all epochs with loss, valid MRR and its best, triples per second and time left, and one over the
    queries of a test with queries per second and time left. When the output is no terminal: plain lines, one a
    validation and one every minute inside an epoch, and one every ten seconds of a test.

    Args:
        terminal: where it is shown.
        clock: seconds that pass.
    """

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic):
        self.terminal = terminal
        self.clock = clock
        self.best = 0.0
        self._valid = ""
        self._bar: Progress | None = None
        self._began = self._said = 0.0
        self._first = 0.0  # epochs done when this process began
        self._words: list[str] = []
        self._ranked = self._own = self._all = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.best = max([row.get("valid/mrr", 0.0) for row in module.history], default=0.0)
        self._began = self._said = self.clock()
        self._first = float(trainer.current_epoch)
        if self.terminal.interactive:
            self._bar = self._progress()
            self._task = self._bar.add_task(
                "train", total=trainer.max_epochs, completed=trainer.current_epoch, status=""
            )

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        row = module.history[-1]
        self._said = self.clock()
        words = [f"loss {row['train/loss']:.4f}"]
        if "valid/mrr" in row:
            self.best = max(self.best, row["valid/mrr"])
            self._valid = f"valid MRR {row['valid/mrr']:.4f} (best {self.best:.4f})"
        words += [self._valid] if self._valid else []
        words.append(f"{row['train/triples_per_second']:,.0f} triples/s")
        self._words = words
        if self._bar:
            self._bar.update(self._task, completed=row["epoch"], status="  ".join(words))
        elif row["epoch"] == trainer.max_epochs:
            self.terminal.say(f"epoch {row['epoch']}/{trainer.max_epochs}  {'  '.join(words)}")
        elif "valid/mrr" in row:
            self._say_epochs(row["epoch"], trainer.max_epochs)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *arguments: Any) -> None:
        now = self.clock()
        if now - self._said < (_SECONDS_A_TURN if self._bar else _SECONDS_IN_AN_EPOCH):
            return
        self._said = now
        done = trainer.current_epoch + (arguments[-1] + 1) / len(trainer.train_dataloader)
        if self._bar:
            self._bar.update(self._task, completed=done)
        elif done < trainer.current_epoch + 1:
            self._say_epochs(done, trainer.max_epochs)

    def _say_epochs(self, done: float, all_epochs: int) -> None:
        """A plain line with the time left, if training goes on to the last epoch."""
        pace = (self.clock() - self._began) / max(1e-9, done - self._first)
        left = timedelta(seconds=round((all_epochs - done) * pace))
        self.terminal.say(
            "  ".join([f"epoch {done:.2f}".rstrip("0").rstrip(".") + f"/{all_epochs}", *self._words, f"{left} left"])
        )

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        module.progress = None
        self._close()

    def on_test_start(self, trainer: Trainer, module: LightningModule) -> None:
        batches = trainer.test_dataloaders
        self._own, self._all = sum(len(targets) for _, targets, _ in batches), batches.num_queries
        self._ranked = 0
        self._began = self._said = self.clock()
        module.progress = self._show_ranked
        if self.terminal.interactive:
            self._bar = self._progress()
            self._task = self._bar.add_task("rank", total=self._all, status="")

    def on_test_end(self, trainer: Trainer, module: LightningModule) -> None:
        module.progress = None
        self._close()

    def _show_ranked(self, queries: int) -> None:
        """So many more queries are ranked here; other processes are taken to be as far with theirs."""
        self._ranked += queries
        now = self.clock()
        done = self._all * self._ranked / self._own
        rate = done / max(1e-9, now - self._began)
        if self._bar:
            self._bar.update(self._task, completed=done, status=f"{rate:,.0f} queries/s")
        elif now - self._said >= _SECONDS_A_LINE:
            self._said = now
            left = timedelta(seconds=round((self._all - done) / rate))
            self.terminal.say(f"ranked {done:,.0f}/{self._all:,} queries  {rate:,.0f} queries/s  {left} left")

    def _progress(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
        )
        bar = Progress(*columns, console=self.terminal.screen, transient=True)
        bar.start()
        return bar

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
