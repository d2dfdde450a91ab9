"""How long-running stages report progress, without ever printing by themselves.

A stage takes a `Reporter`. Public functions draw bars where somebody looks (`default_reporter`), unless they are
given one.

Example:
    class Log:
        @contextmanager
        def stage(self, description, total, unit):
            done = 0

            def advance(amount):
                nonlocal done
                done += amount
                logging.info("%s: %d of %d %s", description, done, total, unit)

            yield advance

    diskgnn.prepare("graph", "packed", fanouts=[10, 10], cpu_cache="10%", reporter=Log())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

Advance = Callable[[int], None]


class Reporter(Protocol):
    """Receives progress. `unit` is 'B' for bytes, otherwise the plural of what is counted ('minibatches')."""

    def stage(self, description: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        """Open one bar; the yielded callable adds to what is done."""
        ...


class _Silent:
    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        yield lambda _: None


SILENT: Reporter = _Silent()


def say(reporter: Reporter, line: Callable[[], str]) -> None:
    """Tell `reporter` a line for people, if it has a method `say`. Only then it is made; an empty one is none."""
    told = getattr(reporter, "say", None)
    if told is not None and (made := line()):
        told(made)


@dataclass(frozen=True)
class _Stages:
    inner: Reporter

    def stage(self, description: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        return self.inner.stage(description, total, unit)


def stages_of(reporter: Reporter) -> Reporter:
    """Tells `reporter` of stages, and no lines: of scratch that nobody asked for."""
    return _Stages(reporter)


@dataclass(frozen=True)
class StageReport:
    """Tells what one offline stage did. `read_bytes` is 0 where nothing was read of files, or nobody counted it."""

    stage: str
    seconds: float
    read_bytes: int
    written_bytes: int
    details: Mapping[str, int | float | str] = field(default_factory=dict)
