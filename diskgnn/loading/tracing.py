"""Tells what each thread did when: the timeline of a run, as events, and as a file that Perfetto and Chrome open.

The file is the trace-event format's JSON object: a complete event (`ph` 'X') per stage, `ts` and `dur` in microseconds,
a `tid` per track, named by metadata events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from diskgnn.errors import ConfigError
from diskgnn.paths import PathLike

TRACE_START = '{"displayTimeUnit": "ms", "traceEvents": ['
MAX_EVENTS = 200_000  # of one timeline, about 25 MB as a file: the first ones are kept
TRAIN_TRACK = "train"  # the thread that trains
_COLLECT_EVERY_EVENTS = 256  # of the training thread; how much a source keeps meanwhile is its own business


@dataclass(frozen=True)
class TraceEvent:
    """Records one stage of one minibatch on one thread."""

    track: str  # the thread: 'disk', 'assemble', 'transfer', 'train'
    stage: str  # what it did: 'read', 'header', 'gather', 'scatter', 'wait for disk', 'forward', ...
    minibatch: int  # position in its epoch; -1 where it belongs to none
    start_ns: int  # of time.perf_counter_ns(), which is CLOCK_MONOTONIC here and in the native core
    end_ns: int


class Traceable(Protocol):
    """Stands for a `BatchSource` that can say what its own threads do. Not all can, and `is_traceable` tells."""

    def start_tracing(self) -> None:
        """Keep events from now on."""
        ...

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call, in no particular order; none when tracing was not started."""
        ...


def is_traceable(source: object) -> TypeGuard[Traceable]:
    """Returns True if `source` has the methods of `Traceable`, itself or from what it wraps."""
    return all(callable(getattr(source, name, None)) for name in ("start_tracing", "take_trace"))


class Stages(Protocol):
    """Takes note of the stages of a loop."""

    def stage(self, name: str, minibatch: int = -1) -> AbstractContextManager[None]:
        """Names what the training thread does inside the block."""
        ...


class Timeline:
    """Collects the events of one run: stages of the training thread as they are entered, and those of a source's
    threads.

    Keeps the first `max_events`, then stops listening.

    Example:
        timeline = Timeline(loader)
        with timeline.stage("forward", batch.batch_index):
            ...
        write_trace(timeline.events(), "trace.json")
    """

    def __init__(self, source: object, max_events: int = MAX_EVENTS) -> None:
        self._source = source if is_traceable(source) else None
        self._max_events, self._events, self._uncollected = max_events, list[TraceEvent](), 0
        if self._source is not None:
            self._source.start_tracing()

    @contextmanager
    def stage(self, name: str, minibatch: int = -1) -> Iterator[None]:
        """Names what the training thread does inside the block."""
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self._keep([TraceEvent(TRAIN_TRACK, name, minibatch, started, time.perf_counter_ns())])

    def events(self) -> list[TraceEvent]:
        """Returns all events until now, in order of their start; the outer one first where two start at once."""
        self._collect()
        return sorted(self._events, key=lambda event: (event.start_ns, -event.end_ns))

    def _keep(self, events: Sequence[TraceEvent]) -> None:
        self._events += events[: self._max_events - len(self._events)]
        self._uncollected += 1
        if self._uncollected >= _COLLECT_EVERY_EVENTS:
            self._collect()

    def _collect(self) -> None:
        self._uncollected = 0
        if self._source is not None:
            taken = self._source.take_trace()  # also when there is no room for them: or the source would keep them
            self._events += taken[: self._max_events - len(self._events)]


class _Untraced:
    def stage(self, name: str, minibatch: int = -1) -> AbstractContextManager[None]:
        return nullcontext()


UNTRACED: Stages = _Untraced()


def write_trace(events: Sequence[TraceEvent], path: PathLike) -> None:
    """Write `events` as a trace-event file; open it at ui.perfetto.dev or chrome://tracing. Times start at 0.

    Events of one track that overlap, such as reads in flight, get lanes of their own: within a `tid`, the format lets
    events follow or contain each other.

    Raises:
        OSError: the file cannot be written.
    """
    ordered = sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    lanes = _lanes(ordered)
    numbers = sorted({*lanes}, key=lambda lane: (lane[0] != TRAIN_TRACK, lane))
    threads = {lane: number for number, lane in enumerate(numbers)}
    start_ns = min((event.start_ns for event in events), default=0)
    process = os.getpid()
    with Path(path).open("w", encoding="utf-8") as file:
        # One record after the other: all of them at once take more memory than what is traced can spare.
        file.write(f"{TRACE_START}\n")
        file.write(json.dumps(_metadata("process_name", process, 0, "diskgnn")))
        for (track, lane), thread in threads.items():
            name = f"{track} {lane + 1}" if lane else track
            file.write(",\n" + json.dumps(_metadata("thread_name", process, thread, name)))
        for event, lane_of_event in zip(ordered, lanes, strict=True):
            record = {
                "name": event.stage, "cat": event.track, "ph": "X", "pid": process, "tid": threads[lane_of_event],
                "ts": (event.start_ns - start_ns) / 1000, "dur": (event.end_ns - event.start_ns) / 1000,
                "args": {"minibatch": event.minibatch},
            }  # fmt: skip
            file.write(",\n" + json.dumps(record))
        file.write("\n]}\n")


def read_trace(path: PathLike) -> list[TraceEvent]:
    """Returns the events of a file that `write_trace` wrote, in order of their start.

    Raises:
        ConfigError: it holds something else.
    """
    try:
        records = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        return [
            TraceEvent(record["cat"], record["name"], record["args"]["minibatch"], round(record["ts"] * 1000),
                       round((record["ts"] + record["dur"]) * 1000))
            for record in records if record["ph"] == "X"
        ]  # fmt: skip
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no trace that `write_trace` wrote ({error!r})") from error


def _lanes(ordered: Sequence[TraceEvent]) -> list[tuple[str, int]]:
    """Returns (track, lane) of each event: the first lane where it overlaps none, or lies within another stage."""
    open_events: dict[str, list[list[TraceEvent]]] = {}
    found = []
    for event in ordered:
        lanes = open_events.setdefault(event.track, [])
        for stack in lanes:
            while stack and stack[-1].end_ns <= event.start_ns:
                stack.pop()
        fits = (not stack or (stack[-1].end_ns >= event.end_ns and stack[-1].stage != event.stage) for stack in lanes)
        lane = next((number for number, fit in enumerate(fits) if fit), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(event)
        found.append((event.track, lane))
    return found


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": value}}
