"""The memory budget against made-up trees of cgroups, and the cores against the kernel."""

import math
import os

import psutil
import pytest

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.system.memory import (
    available_cores,
    cgroup_available_bytes,
    cgroup_limit_bytes,
    memory_budget,
    usable_cores,
)


def write_cgroup(tmp_path, cgroup, files):
    """What the kernel would say to a process in `cgroup`."""
    (tmp_path / "self").write_text(cgroup)
    for name, content in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


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
    write_cgroup(tmp_path, cgroup, files)
    with faults.pretending("cgroup.files", (tmp_path / "self", tmp_path / "root")):
        assert cgroup_limit_bytes() == expected


def test_without_cgroups(tmp_path):
    with faults.pretending("cgroup.files", (tmp_path / "missing", tmp_path)):
        assert cgroup_limit_bytes() is None


def test_the_budget_is_what_was_said_or_half_of_what_is_there(tmp_path):
    def automatic(limit_bytes):
        write_cgroup(tmp_path, "0::/a\n", {"a/memory.max": f"{limit_bytes}\n"})
        with faults.pretending("cgroup.files", (tmp_path / "self", tmp_path / "root")):
            return memory_budget("auto")

    assert memory_budget(4096) == 4096
    assert memory_budget("2GiB") == 2 << 30
    assert automatic(1 << 20) == 1 << 19
    assert abs(automatic("max") - psutil.virtual_memory().available // 2) < 2 << 30
    assert automatic(1 << 59) < 1 << 50
    for bad in ("lots", -1, "auto "):
        with pytest.raises(ConfigError, match="size"):
            memory_budget(bad)


def test_a_budget_beyond_the_limit_of_the_cgroup_is_refused(tmp_path):
    write_cgroup(tmp_path, "0::/a\n", {"a/memory.max": f"{1 << 30}\n"})
    with faults.pretending("cgroup.files", (tmp_path / "self", tmp_path / "root")):
        assert memory_budget("1GiB") == 1 << 30
        with pytest.raises(ConfigError, match=r"memory: expected at most 1\.0 GiB.*found 2\.0 GiB"):
            memory_budget("2GiB")


def test_cores_are_those_that_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_cores() == max(1, math.ceil(usable_cores()))


@pytest.mark.parametrize(("quota", "cores"), [(20, 1), (100, 1), (120, 2), (250, 3), (1600, 16)])
def test_cores_are_those_of_the_quota(tmp_path, quota, cores):
    write_cgroup(tmp_path, "0::/a\n", {"a/cpu.max": f"{quota * 1000} 100000\n"})
    allowed = len(os.sched_getaffinity(0))
    with faults.pretending("cgroup.files", (tmp_path / "self", tmp_path / "root")):
        assert available_cores() == min(cores, allowed)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (
            "0::/a/b\n",
            {"a/b/memory.max": "1000\n", "a/b/memory.current": "700\n",
             "a/b/memory.stat": "anon 300\ninactive_file 250\nactive_file 150\n"},
            550,
        ),
        (  # the parent has the larger limit, but less of it is left
            "0::/a/b\n",
            {"a/b/memory.max": "1000\n", "a/b/memory.current": "10\n", "a/memory.max": "1500\n",
             "a/memory.current": "1400\n", "a/memory.stat": "inactive_file 0\n"},
            100,
        ),
        (
            "4:memory:/x\n",
            {"memory/x/memory.limit_in_bytes": "2000\n", "memory/x/memory.usage_in_bytes": "1900\n",
             "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 900\n"},
            1000,
        ),
        ("0::/a\n", {"a/memory.max": "500\n"}, 500),  # nothing says what is used
        ("0::/a\n", {"a/memory.max": "500\n", "a/memory.current": "600\n"}, 0),
        ("0::/a\n", {"a/memory.max": "max\n", "a/memory.current": "600\n"}, None),
    ],
)  # fmt: skip
def test_what_a_cgroup_uses_already_is_not_available(tmp_path, cgroup, files, expected):
    write_cgroup(tmp_path, cgroup, files)
    with faults.pretending("cgroup.files", (tmp_path / "self", tmp_path / "root")):
        assert cgroup_available_bytes() == expected
