"""Files that stay open: what was opened can be read to the end, although a directory in its place has other files."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path


class PinnedFiles:
    """Keeps files open from now on, until it is dropped.

    Args:
        files: where each file lies, by name.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._descriptors: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, _close, self._descriptors)
        for name, path in files.items():
            self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def path(self, name: str) -> Path:
        """Opens the very file that was called `name`, in this process: native code may open it with O_DIRECT."""
        return Path(path_of_descriptor(self._descriptors[name]))


def path_of_descriptor(descriptor: int) -> str:
    """A path that opens, in this process, the file that `descriptor` has open; on Linux as if by its name."""
    return f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else f"/dev/fd/{descriptor}"


def _close(descriptors: Mapping[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
