"""Directories copied from an object store: resumed within a file, compared with their checksums, published whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.files.checked_files import ChecksummedFile, checksum_file
from diskgnn.files.file_reading import pieces_of, reading
from diskgnn.formats.artifacts import MANIFEST, rank_named
from diskgnn.formats.manifest import Manifest, open_artifact, read_manifest
from diskgnn.ordered import Threads, as_finished
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Advance, Reporter, StageReport
from diskgnn.stores.locations import AnyPath, StoredPath, local, stored
from diskgnn.work.required_space import require_space
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

FILES_AT_ONCE = 4  # each by several ranges at a time, see `remote_files`
NOTED_BYTES = 64 << 20  # of a large file at most are fetched again after a kill


def fetch(
    url: AnyPath,
    path: PathLike,
    *,
    rank: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Copy a graph, samples, packed or hops directory from an object store to this machine.

    What comes is compared with the checksums of the manifest, and the directory appears whole or not at all. When it
    stops half-way, the same call goes on where it was, also within a file. Of ranks, those that are there are done.

    Args:
        url: such as 's3://bucket/packed'; or of a folder with the directories of all ranks (`prepare --ranks`).
        path: the directory to make. Of ranks, the folder that has their directories.
        rank: of the ranks, only this one.
        overwrite: replace `path`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about the bytes that have come, in place of the bars; see `diskgnn.progress`.

    Raises:
        ArtifactError: it is not there, or what came is damaged.
        DiskFullError: it does not fit; said before anything is copied.
        OutputExistsError: `path` exists.
        StoreError: the store failed, or refused.
        ConfigError: no URL, or no such rank.

    Example:
        >>> diskgnn.fetch("s3://bucket/packed", "packed")
        >>> loader = diskgnn.Loader("packed")
    """
    source, started = stored(url, "s3://bucket/packed"), time.perf_counter()
    reporter = reporter_for(reporter, progress)
    folder = local(path, "fetch")
    pairs = [(source, folder)]
    if rank is not None or not (source / MANIFEST).is_file():
        pairs = [(source / name, folder / name) for name in _ranks(source, rank)] or pairs
    manifests = [(open_artifact(each), place) for each, place in pairs]
    if not overwrite:  # of ranks that were fetched in part, those that are missing
        manifests = [each for each in manifests if not _is_there(*each)] or manifests
    fetched = [_fetch(manifest, place, overwrite, reporter) for manifest, place in manifests]
    total_bytes = sum(manifest.total_bytes for manifest, _ in manifests)
    return StageReport("fetch", time.perf_counter() - started, sum(fetched), total_bytes)


def _is_there(manifest: Manifest, path: Path) -> bool:
    with suppress(ArtifactError):
        return read_manifest(path).digest == manifest.digest
    return False


def _ranks(source: StoredPath, rank: int | None) -> Sequence[str]:
    """Returns the names of the directories of ranks that are wanted.

    Raises:
        ConfigError: there is none of `rank`.
    """
    found = {name: named for name in sorted(source.entries()) if (named := rank_named(name))}
    if rank is None:
        return list(found)
    wanted = [name for name, (of, _) in found.items() if of == rank]
    if len(wanted) != 1:
        there = ", ".join(found) or "no directories of ranks"
        raise ConfigError(f"rank: expected one that is in {source}, found {rank}; there are {there}")
    return wanted


def _fetch(manifest: Manifest, path: Path, overwrite: bool, reporter: Reporter) -> int:
    """Copies one directory. Returns the bytes that came."""
    made_with = {"fetched": manifest.digest}
    writer = ArtifactWriter(path, manifest.format, config=made_with, overwrite=overwrite, resumable=True)
    writer.config, writer.source = manifest.config, manifest.source
    work, fetched_bytes = Work(writer, "fetch"), 0

    def fetch_files(missing: Iterator[str]) -> Generator[tuple[str, UnitFiles], None, None]:
        nonlocal fetched_bytes
        stopping = threading.Event()
        with Threads(FILES_AT_ONCE, thread_name_prefix="fetch") as pool:
            calls = (partial(_fetch_file, work, writer, manifest, advance, stopping, name) for name in missing)
            for name, crc, num_bytes in as_finished(pool, calls, FILES_AT_ONCE, stopping.set):
                writer.path(_part(name)).rename(writer.path(name))
                fetched_bytes += num_bytes
                yield name, {name: crc}
                if manifest.files[name].bytes >= NOTED_BYTES:  # too much to wait for the next commit
                    work.commit()

    with writer:
        sizes = {name: entry.bytes for name, entry in manifest.files.items()}  # of which a part may have come
        require_space(writer, sizes, f"fetching {manifest.path}", exact=True)
        with reporter.stage(f"fetch {manifest.path}", manifest.total_bytes, "B") as advance:
            work.map(
                manifest.files, fetch_files, files=lambda name: [name],
                adopted=lambda name: advance(manifest.files[name].bytes),
            )  # fmt: skip
        if writer.files != manifest.files:
            writer.leave_nothing()
            raise ArtifactError(f"{manifest.path} is not what its manifest says: arrays have other dtypes or shapes")
        writer.publish()
    return fetched_bytes


def _part(name: str) -> str:
    """Returns the name of a file until all of it has come."""
    return f"{name}.part"


def _fetch_file(
    work: Work, writer: ArtifactWriter, manifest: Manifest, advance: Advance, stopping: threading.Event, name: str
) -> tuple[str, int, int]:
    """Copies a file, or what is missing of it, to its part. Returns its name, its CRC-32C and the bytes that came.

    Raises:
        CancelledError: it is `stopping`, and nobody waits for all of a file.
    """
    source, part = manifest.file(name), _part(name)
    path = writer.path(part)
    begin, crc = _noted_part(path, work.state_of(part))
    offset = noted = begin
    advance(begin)
    with (
        reading(source, front_to_back=True) as file,
        ChecksummedFile(path, kept_bytes=begin, crc32c=crc) as copy,
    ):
        for piece in pieces_of(file, source, begin):
            if stopping.is_set():
                raise CancelledError
            offset += copy.write(piece)
            advance(len(piece))
            if offset - noted >= NOTED_BYTES:
                work.note(part, {"bytes": np.array(offset), "crc32c": np.array(copy.crc32c)}, [part])
                work.commit()
                noted = offset
                faults.point("fetch.range")
    try:
        manifest.check(name, copy.crc32c)
    except ArtifactError:
        path.unlink()
        raise
    return name, copy.crc32c, offset - begin


def _noted_part(path: Path, noted: State) -> tuple[int, int]:
    """Returns the bytes of a file that have come already, and their CRC-32C. What came after them is cut off."""
    if noted:
        num_bytes, crc = int(noted["bytes"]), int(noted["crc32c"])
        with suppress(OSError):  # it is not there, or the disk cannot read it any more
            os.truncate(path, num_bytes)
            if checksum_file(path) == crc:
                return num_bytes, crc
    return 0, 0
