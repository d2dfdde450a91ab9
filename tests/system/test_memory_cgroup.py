import errno
import os
import subprocess
import sys
import time

import psutil
import pytest

from diskgnn.files import faults
from diskgnn.system.memory_cgroup import MemoryCgroup, refusal

needs_cgroup = pytest.mark.skipif(bool(refusal()), reason="this process may make no memory cgroup")
LIMIT = 64 << 20


def take(num_bytes):
    """A command that touches `num_bytes` of memory."""
    return [sys.executable, "-c", f"len(bytearray({num_bytes}))"]


@needs_cgroup
def test_what_fits_runs_and_its_peak_is_known():
    with MemoryCgroup(LIMIT) as cgroup:
        assert subprocess.run(cgroup.command(take(32 << 20)), check=False).returncode == 0
        assert 32 << 20 <= cgroup.peak_bytes() <= LIMIT
        assert cgroup.oom_kills() == 0
    assert not cgroup.path.exists()


@needs_cgroup
def test_what_does_not_fit_is_killed_and_counted():
    with MemoryCgroup(LIMIT) as cgroup:
        assert subprocess.run(cgroup.command(take(LIMIT * 2)), check=False).returncode in (-9, 137)
        assert cgroup.oom_kills() >= 1


@needs_cgroup
def test_page_cache_is_inside(tmp_path):
    """A file twice as large as the limit is read without harm, and the peak stays below it."""
    (tmp_path / "file").write_bytes(bytes(1 << 20) * 128)
    subprocess.run(["sync", tmp_path / "file"], check=True)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with MemoryCgroup(LIMIT) as cgroup:
        assert subprocess.run(cgroup.command(["/bin/cat", str(tmp_path / "file")]), stdout=subprocess.DEVNULL,
                              check=False).returncode == 0  # fmt: skip
        assert LIMIT // 2 < cgroup.peak_bytes() <= LIMIT


@needs_cgroup
def test_leaving_it_kills_what_still_runs():
    with MemoryCgroup(LIMIT) as cgroup:
        running = subprocess.Popen(cgroup.command(["/bin/sleep", "60"]))
        while psutil.Process(running.pid).name() != "sleep":
            time.sleep(0.01)
    assert running.wait(5) == -9
    assert not cgroup.path.exists()
    cgroup.remove()  # again


def hierarchy_v2(tmp_path, controllers):
    """What a v2 file system looks like to a process in /job/inner; plain files, so nothing is enforced."""
    root = tmp_path / "cgroup"
    for folder in (root, root / "job", root / "job" / "inner"):
        folder.mkdir()
        (folder / "cgroup.procs").touch()
        (folder / "cgroup.subtree_control").write_text(controllers)
    self_cgroup = tmp_path / "self"
    self_cgroup.write_text("0::/job/inner\n")
    return self_cgroup, root


def test_v2_turns_the_controller_on_where_it_is_off(tmp_path):
    self_cgroup, root = hierarchy_v2(tmp_path, "cpu pids")
    with faults.pretending("cgroup.files", (self_cgroup, root)):
        cgroup = MemoryCgroup(LIMIT)
    assert cgroup.path.parent == root / "job" / "inner"
    assert (cgroup.path / "memory.max").read_text() == str(LIMIT)
    assert (root / "job" / "inner" / "cgroup.subtree_control").read_text() == "+memory"


def test_v2_goes_beside_when_it_may_not_go_below(tmp_path):
    """The kernel lets a cgroup that has processes itself have children, but not distribute memory to them."""
    self_cgroup, root = hierarchy_v2(tmp_path, "cpu pids")
    inner = root / "job" / "inner"
    (root / "job" / "cgroup.subtree_control").write_text("cpu memory pids")
    half_made = []

    def refuse():
        half_made.extend(inner.glob("diskgnn-*"))
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with faults.armed("cgroup.delegate", refuse), faults.pretending("cgroup.files", (self_cgroup, root)):
        cgroup = MemoryCgroup(LIMIT)
    assert cgroup.path.parent == root / "job"
    assert [path.name for path in half_made] == [cgroup.path.name]
    assert not half_made[0].exists()
    assert (cgroup.path / "memory.max").read_text() == str(LIMIT)
    (cgroup.path / "memory.peak").write_text("4096\n")
    (cgroup.path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n")
    assert (cgroup.peak_bytes(), cgroup.oom_kills()) == (4096, 2)


def test_without_cgroups_it_says_so(tmp_path):
    is_missing = faults.pretending("cgroup.files", (tmp_path / "self", tmp_path))
    with is_missing, pytest.raises(OSError, match="no memory cgroup"):
        MemoryCgroup(LIMIT)
