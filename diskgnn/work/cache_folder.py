"""The cache folder of `diskgnn.pyg`: directories that are found again by their names. What is used longest ago may go.

A directory is locked (shared) while a loader uses it, and its time of modification says when one last began to. Nobody
removes what is locked. Several processes may use, fill and empty the folder at once: what is removed first gets another
name, so no directory is ever seen in parts, whatever happens meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diskgnn.errors import ArtifactError
from diskgnn.files.destination import lock_of
from diskgnn.files.disk_space import folder_bytes
from diskgnn.files.locks import FileLock
from diskgnn.files.own_files import require_own_folder
from diskgnn.formats.artifacts import GRAPH
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.specs.schema import edge_type_name
from diskgnn.specs.targets import NodeTarget
from diskgnn.units import counted, format_count

# Nothing else in the folder is touched: made, being made, being removed.
_MADE = re.compile(r"(graph|packed)-[0-9a-f]+")
_UNFINISHED, _GOING = re.compile(rf"\.({_MADE.pattern})\.partial"), re.compile(rf"\.({_MADE.pattern})\.going\.\d+")


def default_cache_folder() -> Path:
    """Returns $XDG_CACHE_HOME/diskgnn/pyg, or ~/.cache/diskgnn/pyg."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diskgnn" / "pyg"


@dataclass(frozen=True)
class CachedDirectory:
    """A directory in a cache folder."""

    path: Path
    made_for: str  # for people
    size_bytes: int  # on the disk
    last_used: float  # seconds since 1970
    in_use: bool  # by a loader, or by who makes it


class Use:
    """Keeps a directory from being removed until this object is released, or gone."""

    def __init__(self, descriptor: int) -> None:
        self.release = weakref.finalize(self, os.close, descriptor)


def use(path: Path) -> Use | None:
    """Marks the directory `path` as in use, now. None if there is no such directory."""
    while (descriptor := _opened(path)) is not None:
        with suppress(OSError):  # a file system without locks: `remove` finds none either, and leaves all as it is
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(path, descriptor):  # nobody removed it before it was locked
            with suppress(OSError):
                os.utime(descriptor)
            return Use(descriptor)
        os.close(descriptor)
    return None


def list_directories(folder: Path) -> list[CachedDirectory]:
    """Returns what is in the cache folder, used longest ago first; nothing if there is no such folder.

    Raises:
        ConfigError: the folder is another user's.
    """
    require_own_folder(folder)
    found = []
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if any(pattern.fullmatch(path.name) for pattern in (_MADE, _UNFINISHED, _GOING)):
                with suppress(FileNotFoundError):
                    used = path.stat().st_mtime
                    found.append(CachedDirectory(path, _made_for(path), folder_bytes(path), used, _is_in_use(path)))
    return sorted(found, key=lambda each: (each.last_used, each.path))


def remove(path: Path) -> bool:
    """Removes a directory of a cache folder. False if it is in use.

    Raises:
        OSError: it cannot be removed.
    """
    if _GOING.fullmatch(path.name):
        shutil.rmtree(path, ignore_errors=True)  # somebody else may be at it
        return True
    if (made := _UNFINISHED.fullmatch(path.name)) is not None:
        lock = FileLock(lock_of(path.with_name(made[1])))
        if not lock.acquire():
            return False
        try:
            _remove(path)
        finally:
            lock.release()
        return True
    if (descriptor := _opened(path)) is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            _remove(path)
        return True
    except OSError:
        if path.exists():
            return False
        raise
    finally:
        os.close(descriptor)


def make_room(folder: Path, limit_bytes: int, size_bytes: int) -> int:
    """Removes what is used longest ago, until `size_bytes` more fit in the limit, or all that is left is in use.

    Returns:
        Bytes that are left of the limit.
    """
    found = list_directories(folder)
    left = limit_bytes - sum(each.size_bytes for each in found)
    for each in found:
        if left >= size_bytes:
            break
        if not each.in_use and remove(each.path):
            left += each.size_bytes
    return left


def _opened(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def _remove(path: Path) -> None:
    made = path.name.lstrip(".").partition(".")[0]
    going = path.with_name(f".{made}.going.{os.getpid()}")
    shutil.rmtree(going, ignore_errors=True)  # of a process of this number that was killed
    path.rename(going)
    shutil.rmtree(going)


def _is_in_use(path: Path) -> bool:
    if (made := _UNFINISHED.fullmatch(path.name)) is not None:
        lock = lock_of(path.with_name(made[1]))
        if not lock.exists():
            return False
        descriptor: int | None = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    else:
        descriptor = _opened(path)
    if descriptor is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _made_for(path: Path) -> str:
    if not _MADE.fullmatch(path.name):
        return "a run that did not finish" if _UNFINISHED.fullmatch(path.name) else "being removed"
    try:
        manifest = read_manifest(path)
        if manifest.format == GRAPH:
            graph = manifest.parsed(GraphConfig.parse)
            num_nodes = sum(each.num_nodes for each in graph.node_types)
            kinds = ", ".join(each.name for each in graph.node_types)
            return f"data of {format_count(num_nodes)} nodes ({kinds})"
        packed = manifest.parsed(PackedConfig.parse)
        spec, (size,) = packed.samples.spec, packed.splits.values()
        target = spec.target
        kind = target.node_type if isinstance(target, NodeTarget) else edge_type_name(target.edge_type)
        fanouts = spec.fanouts_by_type("train", tuple(packed.samples.num_edges))
        return (
            f"{counted(size.epochs, 'epoch')} of minibatches of {spec.batch_size} from {kind}, num_neighbors "
            f"{[max(hop, key=abs) for hop in fanouts]}"
        )
    except (ArtifactError, OSError, ValueError):
        return "damaged: it is made again when it is needed"
