"""Artifact directories: graph/, samples/ and packed/. The only module that knows manifests and file names.

An artifact is a directory that is immutable once published. It is written in a hidden sibling
(`.NAME.partial`), fsynced, and renamed; whoever is killed half-way leaves no half-published artifact.
Its manifest.json names the format and version, the full config of the stage that wrote it, every file's size,
checksum, dtype and shape, and the digest of the artifact that it was made from. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn import _native
from diskgnn.errors import ArtifactError, DiskFullError, OutputExistsError
from diskgnn.progress import SILENT, Reporter
from diskgnn.units import format_size

PathLike = str | os.PathLike[str]

GRAPH, SAMPLES, PACKED = "diskgnn.graph", "diskgnn.samples", "diskgnn.packed"
VERSIONS = {GRAPH: 1, SAMPLES: 1, PACKED: 1}
_MADE_BY = {GRAPH: "diskgnn convert", SAMPLES: "diskgnn sample", PACKED: "diskgnn prepare"}
MANIFEST = "manifest.json"

# graph/
INDPTR, INDICES, FEATURES, LABELS = "indptr.npy", "indices.npy", "features.npy", "labels.npy"
SPLITS = ("train", "valid", "test")


def split_file(split: str) -> str:
    """graph/: the node ids of one split."""
    return f"{split}.npy"


# samples/
def shard_file(split: str, epoch: int, shard: int) -> str:
    """samples/: some consecutive minibatches of one epoch of one split."""
    return f"{split}-{epoch:04d}-{shard:05d}.arrow"


# packed/
STATIC = "static.npy"


def extents_file(split: str) -> str:
    """packed/: the extents of one split's sequence."""
    return f"{split}.bin"


def index_file(split: str) -> str:
    """packed/: where each extent of `extents_file` starts and what it holds."""
    return f"{split}-index.npy"


def initial_file(split: str) -> str:
    """packed/: the rows in the cpu tier when the sequence starts, in slot order."""
    return f"{split}-initial.npy"


def wrap_file(split: str) -> str:
    """packed/: where each slot's row comes from when the sequence starts over."""
    return f"{split}-wrap.npy"


