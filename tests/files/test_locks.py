"""Locks between processes, as the kernel's flock has them."""

import fcntl
import os
from pathlib import Path

from diskgnn.files.locks import FileLock


def is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_lock_that_nobody_gave_back_goes_with_its_owner(tmp_path: Path) -> None:
    """As after Ctrl-C between taking it and the block that gives it back, in a process that lives on."""
    path = tmp_path / "out.lock"
    lock = FileLock(path)
    assert lock.acquire()
    assert is_locked(path)
    assert not FileLock(path).acquire()  # nor does its own end free what it has not got
    assert is_locked(path)
    del lock
    assert not is_locked(path)


def test_what_is_given_back_is_gone(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "out.lock")
    for _ in range(2):
        assert lock.acquire()
        lock.release()
        lock.release()
        assert not lock.path.exists()
