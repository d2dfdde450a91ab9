"""Directories copied from an object store: resumed within a file, compared with their checksums, published whole."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from diskgnn._native import crc32c
from diskgnn.default_reporter import reporter_for
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.ordered import in_order
from diskgnn.paths import PathLike
from diskgnn.progress import Advance, Reporter, StageReport
from diskgnn.storage import faults
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.disk_space import require_free_bytes
from diskgnn.storage.file_reading import read_into, reading
from diskgnn.storage.journal import Journal
from diskgnn.storage.manifest import Manifest, open_artifact, read_manifest
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.stores.locations import AnyPath, StoredPath, local, stored

FILES_AT_ONCE = 4  # each by several ranges at a time, see `remote_files`
NOTED_BYTES = 64 << 20  # of a file at most are fetched again after a kill
_READ_BYTES = 4 << 20
_RANGES = "ranges.jsonl"  # in the staging directory: how far each file has come


def fetch(
    url: AnyPath,
    path: PathLike,
    *,
    rank: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Copy a graph, samples or packed directory from an object store to this machine.

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
    """The directories of ranks that are wanted.

    Raises:
        ConfigError: there is none of `rank`.
    """
    found = sorted(name for name in source.entries() if name.startswith("rank-") and "-of-" in name)
    if rank is None:
        return found
    wanted = [name for name in found if name.startswith(f"rank-{rank}-of-")]
    if len(wanted) != 1:
        there = ", ".join(found) or "no directories of ranks"
        raise ConfigError(f"rank: expected one that is in {source}, found {rank}; there are {there}")
    return wanted


def _fetch(manifest: Manifest, path: Path, overwrite: bool, reporter: Reporter) -> int:
    """Copy one directory; bytes that came."""
    writer = ArtifactWriter(path, manifest.format, config=manifest.config, overwrite=overwrite, resumable=True)
    writer.source = manifest.source
    with writer:
        ranges = Journal(writer.path(_RANGES), [manifest.digest])
        if not ranges.read():
            ranges.begin()
        there = sum(each.stat().st_size for each in writer.staging.iterdir())
        require_free_bytes(writer.staging, manifest.total_bytes - there, f"fetching {manifest.path}")
        with (
            reporter.stage(f"fetch {manifest.path}", manifest.total_bytes, "B") as advance,
            ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="fetch") as pool,
        ):
            calls = (partial(_fetch_file, writer, ranges, manifest, name, advance) for name in manifest.files)
            fetched = sum(in_order(pool, calls, ahead=FILES_AT_ONCE))
        if writer.files != manifest.files:
            writer.discard()
            raise ArtifactError(f"{manifest.path} is not what its manifest says: arrays have other dtypes or shapes")
        writer.publish()
    return fetched


def _fetch_file(writer: ArtifactWriter, ranges: Journal, manifest: Manifest, name: str, advance: Advance) -> int:
    """Copy one file, or what is missing of it; bytes that came."""
    entry, source, part = manifest.files[name], manifest.file(name), f"{name}.part"
    if writer.adopt(name):
        if (writer.files[name].bytes, writer.files[name].crc32c) == (entry.bytes, entry.crc32c):
            advance(entry.bytes)
            return 0
        del writer.files[name]  # of another artifact that was made alike
    begin, crc = _come_so_far(writer.path(part), ranges)
    advance(begin)
    offset, noted, view = begin, begin, memoryview(bytearray(_READ_BYTES))
    with reading(source, front_to_back=True) as file, writer.path(part).open("r+b", buffering=0) as copy:
        copy.seek(begin)
        while read := read_into(file, offset, view, source):
            copy.write(view[:read])
            crc, offset = crc32c(view[:read], crc), offset + read
            advance(read)
            if offset - noted >= NOTED_BYTES:
                os.fdatasync(copy.fileno())
                ranges.add(part, offset, crc)
                noted = offset
                faults.point("fetch.range")
    try:
        manifest.check(name, crc)
    except ArtifactError:
        writer.path(part).unlink()
        raise
    writer.finish(name, part, crc)
    return offset - begin


def _come_so_far(part: Path, ranges: Journal) -> tuple[int, int]:
    """Bytes of a file that have come already, and their CRC-32C. What is not known to be whole is cut off."""
    num_bytes, _ = ranges.recorded(part.name) or (0, 0)
    with part.open("ab") as file:
        file.truncate(min(num_bytes, file.tell()))
    crc = ranges.checksum(part.name)
    if crc is None:
        os.truncate(part, 0)
        return 0, 0
    return num_bytes, crc
