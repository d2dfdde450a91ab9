"""How much memory this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from diskgnn.units import parse_size

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def cgroup_settings(
    controller: str,
    v2_name: str,
    v1_name: str,
    self_cgroup: Path = Path("/proc/self/cgroup"),
    root: Path = _CGROUP_ROOT,
) -> Iterator[Path]:
    """The files of this process's cgroup and all its parents that hold one setting (cgroup v1 or v2)."""
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


def cgroup_limit_bytes(self_cgroup: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP_ROOT) -> int | None:
    """The memory limit of this process's cgroup (v1 or v2; the tightest of its parents), None without."""
    limits: list[int] = []
    for file in cgroup_settings("memory", "memory.max", "memory.limit_in_bytes", self_cgroup, root):
        with suppress(OSError, ValueError):  # "max"
            limits.append(int(file.read_text()))
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def memory_budget(memory: int | str) -> int:
    """Bytes that `memory` stands for: a size, or 'auto': half of what is available, a cgroup's limit included.

    Raises:
        ConfigError: `memory` is no size.
    """
    if memory != "auto":
        return parse_size(memory)
    available = int(psutil.virtual_memory().available)
    limit = cgroup_limit_bytes()
    return min(available, limit if limit is not None else available) // 2


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
