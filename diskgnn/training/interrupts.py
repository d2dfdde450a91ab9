"""Ctrl-C, SIGTERM and SIGHUP, held back until a training step is complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_deferred() -> Iterator[Sequence[int]]:
    """Defers Ctrl-C, and SIGTERM and SIGHUP where the caller handles them, to the end of the block, unless an error
    ends it.

    A step is then done wholly or not at all, so that a checkpoint of it can be written. The block is given the signals
    that it has received so far.
    """
    previous: dict[int, Any] = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(handler := signal.getsignal(number)) and threading.current_thread() is threading.main_thread()
    }
    received: list[int] = []
    for number in previous:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for number in received:
        signal.raise_signal(number)
