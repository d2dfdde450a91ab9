"""Resources that a stage may spend: memory, threads, disk space, and somebody to tell how far it is."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Need:
    """Says what memory a step takes. `Resources.within` divides the budget by it, or refuses the budget."""

    what: str  # it is for: "to sort edges"
    shared_bytes: int = 0  # that it takes whatever the budget
    least_bytes: int = 0  # that it takes at least of the rest
    unit_bytes: int = 0  # that each unit takes at least beside that; every thread works on one

    @property
    def bytes(self) -> int:
        """Returns the bytes with which one unit at a time has room."""
        return faults.reading("memory.overhead", self.shared_bytes + self.least_bytes + self.unit_bytes)


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

    def within(self, need: Need) -> Resources:
        """Returns what is left beside the shared bytes of `need`, for as many threads as have room for a unit.

        Raises:
            SmallBudgetError: not even one unit has room; names the smallest budget that works.
        """
        found = self._for_fewer_threads(need.bytes)
        found.require(need.what, need.bytes)
        left = found.less(faults.reading("memory.overhead", need.shared_bytes))
        fitting = (left.memory_bytes - need.least_bytes) // need.unit_bytes if need.unit_bytes else left.threads
        return replace(left, threads=max(1, min(left.threads, fitting)))

    def has_room(self, need: Need) -> bool:
        """Returns True if `within` accepts `need`."""
        return need.bytes <= self._of_one_thread().memory_bytes

    def least_budget(self, need: Need) -> int:
        """Returns the smallest budget that `within` accepts for `need`, of a process that is as this one."""
        return self._of_one_thread()._budget(need.bytes)

    def require_each(self, *needs: Need) -> None:
        """Refuses a budget that `within` refuses for one of `needs`, which take turns.

        Raises:
            SmallBudgetError: that of the one that needs most.
        """
        if refused := [need for need in needs if not self.has_room(need)]:
            self.within(max(refused, key=self.least_budget))

    def require(self, what: str, needed_bytes: int, most_bytes: int | None = None) -> None:
        """Refuses a budget that has no room for `needed_bytes` of arrays and buffers, which only the data shows.

        Args:
            what: they are for.
            needed_bytes: of what was read so far.
            most_bytes: that all of it can need, if that is known: or else each run would tell of a little more.

        Raises:
            SmallBudgetError: names the smallest budget that works.
        """
        if needed_bytes > self.memory_bytes:
            least_bytes = self._budget(needed_bytes)
            sent = " and for what is sent to a store" if self.sending_bytes else ""
            enough = ""
            if most_bytes is not None:
                most = self._budget(most_bytes)
                enough = f"; {most} bytes ({format_size(most)}) are enough, whatever else there is to be read"
            raise SmallBudgetError(
                least_bytes,
                f"memory: expected at least {least_bytes} bytes ({format_size(least_bytes)}) {what}, of which "
                f"{format_size(self.held_bytes)} are for what the process has loaded and for threads{sent}; found "
                f"{format_size(max(0, self.held_bytes + self.memory_bytes))}{enough}",
            )

    def divided(self, units: int, *, part: int = 1, most_bytes: int | None = None) -> int:
        """Returns how large each of `units` buffers may be that are there at once and take one in `part` of the memory:
        at most `most_bytes`.
        """
        each_bytes = max(0, self.memory_bytes // (part * units))
        return each_bytes if most_bytes is None else min(each_bytes, most_bytes)

    def less(self, taken_bytes: int) -> Resources:
        """Returns what is left when something else takes `taken_bytes`."""
        return replace(self, memory_bytes=self.memory_bytes - taken_bytes, held_bytes=self.held_bytes + taken_bytes)

    def _for_fewer_threads(self, needed_bytes: int) -> Resources:
        """Returns the same with the memory of as many threads, but one, as `needed_bytes` take the place of."""
        if not self.thread_bytes or needed_bytes <= self.memory_bytes:
            return self
        fewer = min(self.threads - 1, -((self.memory_bytes - needed_bytes) // self.thread_bytes))
        return replace(self.less(-fewer * self.thread_bytes), threads=self.threads - fewer)

    def _of_one_thread(self) -> Resources:
        return replace(self.less(-(self.threads - 1) * self.thread_bytes), threads=1)

    def _budget(self, needed_bytes: int) -> int:
        """Returns the budget of the whole process with which this has room for `needed_bytes`."""
        if not self.held_bytes:
            return needed_bytes
        return (self.held_bytes + needed_bytes + 2 * _MARGIN_BYTES - 1) // _MARGIN_BYTES * _MARGIN_BYTES


def held_bytes(threads: int, sending_bytes: int = 0) -> int:
    """Returns what this process has in memory now, and what a stage of so many threads, which may send what it makes,
    takes beside its arrays.
    """
    beside_bytes = _STAGE_BYTES + threads * _THREAD_BYTES + sending_bytes
    return faults.reading("memory.held", anonymous_bytes() + beside_bytes)
