"""Resources that a stage may spend: memory, threads, disk space, and somebody to tell how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.files.disk_space import UNLIMITED, DiskBudget
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.system.memory import anonymous_bytes, memory_budget, thread_count
from diskgnn.units import format_size

_STAGE_BYTES = 6 << 20  # that a stage takes beside its arrays: modules loaded late, Python's objects, free lists
_THREAD_BYTES = 1 << 19  # stack and the C library's arena of a thread, as far as they are touched
_MARGIN_BYTES = 1 << 20  # that the next process may have more than this one


class SmallBudgetError(ConfigError):
    """A budget of memory is too small."""

    def __init__(self, least_bytes: int, message: str) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes  # the smallest budget that works


def require_all(*stages: Callable[[], object]) -> None:
    """Have each of `stages` say what it needs.

    Raises:
        SmallBudgetError: that of the one that needs most.
    """
    refusals = []
    for stage in stages:
        try:
            stage()
        except SmallBudgetError as error:
            refusals.append(error)
    if refusals:
        raise max(refusals, key=lambda error: error.least_bytes)


@dataclass(frozen=True)
class Resources:
    """Holds what one stage may spend."""

    memory_bytes: int  # for arrays and buffers: the budget without `held_bytes`
    threads: int
    reporter: Reporter = SILENT
    held_bytes: int = 0  # of the budget: what the process has, and what code, threads and sending to a store take
    thread_bytes: int = 0  # of these, for each thread
    disk: DiskBudget = UNLIMITED
    sending_bytes: int = 0  # of what is held, for sending to a store

    @staticmethod
    def of(
        memory: int | str = "auto", threads: int | None = None, reporter: Reporter = SILENT, *, sending_bytes: int = 0
    ) -> Resources:
        """Makes resources as users name them: `memory` of the whole process in bytes, as '2GiB' or 'auto' (what it has,
        and half of what is available), `threads` None for as many as pay.

        Threads get a quarter of the memory at most: with little of it there are fewer than were asked for.

        Raises:
            ConfigError: no size, more than the cgroup's limit, or fewer than 1 thread.
        """
        wanted, budget = thread_count(threads), memory_budget(memory)
        if memory == "auto":
            budget += anonymous_bytes()
        alone, with_all = (held_bytes(count, sending_bytes) for count in (0, wanted))
        if with_all > alone:
            wanted = max(1, min(wanted, (budget - alone) // 4 * wanted // (with_all - alone)))
        held, thread_bytes = held_bytes(wanted, sending_bytes), _THREAD_BYTES if with_all > alone else 0
        return Resources(budget - held, wanted, reporter, held, thread_bytes, sending_bytes=sending_bytes)

    @staticmethod
    def beside(memory: int | str = "auto", threads: int | None = None, reporter: Reporter = SILENT) -> Resources:
        """Makes the same, where `memory` is what a stage may take beside what the process has: where that trains
        meanwhile.

        Raises:
            ConfigError: as `of`.
        """
        return Resources(memory_budget(memory), thread_count(threads), reporter)

    def within(self, what: str, taken_bytes: int = 0, *, least_bytes: int = 0, thread_bytes: int = 0) -> Resources:
        """Returns what is left beside `taken_bytes`, for as many threads as fit.

        Args:
            what: it is for: "to sort edges".
            taken_bytes: what it takes whatever the budget.
            least_bytes: what it takes at least of the rest.
            thread_bytes: at least, more for each thread.

        Raises:
            ConfigError: not even one thread fits; names the smallest budget that works.
        """
        needed_bytes = faults.reading("memory.overhead", taken_bytes + least_bytes + thread_bytes)
        found = self._for_fewer_threads(needed_bytes)
        found.require(what, needed_bytes)
        left = found.less(faults.reading("memory.overhead", taken_bytes))
        fitting = (left.memory_bytes - least_bytes) // thread_bytes if thread_bytes else left.threads
        return replace(left, threads=max(1, min(left.threads, fitting)))

    def _for_fewer_threads(self, needed_bytes: int) -> Resources:
        """The same with the memory of as many threads, but one, as `needed_bytes` take the place of."""
        if not self.thread_bytes or needed_bytes <= self.memory_bytes:
            return self
        fewer = min(self.threads - 1, -((self.memory_bytes - needed_bytes) // self.thread_bytes))
        return replace(self.less(-fewer * self.thread_bytes), threads=self.threads - fewer)

    def require(self, what: str, needed_bytes: int) -> None:
        """Refuse a budget that has no room for `needed_bytes` of arrays and buffers.

        Raises:
            ConfigError: names the smallest budget that works.
        """
        if needed_bytes > self.memory_bytes:
            least_bytes = needed_bytes
            if self.held_bytes:
                least_bytes = (self.held_bytes + needed_bytes + 2 * _MARGIN_BYTES - 1) // _MARGIN_BYTES * _MARGIN_BYTES
            sent = " and for what is sent to a store" if self.sending_bytes else ""
            raise SmallBudgetError(
                least_bytes,
                f"memory: expected at least {least_bytes} bytes ({format_size(least_bytes)}) {what}, of which "
                f"{format_size(self.held_bytes)} are for what the process has loaded and for threads{sent}; found "
                f"{format_size(max(0, self.held_bytes + self.memory_bytes))}",
            )

    def less(self, taken_bytes: int) -> Resources:
        """Returns what is left when something else takes `taken_bytes`."""
        return replace(self, memory_bytes=self.memory_bytes - taken_bytes, held_bytes=self.held_bytes + taken_bytes)


def held_bytes(threads: int, sending_bytes: int = 0) -> int:
    """Returns what this process has in memory now, and what a stage of so many threads, which may send what it makes,
    takes beside its arrays.
    """
    beside_bytes = _STAGE_BYTES + threads * _THREAD_BYTES + sending_bytes
    return faults.reading("memory.held", anonymous_bytes() + beside_bytes)
