"""The way of what tasks tell, from workers of Ray to the process that submitted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diskgnn.engines.telling import Event

_MAX_EVENTS = 1 << 16  # that wait for this process; more are lost, and with them some progress


class Board:
    """An actor: what workers tell, until this process takes it."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}
        self._closed = set[str]()

    def tell(self, topic: str, event: Event) -> None:
        """Keep what a worker says of `topic`, unless nobody will ask."""
        if topic in self._closed:
            return
        events = self._events.setdefault(topic, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)

    def take(self, topic: str) -> list[Event]:
        """Returns what was told of `topic` since this was asked last."""
        return self._events.pop(topic, [])

    def close(self, topic: str) -> None:
        """Forget `topic`, and what a worker that is cut off still says of it."""
        self._closed.add(topic)
        self._events.pop(topic, None)


@dataclass(frozen=True)
class Telling:
    """Tells the board from a worker."""

    board: Any
    topic: str

    def __call__(self, event: Event) -> None:
        """Takes one event; see `telling.Tell`."""
        self.board.tell.remote(self.topic, event)
