"""What workers of a cluster do: functions of picklable values, in which no scheduler is known.

A task may run twice, or on two nodes at once when one is believed dead. So a worker gives no file its final name but
by publishing a directory, and what it wrote is the same whoever wrote it.
"""

from __future__ import annotations

import errno
import pickle
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from diskgnn.engines.telling import Arrived, Tell
from diskgnn.engines.work_units import MadeUnit, Make, Unit
from diskgnn.errors import ArtifactError, ConfigError, DiskFullError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync
from diskgnn.files.disk_space import OWN_BYTES, DiskBudget, allocated_bytes, file_bytes
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.version import VERSION

Result = TypeVar("Result")

_PREFIX = "diskgnn-worker-"  # of folders of scratch


def versions(libraries: Sequence[str] = ()) -> dict[str, str]:
    """Returns the versions that the bytes of results depend on; of `libraries`, too, which only some stages use."""
    from importlib.metadata import version  # 2 MiB that `prepare` alone would take, and `estimate` would not count

    found = {"diskgnn": VERSION, "numpy": np.__version__, "pyarrow": pa.__version__}
    return found | {name: version(name) for name in libraries}


def work(step: Callable[..., Result], given: bytes, expected: Mapping[str, str], tell: Tell, *arguments: Any) -> Result:
    """Returns a task: `step` of what was pickled as `given`, of `tell` and of `arguments`.

    Raises:
        ConfigError: this node has other `versions` than `expected`, or cannot see what it is to work on.
    """
    here = versions()
    if (found := here | versions([name for name in expected if name not in here])) != expected:
        raise ConfigError(
            f"a worker on {socket.gethostname()} has {_versions_words(found)}, expected those of the driver, "
            f"{_versions_words(expected)}: the bytes would differ. Install the same versions on all nodes"
        )
    with seen_by_all():
        loaded = pickle.loads(given)
    with freed_memory_returned():  # the next task of this process has a budget of its own
        return step(loaded, tell, *arguments)


def _versions_words(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


@contextmanager
def seen_by_all() -> Iterator[None]:
    """Refuses a path that the driver has and this node cannot find: it is not shared."""
    here = f"a worker on {socket.gethostname()}"
    try:
        yield
    except ArtifactError as error:
        raise ConfigError(
            f"{here} does not see what the driver sees ({error}). Graph and output must lie in a folder that all nodes "
            f"share, at the same path"
        ) from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{here} cannot import what the driver has ({error}): install that module on all nodes, or run where Ray "
            f"finds it (runtime_env)"
        ) from error


def make_units(
    given: Any,
    tell: Tell,
    make: Make[MadeUnit[Any]],
    units: Sequence[Unit],
    resources: Resources,
    arriving: str,
    disk_bytes: int | None,
) -> tuple[list[Arrived], Any]:
    """Make units on a disk of this node, each on to `arriving` when it is complete; what arrived, what `make` returned.

    Units that have their names in the folder above `arriving` are left out: an earlier run of this task made them. All
    of them take `disk_bytes` at most, wherever they are.
    """
    target = Path(arriving)
    if not target.is_dir():
        raise ConfigError(
            f"a worker on {socket.gethostname()} does not see {target}: the output must lie in a folder that all nodes "
            f"share, at the same path"
        )
    # Listing the folder has a file system of a network ask its server what is there; a single name may be remembered.
    there = {path.name for path in target.parent.iterdir()}
    missing = (unit for unit in units if not there.issuperset(unit.files))
    disk = DiskBudget(None if disk_bytes is None else disk_bytes + OWN_BYTES, ())  # it writes no journal
    disk.claim(_taken_bytes(target, {name for unit in units for name in unit.files}))
    arrived: list[Arrived] = []
    result: Any = None

    def made(scratch: Path) -> Generator[MadeUnit[Any], None, None]:
        nonlocal result
        result = yield from make(given, missing, scratch, replace(resources, disk=disk), lambda _: None)

    try:
        with ScratchFolder(Path(tempfile.gettempdir()), _PREFIX, "TMPDIR") as scratch:
            for each in made(scratch):
                arrived.append(Arrived(each, _move(each.checksums, scratch, target, disk)))
                faults.point("worker.unit")
                tell(arrived[-1])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"a disk ran full on {socket.gethostname()} ({error}): free some space in {tempfile.gettempdir()} there, "
            f"or in {target}"
        ) from error
    return arrived, result


def _taken_bytes(arriving: Path, names: set[str]) -> int:
    """Returns the bytes that files of these names take, in their place or on the way there."""
    on_the_way = (path for path in arriving.iterdir() if path.stem in names)
    return sum(map(allocated_bytes, (*(arriving.parent / name for name in names), *on_the_way)))


def _move(names: Iterable[str], folder: Path, target: Path, disk: DiskBudget) -> dict[str, tuple[str, int]]:
    """Moves files into the folder `target`, durable, on whatever file system. Returns their names there, and bytes."""
    moved = {}
    for name in names:
        path, file = folder / name, f"{name}.{uuid.uuid4().hex}"
        num_bytes = path.stat().st_size
        if path.stat().st_dev == target.stat().st_dev:
            sync(path)
            path.rename(target / file)
        else:
            disk.claim(file_bytes(num_bytes))  # both are there for a moment
            shutil.copyfile(path, target / file)
            sync(target / file)
            disk.remove(path, file_bytes(num_bytes))
        moved[name] = file, num_bytes
    sync(target)
    return moved
