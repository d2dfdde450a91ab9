"""Packs for a store: extents are written in parts that fit the disk, and each part is sent before the next one begins.

The headers of all extents are here. Rows are packed for some extents, whose space is given back when they are sent,
then for those that follow. Each part takes a pass over the rows of the features that it needs. A run that is killed
places and packs again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.files.disk_space import punch, require_free_bytes
from diskgnn.files.file_reading import fill, opened
from diskgnn.formats import artifacts
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.packing.placed import PlacedSplit
from diskgnn.packing.row_packing import RowPacking, save_index
from diskgnn.stores.uploads import SentFile
from diskgnn.work.outbox import Outbox
from diskgnn.work.required_space import spare_bytes
from diskgnn.work.writer import ArtifactWriter

_PIECE_BYTES = 1 << 20  # of a file, while it is copied to a part


def send_rows(packing: RowPacking, outbox: Outbox) -> None:
    """Packs rows as `row_packing.pack_rows` does, for an artifact that goes to a store and does not fit the disk.

    Raises:
        ArtifactError: features are damaged.
        DiskFullError: there is no room for one extent and for the files that have to be here with it.
        StoreError: the store failed.
    """
    folder, placed, writer = packing.folder, packing.placed, packing.folder.writer
    for step in placed.steps:  # whose headers are removed, part by part
        folder.work.forget(step)
    faults.point("pack.rows")
    total_rows = sum(int(rows.bounds[-1]) for split in placed.splits for rows in split.row_sets)
    with folder.resources.reporter.stage("pack and send", total_rows, "rows") as advance:
        streams = {
            split.name: outbox.file(artifacts.extents_file(split.name), split.index.num_bytes)
            for split in placed.splits
        }
        for part_number, parts in enumerate(_parts(packing)):
            is_first = part_number == 0
            for number in range(len(placed.row_sets)):
                needed = packing.needed(number, parts, with_memory=is_first)
                packing.pack(number, parts, needed, lambda _: None, with_memory=is_first)
            if is_first:
                writer.send(list(writer.files))
            for part in parts:
                end = int(part.index.extents["offset"][-1] + part.index.extent_bytes[-1])
                _send_extents(writer, artifacts.extents_file(part.name), streams[part.name], end)
                advance(sum(int(rows.bounds[-1] - rows.bounds[0]) for rows in part.row_sets))
            for split in placed.splits:
                if split.name in streams and streams[split.name].num_bytes == split.index.num_bytes:
                    _register(writer, split, streams.pop(split.name))  # which holds memory until it is closed
    assert not streams


def _send_extents(writer: ArtifactWriter, name: str, stream: SentFile, end: int) -> None:
    """Sends what follows in an extents file, up to byte `end`, and gives its space back."""
    path, begin, view = writer.path(name), stream.num_bytes, memoryview(bytearray(_PIECE_BYTES))
    with opened(path) as file:
        while stream.num_bytes < end:
            stream.write(fill(file, stream.num_bytes, view[: end - stream.num_bytes], path))
    faults.point("push.part")
    punch(path, begin, end - begin)
    writer.disk.look()


def _register(writer: ArtifactWriter, split: PlacedSplit, stream: SentFile) -> None:
    """Makes the extents file of a split appear in the store, after all extents are sent, and writes its index."""
    name, crc = artifacts.extents_file(split.name), split.index.file_crc32c()
    if stream.crc32c != crc:
        raise ArtifactError(f"what was sent of {writer.path(name)} is not what was made: the disk does not keep it")
    stream.close()
    writer.add_sent(name, FileEntry(split.index.num_bytes, crc))
    writer.path(name).unlink(missing_ok=True)
    save_index(writer, split)


def _parts(packing: RowPacking) -> Iterator[list[PlacedSplit]]:
    """Yields the extents of all splits, one after another, in parts that fit the free space.

    There is at least one part, which may be empty.
    """
    writer = packing.folder.writer
    waiting = [(split, 0) for split in packing.placed.splits if len(split.index)]
    while True:
        room, parts = _room(packing), list[PlacedSplit]()
        while waiting:
            split, first = waiting[0]
            headers = split.index.extents["header_bytes"] // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT  # written already
            more_bytes = np.cumsum((split.index.extent_bytes - headers)[first:])
            count = int(np.searchsorted(more_bytes, room, "right"))
            if count == 0 and parts:
                break
            count = max(count, 1)
            taken = int(more_bytes[count - 1])
            what = f"an extent of {writer.final.name}, which is sent before the next is made,"
            writer.disk.claim(taken, what)
            require_free_bytes(writer.staging, taken, what, exact=True)
            path = writer.path(artifacts.extents_file(split.name))
            with path.open("r+b") as file:
                file.truncate(split.index.num_bytes)
            parts.append(split.part(first, first + count))
            room -= taken
            waiting[0] = (split, first + count)
            if first + count < len(split.index):
                break
            del waiting[0]
        yield parts
        if not waiting:
            return


def _room(packing: RowPacking) -> int:
    """Returns the bytes that are free for extents: free space without what the other files still take."""
    sizes, writer = packing.sizes(), packing.folder.writer
    extents = {artifacts.extents_file(split.name) for split in packing.placed.splits}
    others = {name: sizes[name] for name in sizes if name not in extents and name not in writer.files}
    return spare_bytes(writer, others)
