import errno
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from diskgnn._native import HAVE_IO_URING, measure_reads
from diskgnn.errors import ArtifactError, ConfigError, DiskFullError
from diskgnn.files import faults
from diskgnn.system.disk_rates import measure_read_rates, scratch_file
from diskgnn.system.doctor import (
    Folder,
    IoUring,
    advise,
    diagnose,
    explain_refusal,
    look_at_folder,
    look_at_io_uring,
    look_at_machine,
)
from diskgnn.system.memory import cgroup_limit_bytes, usable_cores


def cgroup(tmp_path: Path, line: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A /proc/self/cgroup with one line, and a /sys/fs/cgroup with these files."""
    self_cgroup, root = tmp_path / "self-cgroup", tmp_path / "fs"
    self_cgroup.write_text(line + "\n")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return self_cgroup, root


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),  # v2: a parent's quota counts
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "25000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.25),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("0::/elsewhere", {}, None),
    ],
)
def test_cores_are_those_of_the_affinity_or_the_cgroups_quota(tmp_path, line, files, cores):
    with faults.pretending("cgroup.files", cgroup(tmp_path, line, files)):
        assert usable_cores() == (cores or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("line", "files", "limit"),
    [
        ("0::/a/b", {"a/b/memory.max": "4096", "a/memory.max": "1024"}, 1024),
        ("0::/a", {"a/memory.max": "max"}, None),
        (
            "4:memory:/a",
            {"memory/a/memory.limit_in_bytes": "2048", "memory/memory.limit_in_bytes": str(2**63 - 4096)},
            2048,
        ),
        ("5:cpu:/a", {"memory/a/memory.limit_in_bytes": "2048"}, None),
    ],
)
def test_memory_limit_is_the_tightest_of_the_cgroup_and_its_parents(tmp_path, line, files, limit):
    with faults.pretending("cgroup.files", cgroup(tmp_path, line, files)):
        assert cgroup_limit_bytes() == limit


def test_machine_agrees_with_what_the_system_says():
    machine = look_at_machine()
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert 0 < machine.usable_cores <= machine.cores
    assert machine.kernel.split()[1] == os.uname().release


def test_io_uring_is_usable_exactly_when_a_read_goes_through_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    offsets = np.zeros(1, np.uint64)
    ring = look_at_io_uring()
    assert measure_reads(str(path), offsets, 4096, 1, 9.0)[0] == ("io_uring" if ring.usable else "threads")
    assert ring.compiled_in == HAVE_IO_URING
    if not ring.usable:
        with pytest.raises(OSError, match="io_uring"):
            measure_reads(str(path), offsets, 4096, 1, 9.0, "io_uring")


def test_a_refusal_names_its_cause():
    def explained(code):
        return explain_refusal(f"the kernel refuses it: {os.strerror(code)}")

    assert "seccomp" in explained(errno.EPERM) or "sysctl" in explained(errno.EPERM)
    assert "older than 5.1" in explained(errno.ENOSYS)
    assert explained(errno.ENOMEM).endswith(os.strerror(errno.ENOMEM))


def test_folder_agrees_with_findmnt_and_leaves_nothing_behind(tmp_path):
    found = look_at_folder(tmp_path)
    told = subprocess.run(["findmnt", "--json", "--target", tmp_path], capture_output=True, check=False)
    known = told.returncode == 0  # in a chroot the folder may lie on no mount that can be seen
    assert found.filesystem == (json.loads(told.stdout)["filesystems"][0]["fstype"] if known else "unknown")
    assert found.total_bytes == psutil.disk_usage(str(tmp_path)).total
    assert list(tmp_path.iterdir()) == []


def test_reads_at_the_reported_alignment_succeed_and_below_it_fail(tmp_path):
    direct = look_at_folder(tmp_path).direct_io
    assert direct is not None
    if not direct.supported:
        pytest.skip("no O_DIRECT under tmp_path")
    import mmap

    with scratch_file(tmp_path) as (descriptor, is_direct), mmap.mmap(-1, 1 << 16) as buffer:
        assert is_direct
        os.pwrite(descriptor, buffer, 0)
        size = direct.offset_alignment_bytes
        assert os.preadv(descriptor, [memoryview(buffer)[:size]], size) == size
        if size > 1 and direct.source == "statx":
            with pytest.raises(OSError, match="Invalid argument"):
                os.preadv(descriptor, [memoryview(buffer)[:size]], size // 2)


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_rates_are_measured_on_a_file_that_is_gone_afterwards(tmp_path, engine):
    rates = measure_read_rates(tmp_path, file_bytes=(2 << 20) + 5, engine=engine)
    assert rates.file_bytes == 2 << 20
    assert rates.random_bytes_per_second == pytest.approx(4096 * rates.random_reads_per_second)
    assert rates.sequential_bytes_per_second > 0
    if engine == "threads":
        assert rates.engine == "threads"
    assert list(tmp_path.iterdir()) == []


def test_measured_reads_cover_what_was_asked_for(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 10))
    offsets = np.arange(0, 64 << 10, 4096, dtype=np.uint64)
    assert measure_reads(str(path), offsets, 4096, 3, 9.0)[2] == 64 << 10
    with pytest.raises(ArtifactError, match="file ends early"):
        measure_reads(str(path), offsets + np.uint64(4096), 4096, 3, 9.0)  # the last one is past the end


def test_what_cannot_be_measured_is_refused_with_a_reason(tmp_path):
    with pytest.raises(ConfigError, match="1MiB"):
        measure_read_rates(tmp_path, file_bytes=4096)
    with pytest.raises(DiskFullError, match="missing"):
        measure_read_rates(tmp_path, file_bytes=1 << 60)
    with pytest.raises(ConfigError, match="expected a folder"):
        diagnose(tmp_path / "nowhere")


def test_a_disk_without_an_inode_for_the_file_to_measure_with_is_full(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / ".diskgnn-1"))

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with pytest.raises(DiskFullError, match=r"ran full while .*the file to measure with was written"):
        diagnose(tmp_path)


def test_advice_is_given_only_where_something_could_be_better(tmp_path):
    machine, folder = look_at_machine(), look_at_folder(tmp_path)
    fine = {**vars(machine), "io_uring": IoUring(True, True, "allowed"), "torch": "2"}
    fine_folder = Folder(**{**vars(folder), "filesystem": "ext4", "direct_io": None})
    assert advise(type(machine)(**fine), fine_folder) == ()
    refused = type(machine)(**{**fine, "io_uring": IoUring(False, True, "refused (EPERM)")})
    assert "seccomp" in advise(refused, fine_folder)[0]
    without = type(machine)(**{**fine, "io_uring": IoUring(False, False, "allowed")})
    assert "linux-libc-dev" in advise(without, fine_folder)[0]
    in_memory = Folder(**{**vars(fine_folder), "filesystem": "tmpfs"})
    assert "memory" in advise(type(machine)(**fine), in_memory)[0]
