"""The memory budget against made-up trees of cgroups, and the cores against the kernel."""

import os

import psutil
import pytest

from diskgnn import memory
from diskgnn.errors import ConfigError
from diskgnn.memory import available_cores, cgroup_limit_bytes, memory_budget


def limit(tmp_path, cgroup, files):
    (tmp_path / "self").write_text(cgroup)
    for name, content in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return cgroup_limit_bytes(tmp_path / "self", tmp_path / "root")


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "1000\n", "a/memory.max": "max\n"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "700\n"}, 700),  # a parent is tighter
        ("0::/a/b\n", {"a/b/memory.max": "500\n", "a/memory.max": "700\n"}, 500),
        ("0::/\n", {"memory.max": "123\n"}, 123),  # a namespace of its own
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("0::/a\n", {}, None),
        ("0::/a:b\n", {"a:b/memory.max": "9\n"}, 9),
        ("4:memory:/x\n0::/y\n", {"memory/x/memory.limit_in_bytes": "2000\n"}, 2000),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "5\n"}, 5),
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "3000\n"}, 3000),  # mounted inside a container
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, None),  # none, as v1 says it
        ("", {}, None),
    ],
)  # fmt: skip
def test_limits_of_cgroups(tmp_path, cgroup, files, expected):
    assert limit(tmp_path, cgroup, files) == expected


def test_without_cgroups(tmp_path):
    assert cgroup_limit_bytes(tmp_path / "missing", tmp_path) is None


def test_the_budget_is_what_was_said_or_half_of_what_is_there(monkeypatch):
    assert memory_budget(4096) == 4096
    assert memory_budget("2GiB") == 2 << 30
    monkeypatch.setattr(memory, "cgroup_limit_bytes", lambda: 1 << 20)
    assert memory_budget("auto") == 1 << 19
    monkeypatch.setattr(memory, "cgroup_limit_bytes", lambda: None)
    assert abs(memory_budget("auto") - psutil.virtual_memory().available // 2) < 2 << 30
    monkeypatch.setattr(memory, "cgroup_limit_bytes", lambda: 1 << 59)
    assert memory_budget("auto") < 1 << 50
    for bad in ("lots", -1, "auto "):
        with pytest.raises(ConfigError, match="size"):
            memory_budget(bad)


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_cores() == len(allowed)
