"""Work in threads whose results come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Result = TypeVar("Result")


def in_order(pool: Executor, calls: Iterable[Callable[[], Result]], ahead: int) -> Iterator[Result]:
    """The results of `calls` in their order, at most `ahead` + 1 of them submitted and not yet yielded.

    `calls` is asked for the next one only when there is room for it. What has not begun when the iterator is closed
    never will; whatever a call raises is raised in its turn.
    """
    pending: deque[Future[Result]] = deque()
    try:
        for call in calls:
            pending.append(pool.submit(call))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
