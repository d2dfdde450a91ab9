"""What each thread did when: the stage timeline of a run, as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class TraceEvent:
    """One stage of one minibatch on one thread."""

    track: str  # the thread: 'disk', 'assemble', 'transfer', 'train'
    stage: str  # what it did: 'read', 'header', 'gather', 'scatter', 'wait for disk', 'forward', ...
    minibatch: int  # position in its epoch; -1 where it belongs to none
    start_ns: int  # of time.perf_counter_ns(), which is CLOCK_MONOTONIC here and in the native core
    end_ns: int


@runtime_checkable
class Traceable(Protocol):
    """A `BatchSource` that can say what its own threads do."""

    def start_tracing(self) -> None:
        """Keep events from now on."""
        ...

    def take_trace(self) -> list[TraceEvent]:
        """The events since the last call, in no particular order; none when tracing was not started."""
        ...
