"""Events that tasks tell while they work, and the stages that show them where the command runs."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from diskgnn.engines.work_units import MadeUnit
from diskgnn.progress.reporter import Advance, Reporter

_TELL_SECONDS = 0.5  # between two messages about one stage


class Tell(Protocol):
    """Says something to whoever submitted the task, without waiting."""

    def __call__(self, event: Event) -> None:
        """Takes one event; those of a worker arrive in order, or not at all."""
        ...


@dataclass(frozen=True)
class Arrived:
    """The files of a unit are complete in the folder that they were to arrive in, and durable."""

    made: MadeUnit[Any]
    files: Mapping[str, tuple[str, int]]  # by their names, those that they have there, and bytes


@dataclass(frozen=True)
class Opened:
    """A stage began; see `progress.Reporter`."""

    stage: str  # of one run of one task
    description: str
    total: int
    unit: str


@dataclass(frozen=True)
class Advanced:
    """So much more of a stage is done."""

    stage: str
    amount: int


@dataclass(frozen=True)
class Closed:
    """A stage ended."""

    stage: str


Event = Arrived | Opened | Advanced | Closed


class TellingReporter:
    """A `Reporter` that tells somebody else, at most so often."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Yields one bar elsewhere."""
        stage, untold, told = uuid.uuid4().hex, 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal untold, told
            untold += amount
            if time.monotonic() - told > _TELL_SECONDS:
                self._tell(Advanced(stage, untold))
                untold, told = 0, time.monotonic()

        self._tell(Opened(stage, description, total, unit))
        try:
            yield advance
        finally:
            self._tell(Advanced(stage, untold))
            self._tell(Closed(stage))


class ShownStages:
    """Stages of a task, shown by a reporter here. A context manager: leaving it ends those that the task did not."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._open: dict[str, tuple[AbstractContextManager[Advance], Advance]] = {}

    def show(self, event: Event) -> None:
        """Shows what a worker told of one task."""
        if isinstance(event, Opened):
            stage = self._reporter.stage(event.description, event.total, event.unit)
            self._open[event.stage] = stage, stage.__enter__()
        elif isinstance(event, Advanced) and event.stage in self._open:
            self._open[event.stage][1](event.amount)
        elif isinstance(event, Closed) and event.stage in self._open:
            self._open.pop(event.stage)[0].__exit__(None, None, None)

    def __enter__(self) -> ShownStages:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1][0].__exit__(None, None, None)


class NamedReporter:
    """A `Reporter` whose stages say which rank they are of; for several threads."""

    def __init__(self, reporter: Reporter, name: str, lock: threading.Lock) -> None:
        self._reporter, self._name, self._lock = reporter, name, lock

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """Yields one bar."""
        stage = self._reporter.stage(f"{self._name}: {description}", total, unit)
        with self._lock:
            advance = stage.__enter__()
        try:
            yield advance
        finally:
            with self._lock:
                stage.__exit__(None, None, None)
