"""What workers of Ray do, and what they tell of it meanwhile: functions of picklable values, in which Ray is unknown.

A task may run twice, or on two nodes at once when one is believed dead. So a worker gives no file its final name but
by publishing a directory, and what it wrote is the same whoever wrote it.
"""

from __future__ import annotations

import errno
import pickle
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from diskgnn.errors import ArtifactError, BusyError, ConfigError, DiskFullError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync
from diskgnn.files.disk_space import OWN_BYTES, DiskBudget, allocated_bytes, file_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.samples import Samples
from diskgnn.packing.pack import pack_request, place_request
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.progress.reporter import Advance, StageReport
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import damage_named
from diskgnn.sampling.sample_units import SampledUnit, SampleUnit, write_units
from diskgnn.stores.locations import Location
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.version import VERSION

_TELL_SECONDS = 0.5  # between two messages about one stage
_BUSY_SECONDS = 120  # file systems of a network give up the locks of a dead machine after 90 seconds or so

Result = TypeVar("Result")


class Tell(Protocol):
    """Says something to whoever submitted the task, without waiting."""

    def __call__(self, event: Event) -> None:
        """One event; those of a worker arrive in order, or not at all."""
        ...


@dataclass(frozen=True)
class Arrived:
    """The file of a unit is complete in the folder that it was to arrive in, and durable."""

    sampled: SampledUnit
    file: str  # its name there


@dataclass(frozen=True)
class Opened:
    """A stage began; see `progress.Reporter`."""

    stage: str  # of one run of one task
    description: str
    total: int
    unit: str


@dataclass(frozen=True)
class Advanced:
    """So much more of a stage is done."""

    stage: str
    amount: int


@dataclass(frozen=True)
class Closed:
    """A stage ended."""

    stage: str


Event = Arrived | Opened | Advanced | Closed


def versions() -> dict[str, str]:
    """Of all that the bytes of samples and of packed directories come from."""
    return {"diskgnn": VERSION, "numpy": np.__version__, "pyarrow": pa.__version__}


def work(step: Callable[..., Result], given: bytes, expected: Mapping[str, str], tell: Tell, *arguments: Any) -> Result:
    """A task: `step` of what was pickled as `given`, of `tell` and of `arguments`.

    Raises:
        ConfigError: this node has other `versions` than `expected`, or cannot see what it is to work on.
    """
    if (found := versions()) != expected:
        raise ConfigError(
            f"a worker on {socket.gethostname()} has {_listed(found)}, expected those of the driver, "
            f"{_listed(expected)}: the bytes would differ. Install the same versions on all nodes"
        )
    with _seen_by_all():
        loaded = pickle.loads(given)
    with freed_memory_returned():  # the next task of this process has a budget of its own
        return step(loaded, tell, *arguments)


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


@contextmanager
def _seen_by_all() -> Iterator[None]:
    """What cannot be found here, though the driver has it, is not shared."""
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
            f"{here} cannot import what the driver has ({error}): install the module of the `sampler` on all nodes, or "
            f"run where Ray finds it (runtime_env)"
        ) from error


