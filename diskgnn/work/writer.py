"""Writing an artifact: in a hidden sibling, fsynced, and renamed into place.

Whoever is killed half-way leaves no half-published artifact. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import OutputExistsError, StoreError
from diskgnn.files import faults
from diskgnn.files.checked_files import ChecksummedFile, npy_header, npy_header_bytes, sync
from diskgnn.files.destination import Destination
from diskgnn.files.disk_space import JOURNAL, UNLIMITED, DiskBudget, file_bytes
from diskgnn.files.exchange import aside_of, exchange
from diskgnn.files.write_errors import beginning
from diskgnn.formats.artifacts import MANIFEST, PACKED, VERSIONS, version_of
from diskgnn.formats.manifest import Manifest, open_artifact, read_manifest
from diskgnn.formats.manifest_document import (
    ExternalFile,
    FileEntry,
    content_digest,
)
from diskgnn.paths import PathLike, resolved
from diskgnn.work.journal import Journal
from diskgnn.work.outbox import Outbox, refuse_headerless
from diskgnn.work.overwriting import (
    clean_beside,
    refuse_inside_artifact,
    refuse_other_bytes_than_text,
    remove_left,
    require_replaceable,
    restore_replaced,
)
from diskgnn.work.work_folder import WorkFolder


class ArtifactWriter(WorkFolder):
    """Writes one artifact: files go to `writer.path(name)`, `publish` makes them appear all at once.

    Use as a context manager. Leaving it without `publish` removes what was written, unless it is `resumable` and
    something was committed: then the next writer with the same `config` and `source` may `adopt` the files of units and
    steps, and go on with what they `noted`.

    What is not `durable` does not outlast a power failure: for what only this process reads, and then deletes.

    What it writes by itself is claimed of `disk`; whoever writes to `path(name)` claims that.

    Raises:
        ConfigError: `path` lies inside of another artifact.
        OutputExistsError: `path` exists and `overwrite` is False.
        BusyError: another process is writing the same artifact.
        ConfigError: another user made the staging directory, see `require_own_folder`.
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
        durable: bool = True,
        disk: DiskBudget = UNLIMITED,
    ) -> None:
        refuse_inside_artifact(path)
        destination = Destination.of(path)
        if format == PACKED:
            refuse_other_bytes_than_text(destination.path)
        self.format, self.config = format, dict(config)
        self.source = None if source is None else {"format": source.format, "digest": source.digest}
        making = [format, VERSIONS[format], self.config, self.source]
        super().__init__(resolved(destination.path), making, resumable=resumable, disk=disk)
        self.external: dict[str, ExternalFile] = {}
        assert durable or not resumable
        self._overwrite, self._durable = overwrite, durable
        self._outbox = None if destination.target is None else Outbox(destination.target, disk)
        if aside_of(self.final).exists() and self._lock.acquire():
            try:
                with beginning(self.final):
                    restore_replaced(self.final)
            finally:
                self._lock.release()
        try:
            self._require_replaceable()
        except OutputExistsError as error:
            if clean_beside(self.final):
                raise OutputExistsError(
                    f"{error}. {self.staging} has what a run that replaces it was stopped at: the same command, with "
                    f"overwrite, goes on with that, or remove it"
                ) from error
            raise

    def _require_replaceable(self) -> None:
        require_replaceable(self.final, self.format, overwrite=self._overwrite)

    def _begin(self) -> None:
        restore_replaced(self.final)
        if (self.final / JOURNAL).exists():
            remove_left(read_manifest(self.final))
        if self._outbox is not None:
            self._outbox.begin()

    def _stop(self) -> None:
        if self._outbox is not None:
            self._outbox.stop()

    def _end(self, *, keeps: bool) -> None:
        if self._outbox is not None:
            with suppress(StoreError):  # the next run removes it
                if not self._published and not keeps:
                    self._outbox.remove_sent()
            self._outbox.close()

    def restart(self) -> None:
        """Removes all that was written so far, by killed runs, too."""
        if self._outbox is not None:
            self._outbox.remove_sent()
        self.external.clear()
        super().restart()

    def restart_step(self, name: str) -> None:
        """Has a step made again whose files are damaged. What is finished of others is committed, and stays."""
        super().restart_step(name)
        if self._outbox is not None:
            # Other files are made again, where they are read now, and would be removed when they have arrived.
            self._outbox.drain(lambda name: self._journal.recorded(name) is None)

    def save_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Write `array` as .npy file `name` and register it."""
        faults.point("artifact.write")
        with ChecksummedFile(self.path(name), disk=self.disk) as file:  # not np.save, which drops errno
            file.write(npy_header_bytes(array.dtype, array.shape))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        self.add(name, crc32c=file.crc32c)

    def add(self, name: str, *, crc32c: int | None = None) -> None:
        """Registers a complete file. Its checksum is read from disk unless `crc32c` was computed while writing."""
        super().add(name, crc32c=crc32c)
        self._add(name, self.path(name), self.files[name].crc32c)

    def add_sent(self, name: str, entry: FileEntry) -> None:
        """Register a file that was written to the store and is whole there."""
        assert self._outbox is not None
        self.files[name] = entry
        self._outbox.arrived(name, entry)
        if self._resumable:
            self._journal.add(name, entry.bytes, entry.crc32c)

    def send(self, names: Iterable[str]) -> None:
        """Commits, and sends files that nobody needs here any more, if the artifact goes to a store."""
        if self._outbox is not None:
            with self._committing:
                self._complete += names
            self.commit()

    @property
    def sends(self) -> bool:
        """Returns True if what is complete leaves this disk."""
        return self._outbox is not None

    def _send(self, names: Iterable[str]) -> None:
        for name in names:
            if self._outbox is not None and name not in self.external and self.path(name).exists():
                self._outbox.send(name, self.path(name), self.files[name])

    @property
    def outbox(self) -> Outbox | None:
        """Sends what is complete, where the artifact goes to a store; None where it stays."""
        return self._outbox

    def adopt(self, name: str) -> bool:
        """Registers file `name` if a killed run had it complete and it is still what that run wrote; or removes it."""
        return self._adopt_sent(name) or super().adopt(name)

    def _adopt_sent(self, name: str) -> bool:
        """Returns the same of a file that was sent. Others may have sent to the same place since."""
        recorded = self._journal.recorded(name)
        if self._outbox is None or recorded is None or (sent := self._outbox.adopt(name, *recorded)) is None:
            return False
        self.files[name] = sent
        return True

    def add_external(
        self, name: str, path: Path, *, crc32c: int, headerless: tuple[str, tuple[int, ...]] | None = None
    ) -> None:
        """Register a file that stays where it is, under the name that it would have here.

        `headerless` is the dtype and shape of a file without a header.
        """
        path = path.absolute()
        if resolved(path).is_relative_to(self.final):
            raise OutputExistsError(
                f"{path} lies in {self.final}, which would be replaced, and is to be referred to: it would be deleted. "
                f"Choose another output, or move the file out of there first."
            )
        self._add(name, path, crc32c, headerless)
        self.external[name] = ExternalFile(str(path), path.stat().st_mtime_ns, headerless is not None)
        if self._outbox is not None:
            refuse_headerless(self.external)

    def _add(self, name: str, path: Path, crc32c: int, headerless: tuple[str, tuple[int, ...]] | None = None) -> None:
        dtype, shape = headerless or (npy_header(path) if name.endswith(".npy") else (None, None))
        self.files[name] = FileEntry(path.stat().st_size, crc32c, dtype, shape)

    def publish(self) -> Manifest:
        """Write the manifest, make everything durable and rename the directory into place.

        Where it goes to a store, send what is not there yet, and the manifest last.

        Raises:
            StoreError, ArtifactError: the store failed, or somebody else writes there.
        """
        if self._outbox is not None:
            return self._publish_there(self._outbox)
        self.disk.claim(file_bytes(len(text := self._document(self.external))))
        (self.staging / MANIFEST).write_text(text)
        scratch = []
        for entry in self.staging.iterdir():
            if entry.name == MANIFEST or entry.name in self.files:
                self._sync(entry)
            elif entry.name != JOURNAL:
                scratch.append(entry.name)
        self._sync(self.staging)
        self._require_replaceable()
        # Until the directory has its name, the next run goes on with all of this; afterwards it removes it.
        Journal(self.staging / JOURNAL, None).append_scratch(scratch)
        faults.point("artifact.publish")
        replaced = None
        if self.final.exists():
            replaced = exchange(self.staging, self.final)
            faults.point("artifact.exchanged")
        else:
            self.staging.rename(self.final)
        self._published = True
        self._sync(self.final.parent)
        if replaced is not None:  # not before: a power failure may undo the renaming
            if replaced != self.staging:
                replaced.rename(self.staging)  # killed now, nobody takes it for what is to get its name back
            shutil.rmtree(self.staging, ignore_errors=True)
        manifest = open_artifact(self.final, self.format)
        with suppress(OSError):  # the next run does it
            remove_left(manifest)
        return manifest

    def _publish_there(self, outbox: Outbox) -> Manifest:
        for name, entry in self.files.items():
            if name in self.external:
                outbox.send(name, Path(self.external[name].path), entry, keep=True)
            elif not outbox.has(name):
                outbox.send(name, self.path(name), entry, keep=True)  # for a run that goes on with this
        document = self._document({})
        outbox.publish(self.files, document, json.loads(document)["digest"])
        self._published = True
        shutil.rmtree(self.staging, ignore_errors=True)
        return open_artifact(outbox.target, self.format)

    def _document(self, external: Mapping[str, ExternalFile]) -> str:
        """Returns what manifest.json says."""
        content = {
            "format": self.format,
            "version": version_of(self.format, self.config),
            "config": self.config,
            "source": self.source,
            "files": {name: entry.to_json() for name, entry in sorted(self.files.items())},
        }
        elsewhere = {name: file.to_json() for name, file in sorted(external.items())}
        return json.dumps({**content, "external": elsewhere, "digest": content_digest(content)}, indent=1) + "\n"

    def _sync(self, path: Path) -> None:
        faults.point("artifact.sync")
        if self._durable:
            sync(path)
