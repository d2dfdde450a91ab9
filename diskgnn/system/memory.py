"""Finds how much memory and how many cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.units import format_size, parse_size, whole_number

# Where the kernel names the cgroups of a process, and says what they may use.
_CGROUP_FILES = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroup_settings(controller: str, v2_name: str, v1_name: str) -> Iterator[Path]:
    """Yields the files of this process's cgroup and all its parents that hold one setting (cgroup v1 or v2)."""
    self_cgroup, root = faults.reading("cgroup.files", _CGROUP_FILES)
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, v2_name
        elif controller in controllers.split(","):
            base, name = root / controller, v1_name
        else:
            continue
        folder = base / path.lstrip("/")
        for candidate in (folder, *folder.parents):
            if not candidate.is_relative_to(base):
                break
            if (candidate / name).is_file():  # else not mounted here
                yield candidate / name


def cgroup_limit_bytes() -> int | None:
    """Returns the memory limit of this process's cgroup (v1 or v2; the tightest of its parents), None without."""
    return min((limit for limit, _ in _cgroup_limits()), default=None)


def limit_bytes() -> int:
    """Returns what this process may have at most: the machine's memory, or its cgroup's limit where that is less."""
    total = int(psutil.virtual_memory().total)
    return faults.reading("memory.limit", min(cgroup_limit_bytes() or total, total))


def cgroup_available_bytes() -> int | None:
    """Returns what the limits of this process's cgroup and its parents leave of them, None without a limit.

    File cache that is not in active use counts as left: the kernel gives it up first.
    """
    return min((limit - _used_bytes(file) for limit, file in _cgroup_limits()), default=None)


def _cgroup_limits() -> Iterator[tuple[int, Path]]:
    """Yields (bytes, the file that says so) of each memory limit that this process is under."""
    for file in cgroup_settings("memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max"
            if (limit := int(file.read_text())) < 1 << 60:
                yield limit, file


def _used_bytes(limit_file: Path) -> int:
    """Returns the bytes that a cgroup uses, without the file cache that it would give up; at most its limit."""
    v2 = limit_file.name == "memory.max"
    used = inactive = 0
    with suppress(OSError, ValueError):
        limit = int(limit_file.read_text())
        used = min(limit, int(limit_file.with_name("memory.current" if v2 else "memory.usage_in_bytes").read_text()))
        name = "inactive_file" if v2 else "total_inactive_file"
        fields = dict(line.split() for line in limit_file.with_name("memory.stat").read_text().splitlines())
        inactive = int(fields.get(name, 0))
    return max(0, used - inactive)


def memory_budget(memory: int | str) -> int:
    """Returns the bytes that `memory` stands for: a size, or 'auto': half of what is available, also within the
    cgroup's limits.

    Raises:
        ConfigError: `memory` is no size, or more than the cgroup may use: the kernel would kill who believes it.
    """
    if memory != "auto":
        budget, limit = parse_size(memory), cgroup_limit_bytes()
        if limit is not None and budget > limit:
            raise ConfigError(
                f"memory: expected at most {format_size(limit)}, which is the limit of this process's cgroup, found "
                f"{format_size(budget)}; pass less, or raise that limit"
            )
        return budget
    return available_bytes() // 2


def available_bytes() -> int:
    """Returns what the machine has left, also within the limits of this process's cgroup."""
    available = int(psutil.virtual_memory().available)
    left = cgroup_available_bytes()
    return faults.reading("memory.available", min(available, left if left is not None else available))


def usable_cores() -> float:
    """Returns the cores that this process may keep busy: its affinity, or the cgroup's quota (v1 or v2) where that is
    less.
    """
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for file in cgroup_settings("cpu", "cpu.max", "cpu.cfs_quota_us"):
        with suppress(OSError, ValueError):  # "max 100000": no quota
            quota, *rest = file.read_text().split()
            period = rest[0] if rest else (file.parent / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                cores = min(cores, int(quota) / int(period))
    return cores


def available_cores() -> int:
    """Returns how many threads pay: `usable_cores`, rounded up; at least 1."""
    return max(1, math.ceil(usable_cores()))


def thread_count(threads: int | None) -> int:
    """Returns `threads`, or as many as pay.

    Raises:
        ConfigError: fewer than 1, or no whole number.
    """
    return available_cores() if threads is None else whole_number("threads", threads)


def resident_bytes() -> int:
    """Returns the bytes that this process has in memory."""
    return _status_bytes("VmRSS")


def peak_resident_bytes() -> int:
    """Returns the bytes that this process has had in memory at most, since it began."""
    return _status_bytes("VmHWM")


def anonymous_bytes() -> int:
    """Returns the bytes that this process has in memory that are no file's: what it cannot do without."""
    return faults.reading("memory.anonymous", _status_bytes("RssAnon"))


def _status_bytes(name: str) -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[name].split()[0]) << 10
