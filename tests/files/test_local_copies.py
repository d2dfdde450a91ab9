"""Copies of files that lie on a store: what they take of a budget, and who removes them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from commands import run_python
from object_store import ObjectStore

from diskgnn.errors import DiskFullError, StoreError
from diskgnn.files.disk_space import OWN_BYTES, DiskBudget
from diskgnn.files.local_copies import LocalCopies
from diskgnn.stores.locations import stored

CONTENT = os.urandom(5000)
TAKEN = 8192  # two pages
COPIED = """
import gc, os, signal, sys
from diskgnn.files.local_copies import LocalCopies
from diskgnn.stores.locations import stored
folder = stored(sys.argv[1], "")
copies = LocalCopies(folder)
path, _ = copies.copy(folder / "file", 5000)
"""


@pytest.fixture
def url(store: ObjectStore, tmp_path: Path) -> str:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(CONTENT)
    (tmp_path / "there" / "another").write_bytes(CONTENT)
    return store.upload(tmp_path / "there", f"{tmp_path.name}/there")


def folders(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "scratch").glob("diskgnn-*") if path.is_dir()]


def test_copies_are_claimed_of_all_budgets_whose_blocks_are_open(url: str, tmp_path: Path) -> None:
    folder = stored(url, "")
    copies, outer, inner = LocalCopies(folder), *(DiskBudget(OWN_BYTES + each * TAKEN, []) for each in (2, 1))
    with copies.claimed_of(outer):
        with copies.claimed_of(inner):
            path, _ = copies.copy(folder / "file", len(CONTENT))
            assert path.read_bytes() == CONTENT
            assert (outer.left_bytes, inner.left_bytes) == (TAKEN, 0)
            with pytest.raises(DiskFullError, match=r"a copy of s3://\S*another needs exactly .* 8192 bytes are miss"):
                copies.copy(folder / "another", len(CONTENT))
            assert outer.left_bytes == TAKEN
        copies.copy(folder / "another", len(CONTENT))
        outer.look()  # they are counted where they lie
        assert outer.left_bytes == 0
    copies.copy(folder / "file", len(CONTENT))
    later = DiskBudget(OWN_BYTES + 3 * TAKEN, [])
    with copies.claimed_of(later):
        assert later.left_bytes == TAKEN


def test_a_copy_that_failed_takes_nothing(store: ObjectStore, url: str, tmp_path: Path) -> None:
    folder = stored(url, "")
    copies, disk = LocalCopies(folder), DiskBudget(OWN_BYTES + TAKEN, [])
    store.delete(f"{tmp_path.name}/there/file")
    with copies.claimed_of(disk):
        with pytest.raises((StoreError, FileNotFoundError)):
            copies.copy(folder / "file", len(CONTENT))
        assert disk.left_bytes == TAKEN
        assert list(folders(tmp_path)[0].iterdir()) == []


def test_whoever_copies_next_removes_what_a_killed_process_left_and_nothing_else(url: str, tmp_path: Path) -> None:
    folder = stored(url, "")
    copies = LocalCopies(folder)
    path, _ = copies.copy(folder / "file", len(CONTENT))
    kept = tmp_path / "scratch" / f"diskgnn-{os.geteuid()}"  # what goes on, see `scratch_of`
    kept.mkdir()
    killed = run_python("-c", f"{COPIED}\nos.kill(os.getpid(), signal.SIGKILL)", url)
    assert killed.returncode == -signal.SIGKILL
    assert len(folders(tmp_path)) == 3
    another = LocalCopies(folder)
    other, _ = another.copy(folder / "file", len(CONTENT))
    assert sorted(folders(tmp_path)) == sorted([kept, path.parent, other.parent])
    del copies, another
    assert list((tmp_path / "scratch").glob("diskgnn-*")) == [kept]  # locks are gone, too


def test_a_forked_child_leaves_the_copies_of_its_parent(url: str, tmp_path: Path) -> None:
    script = f"""{COPIED}
if os.fork() == 0:
    del copies
    gc.collect()
    os._exit(0)
os.wait()
assert path.stat().st_size == 5000
"""
    run_python("-c", script, url, check=True)
    assert folders(tmp_path) == []
