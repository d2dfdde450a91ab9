"""Writing an artifact: in a hidden sibling, fsynced, and renamed into place.

Whoever is killed half-way leaves no half-published artifact. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, OutputExistsError
from diskgnn.specs import PathLike
from diskgnn.storage import faults
from diskgnn.storage.artifacts import MANIFEST, RESUME_STAMP, VERSIONS
from diskgnn.storage.checked_files import ChecksummedFile, checksum_file, npy_header, npy_header_bytes, sync
from diskgnn.storage.manifest import (
    ExternalFile,
    FileEntry,
    Manifest,
    content_digest,
    entry_to_json,
    open_artifact,
    read_manifest,
)


class ArrayFile:
    """One .npy file of an artifact, written front to back like `ChecksummedFile`.

    Use as a context manager; leaving it without an error registers the file. `rows` None means as many as will
    have been written, which costs one read of the file for its checksum.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        name: str,
        dtype: npt.DTypeLike,
        rows: int | None,
        row_shape: tuple[int, ...] = (),
    ) -> None:
        self._writer, self._name, self._rows, self._row_shape = writer, name, rows, row_shape
        self._dtype = np.dtype(dtype)
        self.rows_written = 0

    def __enter__(self) -> ArrayFile:
        self._file = ChecksummedFile(self._writer.path(self._name))
        self._file.write(npy_header_bytes(self._dtype, (self._rows or 0, *self._row_shape)))
        return self

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Append `rows` [any number, *row_shape] of the file's dtype."""
        assert (rows.shape[1:], rows.dtype) == (self._row_shape, self._dtype), (rows.shape, rows.dtype)
        self.rows_written += len(rows)
        assert self._rows is None or self.rows_written <= self._rows, (self.rows_written, self._rows)
        faults.point("artifact.write")
        self._file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            return
        assert self._rows in (None, self.rows_written), (self._rows, self.rows_written)
        if self._rows is None:
            with self._writer.path(self._name).open("r+b") as file:
                file.write(npy_header_bytes(self._dtype, (self.rows_written, *self._row_shape)))
        self._writer.add(self._name, crc32c=None if self._rows is None else self._file.crc32c)


