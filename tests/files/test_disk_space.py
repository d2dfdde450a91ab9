"""What a command may take of a disk, while several threads take and give back."""

from __future__ import annotations

import threading

import pytest

from diskgnn.files import disk_space
from diskgnn.files.disk_space import OWN_BYTES, DiskBudget


def test_whoever_comes_second_waits_for_room_that_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread takes the last room just before this one does."""
    disk, taken = DiskBudget(OWN_BYTES + 4096, []), []

    class Late:
        def __init__(self) -> None:
            self._lock, self._others = threading.Lock(), [1]

        def __enter__(self) -> None:
            if self._others:
                taken.append(self._others.pop())
                disk.claim(4096)
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def give_back() -> bool:
        if taken:
            disk.release(4096 * taken.pop())
            return True
        return False

    monkeypatch.setattr(disk_space, "_claiming", Late())
    disk.relieved_by(give_back)
    disk.claim(4096)
    assert (disk.left_bytes, taken) == (0, [])
