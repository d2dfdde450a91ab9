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
        """Raises what came so far: nothing here is half done.

        Raises:
            KeyboardInterrupt: or what else the caller's handlers raise.
        """
        while self._received:
            number = self._received.pop(0)
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
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        received, self._received = self._received, []
        return received

    def _note(self, number: int, _: object) -> None:
        self._received.append(number)


class _ImpatientInterrupts(Interrupts):
    """Raises by itself what has been held back for `_LONGEST_WAIT_SECONDS`, wherever the main thread is by then."""

    def __init__(self) -> None:
        super().__init__()
        self._raise_after = 0.0  # of `time.monotonic`; of the first signal that is held back
        self._has_ended, self._ending = False, _thread.allocate_lock()

    def _note(self, number: int, frame: object) -> None:
        if self._received and time.monotonic() >= self._raise_after:
            self._received.clear()
            self._previous[number](number, frame)
            return
        if not self._received:
            self._raise_after = time.monotonic() + _LONGEST_WAIT_SECONDS
            # Not a `threading.Thread`: this may have come in the midst of starting one, whose lock is held.
            with suppress(RuntimeError):  # no thread is left: it is raised by the next check
                _thread.start_new_thread(self._raise_later, (number,))
        self._received.append(number)

    def _raise_later(self, number: int) -> None:
        time.sleep(_LONGEST_WAIT_SECONDS)
        with self._ending:
            if self._received and not self._has_ended:
                signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _end(self) -> list[int]:
        with self._ending:
            self._has_ended = True
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