class ArtifactWriter:
    """Writes one artifact: files go to `writer.path(name)`, `publish` makes them appear all at once.

    Use as a context manager. Leaving it without `publish` removes what was written, unless `resumable`
    (then the next writer with the same `config` and `source` finds the files that are there already).

    Raises:
        OutputExistsError: `path` exists and `overwrite` is False.
        ArtifactError: another process is writing the same artifact.
    """

    def __init__(
        self,
        path: PathLike,
        format: str,  # noqa: A002  (the manifest's word)
        *,
        config: Mapping[str, Any],
        source: Manifest | None = None,
        overwrite: bool = False,
        resumable: bool = False,
    ) -> None:
        self.final = Path(path).resolve()
        self.format, self.config = format, dict(config)
        self.source = None if source is None else {"format": source.format, "digest": source.digest}
        self.files: dict[str, FileEntry] = {}
        self.external: dict[str, ExternalFile] = {}
        self._overwrite, self._resumable, self._published = overwrite, resumable, False
        self.staging = self.final.with_name(f".{self.final.name}.partial")
        self.check_output()

    def check_output(self) -> None:
        """Refuse an output that exists (unless overwriting an artifact), before any work is done."""
        if not self.final.exists() or (self.final.is_dir() and not any(self.final.iterdir())):
            return
        # Overwriting deletes a directory: only one that holds the same kind of artifact and nothing else. Anything else
        # is a slip, such as the input's name given as the output.
        try:
            manifest = read_manifest(self.final)
        except ArtifactError as error:
            raise OutputExistsError(
                f"{self.final} exists and is no artifact ({error}): it is never overwritten. Choose another output, or "
                f"remove it by hand."
            ) from error
        if manifest.format != self.format:
            raise OutputExistsError(
                f"{self.final} exists and is a {manifest.format!r}: it is never overwritten with a {self.format!r}. "
                f"Choose another output."
            )
        known = {MANIFEST, *manifest.files}
        if foreign := sorted(entry.name for entry in self.final.iterdir() if entry.name not in known):
            raise OutputExistsError(
                f"{self.final} holds files that are no part of the artifact ({', '.join(foreign[:5])}): refusing to "
                f"delete them. Choose another output, or move them away."
            )
        if not self._overwrite:
            raise OutputExistsError(f"{self.final} exists already; pass overwrite=True to replace it")

    def __enter__(self) -> ArtifactWriter:
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.final}: {error.strerror or error}; choose an output in another folder"
            ) from error
        try:
            identity = json.dumps([self.format, VERSIONS[self.format], self.config, self.source], sort_keys=True)
            stamp = self.staging / RESUME_STAMP
            if not (self._resumable and stamp.is_file() and stamp.read_text() == identity):
                shutil.rmtree(self.staging, ignore_errors=True)
                self.staging.mkdir()
                if self._resumable:
                    stamp.write_text(identity)
        except BaseException:
            self._release_lock()
            raise
        return self

    def _take_lock(self) -> TextIO:
        path = self.staging.with_suffix(".lock")
        while True:
            lock = path.open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock may have removed the file between our opening and locking it.
                if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    return lock
            except BlockingIOError as error:
                lock.close()
                raise ArtifactError(f"another process is writing {self.final} now; wait for it or stop it") from error
            except BaseException:
                lock.close()
                raise
            lock.close()

    def path(self, name: str) -> Path:
        """Where to write file `name`; register it with `add` when it is complete."""
        return self.staging / name

    def array_file(
        self, name: str, dtype: npt.DTypeLike, rows: int | None, row_shape: tuple[int, ...] = ()
    ) -> ArrayFile:
        """A .npy file `name` of shape [rows, *row_shape] to write front to back; see `ArrayFile`."""
        return ArrayFile(self, name, dtype, rows, row_shape)

    def save_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write `array` as .npy file `name` and register it."""
        faults.point("artifact.write")
        np.save(self.path(name), array, allow_pickle=False)
        self.add(name)

    def add(self, name: str, *, crc32c: int | None = None, advance: Callable[[int], None] = lambda _: None) -> None:
        """Register a complete file. Its checksum is read from disk unless `crc32c` was computed while writing."""
        path = self.path(name)
        self._add(name, path, checksum_file(path, advance) if crc32c is None else crc32c)

    def add_external(self, name: str, path: Path, *, crc32c: int) -> None:
        """Register a file that stays where it is, under the name that it would have here."""
        path = path.absolute()
        if path.resolve().is_relative_to(self.final):
            raise OutputExistsError(
                f"{path} lies in {self.final}, which would be replaced, and is to be referred to: it would be deleted. "
                f"Choose another output, or move the file out of there first."
            )
        self._add(name, path, crc32c)
        self.external[name] = ExternalFile(str(path), path.stat().st_mtime_ns)

    def _add(self, name: str, path: Path, crc32c: int) -> None:
        dtype, shape = npy_header(path) if name.endswith(".npy") else (None, None)
        self.files[name] = FileEntry(path.stat().st_size, crc32c, dtype, shape)

    def publish(self) -> Manifest:
        """Write the manifest, make everything durable and rename the directory into place."""
        content = {
            "format": self.format,
            "version": VERSIONS[self.format],
            "config": self.config,
            "source": self.source,
            "files": {name: entry_to_json(entry) for name, entry in sorted(self.files.items())},
        }
        external = {name: {"path": e.path, "mtime_ns": e.mtime_ns} for name, e in sorted(self.external.items())}
        document = {**content, "external": external, "digest": content_digest(content)}
        (self.staging / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")
        stamp = self.staging / RESUME_STAMP
        for entry in self.staging.iterdir():
            if entry.name == MANIFEST or entry.name in self.files:
                self._sync(entry)
            elif entry.is_dir():
                shutil.rmtree(entry)  # scratch
            elif entry != stamp:
                entry.unlink()
        self._sync(self.staging)
        self.check_output()
        stamp.unlink(missing_ok=True)
        if self.final.exists():
            _exchange(self.staging, self.final)
            faults.point("artifact.exchanged")
            shutil.rmtree(self.staging, ignore_errors=True)  # the old one
        else:
            self.staging.rename(self.final)
        self._sync(self.final.parent)
        self._published = True
        return open_artifact(self.final, self.format)

    @staticmethod
    def _sync(path: Path) -> None:
        faults.point("artifact.sync")
        sync(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published and not self._resumable:
            shutil.rmtree(self.staging, ignore_errors=True)
        if self._published or not self._resumable:
            self._release_lock()
        else:
            self._lock.close()
        if isinstance(error, OSError) and not isinstance(error, DiskFullError) and _is_disk_full(error):
            kept = (
                "what is complete was kept: the same command goes on with it" if self._resumable else "nothing is left"
            )
            raise DiskFullError(
                f"the disk ran full while {self.final} was written ({error}); {kept}. "
                f"Free some space or choose an output on another disk."
            ) from error

    def _release_lock(self) -> None:
        with suppress(OSError):
            Path(self._lock.name).unlink()
        self._lock.close()


def _is_disk_full(error: OSError) -> bool:
    # ndarray.tofile says how many items it wrote, and drops errno.
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno is None and "requested and" in str(error))


def _exchange(one: Path, other: Path) -> None:
    """Swap two directories, atomically where the file system can."""
    try:
        faults.point("artifact.exchange")
        _rename_exchange(one, other)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        aside = other.with_name(f".{other.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        other.rename(aside)
        one.rename(other)
        aside.rename(one)


def _rename_exchange(one: Path, other: Path) -> None:
    """The system call. Raises OSError: ENOSYS where the C library has none."""
    libc, at_fdcwd, rename_exchange = ctypes.CDLL(None, use_errno=True), -100, 2
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
