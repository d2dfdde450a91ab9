"""The manifest of an artifact: reading it, and checking an artifact against it. `writer` writes it.

Nothing in a manifest is trusted before it was checked: an artifact may come from elsewhere, damaged or hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ReadError
from diskgnn.files import faults
from diskgnn.files.checked_files import checksum_file, load_npy, map_npy, npy_data_offset, npy_header, npy_parts
from diskgnn.files.disk_space import DiskBudget
from diskgnn.files.file_reading import is_file
from diskgnn.files.local_copies import LocalCopies
from diskgnn.files.open_files import PinnedFiles, version_of
from diskgnn.formats.artifacts import MADE_BY, MANIFEST, REPAIRED
from diskgnn.formats.manifest_document import (
    ExternalFile,
    FileEntry,
    content_digest,
    file_name,
)
from diskgnn.formats.manifest_reading import read_document
from diskgnn.formats.records import typed
from diskgnn.stores.locations import AnyPath, Location, StoredPath, local, located

T = TypeVar("T")

_MAX_OPENINGS = 5  # of a directory that is replaced meanwhile


@dataclass(frozen=True)
class Manifest:
    """The manifest of an artifact that has been opened and checked."""

    path: Location
    format: str
    version: int
    config: dict[str, Any]
    files: dict[str, FileEntry]
    external: dict[str, ExternalFile]
    source: dict[str, str] | None
    digest: str
    pins: PinnedFiles | None = field(default=None, compare=False, repr=False)  # of `open_pinned`
    copies: LocalCopies | None = field(default=None, compare=False, repr=False)  # of an artifact on a store

    @property
    def folder(self) -> Path:
        """Returns where it lies on this machine.

        Raises:
            ConfigError: it lies on a store.
        """
        return local(self.path, "this")

    def file(self, name: str) -> Location:
        """Returns where file `name` lies: inside the artifact, or where an external file is. See `PinnedPath`.

        Raises:
            ArtifactError: the artifact has no such file; or it was replaced, and is not pinned.
        """
        if name not in self.files:
            raise ArtifactError(f"{self.path} has no file {name}; {MADE_BY[self.format]} again")
        path = Path(self.external[name].path) if name in self.external else self.path / name
        return path if self.pins is None or isinstance(path, StoredPath) else self.pins.path(name, path)

    def local(self, name: str, advance: Callable[[int], None] = lambda _: None) -> Path:
        """Returns what `file` does, as a path of this machine: of an artifact on a store, a copy that has the file's
        checksum.

        Raises:
            ArtifactError: the artifact has no such file, or what came is damaged.
            DiskFullError: there is no room for a copy.
            StoreError: the store failed.
        """
        path = self.file(name)
        if isinstance(path, Path):
            return path
        assert self.copies is not None
        copy, found = self.copies.copy(path, self.files[name].bytes, advance)
        self.check(name, found)
        return copy

    def copies_claimed_of(self, disk: DiskBudget) -> AbstractContextManager[None]:
        """Claims what `local` copies of `disk` within the block."""
        return nullcontext() if self.copies is None else self.copies.claimed_of(disk)

    def array(self, name: str, *, mmap: bool = True) -> npt.NDArray[Any]:
        """Returns the .npy file `name`, memory-mapped read-only unless `mmap` is False; of a store, its `local`
        copy. A disk that fails below a map ends the process: stages read with `checked_array`, `parts` and `take`."""
        path = self.local(name)
        if self._is_headerless(name):
            entry = self.files[name]
            mapped = np.memmap(path, np.dtype(entry.dtype), "r", shape=entry.shape)
            return mapped if mmap else np.array(mapped)
        return map_npy(path) if mmap else load_npy(path)[0]

    def data_offset_bytes(self, name: str) -> int:
        """Returns where the numbers of the .npy file `name` begin; 0 of an external file without a header."""
        return 0 if self._is_headerless(name) else npy_data_offset(self.file(name))

    def _is_headerless(self, name: str) -> bool:
        return name in self.external and self.external[name].headerless

    def checked_array(self, name: str) -> npt.NDArray[Any]:
        """Returns the .npy file `name` in memory, once the bytes that it is made of have proved to be those written.

        Raises:
            ArtifactError: they have not, or the artifact has no such file.
        """
        path = self.file(name)
        try:
            loaded, found = load_npy(path)
        except ArtifactError:  # a damaged header
            self.check(name, checksum_file(path))
            raise
        self.check(name, found)
        return loaded

    def num_rows(self, name: str) -> int:
        """Returns the rows of the .npy file `name`; 0 of a single number."""
        shape = self.files[name].shape
        return shape[0] if shape else 0

    def take(self, name: str, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns [n, ...] elements of the .npy file `name` [any number, ...] at ascending `positions` [n].

        The file is read once, front to back, and compared with its checksum.

        Raises:
            ArtifactError: there are no such elements; or see `parts`.
            ReadError: see `parts`.
        """
        entry, first = self.files[name], 0
        assert entry.shape is not None
        if len(positions) and not 0 <= positions[0] <= positions[-1] < entry.shape[0]:
            raise ArtifactError(
                f"{self.file(name)} has {entry.shape[0]} elements, and elements {positions[0]} to {positions[-1]} are "
                f"wanted: {made_again(self)}"
            )
        taken = np.empty((len(positions), *entry.shape[1:]), entry.dtype)
        for part in self.parts(name):
            begin, end = np.searchsorted(positions, [first, first + len(part)])
            taken[begin:end] = part[positions[begin:end] - first]
            first += len(part)
        return taken

    def parts(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yields the .npy file `name` front to back, some elements at a time, which are valid until the next are asked
        for.

        Raises:
            ArtifactError: it is damaged; after the last part, when all was compared with the checksum.
            ReadError: the disk failed.
        """
        crc = 0
        for part, crc in npy_parts(self.file(name)):  # noqa: B007
            yield part
        self.check(name, crc)

    def check(self, name: str, found: int) -> None:
        """Compare the CRC-32C of what was read of file `name`, all of it, with that of what was written.

        Raises:
            ArtifactError: they differ.
        """
        expected = self.files[name].crc32c
        if found != expected:
            raise ArtifactError(
                f"{self.file(name)} is damaged: its CRC-32C is {found:08x}, expected {expected:08x}; {made_again(self)}"
            )

    def parsed(self, parse: Callable[[dict[str, Any]], T]) -> T:
        """Returns `config` as `parse` reads it.

        Raises:
            ArtifactError: `parse` raised ValueError, KeyError or TypeError: it is no config of this format.
        """
        try:
            return parse(self.config)
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{self.path / MANIFEST} is damaged (its config: {error!r}); `{MADE_BY[self.format]}` it again"
            ) from error

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of all files, external ones included."""
        return sum(entry.bytes for entry in self.files.values())


def open_artifact(path: AnyPath, format: str | None = None) -> Manifest:  # noqa: A002
    """Open an artifact and check everything but its files' contents (`verification` checks those too).

    Raises:
        ArtifactError: missing, unfinished, of another format or version, or a file's size, dtype or shape
            is not what the manifest says.
    """
    manifest = read_manifest(path, format)
    if isinstance(manifest.path, StoredPath):
        _check_listing(manifest, manifest.path)
        return manifest
    for name in manifest.files:
        check_file(manifest, name)
    return manifest


def open_pinned(path: AnyPath, format: str | None = None) -> Manifest:  # noqa: A002
    """Opens as `open_artifact` does; what is read from it later are the files of now, also if the directory is replaced
    meanwhile.

    Each file takes a descriptor for as long as the manifest or a path from it exists; see `PinnedFiles`.

    Raises:
        ArtifactError: as `open_artifact`; a file cannot be opened, or the directory was replaced at each attempt.
    """
    path = located(path)
    if isinstance(path, StoredPath):
        return open_artifact(path, format)
    for _ in range(_MAX_OPENINGS):
        found = version_of(path)
        try:
            manifest = read_manifest(path, format)
            faults.point("artifact.pin")
            pins = PinnedFiles({name: manifest.local(name) for name in manifest.files})
            manifest = replace(manifest, pins=pins)
            for name in manifest.files:
                check_file(manifest, name)
        except (ArtifactError, OSError) as error:
            if version_of(path) != found:
                continue
            if isinstance(error, (ArtifactError, ReadError)):
                raise
            raise ArtifactError(f"a file of {path} cannot be opened: {error}") from error
        if version_of(path) == found:  # so the files are those of the manifest
            return manifest
    raise ArtifactError(f"{path} was replaced again and again while it was opened: wait for what writes it")


def made_again(manifest: Manifest) -> str:
    """Returns the commands that give whole files in place of damaged ones."""
    again = f"`{MADE_BY[manifest.format]}` it again"
    if isinstance(manifest.path, StoredPath):
        return f"{again}, or remove it there and `diskgnn push` again what was sent"
    if manifest.format not in REPAIRED:
        return again
    return (
        f"repair it with `diskgnn verify {manifest.path} --repair --graph GRAPH` (the graph that it was made from), or "
        f"{again}"
    )


def read_manifest(path: AnyPath, format: str | None = None) -> Manifest:  # noqa: A002
    """Returns the manifest of an artifact, checked by itself; `open_artifact` also looks at the files.

    Raises:
        ArtifactError: missing, damaged, changed by hand, or of another format or version.
    """
    path = located(path)
    document = read_document(path, format)
    manifest_path, made_by = path / MANIFEST, MADE_BY[document["format"]]
    try:
        manifest = _parse_manifest(path, document)
        digest = content_digest({key: document[key] for key in ("format", "version", "config", "source", "files")})
    except (ValueError, KeyError, RecursionError) as error:
        raise ArtifactError(f"{manifest_path} is damaged ({error!r}); `{made_by}` it again") from error
    if digest != manifest.digest:
        raise ArtifactError(
            f"{manifest_path} was changed after it was written (its digest does not fit); `{made_by}` it again"
        )
    return manifest


def _parse_manifest(path: Location, document: dict[str, Any]) -> Manifest:
    """Raises ValueError or KeyError for whatever `ArtifactWriter.publish` would not have written."""
    files = {file_name(name): FileEntry.parse(record) for name, record in typed(document["files"], dict).items()}
    external = {name: ExternalFile.parse(record) for name, record in typed(document["external"], dict).items()}
    for name, entry in files.items():
        if name.endswith(".npy") and entry.dtype is None:
            raise ValueError(f"{name} has no dtype")
    if not external.keys() <= files.keys():
        raise ValueError(f"external files that are no files of it: {external.keys() - files.keys()}")
    source = document["source"]
    if source is not None:
        source = {key: typed(typed(source, dict)[key], str) for key in ("format", "digest")}
    return Manifest(
        path, document["format"], document["version"], typed(document["config"], dict),
        files, external, source, typed(document["digest"], str),
        copies=LocalCopies(path) if isinstance(path, StoredPath) else None,
    )  # fmt: skip


def _check_listing(manifest: Manifest, folder: StoredPath) -> None:
    """Checks that all files are there and of the size that the manifest says: one look, not one for each."""
    if manifest.external:
        raise ArtifactError(f"{folder} refers to files of another machine ({', '.join(manifest.external)}); `diskgnn "
                            f"push` it from there, which sends them along")  # fmt: skip
    found = folder.entries()
    for name, entry in manifest.files.items():
        size = found[name].size if name in found else None
        if size != entry.bytes:
            is_there = "is not there" if size is None else f"has {size} bytes, expected {entry.bytes}"
            raise ArtifactError(
                f"{folder / name}, a part of {folder}, {is_there}; `diskgnn push` the directory again, or "
                f"{MADE_BY[manifest.format]} again"
            )


def check_file(manifest: Manifest, name: str) -> None:
    """Checks that one file is there, and of the size, dtype and shape that the manifest says; see `open_artifact`."""
    file, entry = manifest.file(name), manifest.files[name]
    if isinstance(file, StoredPath):
        _check_listing(replace(manifest, files={name: entry}), file.parent)
        return
    again = made_again(manifest)
    if not is_file(file):
        moved = f"say where it is now with `diskgnn relink {manifest.path} --features PATH`, or " * (
            name in manifest.external
        )
        raise ArtifactError(f"{file}, a part of {manifest.path}, is not there; put it back, {moved or 'or '}{again}")
    size = file.stat().st_size
    if size != entry.bytes:
        raise ArtifactError(f"{file} has {size} bytes, expected {entry.bytes}: it is truncated or was changed; {again}")
    external = manifest.external.get(name)
    if external is not None and file.stat().st_mtime_ns != external.mtime_ns:
        raise ArtifactError(
            f"{file} was changed after {manifest.path} was made from it, or copied or touched: if it holds the same "
            f"still, `diskgnn relink {manifest.path} --features {file} --verify` takes it; otherwise {again}"
        )
    if external is not None and external.headerless:
        return
    if entry.dtype is None:
        return
    try:
        found = npy_header(file)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; {again}") from error
    if found != (expected := (entry.dtype, entry.shape)):
        raise ArtifactError(f"{file} holds {found}, expected {expected}: the file was replaced; {again}")
