"""Named points at which a test makes something go wrong, so that it needs not patch what is private.

A stage calls `faults.point("shard.write")` where a disk may fail or a process may be killed. That does nothing,
unless a test has armed the point:

    with faults.armed("shard.write", OSError(errno.EIO, "the disk failed"), after=2):
        ...

Where a stage asks the machine something, `faults.reading("disk.free", found)` lets a test pretend another answer:

    with faults.pretending("disk.free", 1000):
        ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_armed: dict[str, Callable[[], None]] = {}
_pretended: dict[str, Any] = {}


def point(name: str) -> None:
    """A place where something may go wrong; does what `armed` was told to do here, which is nothing in production."""
    if _armed and (action := _armed.get(name)) is not None:
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

    assert name not in _armed, f"{name} is armed already"
    _armed[name] = act
    try:
        yield
    finally:
        del _armed[name]


def reading(name: str, found: T) -> T:
    """What the machine says; or what `pretending` was told to say instead, which is nothing in production."""
    return _pretended.get(name, found) if _pretended else found


@contextmanager
def pretending(name: str, value: Any) -> Iterator[None]:
    """Let `reading` of `name` answer `value` within the block."""
    assert name not in _pretended, f"{name} is pretended already"
    _pretended[name] = value
    try:
        yield
    finally:
        del _pretended[name]
