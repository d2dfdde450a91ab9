"""Finds what this machine offers to diskgnn: cores, memory, GPU, io_uring, and the disk under a folder."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import psutil

from diskgnn._native import HAVE_IO_URING, io_uring_refusal
from diskgnn.errors import ConfigError
from diskgnn.files.write_errors import raise_write_error
from diskgnn.paths import PathLike, resolved
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.system.disk_rates import ReadRates, measure_read_rates, scratch_file
from diskgnn.system.memory import cgroup_limit_bytes, usable_cores
from diskgnn.version import VERSION

_STATX_DIOALIGN, _AT_EMPTY_PATH = 0x2000, 0x1000


@dataclass(frozen=True)
class Gpu:
    """Describes one CUDA device that torch sees."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class IoUring:
    """Says whether reads can go through io_uring; otherwise a pool of threads makes them."""

    usable: bool  # compiled in, and the kernel lets this process use it
    compiled_in: bool  # diskgnn was built on Linux, with its headers of 5.6 or newer
    kernel: str  # what the kernel answered


@dataclass(frozen=True)
class Machine:
    """Describes the machine, or the container that this process runs in."""

    kernel: str
    python: str
    torch: str | None  # version; None when it is not installed
    usable_cores: float  # what affinity and the cgroup's quota leave of them
    cores: int
    memory_bytes: int
    available_memory_bytes: int
    cgroup_memory_limit_bytes: int | None
    gpus: tuple[Gpu, ...]
    io_uring: IoUring


@dataclass(frozen=True)
class DirectIo:
    """Says whether files in a folder can be read past the page cache, and what such reads must be aligned to."""

    supported: bool
    offset_alignment_bytes: int | None
    memory_alignment_bytes: int | None
    source: str  # 'statx' (the kernel says so) or 'trial' (the smallest that worked)


@dataclass(frozen=True)
class Folder:
    """Describes the file system that a folder lies on."""

    path: str
    filesystem: str
    device: str
    free_bytes: int
    total_bytes: int
    direct_io: DirectIo | None  # None: the folder is not writable, so nothing was tried
    rates: ReadRates | None  # None: not measured


@dataclass(frozen=True)
class Diagnosis:
    """Holds everything that `diskgnn doctor` knows; `advice` has one sentence for each thing that could be better."""

    diskgnn: str
    machine: Machine
    folder: Folder
    advice: tuple[str, ...]


def diagnose(
    folder: PathLike = ".", *, measure: bool = True, file_bytes: int = 1 << 30, reporter: Reporter = SILENT
) -> Diagnosis:
    """Look at this machine and at the disk that `folder` lies on.

    Args:
        folder: where graphs or packed data are or will be.
        measure: also measure read rates, with a temporary file of `file_bytes` in `folder`.
        file_bytes: a file that fits the disk's own cache gives rates that are too good.
        reporter: gets the progress of the measurement.

    Raises:
        ConfigError: `folder` is no folder, or cannot be written and `measure` is set.
        DiskFullError: the temporary file does not fit.
    """
    path = resolved(folder)
    if not path.is_dir():
        raise ConfigError(f"expected a folder to look at, found {folder}: give the one that will hold your data")
    if measure and not os.access(path, os.W_OK):
        raise ConfigError(f"{path} cannot be written, so its disk cannot be measured: pass measure=False")
    machine = look_at_machine()
    try:
        disk = look_at_folder(path)
        if measure:
            disk = replace(disk, rates=measure_read_rates(path, file_bytes=file_bytes, reporter=reporter))
    except OSError as error:
        raise_write_error(error, path / "the file to measure with", "nothing is left")
        raise
    return Diagnosis(VERSION, machine, disk, advise(machine, disk))


def look_at_machine() -> Machine:
    """Finds the cores, memory, GPUs and io_uring that this process may use."""
    memory = psutil.virtual_memory()
    torch_version, gpus = _look_at_torch()
    return Machine(
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch_version,
        usable_cores=usable_cores(),
        cores=os.cpu_count() or 1,
        memory_bytes=int(memory.total),
        available_memory_bytes=int(memory.available),
        cgroup_memory_limit_bytes=cgroup_limit_bytes(),
        gpus=gpus,
        io_uring=look_at_io_uring(),
    )


def _look_at_torch() -> tuple[str | None, tuple[Gpu, ...]]:
    if find_spec("torch") is None:
        return None, ()
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    properties = [torch.cuda.get_device_properties(device) for device in devices]
    return torch.__version__, tuple(Gpu(each.name, each.total_memory) for each in properties)


