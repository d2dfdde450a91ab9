"""Progress for people: bars in a terminal or a notebook. Each is a `progress.Reporter`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from diskgnn.progress.reporter import SILENT, Advance, Reporter
from diskgnn.units import format_count, format_size

_LINE_SECONDS = 0.5  # between two lines of a `LineReporter`


def bars_on_stderr() -> Reporter:
    """Returns bars that go when they are done, if stderr is a terminal or this is a notebook; otherwise nothing."""
    console = Console(stderr=True, highlight=False, emoji=False)
    if console.is_jupyter and find_spec("ipywidgets") is None:  # which rich draws with there
        return LineReporter()
    return BarReporter(console, transient=True) if console.is_terminal or console.is_jupyter else SILENT


def _done_of(unit: str, completed: float, total: float) -> str:
    """Says '1.2 GiB of 8.0 GiB' or '120 of 400 minibatches'."""
    if unit == "B":
        return f"{format_size(completed)} of {format_size(total)}"
    return f"{format_count(int(completed))} of {format_count(int(total))} {unit}"


class _RateColumn(ProgressColumn):
    """Done, of how much, how fast: '1.2 GiB of 8.0 GiB, 900.1 MiB/s' or '120 of 400 minibatches, 35/s'."""

    def render(self, task: Task) -> Text:
        unit, speed = task.fields["unit"], task.finished_speed or task.speed
        shown = "" if speed is None else f", {format_size(speed) if unit == 'B' else format_count(float(speed))}/s"
        return Text(_done_of(unit, task.completed, task.total or 0) + shown)


class BarReporter:
    """Draws a bar with rate and time left for each stage. `transient` bars go when done."""

    def __init__(self, console: Console, transient: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)), BarColumn(bar_width=16),
            _RateColumn(Column(no_wrap=True)), TimeRemainingColumn(elapsed_when_finished=True),
            console=console, transient=transient,
            disable=transient and not (console.is_terminal or console.is_jupyter),
        )  # fmt: skip
        self._open_stages: list[TaskID] = []

    def say(self, line: str) -> None:
        """Prints one line, above the bars."""
        self._progress.console.print(escape(line), soft_wrap=True)

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Yields one bar; bars of one run stay in view until the outermost is done."""
        if not self._open_stages:
            self._progress.start()
        task = self._progress.add_task(escape(description), total=total, unit=unit)
        self._open_stages.append(task)
        try:
            yield lambda amount: self._progress.advance(task, amount)
        finally:
            self._progress.stop_task(task)
            self._open_stages.remove(task)
            if not self._open_stages:
                self._progress.stop()
                for finished in self._progress.task_ids:
                    self._progress.remove_task(finished)


class LineReporter:
    """Writes one line for each stage, over and over, for notebooks without widgets."""

    def say(self, line: str) -> None:
        """Prints one line."""
        print(line, file=sys.stderr)

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Yields one line, which ends with the stage."""
        completed, written = 0, 0.0

        def advance(amount: int) -> None:
            nonlocal completed, written
            completed += amount
            if (now := time.monotonic()) - written >= _LINE_SECONDS:
                written = now
                print(f"\r{description}: {_done_of(unit, completed, total)}", end="", file=sys.stderr, flush=True)

        try:
            yield advance
        finally:
            print(f"\r{description}: {_done_of(unit, completed, total)}", file=sys.stderr, flush=True)
