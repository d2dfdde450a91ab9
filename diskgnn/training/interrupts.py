"""Ctrl-C, SIGTERM and SIGHUP, held back until they do no harm."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_LONGEST_WAIT_SECONDS = 5.0  # of somebody who pressed Ctrl-C


class Interrupts:
    """Holds the signals that came since a block began, and does not raise them by itself."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._previous: dict[int, Callable[..., Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._received)

    def check(self) -> None:
        """Raises what came so far, each signal once: nothing here is half done.

        Raises:
            KeyboardInterrupt: or what else the caller's handlers raise.
        """
        received, self._received = self._received, []
        for number in dict.fromkeys(received):
            self._previous[number](number, None)

    def _begin(self) -> None:
        """Has signals come here, where the caller handles them."""
        if threading.current_thread() is threading.main_thread():
            for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(handler := signal.getsignal(caught)):
                    self._previous[caught] = handler
        for number in self._previous:
            signal.signal(number, self._note)

    def _end(self) -> list[int]:
        """Has them go to the caller again; returns those that are held back."""
        left = [*self._previous.items()]
        try:
            _restore(left)
        finally:  # a signal that the caller has again already came before the last one
            _restore(left)
        received, self._received = self._received, []
        return received

    def _note(self, number: int, _: object) -> None:
        self._received.append(number)


def _restore(left: list[tuple[int, Callable[..., Any]]]) -> None:
    while left:
        signal.signal(*left[-1])
        left.pop()


class _ImpatientInterrupts(Interrupts):
    """Raises by itself what has been held back for `_LONGEST_WAIT_SECONDS`, wherever the main thread is by then."""

    def __init__(self) -> None:
        super().__init__()
        self._first: object = None  # of the signals that are held back, and when it is raised, of `time.monotonic`
        self._raise_after = 0.0
        self._has_ended, self._ending = False, _thread.allocate_lock()

    def _note(self, number: int, frame: object) -> None:
        is_first = not self._received
        self._received.append(number)
        if self._has_ended:
            return
        if not is_first:
            if time.monotonic() >= self._raise_after:
                self.check()
            return
        self._first, self._raise_after = object(), time.monotonic() + _LONGEST_WAIT_SECONDS
        # Not a `threading.Thread`: this may have come in the midst of starting one, whose lock is held.
        with suppress(RuntimeError):  # no thread is left: it is raised by the next check
            _thread.start_new_thread(self._raise_later, (number, self._first))

    def _raise_later(self, number: int, first: object) -> None:
        time.sleep(_LONGEST_WAIT_SECONDS)
        with self._ending:
            if self._received and self._first is first and not self._has_ended:
                signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _end(self) -> list[int]:
        self._has_ended = True  # nothing is raised here from now on
        with self._ending:  # or is about to be sent
            pass
        return super()._end()


@contextmanager
def interrupts_deferred(*, patient: bool = True) -> Iterator[Interrupts]:
    """Defers Ctrl-C, and SIGTERM and SIGHUP where the caller handles them, to the end of the block, unless an error
    ends it.

    A step is then done wholly or not at all, so that a checkpoint of it can be written. What is not `patient` raises
    them where the block calls `Interrupts.check`, or by itself after some seconds, as where it waits for a minibatch:
    an error that comes between any two instructions leaves locks of `threading` held, and torch without gradients.
    """
    interrupts = Interrupts() if patient else _ImpatientInterrupts()
    interrupts._begin()
    received = list[int]()
    try:
        yield interrupts
    finally:
        received = interrupts._end()
    for number in received:
        signal.raise_signal(number)
