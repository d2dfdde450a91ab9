"""Work in a child of this process, which has imported everything: a fraction of a second for each attempt."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_SECONDS = 600  # after which a child hangs


@dataclass(frozen=True)
class Outcome:
    """How a child ended: `result`, or an error's type and message, or a signal (SIGKILL of one that hung, too)."""

    result: object = None
    error: str | None = None
    message: str = ""
    signal: int | None = None

    @property
    def ended(self) -> bool:
        """It returned."""
        return self.error is None and self.signal is None


def in_child(work: Callable[[], object], kill_after_seconds: float | None = None) -> Outcome:
    """What became of `work`, whose result JSON knows; by SIGKILL after `kill_after_seconds`, if it takes so long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            told: dict[str, object] = {"result": work()}
        except BaseException as error:  # whatever it is: the parent looks at it
            told = {"error": type(error).__name__, "message": str(error)}
        with os.fdopen(writing, "w") as file:
            json.dump(told, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        if not select.select([file], [], [], kill_after_seconds or PATIENCE_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
        text = file.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Outcome(**json.loads(text)) if text else Outcome(signal=-ended)


class Deadline:
    """Whether there is time left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __bool__(self) -> bool:
        return time.monotonic() < self._end
