"""Work in threads whose results come in order, or as they are finished."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError  # not Python's own before 3.11
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, TypeVar

Result = TypeVar("Result")


class Threads(ThreadPoolExecutor):
    """Threads whose `with` block ends when no call of theirs runs any more, whenever Ctrl-C comes.

    Whatever is closed after the block would otherwise be closed under a thread that still works with it. A thread may
    be forgotten where Ctrl-C comes while it is started, and Python 3.11 takes one for ended that Ctrl-C found joined.
    In a process that was forked from theirs there are none, and nothing is waited for.
    """

    def __init__(self, count: int, thread_name_prefix: str = "") -> None:
        super().__init__(count, thread_name_prefix)
        self._running, self._is_over, self._changed = 0, False, threading.Condition()
        self._process = os.getpid()

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **keywords: Any) -> Future[Result]:
        """Submits a call as `ThreadPoolExecutor.submit` does."""
        return super().submit(self._call, function, *arguments, **keywords)

    def _call(self, function: Callable[..., Result], /, *arguments: Any, **keywords: Any) -> Result:
        with self._changed:
            if self._is_over:
                raise CancelledError
            self._running += 1
        try:
            return function(*arguments, **keywords)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            return
        try:
            self.shutdown()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.wait_for(lambda: not self._running)
            self.shutdown(wait=False)


def in_order(pool: Executor, calls: Iterable[Callable[[], Result]], ahead: int) -> Generator[Result, None, None]:
    """Yields the results of `calls` in their order, at most `ahead` + 1 of them submitted and not yet yielded.

    `calls` is asked for the next one only when there is room for it. What has not begun when the iterator is closed
    never will; whatever a call raises is raised in its turn.
    """
    with closing(submitted(pool, calls, ahead)) as futures:
        yield from map(_result, futures)  # a loop's variable would keep each result until the next one is there


def made_in_order(calls: Iterable[Callable[[], Result]], threads: int) -> Generator[Result, None, None]:
    """Yields the results of `calls` in their order: made by so many threads, while up to `threads` of them wait, or by
    the thread that asks, if that is 1. `calls` is always iterated by the thread that asks.
    """
    if threads == 1:
        for call in calls:
            yield call()
        return
    with Threads(threads) as pool:
        yield from in_order(pool, calls, threads)


def _result(future: Future[Result]) -> Result:
    while not future.done():
        with suppress(FutureTimeoutError):
            future.exception(timeout=0.1)  # a signal that another thread got is handled when this one wakes
    return future.result()


def submitted(
    pool: Executor, calls: Iterable[Callable[[], Result]], ahead: int
) -> Generator[Future[Result], None, None]:
    """Yields `calls` in their order as futures, which may not be done: so the next of two stages can wait in its own
    threads.

    `ahead` more are submitted when one is yielded. Those that have not begun when the generator is closed never will,
    but for those that were yielded.
    """
    pending: deque[Future[Result]] = deque()
    try:
        for call in calls:
            pending.append(pool.submit(call))
            if len(pending) > ahead:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        for future in pending:
            future.cancel()


def as_finished(
    pool: Executor, calls: Iterable[Callable[[], Result]], ahead: int, stop: Callable[[], object] = lambda: None
) -> Generator[Result, None, None]:
    """Yields the results of `calls` as they are finished, at most `ahead` + 1 of them submitted and not yet yielded.

    What was finished is yielded before an error of another call is raised. When the iterator is closed, it waits for
    the calls that have begun, which `stop` may ask to end; the others never will.
    """
    pending: set[Future[Result]] = set()

    def finished(most: int) -> Generator[Result, None, None]:
        """Yields results until at most so many calls are pending."""
        while len(pending) > most:
            done, _ = wait(pending, 0.1, FIRST_COMPLETED)  # a signal that another thread got is handled in between
            for future in sorted(done, key=lambda each: each.exception() is not None):
                pending.discard(future)
                yield future.result()

    try:
        for call in calls:
            pending.add(pool.submit(call))
            yield from finished(ahead)
        yield from finished(0)
    finally:
        stop()
        for future in pending:
            future.cancel()
        wait(pending)
