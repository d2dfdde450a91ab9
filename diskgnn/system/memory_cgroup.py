"""A memory cgroup (v1 or v2): caps what commands use, page cache included, as a smaller machine would."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from diskgnn.files import faults
from diskgnn.system.memory import cgroup_settings

_numbers = itertools.count()
_REMOVE_SECONDS = 5.0  # that the kernel gets to let go of processes that have ended


class MemoryCgroup:
    """Makes a new cgroup below this process's own, or beside it where v2 allows no children there. A context manager.

    Leaving it kills what still runs inside and removes it.

    Example:
        with MemoryCgroup(2 << 30) as cgroup:
            subprocess.run(cgroup.command(["diskgnn", "train", "packed"]))
            print(cgroup.peak_bytes(), cgroup.oom_kills())

    Raises:
        OSError: this process may not make one, or the system has none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.path = _make(f"diskgnn-{os.getpid()}-{next(_numbers)}", limit_bytes)
        self._is_v1 = (self.path / "memory.limit_in_bytes").exists()

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Returns the command that runs `arguments` inside, from the first page on: a shell joins and becomes them."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *arguments]

    def peak_bytes(self) -> int | None:
        """Returns the most that was in use, page cache included; None where the kernel does not say (v2 before Linux
        5.19).
        """
        with suppress(OSError):
            return int((self.path / ("memory.max_usage_in_bytes" if self._is_v1 else "memory.peak")).read_text())
        return None

    def oom_kills(self) -> int:
        """Returns how many processes the kernel killed because the limit left them no memory."""
        with suppress(OSError):
            text = (self.path / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
            return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))
        return 0

    def remove(self) -> None:
        """Kill what still runs inside, and delete the cgroup. Idempotent."""
        give_up = time.monotonic() + _REMOVE_SECONDS
        while self.path.exists():
            with suppress(OSError):
                for pid in (self.path / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            try:
                self.path.rmdir()
            except OSError:  # busy until the last one is gone
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def __enter__(self) -> MemoryCgroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def refusal() -> str:
    """Returns the reason why this process can make no memory cgroup and run commands in it; empty when it can."""
    try:
        with MemoryCgroup(64 << 20) as cgroup:
            joined = subprocess.run(cgroup.command(["/bin/true"]), capture_output=True, text=True, check=False)
            return "" if joined.returncode == 0 else joined.stderr.strip() or "a process could not join it"
    except OSError as error:
        return str(error)


def _make(name: str, limit_bytes: int) -> Path:
    """Returns the first place, from this process's cgroup upwards, where a limited cgroup can be made."""
    refused: OSError = FileNotFoundError("no memory cgroup is mounted here")
    for procs in cgroup_settings("memory", "cgroup.procs", "cgroup.procs"):
        _remove_left(procs.parent)
        path = procs.parent / name
        try:
            path.mkdir()
        except OSError as error:
            refused = error
            continue
        try:
            _limit(path, limit_bytes)
        except OSError as error:
            path.rmdir()
            refused = error
        else:
            return path
    raise refused


def _remove_left(parent: Path) -> None:
    """Remove the cgroups of processes that were killed before they could."""
    for path in parent.glob("diskgnn-*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            with suppress(OSError):  # something still runs inside
                path.rmdir()


def _limit(path: Path, limit_bytes: int) -> None:
    if (path / "memory.limit_in_bytes").exists():
        (path / "memory.limit_in_bytes").write_text(str(limit_bytes))
        swap = path / "memory.memsw.limit_in_bytes"
        swap_limit = str(limit_bytes)
    else:
        control = path.parent / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            faults.point("cgroup.delegate")
            control.write_text("+memory")
        (path / "memory.max").write_text(str(limit_bytes))
        swap, swap_limit = path / "memory.swap.max", "0"
    if swap.exists():  # or what does not fit would be written to the disk that is measured
        swap.write_text(swap_limit)
