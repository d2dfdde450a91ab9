"""Free disk space: asked for before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from diskgnn.errors import DiskFullError
from diskgnn.storage import faults
from diskgnn.units import format_size


def free_bytes(folder: Path) -> int:
    """Bytes that a file written under `folder` (or its nearest existing parent) may take."""
    while not folder.exists():
        folder = folder.parent
    return faults.reading("disk.free", shutil.disk_usage(folder).free)


def require_free_bytes(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to start writing `what` when the disk cannot hold it.

    Raises:
        DiskFullError: fewer than `needed_bytes` are free; names the bytes missing.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        raise DiskFullError(
            f"{what} needs {format_size(needed_bytes)} ({needed_bytes} bytes) under {folder}, but only "
            f"{format_size(free)} are free: {needed_bytes - free} bytes are missing. "
            f"Free some space or choose an output on another disk."
        )


def allocated_bytes(path: Path) -> int:
    """Bytes that a file has on the disk already; 0 if it is not there. Of a folder, those of its files."""
    if path.is_dir():
        return sum(allocated_bytes(entry) for entry in path.iterdir())
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0