@dataclass(frozen=True)
class FileEntry:
    """One file of an artifact. `dtype` and `shape` are set for .npy files."""

    bytes: int
    crc32c: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ExternalFile:
    """A file that the artifact refers to instead of holding it (`convert --reference-features`)."""

    path: str
    mtime_ns: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of an artifact that has been opened and checked."""

    path: Path
    format: str
    version: int
    config: dict[str, Any]
    files: dict[str, FileEntry]
    external: dict[str, ExternalFile]
    source: dict[str, str] | None
    digest: str

    def file(self, name: str) -> Path:
        """Where file `name` lies: inside the artifact, or where an external file is."""
        return Path(self.external[name].path) if name in self.external else self.path / name

    def array(self, name: str, *, mmap: bool = True) -> npt.NDArray[Any]:
        """The .npy file `name`, memory-mapped read-only unless `mmap` is False."""
        return np.load(self.file(name), mmap_mode="r" if mmap else None, allow_pickle=False)  # type: ignore[no-any-return]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, external ones included."""
        return sum(entry.bytes for entry in self.files.values())


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def checksum_file(path: Path, advance: Callable[[int], None] = lambda _: None) -> int:
    """CRC-32C of a whole file, read once front to back without keeping it in the page cache."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(4 << 20)
        view = memoryview(buffer)
        offset = 0
        while read := file.readinto(buffer):
            crc = _native.crc32c(view[:read], crc)
            os.posix_fadvise(file.fileno(), offset, read, os.POSIX_FADV_DONTNEED)
            offset += read
            advance(read)
    return crc


class ChecksummedFile(io.RawIOBase):
    """A file that is written front to back while its CRC-32C is computed (`crc32c`), for `ArtifactWriter.add`.

    What is written is sent to the disk soon and does not stay in the page cache.
    """

    _WINDOW_BYTES = 16 << 20

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=0)
        self._written_bytes = self._dropped_bytes = 0
        self.crc32c = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._WINDOW_BYTES):
            self._write_window(view[start : start + self._WINDOW_BYTES])
        return len(view)

    def _write_window(self, view: memoryview) -> None:
        self.crc32c = _native.crc32c(view, self.crc32c)
        while view:
            written = self._file.write(view)
            view = view[written:]
            self._written_bytes += written
        if self._written_bytes - self._dropped_bytes >= 2 * self._WINDOW_BYTES:
            # DONTNEED starts writing dirty pages and drops those that an earlier call started on.
            length = self._written_bytes - self._dropped_bytes
            os.posix_fadvise(self._file.fileno(), self._dropped_bytes, length, os.POSIX_FADV_DONTNEED)
            self._dropped_bytes = self._written_bytes - self._WINDOW_BYTES

    def close(self) -> None:
        """Close the file; `crc32c` stays."""
        self._file.close()
        super().close()


def free_bytes(folder: Path) -> int:
    """Bytes that a file written under `folder` (or its nearest existing parent) may take."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


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
            f"Free some space or choose an output on another disk; nothing was written."
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
        self.final = Path(path).absolute()
        self.format, self.config = format, dict(config)
        self.source = None if source is None else {"format": source.format, "digest": source.digest}
        self.files: dict[str, FileEntry] = {}
        self.external: dict[str, ExternalFile] = {}
        self._overwrite, self._resumable, self._published = overwrite, resumable, False
        self.staging = self.final.with_name(f".{self.final.name}.partial")
        self.check_output()

    def check_output(self) -> None:
        """Refuse an output that exists (unless overwriting an artifact), before any work is done."""
        if not self.final.exists() and not self.final.is_symlink():
            return
        if not self._overwrite:
            raise OutputExistsError(f"{self.final} exists already; pass --overwrite (overwrite=True) to replace it")
        if not (self.final / MANIFEST).is_file():
            raise OutputExistsError(
                f"{self.final} exists and is not a diskgnn artifact (it has no {MANIFEST}): refusing to "
                f"replace it. Choose another output, or remove it by hand."
            )

    def __enter__(self) -> ArtifactWriter:
        self.final.parent.mkdir(parents=True, exist_ok=True)
        lock_path = self.staging.with_suffix(".lock")
        self._lock = lock_path.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ArtifactError(f"another process is writing {self.final} now; wait for it or stop it") from error
        identity = json.dumps([self.format, VERSIONS[self.format], self.config, self.source], sort_keys=True)
        stamp = self.staging / "resume.json"
        if not (self._resumable and stamp.is_file() and stamp.read_text() == identity):
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir()
            if self._resumable:
                stamp.write_text(identity)
        return self

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
        np.save(self.path(name), array, allow_pickle=False)
        self.add(name)

    def add(self, name: str, *, crc32c: int | None = None, advance: Callable[[int], None] = lambda _: None) -> None:
        """Register a complete file. Its checksum is read from disk unless `crc32c` was computed while writing."""
        path = self.path(name)
        self._add(name, path, checksum_file(path, advance) if crc32c is None else crc32c)

    def add_external(self, name: str, path: Path, *, crc32c: int) -> None:
        """Register a file that stays where it is, under the name that it would have here."""
        path = path.absolute()
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
            "files": {name: _entry_to_json(entry) for name, entry in sorted(self.files.items())},
        }
        external = {name: {"path": e.path, "mtime_ns": e.mtime_ns} for name, e in sorted(self.external.items())}
        document = {**content, "external": external, "digest": _digest(content)}
        (self.staging / "resume.json").unlink(missing_ok=True)
        (self.staging / MANIFEST).write_text(json.dumps(document, indent=1) + "\n")
        for entry in self.staging.iterdir():
            if entry.name != MANIFEST and entry.name not in self.files:
                entry.unlink()  # scratch files
            else:
                _fsync(entry)
        _fsync(self.staging)
        if self.final.exists():
            old = self.final.with_name(f".{self.final.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            self.final.rename(old)
            self.staging.rename(self.final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.staging.rename(self.final)
        _fsync(self.final.parent)
        self._published = True
        return open_artifact(self.final, self.format)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published and not self._resumable:
            shutil.rmtree(self.staging, ignore_errors=True)
        if self._published or not self._resumable:
            with suppress(OSError):
                Path(self._lock.name).unlink()
        self._lock.close()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry_to_json(entry: FileEntry) -> dict[str, Any]:
    record: dict[str, Any] = {"bytes": entry.bytes, "crc32c": f"{entry.crc32c:08x}"}
    if entry.dtype is not None and entry.shape is not None:
        record |= {"dtype": entry.dtype, "shape": list(entry.shape)}
    return record


def npy_header(path: Path) -> tuple[str, tuple[int, ...]]:
    """dtype (as `numpy.dtype.str`, or the list of fields as JSON) and shape of a .npy file.

    Raises:
        ArtifactError: not a .npy file, in Fortran order, or of object dtype.
    """
    dtype, shape, _ = _read_npy_header(path)
    return (dtype.str if dtype.names is None else json.dumps(dtype.descr)), shape


def npy_data_offset(path: Path) -> int:
    """Where the data of a .npy file starts, in bytes."""
    return _read_npy_header(path)[2]


def _read_npy_header(path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
    except (ValueError, EOFError, OSError) as error:
        raise ArtifactError(f"{path} is not a readable .npy file: {error}") from error
    if fortran and len(shape) > 1:
        raise ArtifactError(f"{path} is stored column by column (Fortran order); save np.ascontiguousarray(array)")
    if dtype.hasobject:
        raise ArtifactError(f"{path} holds Python objects; expected numbers")
    return dtype, shape, offset


def npy_header_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """The header that starts a .npy file of this dtype and shape; its length is a multiple of 64."""
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(buffer, {"descr": description, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def open_artifact(path: PathLike, format: str | None = None) -> Manifest:  # noqa: A002
    """Open an artifact and check everything but its files' contents (`verify_artifact` checks those too).

    Raises:
        ArtifactError: missing, unfinished, of another format or version, or a file's size, dtype or shape
            is not what the manifest says.
    """
    path = Path(path)
    made_by = f"make it with `{_MADE_BY[format]}`" if format else "expected a graph, samples or packed directory"
    if not path.is_dir():
        raise ArtifactError(f"{path} is {'not a directory' if path.exists() else 'not there'}; {made_by}")
    manifest_path = path / MANIFEST
    if not manifest_path.is_file():
        raise ArtifactError(f"{path} has no {MANIFEST}, so it is no diskgnn artifact; {made_by}")
    try:
        document = json.loads(manifest_path.read_text())
        manifest = Manifest(
            path=path,
            format=document["format"],
            version=document["version"],
            config=document["config"],
            files={name: _entry_from_json(record) for name, record in document["files"].items()},
            external={name: ExternalFile(e["path"], e["mtime_ns"]) for name, e in document["external"].items()},
            source=document["source"],
            digest=document["digest"],
        )
        content = {key: document[key] for key in ("format", "version", "config", "source", "files")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{manifest_path} is damaged ({error!r}); {made_by} again") from error
    if manifest.format not in VERSIONS or (format and manifest.format != format):
        raise ArtifactError(f"{path} is a {manifest.format!r}, expected a {format or 'diskgnn artifact'!r}; {made_by}")
    if manifest.version != VERSIONS[manifest.format]:
        raise ArtifactError(
            f"{path} has format version {manifest.version}; this diskgnn reads version "
            f"{VERSIONS[manifest.format]}: {_MADE_BY[manifest.format]} it again, or use the diskgnn that wrote it"
        )
    if _digest(content) != manifest.digest:
        raise ArtifactError(
            f"{manifest_path} was changed after it was written (its digest does not fit); {made_by} again"
        )
    for name, entry in manifest.files.items():
        _check_file(manifest, name, entry)
    return manifest


def _entry_from_json(record: dict[str, Any]) -> FileEntry:
    shape = record.get("shape")
    return FileEntry(
        int(record["bytes"]),
        int(record["crc32c"], 16),
        record.get("dtype"),
        None if shape is None else tuple(shape),
    )


def _check_file(manifest: Manifest, name: str, entry: FileEntry) -> None:
    file = manifest.file(name)
    again = f"{_MADE_BY[manifest.format]} again"
    if not file.is_file():
        raise ArtifactError(f"{file}, a part of {manifest.path}, is not there; put it back or {again}")
    size = file.stat().st_size
    if size != entry.bytes:
        raise ArtifactError(f"{file} has {size} bytes, expected {entry.bytes}: it is truncated or was changed; {again}")
    external = manifest.external.get(name)
    if external is not None and file.stat().st_mtime_ns != external.mtime_ns:
        raise ArtifactError(f"{file} was changed after {manifest.path} was made from it; {again}")
    if entry.dtype is not None and (found := npy_header(file)) != (entry.dtype, entry.shape):
        expected = (entry.dtype, entry.shape)
        raise ArtifactError(f"{file} holds {found}, expected {expected}: the file was replaced; {again}")


def verify_artifact(path: PathLike, *, reporter: Reporter = SILENT) -> Manifest:
    """Open an artifact and compare every file with its checksum.

    Raises:
        ArtifactError: as `open_artifact`, or a file's content is not what was written; names the file.
    """
    manifest = open_artifact(path)
    with reporter.stage(f"verify {path}", manifest.total_bytes, "B") as advance:
        for name, entry in manifest.files.items():
            found = checksum_file(manifest.file(name), advance)
            if found != entry.crc32c:
                raise ArtifactError(
                    f"{manifest.file(name)} is damaged: its CRC-32C is {found:08x}, expected {entry.crc32c:08x}; "
                    f"{_MADE_BY[manifest.format]} again"
                )
    return manifest
