"""Named points at which a test makes something go wrong, so that it needs not patch what is private.

A stage calls `faults.point("artifact.write")` where a disk may fail or a process may be killed. That does nothing,
unless a test has armed the point:

    with faults.armed("artifact.write", OSError(errno.EIO, "the disk failed"), after=2):
        ...

Where a stage asks the machine something, or chooses how much to do at a time, `faults.reading("disk.free", found)`
lets a test pretend another answer:

    with faults.pretending("disk.free", 1000):
        ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

# All names, so that a test that misspells one fails instead of testing nothing.
POINTS = frozenset({
    "artifact.aside", "artifact.exchange", "artifact.exchanged", "artifact.pin", "artifact.publish", "artifact.sync",
    "artifact.write", "baseline.gather", "baseline.load", "baseline.sample", "cgroup.delegate", "checkpoint.sync",
    "disk.reserve", "embeddings.saved", "embeddings.write", "fetch.range", "fresh_epochs.pack",
    "ginex.inspect", "infer.window", "loading.minibatch",
    "loading.page_lock", "loading.transfer", "output.published", "pack.header", "pack.rows",
    "pack.schedule", "pack.window", "partition.read", "prepare.packed", "push.file", "push.files",
    "push.part", "push.published", "repair.made", "sample.minibatch", "sample.sweep", "shuffle.write", "training.step",
    "unit.written", "upload.part", "work.piece", "work.unit", "worker.packed", "worker.placed",
    "worker.unit",
})  # fmt: skip
READINGS = frozenset({
    "cgroup.files", "chunk.edges", "chunk.nodes", "disk.free", "fresh_epochs.by_reference", "gpu.free",
    "header.most_bytes", "loading.runs_kernel", "loading.transfers_ahead", "memory.anonymous", "memory.available",
    "memory.held", "memory.limit", "memory.overhead", "unit.bytes", "window.bytes",
})  # fmt: skip

_armed: dict[str, Callable[[], None]] = {}
_pretended: dict[str, Any] = {}


def point(name: str) -> None:
    """Marks a place where something may go wrong; does what `armed` was told to do here, which is nothing in
    production."""
    if not _armed:
        return
    assert name in POINTS, f"{name} is none of faults.POINTS"
    if (action := _armed.get(name)) is not None:
        action()


@contextmanager
def armed(name: str, action: BaseException | Callable[[], None], *, after: int = 0) -> Iterator[None]:
    """Raise or call `action` at each pass of point `name` within the block, but for the first `after` passes."""
    passes = itertools.count()

    def act() -> None:
        if next(passes) < after:
            return
        if isinstance(action, BaseException):
            raise action
        action()

    assert name in POINTS, f"{name} is none of faults.POINTS"
    with _set(_armed, name, act):
        yield


def reading(name: str, found: T) -> T:
    """Returns what the machine says; or what `pretending` was told to say instead, which is nothing in production."""
    if not _pretended:
        return found
    assert name in READINGS, f"{name} is none of faults.READINGS"
    pretended: T = _pretended.get(name, found)
    return pretended


@contextmanager
def pretending(name: str, value: Any) -> Iterator[None]:
    """Let `reading` of `name` answer `value` within the block."""
    assert name in READINGS, f"{name} is none of faults.READINGS"
    with _set(_pretended, name, value):
        yield


@contextmanager
def _set(of_all: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    assert name not in of_all, f"{name} is set already"
    of_all[name] = value
    try:
        yield
    finally:
        del of_all[name]
