"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from diskgnn.units import parse_size

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def cgroup_limit_bytes(self_cgroup: Path = Path("/proc/self/cgroup"), root: Path = _CGROUP_ROOT) -> int | None:
    """The memory limit of this process's cgroup (v1 or v2; the tightest of its parents), None without."""
    limits: list[int] = []
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for candidate in (folder, *folder.parents):
            if not candidate.is_relative_to(base):
                break
            try:
                limits.append(int((candidate / name).read_text()))
            except (OSError, ValueError):
                continue  # not mounted here, or "max"
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
