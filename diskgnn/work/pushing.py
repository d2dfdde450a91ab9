"""Directories sent to an object store: files first, the manifest last, so that they appear whole or not at all."""

from __future__ import annotations

import json
import time
from pathlib import Path

from diskgnn.errors import OutputExistsError
from diskgnn.files.file_reading import read_whole
from diskgnn.formats.artifacts import MANIFEST, rank_named
from diskgnn.formats.manifest import Manifest, open_artifact
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.stores.locations import AnyPath, StoredPath, local, stored
from diskgnn.work.outbox import Outbox, refuse_headerless
from diskgnn.work.overwriting import artifact_at, require_replaceable_there


def push(
    path: PathLike,
    url: AnyPath,
    *,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Send a graph, samples, packed or hops directory, or a folder with those of all ranks, to an object store.

    Each file is compared with its checksum on the way. The manifest is sent last, so nobody opens what is not whole.
    When it stops half-way, the same call goes on: files that are there, as this machine sent them, are not sent again.
    Of the same artifact, sent whole before, files are sent again that are missing or were overwritten since: those not
    older than the manifest there are read and compared.
    Features that the graph refers to (`--reference-features`) are sent along.

    Args:
        path: the directory.
        url: what it is to be called there, such as 's3://bucket/graph'.
        overwrite: replace what is there, if it is of the same kind. Who reads that meanwhile gets an error.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about the bytes sent, in place of the bars; see `diskgnn.progress`.

    Raises:
        OutputExistsError: something else is there.
        ArtifactError: the directory is damaged, or none; or somebody else overwrites files there meanwhile.
        StoreError: the store failed, or refused.
        ConfigError: no URL, or no such bucket.

    Example:
        >>> diskgnn.push("packed", "s3://bucket/packed")
    """
    target = stored(url, "s3://bucket/graph")
    reporter = reporter_for(reporter, progress)
    folder, started = local(path, "push"), time.perf_counter()
    pairs = [(open_artifact(folder), target)] if (folder / MANIFEST).exists() else _of_ranks(folder, target)
    for manifest, place in pairs:
        refuse_headerless(manifest.external)
        require_replaceable_there(place, manifest.format, manifest, overwrite=overwrite)
    sent_bytes = sum(_push(manifest, place, reporter) for manifest, place in pairs)
    total_bytes = sum(manifest.total_bytes for manifest, _ in pairs)
    return StageReport("push", time.perf_counter() - started, total_bytes, sent_bytes)


def _of_ranks(folder: Path, target: StoredPath) -> list[tuple[Manifest, StoredPath]]:
    """Returns the artifacts in `folder`, and where each goes."""
    found = sorted(each for each in folder.glob("*") if rank_named(each.name) and (each / MANIFEST).exists())
    if not found:
        open_artifact(folder)  # says what is wrong
    if (there := artifact_at(target)) is not None:
        raise OutputExistsError(f"{target} exists and is a {there.format!r}, no folder of ranks. Choose another output")
    return [(open_artifact(each), target / each.name) for each in found]


def _push(manifest: Manifest, target: StoredPath, reporter: Reporter) -> int:
    """Sends what is not there. Returns the bytes sent."""
    with (
        reporter.stage(f"send {target}", manifest.total_bytes, "B") as advance,
        Outbox(target, advance=advance) as outbox,
    ):
        outbox.begin()
        there = artifact_at(target)
        if there is not None and there.digest == manifest.digest:
            outbox.believe(there.files)
        elif there is not None:
            outbox.replace(there.files)
        sent_bytes = sum(
            entry.bytes
            for name, entry in manifest.files.items()
            if outbox.send(name, manifest.file(name), entry, keep=True)
        )
        outbox.publish(manifest.files, _document(manifest), manifest.digest)
    return sent_bytes


def _document(manifest: Manifest) -> str:
    """Returns the manifest as it is sent: files that lay elsewhere are a part of it then."""
    text = bytes(read_whole(manifest.folder / MANIFEST)).decode()
    return json.dumps({**json.loads(text), "external": {}}, indent=1) + "\n" if manifest.external else text
