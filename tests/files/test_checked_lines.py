"""Logs of checked lines: what was appended stays, whatever fails after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from diskgnn.errors import DiskFullError
from diskgnn.files.checked_lines import CheckedLog
from diskgnn.files.disk_space import JOURNAL, DiskBudget


def test_what_was_appended_to_make_room_stays_where_there_is_none(tmp_path: Path) -> None:
    """Who waits for room commits what is done, which is appended; then there still is none."""
    disk = DiskBudget("128KiB", [tmp_path])
    log = CheckedLog(tmp_path / JOURNAL, disk)
    log.append("first")

    def commit() -> bool:
        log.append("committed")
        return False

    with disk.relieved(commit), pytest.raises(DiskFullError):
        log.append("x" * (1 << 20))
    assert log.read(for_more=True) == ["first", "committed"]
    log.append("after")
    assert log.read(for_more=False) == ["first", "committed", "after"]
