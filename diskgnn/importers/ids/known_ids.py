"""The ids that there are of one type of nodes, range by range: those of a list, or all that edges mention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskgnn.errors import InputError
from diskgnn.importers.ids.id_ranges import IdRanges, sorted_ids
from diskgnn.importers.ids.id_types import id_keys
from diskgnn.importers.ids.lookups import JOIN_IDS, KnownRange, Lookup, grouped
from diskgnn.importers.ids.scratch_files import ScratchFiles, State
from diskgnn.storage.checked_files import ChecksummedFile
from diskgnn.storage.disk_space import DiskBudget
from diskgnn.storage.file_reading import ReadableFile

_ROW_GROUP_IDS = 1 << 17  # of the file of ids, whose bytes must not depend on how the source was read


class IdFile:
    """The Parquet file of the ids of all nodes of a type: one column `id`, row i is node i."""

    def __init__(self, path: Path, kind: pa.DataType, disk: DiskBudget) -> None:
        self._kind, self.count = kind, 0
        self._file = ChecksummedFile(path, disk=disk)
        self._writer = pq.ParquetWriter(self._file, pa.schema([("id", kind)]), compression="zstd", use_dictionary=False)
        self._waiting: list[pa.Array] = []
        self.counts_rows = pa.types.is_integer(kind)  # so far; then these ids are the dense ones already

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        if self.counts_rows:
            self.counts_rows = bool((np.asarray(ids) == np.arange(self.count, self.count + len(ids))).all())
        self._waiting.append(ids)
        self.count += len(ids)
        if sum(map(len, self._waiting)) >= 4 * _ROW_GROUP_IDS:
            self._write(_ROW_GROUP_IDS)

    def _write(self, multiple: int) -> None:
        waiting = pa.concat_arrays(self._waiting or [pa.array([], self._kind)])
        whole = len(waiting) // multiple * multiple
        for start in range(0, whole, _ROW_GROUP_IDS):
            group = waiting.slice(start, min(_ROW_GROUP_IDS, whole - start))
            self._writer.write_table(pa.table({"id": group.cast(self._kind)}))
        self._waiting = [waiting.slice(whole)] if whole < len(waiting) else []

    def close(self) -> None:
        """Complete the file."""
        self._write(1)
        self._writer.close()
        self._file.close()

    @property
    def crc32c(self) -> int:
        """Of the complete file."""
        return self._file.crc32c


class Known(Protocol):
    """The ids of one type by range, which are asked for in order."""

    def read(self, number: int) -> KnownRange:
        """The ids of a range."""
        ...

    def so_far(self) -> State:
        """What a run needs to know that goes on from here."""
        ...

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        ...

    def drop(self, number: int) -> None:
        """A range is not asked for any more."""
        ...


class ListedIds:
    """The ids of an `IdFile` by range; a node is a row of the file.

    Args:
        path: of the file.
        ranges: of its ids.
        kind: of the ids.
        folder: for scratch.
        name: of what the ids are from, for messages.
        disk: of which scratch is claimed.
        state: what `so_far` said in a killed run with which this one goes on, or nothing.
    """

    def __init__(
        self, path: Path, ranges: IdRanges, kind: pa.DataType, folder: Path, name: str, disk: DiskBudget, state: State
    ) -> None:
        self._path, self._ranges, self._name = path, ranges, name
        self._schema = pa.schema([("id", kind), ("node", pa.int64())])
        self._files = ScratchFiles(folder, ranges.count, disk, state)

    def spread(self, first: int, chunk_ids: int) -> Iterator[int]:
        """Bring the ids from row `first` on to their ranges; yields how many, some at a time."""
        with pq.ParquetFile(pa.PythonFile(ReadableFile(self._path), mode="r")) as parquet:
            groups = range(first // _ROW_GROUP_IDS, parquet.metadata.num_row_groups)
            position = groups.start * _ROW_GROUP_IDS
            for batch in parquet.iter_batches(min(chunk_ids, _ROW_GROUP_IDS), groups):
                if position + batch.num_rows > first:
                    ids = id_keys(batch.column(0))[max(0, first - position) :]
                    nodes = pa.array(np.arange(position + batch.num_rows - len(ids), position + batch.num_rows))
                    self._files.add_batches(self._ranges.find(ids), pa.record_batch([ids, nodes], self._schema))
                    yield len(ids)
                position += batch.num_rows

    def read(self, number: int) -> KnownRange:
        """The ids of a range.

        Raises:
            InputError: an id is there twice.
        """
        batches = list(self._files.batches(number, self._schema))
        ids = pa.concat_arrays([batch.column(0) for batch in batches] or [pa.array([], self._schema.field("id").type)])
        nodes = np.concatenate([*(np.asarray(batch.column(1)) for batch in batches), [-1]])
        if pc.count_distinct(ids).as_py() < len(ids):
            first = np.asarray(pc.index_in(ids, value_set=ids))
            twice = int((first != np.arange(len(ids))).argmax())
            raise InputError(
                f"{self._name}: expected every id once, found {ids[twice].as_py()!r} in row {nodes[first[twice]]} and "
                f"in row {nodes[twice]} (counted from 0); drop one of them, or name another id column if this one "
                f"means something else"
            )
        return KnownRange(ids, nodes)

    def so_far(self) -> State:
        """What a run needs to know that goes on with `spread`."""
        return self._files.so_far()

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        return self._files.claims()

    def drop(self, number: int) -> None:
        """A range is not asked for any more."""
        self._files.drop(number)


class MentionedIds:
    """The ids that were added to lookups, by range; nodes are numbered in ascending order of their ids.

    Args:
        mentions: these lookups.
        ranges: of the ids.
        kind: of the ids.
        folder: for scratch.
        disk: of which scratch is claimed.
        state: what `so_far` said in a killed run with which this one goes on, or nothing.
    """

    def __init__(
        self,
        mentions: Sequence[Lookup],
        ranges: IdRanges,
        kind: pa.DataType,
        folder: Path,
        disk: DiskBudget,
        state: State,
    ) -> None:
        self._mentions, self._kind, self._ranges = mentions, kind, ranges
        self.count = int(state.get("count", 0))  # of the nodes of all ranges that were read
        self._files = ScratchFiles(folder, ranges.count, disk, {key: state[key] for key in state if key != "count"})

    def read(self, number: int) -> KnownRange:
        """The ids of the range that follows."""
        ids = pa.array([], self._kind)
        for mention in self._mentions:
            for group in grouped(mention.ids(number), JOIN_IDS):
                ids = pc.unique(pa.chunked_array([ids, *group.chunks]))
        ids = sorted_ids(ids)
        nodes = np.append(np.arange(self.count, self.count + len(ids)), -1)
        for start in range(0, len(ids), _ROW_GROUP_IDS):
            part = ids.slice(start, _ROW_GROUP_IDS)
            self._files.add_batches(np.full(len(part), number, np.uint16), pa.record_batch([part], names=["id"]))
        self.count += len(ids)
        return KnownRange(ids, nodes)

    def so_far(self) -> State:
        """What a run needs to know that goes on from here."""
        return {**self._files.so_far(), "count": np.array(self.count)}

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        return self._files.claims()

    def drop(self, number: int) -> None:
        """A range is not asked for any more: what is kept of it is written yet."""

    def write(self, file: IdFile) -> None:
        """Add all ids in order."""
        for number in range(self._ranges.count):
            for batch in self._files.batches(number, pa.schema([("id", self._kind)])):
                file.add(batch.column(0))
        file.close()