def look_at_io_uring() -> IoUring:
    """Set up a ring as the reader does, the only sure way to know: policies refuse it in several places."""
    refusal = io_uring_refusal()
    return IoUring(not refusal, bool(HAVE_IO_URING), explain_refusal(refusal) if refusal else "allowed")


def explain_refusal(refusal: str) -> str:
    """Returns what `io_uring_refusal` says, with the likely cause."""
    if os.strerror(errno.ENOSYS) in refusal:
        return f"{refusal} (it is older than 5.1 or built without io_uring, or a sandbox hides it)"
    if os.strerror(errno.EPERM) in refusal:
        with suppress(OSError, ValueError):
            if int(Path("/proc/sys/kernel/io_uring_disabled").read_text()) > 0:
                return f"{refusal} (switched off by sysctl kernel.io_uring_disabled)"
        return f"{refusal} (by a seccomp profile, as a container's default one does)"
    return refusal


def look_at_folder(path: Path) -> Folder:
    """Finds the file system under `path` and its O_DIRECT alignment, without measuring."""
    path = resolved(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    mount = max(mounts, key=lambda each: len(each.mountpoint), default=None)
    usage = psutil.disk_usage(str(path))
    return Folder(
        path=str(path),
        filesystem=mount.fstype if mount else "unknown",
        device=mount.device if mount else "unknown",
        free_bytes=usage.free,
        total_bytes=usage.total,
        direct_io=look_at_direct_io(path) if os.access(path, os.W_OK) else None,
        rates=None,
    )


def look_at_direct_io(folder: Path) -> DirectIo:
    """Tries O_DIRECT on a temporary file in `folder`."""
    with scratch_file(folder) as (descriptor, direct):
        if not direct:
            return DirectIo(False, None, None, "trial")
        told = _statx_alignment(descriptor)
        if told is not None:
            memory_alignment, offset_alignment = told
            return DirectIo(offset_alignment > 0, offset_alignment or None, memory_alignment or None, "statx")
        with mmap.mmap(-1, 1 << 16) as buffer:
            os.pwrite(descriptor, buffer, 0)
            sizes = [1 << shift for shift in range(9, 17)]
            offset_alignment = next((size for size in sizes if _can_read(descriptor, buffer, size, size, 0)), 0)
            memory_alignment = next(
                (size for size in [1, 4, *sizes] if _can_read(descriptor, buffer, 0, offset_alignment, size)), 0
            )
        return DirectIo(offset_alignment > 0, offset_alignment or None, memory_alignment or None, "trial")


def _can_read(descriptor: int, buffer: mmap.mmap, offset: int, length: int, memory_offset: int) -> bool:
    with memoryview(buffer) as view, suppress(OSError):
        return os.preadv(descriptor, [view[memory_offset : memory_offset + length]], offset) > 0
    return False


def _statx_alignment(descriptor: int) -> tuple[int, int] | None:
    """Returns (memory, offset) alignment by statx(2), None where the kernel (before 6.1) or file system has no
    answer."""
    record = (ctypes.c_uint32 * 64)()  # struct statx: the mask is word 0, stx_dio_mem_align 38, _offset_align 39
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statx") or libc.statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, record) != 0:
        return None
    return (record[38], record[39]) if record[0] & _STATX_DIOALIGN else None


def advise(machine: Machine, folder: Folder) -> tuple[str, ...]:
    """Returns what the user could change, and what it would bring; nothing for what is as it should be."""
    advice = []
    ring = machine.io_uring
    if not ring.compiled_in:  # which is as it should be where there is none
        if machine.kernel.startswith("Linux"):
            advice.append(
                "diskgnn was built without io_uring and reads with threads: build it again with the headers of "
                "Linux 5.6 or newer (Debian/Ubuntu: linux-libc-dev)"
            )
    elif not ring.usable:
        advice.append(
            "io_uring is not to be had here, so diskgnn reads with threads. In Docker: `docker run "
            "--security-opt seccomp=unconfined`, or with a profile that allows io_uring"
        )
    if folder.filesystem in ("tmpfs", "ramfs"):
        advice.append(f"{folder.path} lies in memory ({folder.filesystem}): choose a folder on a disk")
    elif folder.direct_io is not None and not folder.direct_io.supported:
        advice.append(
            f"{folder.filesystem} under {folder.path} has no O_DIRECT: reads go through the page cache and "
            "compete with training for memory; a local ext4 or xfs disk has it"
        )
    if machine.torch is None:
        advice.append("torch is not installed: preparing works, training does not; pip install torch")
    return tuple(advice)
