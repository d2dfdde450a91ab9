"""The hidden directory that a comparison writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diskgnn.files.scratch_folders import ScratchFolder


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Makes a new directory in `parent`, gone when the block is left; what killed comparisons left there goes, too.

    Raises:
        ConfigError: `parent` may not be made or written.
    """
    folder = ScratchFolder(parent, ".diskgnn-compare-", "scratch")
    try:
        yield folder.path
    finally:
        folder.delete()
