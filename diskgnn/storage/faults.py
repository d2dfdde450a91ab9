"""Named points at which a test makes something go wrong, so that it needs not patch what is private.

A stage calls `faults.point("shard.write")` where a disk may fail or a process may be killed. That does nothing,
unless a test has armed the point:

    with faults.armed("shard.write", OSError(errno.EIO, "the disk failed"), after=2):
        ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_armed: dict[str, Callable[[], None]] = {}


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