def sample(
    given: tuple[SamplingPlan, Resources],
    tell: Tell,
    units: Sequence[SampleUnit],
    arriving: str,
    disk_bytes: int | None,
) -> tuple[list[Arrived], int]:
    """Write `units` to a folder of this node, each on to `arriving` when it is complete; what arrived, bytes read.

    Units that have their name in the folder above `arriving` are left out: an earlier run of this task made them. All
    of them take `disk_bytes` at most, wherever they are.
    """
    plan, resources = given
    target = Path(arriving)
    if not target.is_dir():
        raise ConfigError(
            f"a worker on {socket.gethostname()} does not see {target}: the output must lie in a folder that all nodes "
            f"share, at the same path"
        )
    arrived: list[Arrived] = []
    missing = (unit for unit in units if not (target.parent / unit.name).exists())
    there = (allocated_bytes(path) for unit in units for path in target.parent.glob(f"**/{unit.name}*"))
    disk = DiskBudget(None if disk_bytes is None else disk_bytes + OWN_BYTES, ())  # it writes no journal
    disk.claim(sum(there))
    read_bytes = 0

    def written(scratch: Path) -> Generator[SampledUnit, None, None]:
        nonlocal read_bytes
        read_bytes = yield from write_units(plan, missing, scratch, replace(resources, disk=disk), lambda _: None)

    try:
        with tempfile.TemporaryDirectory(prefix="diskgnn-") as scratch, damage_named(plan.graph):
            for sampled in written(Path(scratch)):
                file = f"{sampled.unit.name}.{uuid.uuid4().hex}"
                _move(Path(scratch) / sampled.unit.name, target / file, disk)
                faults.point("worker.sampled")
                arrived.append(Arrived(sampled, file))
                tell(arrived[-1])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"a disk ran full on {socket.gethostname()} ({error}): free some space in {tempfile.gettempdir()} there, "
            f"or in {target}"
        ) from error
    return arrived, read_bytes


def _move(path: Path, target: Path, disk: DiskBudget) -> None:
    """Make `path` be `target`, durable, on whatever file system; `disk` has both as long as both are there."""
    if path.stat().st_dev == target.parent.stat().st_dev:
        sync(path)
        path.rename(target)
    else:
        num_bytes = file_bytes(path.stat().st_size)
        disk.claim(num_bytes)
        shutil.copyfile(path, target)
        sync(target)
        disk.remove(path, num_bytes)
    sync(target.parent)


def place(request: PrepareRequest, tell: Tell, digest: str, there: str | None, overwrite: bool) -> StageReport:
    """Place the samples of `request`, which are those of `digest`: what that gives lies beside the output."""
    report = _published_or(place_request, "place", request, tell, digest, there, overwrite)
    faults.point("worker.placed")
    return report


def pack(request: PrepareRequest, tell: Tell, digest: str, there: str | None, overwrite: bool) -> StageReport:
    """Pack the samples of `request` where `place` ended; or place them as well, if that is lost or damaged.

    `there` is the digest of what
    `overwrite` replaces: another one is what an earlier run of this task published.
    """
    report = _published_or(pack_request, "pack", request, tell, digest, there, overwrite)
    faults.point("worker.packed")
    return report


def _published_or(
    step: Callable[..., StageReport],
    stage: str,
    request: PrepareRequest,
    tell: Tell,
    digest: str,
    there: str | None,
    overwrite: bool,
) -> StageReport:
    """`step`, unless an earlier run of this task has published the output."""
    with _seen_by_all():
        samples = Samples.open(request.samples_path)
        if samples.manifest.digest != digest:
            raise ArtifactError(f"{request.samples_path} holds other samples")
    resources = replace(request.resources, reporter=_Told(tell))
    resources.disk.look()
    out = request.destination.there

    def write() -> StageReport:
        if published(out) not in (None, there):
            return StageReport(stage, 0.0, 0, read_manifest(out).total_bytes if stage == "pack" else 0)
        return step(request.packing(samples), request.destination, resources, overwrite=overwrite)

    return _when_free(write)


def published(out: Location) -> str | None:
    """The digest of the packed directory `out`; None if there is none."""
    with suppress(ArtifactError):
        return read_manifest(out, artifacts.PACKED).digest
    return None


def _when_free(write: Callable[[], StageReport]) -> StageReport:
    """`write`, as soon as whoever ran this task before has died."""
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return write()
        except BusyError:
            if time.monotonic() > give_up:
                raise
            time.sleep(1)


class _Told:
    """A `Reporter` that tells somebody else, at most so often."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        """One bar elsewhere."""
        stage, untold, told = uuid.uuid4().hex, 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal untold, told
            untold += amount
            if time.monotonic() - told > _TELL_SECONDS:
                self._tell(Advanced(stage, untold))
                untold, told = 0, time.monotonic()

        self._tell(Opened(stage, description, total, unit))
        try:
            yield advance
        finally:
            self._tell(Advanced(stage, untold))
            self._tell(Closed(stage))
