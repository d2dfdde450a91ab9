"""What a stage may spend: memory, threads, and somebody to tell how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn.progress import SILENT, Reporter
from diskgnn.system.memory import memory_budget, thread_count


@dataclass(frozen=True)
class Resources:
    """What one stage may spend."""

    memory_bytes: int
    threads: int
    reporter: Reporter = SILENT

    @staticmethod
    def of(memory: int | str = "auto", threads: int | None = None, reporter: Reporter = SILENT) -> Resources:
        """Resources as users name them: `memory` in bytes, as '2GiB' or 'auto' (half of what is available), `threads`
        None for as many as pay.

        Raises:
            ConfigError: no size, more than the cgroup's limit, or fewer than 1 thread.
        """
        return Resources(memory_budget(memory), thread_count(threads), reporter)
