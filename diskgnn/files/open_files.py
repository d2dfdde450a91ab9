"""Files that stay open: what was opened can be read to the end, although a directory in its place has other files."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path, PosixPath
from types import MappingProxyType

from diskgnn.errors import ArtifactError

MOST_PINNED = 4096  # files of one artifact; each takes about a KiB of the kernel's memory
_SPARE_DESCRIPTORS = 256  # left for everything else


class PinnedPath(PosixPath):
    """The path of a file that is open: messages say its name, and whoever opens it gets that very file, whatever has
    its name by now. Native code takes `os.fspath` of it, in this process.
    """

    pins: PinnedFiles | None = None
    descriptor: int

    def __fspath__(self) -> str:
        return str(self) if self.pins is None else path_of_descriptor(self.descriptor)


class PinnedFiles:
    """Keeps files open from now on, until it and all paths from it are dropped.

    At most MOST_PINNED, and as many as the process may have open: its soft limit is raised for that. Of the others it
    notices that they were replaced. In another process, paths are what they look like.

    Args:
        files: where each file lies, by name. Those that are not there are left out.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(self, files: Mapping[str, Path] = MappingProxyType({})) -> None:
        self._descriptors: dict[str, int] = {}
        self._others: dict[str, tuple[int, ...] | None] = {}
        self._finalizer = weakref.finalize(self, _close, self._descriptors)
        most = min(len(files), MOST_PINNED, _allowed_descriptors(min(len(files), MOST_PINNED)))
        for name, path in files.items():
            if len(self._descriptors) >= most:
                self._others[name] = version_of(path)
                continue
            try:
                self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue

    def path(self, name: str, path: Path) -> Path:
        """Returns `path`, which file `name` had, in a form that opens the very file that it was.

        Raises:
            ArtifactError: it was not kept open, and was replaced.
        """
        if name in self._descriptors:
            pinned = PinnedPath(path)
            pinned.pins, pinned.descriptor = self, self._descriptors[name]
            return pinned
        if name in self._others and version_of(path) != self._others[name]:
            kept = len(self._descriptors)
            more = f", if need be after `ulimit -n {kept + len(self._others) + 2 * _SPARE_DESCRIPTORS}`"
            raise ArtifactError(
                f"{path} was replaced since it was opened, and {kept} files of its directory are all that this process "
                f"may keep open: run this again{more if kept < MOST_PINNED else ''}"
            )
        return path

    def __reduce__(self) -> tuple[type[PinnedFiles], tuple[()]]:
        return PinnedFiles, ()


def version_of(path: Path) -> tuple[int, ...] | None:
    """Changes when another file or directory takes the place of this one; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def path_of_descriptor(descriptor: int) -> str:
    """Returns a path that opens, in this process, the file that `descriptor` has open; on Linux as if by its name."""
    return f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else f"/dev/fd/{descriptor}"


def _allowed_descriptors(wanted: int) -> int:
    """Returns how many more files may be open; the soft limit is raised for `wanted`, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir(path_of_descriptor(0).rpartition("/")[0])) + _SPARE_DESCRIPTORS  # noqa: PTH208
    if soft != resource.RLIM_INFINITY and soft < used + wanted:
        soft = used + wanted if hard == resource.RLIM_INFINITY else min(used + wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(soft - used, 0)


def _close(descriptors: Mapping[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
