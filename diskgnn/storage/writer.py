"""Writing an artifact: in a hidden sibling, fsynced, and renamed into place.

Whoever is killed half-way leaves no half-published artifact. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c as checksum
from diskgnn.errors import ArtifactError, BusyError, ConfigError, OutputExistsError
from diskgnn.specs import PathLike
from diskgnn.storage import faults
from diskgnn.storage.array_file import ArrayFile
from diskgnn.storage.artifacts import JOURNAL, MANIFEST, VERSIONS
from diskgnn.storage.checked_files import ChecksummedFile, checksum_file, npy_header, npy_header_bytes, sync
from diskgnn.storage.disk_space import UNLIMITED, DiskBudget, allocated_bytes, file_bytes
from diskgnn.storage.exchange import exchange
from diskgnn.storage.journal import Journal
from diskgnn.storage.locks import FileLock
from diskgnn.storage.manifest import (
    ExternalFile,
    FileEntry,
    Manifest,
    content_digest,
    entry_to_json,
    external_to_json,
    open_artifact,
    read_manifest,
)
from diskgnn.storage.pace import Pace
from diskgnn.storage.write_errors import raise_write_error


class ArtifactWriter:
    """Writes one artifact: files go to `writer.path(name)`, `publish` makes them appear all at once.

    Use as a context manager. Leaving it without `publish` removes what was written, unless it is `resumable` and the
    journal says that something is done: then the next writer with the same `config` and `source` may `adopt` the files
    that this one did `finish`, and go on where it did `record` how far it was.

    What it writes by itself is claimed of `disk`; whoever writes to `path(name)` claims that.

    Raises:
        OutputExistsError: `path` exists and `overwrite` is False.
        BusyError: another process is writing the same artifact.
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
        disk: DiskBudget = UNLIMITED,
    ) -> None:
        self.final = Path(path).resolve()
        self.format, self.config = format, dict(config)
        self.source = None if source is None else {"format": source.format, "digest": source.digest}
        self.disk = disk
        self.files: dict[str, FileEntry] = {}
        self.external: dict[str, ExternalFile] = {}
        self._overwrite, self._resumable, self._published = overwrite, resumable, False
        self.staging = staging_of(self.final)
        self._lock = FileLock(self.staging.with_suffix(".lock"))
        self._journal = Journal(self.staging / JOURNAL, [format, VERSIONS[format], self.config, self.source])
        try:
            self.check_output()
        except OutputExistsError as error:
            if self._clean():
                raise OutputExistsError(
                    f"{error}. {self.staging} has what a run that replaces it was stopped at: the same command, with "
                    f"overwrite, goes on with that, or remove it"
                ) from error
            raise

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

    def _clean(self) -> bool:
        """Remove what killed runs left beside an output that is there; not what a run with `overwrite` goes on with.

        Whether there is such, and nobody is at work on it.
        """
        with suppress(ArtifactError, OSError):  # no artifact, or a folder that cannot be written to: nothing of ours
            there = read_manifest(self.final)
            journal = Journal(self.staging / JOURNAL, [there.format, there.version, there.config, there.source])
            if (self.staging.exists() or self._lock.path.exists()) and self._lock.acquire():
                if not journal.path.exists() or journal.read():
                    shutil.rmtree(self.staging, ignore_errors=True)
                self._lock.release()
                return self.staging.exists()
        return False

    def __enter__(self) -> ArtifactWriter:
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            if not self._lock.acquire():
                raise BusyError(f"another process is writing {self.final} now; wait for it or stop it")
        except OSError as error:
            raise_write_error(error, self.final, "nothing is left")
            raise ConfigError(
                f"cannot write {self.final}: {error.strerror or error}; choose an output in another folder"
            ) from error
        try:
            if self._resumable and self._journal.read():
                self.disk.look()
            else:
                self.restart()
        except BaseException as error:
            self._lock.release()
            raise_write_error(error, self.final, "nothing is left")
            raise
        return self

    def restart(self) -> None:
        """Remove all that was written so far, by killed runs, too."""
        self.files.clear()
        self.external.clear()
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir()
        if self._resumable:
            self._journal.begin()
        self.disk.look()

    def path(self, name: str) -> Path:
        """Where to write file `name`; register it with `add` when it is complete."""
        return self.staging / name

    def array_file(
        self,
        name: str,
        dtype: npt.DTypeLike,
        rows: int | None,
        row_shape: tuple[int, ...] = (),
        *,
        checksums: str | None = None,
        pace: Pace | None = None,
    ) -> ArrayFile:
        """A .npy file `name` of shape [rows, *row_shape] to write front to back; see `ArrayFile`."""
        return ArrayFile(self, name, dtype, rows, row_shape, checksums, pace)

    def save_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write `array` as .npy file `name` and register it."""
        faults.point("artifact.write")
        with ChecksummedFile(self.path(name), disk=self.disk) as file:  # not np.save, which drops errno
            file.write(npy_header_bytes(array.dtype, array.shape))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self.add(name, crc32c=file.crc32c)

    def add(self, name: str, *, crc32c: int | None = None) -> None:
        """Register a complete file. Its checksum is read from disk unless `crc32c` was computed while writing."""
        path = self.path(name)
        self._add(name, path, checksum_file(path) if crc32c is None else crc32c)

    def finish(self, name: str, temporary: str, crc32c: int) -> None:
        """Give file `temporary`, which is complete, its `name`, register it, and note that in the journal."""
        path = self.path(name)
        sync(self.path(temporary))
        faults.point("unit.written")
        self.path(temporary).rename(path)
        faults.point("unit.renamed")
        self.add(name, crc32c=crc32c)
        self._journal.add(name, self.files[name].bytes, crc32c)

    def adopt(self, name: str) -> bool:
        """Register file `name` if an earlier run finished it and it is still what that run wrote; or remove it."""
        crc32c, path = self._journal.checksum(name), self.path(name)
        if crc32c is not None:
            self.add(name, crc32c=crc32c)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return crc32c is not None

    def unit(self, names: Sequence[str], write: Callable[[], object]) -> bool:
        """Adopt files if an earlier run finished all of them (True); or have `write` make and register them.

        They are durable then, and noted in the journal, if the writer is resumable.
        """
        finished = [self._journal.checksum(name) for name in names] if self._resumable else []
        if names and len(finished) == len(names) and None not in finished:
            for name, crc32c in zip(names, finished, strict=True):
                self.add(name, crc32c=crc32c)
            return True
        write()
        self.keep(names)
        return False

    def keep(self, names: Sequence[str]) -> None:
        """Note durably that registered files are finished, for `adopt`. Nothing, unless the writer is resumable."""
        if not self._resumable:
            return
        for name in names:
            sync(self.path(name))
        faults.point("unit.written")
        for name in names:
            self._journal.add(name, self.files[name].bytes, self.files[name].crc32c)

    def record(self, name: str, done: Mapping[str, npt.NDArray[Any]], *, claims: Iterable[str]) -> None:
        """Note durably how far a stage is. Nothing, unless the writer is resumable.

        Args:
            name: of the stage. Its record before is believed until this one is durable.
            done: arrays that say what is done, with the checksums that whoever goes on compares.
            claims: the files that hold what is done; they are made durable first.
        """
        if not self._resumable:
            return
        for claimed in claims:
            sync(self.path(claimed))
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **done)
        even, odd = self._records_of(name)
        file = odd if self._journal.newest((even, odd)) == even else even
        self.disk.claim(max(0, file_bytes(content.getbuffer().nbytes) - allocated_bytes(self.path(file))))
        self.path(file).write_bytes(content.getbuffer())
        sync(self.path(file))
        faults.point("unit.written")
        self._journal.add(file, len(content.getbuffer()), checksum(content.getbuffer()))

    def recorded(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """What the last `record` of a stage said that is whole; None if there is none."""
        newest = self._journal.newest(self._records_of(name)) if self._resumable else None
        if newest is None:
            return None
        with np.load(self.path(newest), allow_pickle=False) as found:
            return dict(found)

    @staticmethod
    def _records_of(name: str) -> tuple[str, str]:
        """The files that take a stage's records in turn."""
        return f"{name}.even.npz", f"{name}.odd.npz"

    def discard(self) -> None:
        """Keep nothing for another run: what was read is wrong, and may be corrected."""
        self._resumable = False

    @property
    def _keeps(self) -> bool:
        """Whether there is something that the next run can go on with."""
        return self._resumable and self._journal.has_finished

    def add_external(
        self, name: str, path: Path, *, crc32c: int, headerless: tuple[str, tuple[int, ...]] | None = None
    ) -> None:
        """Register a file that stays where it is, under the name that it would have here.

        `headerless` is the dtype and shape of a file without a header.
        """
        path = path.absolute()
        if path.resolve().is_relative_to(self.final):
            raise OutputExistsError(
                f"{path} lies in {self.final}, which would be replaced, and is to be referred to: it would be deleted. "
                f"Choose another output, or move the file out of there first."
            )
        self._add(name, path, crc32c, headerless)
        self.external[name] = ExternalFile(str(path), path.stat().st_mtime_ns, headerless is not None)

    def _add(self, name: str, path: Path, crc32c: int, headerless: tuple[str, tuple[int, ...]] | None = None) -> None:
        dtype, shape = headerless or (npy_header(path) if name.endswith(".npy") else (None, None))
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
        external = {name: external_to_json(file) for name, file in sorted(self.external.items())}
        document = {**content, "external": external, "digest": content_digest(content)}
        text = json.dumps(document, indent=1) + "\n"
        self.disk.claim(file_bytes(len(text)))
        (self.staging / MANIFEST).write_text(text)
        for entry in self.staging.iterdir():
            if entry.name == MANIFEST or entry.name in self.files:
                self._sync(entry)
            elif entry.is_dir():
                shutil.rmtree(entry)  # scratch
            elif entry != self._journal.path:
                entry.unlink()
        self._sync(self.staging)
        self.check_output()
        self._journal.path.unlink(missing_ok=True)
        if self.final.exists():
            exchange(self.staging, self.final)
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
        keeps = self._keeps
        if not self._published and not keeps:
            shutil.rmtree(self.staging, ignore_errors=True)
        self._lock.release()
        kept = "what is complete was kept: the same command goes on with it" if keeps else "nothing is left"
        raise_write_error(error, self.final, kept)


def staging_of(path: Path) -> Path:
    """Where an `ArtifactWriter` of `path` has what it has not published yet."""
    return path.with_name(f".{path.name}.partial")
