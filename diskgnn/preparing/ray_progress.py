"""What workers of Ray tell of their work, and how it is shown where the command runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from diskgnn.preparing.ray_tasks import Advanced, Closed, Event, Opened
from diskgnn.progress.reporter import Advance, Reporter

_MAX_EVENTS = 1 << 16  # that wait for this process; more are lost, and with them some progress


class Board:
    """An actor: what workers tell, until this process takes it."""

    def __init__(self) -> None:
        self._events: dict[int, list[Event]] = {}

    def tell(self, topic: int, event: Event) -> None:
        """Keep what a worker says of `topic`."""
        events = self._events.setdefault(topic, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)

    def take(self, topic: int) -> list[Event]:
        """What was told of `topic` since this was asked last."""
        return self._events.pop(topic, [])


@dataclass(frozen=True)
class Telling:
    """How a worker tells the board."""

    board: Any
    topic: int

    def __call__(self, event: Event) -> None:
        """One event; see `ray_tasks.Tell`."""
        self.board.tell.remote(self.topic, event)


class Stages:
    """Stages of a worker, shown by a reporter here. A context manager: leaving it ends those that a worker did not."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._open: dict[str, tuple[AbstractContextManager[Advance], Advance]] = {}

    def show(self, event: Event) -> None:
        """What a worker told of one task."""
        if isinstance(event, Opened):
            stage = self._reporter.stage(event.description, event.total, event.unit)
            self._open[event.stage] = stage, stage.__enter__()
        elif isinstance(event, Advanced) and event.stage in self._open:
            self._open[event.stage][1](event.amount)
        elif isinstance(event, Closed) and event.stage in self._open:
            self._open.pop(event.stage)[0].__exit__(None, None, None)

    def __enter__(self) -> Stages:
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
        """One bar."""
        stage = self._reporter.stage(f"{self._name}: {description}", total, unit)
        with self._lock:
            advance = stage.__enter__()
        try:
            yield advance
        finally:
            with self._lock:
                stage.__exit__(None, None, None)
