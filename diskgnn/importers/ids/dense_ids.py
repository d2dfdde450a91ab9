"""Ids of any kind to dense ones, within a memory budget: a join that is partitioned by ranges of ids on disk.

Ids are cut into ranges so small that the ids of one range fit in memory, by a sample. Every id that is to be replaced
goes to the file of its range, and beside it, in the order of the input, the number of that range is kept. Then the
ranges are joined one after the other, and the answers are dealt out in the order of the input: whose turn it is, the
kept numbers say. So nothing is sorted but the ids of one range, and each id is written and read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskgnn._native import find_ranges
from diskgnn.errors import ConfigError, InputError
from diskgnn.storage import faults
from diskgnn.units import format_size

# What joining a range holds for each id beside its bytes, which are there twice: its node, and Arrow's hash table.
_ID_OVERHEAD_BYTES = 96
_SAMPLE_IDS = 1 << 16
_MAX_RANGES = 1 << 12
_ROW_GROUP_IDS = 1 << 17  # of the file of ids, whose bytes must not depend on how the source was read
NODES_AT_ONCE = 1 << 18  # of an answer
_JOIN_IDS = 1 << 18  # at least as many are looked up at once: each time Arrow builds its hash table anew
_KINDS = {
    "int64": pa.types.is_signed_integer,
    "uint64": pa.types.is_unsigned_integer,
    "large_string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "large_binary": lambda kind: (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ),
}


def id_kind(kind: pa.DataType) -> pa.DataType | None:
    """How ids of an Arrow type are compared: as int64, uint64, large_string or large_binary. None: they cannot be."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_unsigned_integer(kind) and kind.bit_width < 64:
        return pa.int64()
    return next((pa.type_for_alias(name) for name, holds in _KINDS.items() if holds(kind)), None)


def id_keys(ids: pa.Array) -> pa.Array:
    """`ids` in the type that `id_kind` says."""
    if isinstance(ids, pa.ExtensionArray):
        ids = ids.storage
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if pa.types.is_fixed_size_binary(ids.type):  # pyarrow before 16 has no direct cast
        ids = ids.cast(pa.binary())
    return ids.cast(id_kind(ids.type))


def readable_kind(kind: pa.DataType) -> str:
    """An id type's name in messages."""
    return str(kind).removeprefix("large_")


class IdSample:
    """A sample of a stream of ids, every so many of them, and how many bytes they have in all."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self.count, self.total_bytes = kind, 0, 0
        self._kept: list[pa.Array] = []
        self._stride, self._num_kept = 1, 0

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        kept = ids.take(pa.array(np.arange(-self.count % self._stride, len(ids), self._stride)))
        self._kept.append(kept)
        self._num_kept += len(kept)
        self.count += len(ids)
        self.total_bytes += ids.nbytes
        while self._num_kept > 2 * _SAMPLE_IDS:
            self._stride *= 2
            merged = pa.concat_arrays(self._kept)
            self._kept = [merged.take(pa.array(np.arange(0, len(merged), 2)))]
            self._num_kept = len(self._kept[0])

    def ranges(self, memory_bytes: int) -> IdRanges:
        """Ranges of which one can be joined within `memory_bytes`, were each id there only once.

        Raises:
            ConfigError: there would be too many of them.
        """
        # Half of the memory for a range that is twice as large as they are on average.
        needed_bytes = 2 * self.total_bytes + _ID_OVERHEAD_BYTES * self.count
        count = max(1, -(-4 * needed_bytes // memory_bytes))
        if count > _MAX_RANGES:
            at_least = format_size(-(-4 * needed_bytes // _MAX_RANGES)).replace(" ", "")
            raise ConfigError(
                f"mapping {self.count} ids of {format_size(self.total_bytes)} to dense ones needs memory for one part "
                f"of {_MAX_RANGES} of them; found {format_size(memory_bytes)}. Pass memory={at_least} or more"
            )
        if not self._num_kept or count == 1:
            return IdRanges(pa.array([], self.kind))
        ordered = pc.unique(_sorted(pa.concat_arrays(self._kept)))
        places = np.unique(np.arange(1, count) * len(ordered) // count)
        return IdRanges(ordered.take(pa.array(places[places > 0])))

    def chunk_ids(self, memory_bytes: int) -> int:
        """How many ids to hold at once where several copies of them are made."""
        mean_bytes = self.total_bytes // max(self.count, 1) + 16
        return int(np.clip(memory_bytes // (32 * mean_bytes), 1 << 12, 1 << 20))


@dataclass(frozen=True)
class IdRanges:
    """Consecutive ranges of ids, R of them: range r has the ids from bounds[r - 1] on, up to bounds[r]."""

    bounds: pa.Array  # [R - 1], ascending

    @property
    def count(self) -> int:
        """R."""
        return len(self.bounds) + 1

    def find(self, ids: pa.Array) -> npt.NDArray[np.uint16]:
        """[n] the range of each of `ids` [n]."""
        if pa.types.is_integer(ids.type):
            return np.searchsorted(np.asarray(self.bounds), np.asarray(ids), side="right").astype(np.uint16)
        ranges = np.empty(len(ids), np.uint16)
        find_ranges(*_strings(ids), *_strings(self.bounds), ranges)
        return ranges


def _strings(ids: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, content = ids.buffers()
    if not len(ids):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    return starts, np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)


def _sorted(ids: pa.Array) -> pa.Array:
    return ids.take(pc.array_sort_indices(ids))


class _RangeFiles:
    """Record batches in a file for each range, in the order in which they were added."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        folder.mkdir()

    def add(self, ranges: npt.NDArray[np.uint16], batch: pa.RecordBatch) -> None:
        """Each row to the file of its range."""
        faults.point("ids.spill")
        counts = np.bincount(ranges)
        by_range = batch.take(pa.array(np.argsort(ranges, kind="stable"))) if len(counts) > 1 else batch
        start = 0
        for number in np.flatnonzero(counts).tolist():
            rows = by_range.slice(start, int(counts[number]))
            with self._path(number).open("ab") as file:
                file.write(rows.serialize())
            start += rows.num_rows

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """What was added to a range; its memory is the file's own."""
        if not self._path(number).exists():
            return
        with pa.memory_map(str(self._path(number))) as file:
            while file.tell() < file.size():
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file), self._schema)

    def drop(self, number: int) -> None:
        """Remove the file of a range."""
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


@dataclass(frozen=True)
class KnownRange:
    """The ids of one range that there are."""

    ids: pa.Array  # [n], none twice
    nodes: npt.NDArray[np.int64]  # [n + 1], the last one -1: what an id becomes that is not there


class Lookup:
    """A stream of ids, and then the dense ones in their place.

    Args:
        name: of what the ids are read from, for messages.
        row_name: of what has an id there, for messages: "edge", "row".
        ranges: of the ids that there are.
        folder: for scratch; made here.
        kind: of the ids that there are.
        hint: what else may be wrong with an id that is not there, for messages.
        skips_unknown: such an id becomes -1, and is no error.
    """

    def __init__(
        self,
        name: str,
        row_name: str,
        ranges: IdRanges,
        folder: Path,
        kind: pa.DataType,
        hint: str = "",
        skips_unknown: bool = False,
    ) -> None:
        self._skips_unknown = skips_unknown
        self.name, self._row_name, self._ranges, self._kind, self._hint = name, row_name, ranges, kind, hint
        folder.mkdir()
        self._folder, self.count = folder, 0
        self._files = _RangeFiles(folder / "ids", pa.schema([("id", kind)]))
        (folder / "turns").touch()  # uint16 [count]: the range of each id

    def add(self, ids: pa.Array) -> None:
        """`ids`, without null, follow what was added before.

        Raises:
            InputError: they cannot be compared with those that there are.
        """
        if ids.type != self._kind:
            ids = self._cast(ids)
        ranges = self._ranges.find(ids)
        with (self._folder / "turns").open("ab") as file:
            ranges.tofile(file)
        self._files.add(ranges, pa.record_batch([ids], names=["id"]))
        self.count += len(ids)

    def _cast(self, ids: pa.Array) -> pa.Array:
        if pa.types.is_integer(ids.type) and pa.types.is_integer(self._kind):  # int64 and uint64
            largest = np.iinfo(np.int64).max
            outside = np.asarray(ids) > largest if pa.types.is_uint64(ids.type) else np.asarray(ids) < 0
            if not outside.any():
                return ids.cast(self._kind)
            row = int(outside.argmax())
            raise self._unknown(ids[row].as_py(), self.count + row)
        raise InputError(
            f"{self.name}: expected ids of type {readable_kind(self._kind)}, as the nodes have them, found "
            f"{readable_kind(ids.type)}; cast one of the two, or name another id column of the nodes if these are "
            f"numbers of rows"
        )

    def ids(self, number: int) -> Iterator[pa.Array]:
        """What was added of one range."""
        return (batch.column(0) for batch in self._files.read(number))

    def answer(self, number: int, known: KnownRange) -> None:
        """Look up what was added of one range."""
        complete = True
        with self._answers(number).open("wb") as file:
            for group in _grouped(self.ids(number), max(8 * len(known.ids), _JOIN_IDS)):
                places = pc.index_in(group, value_set=known.ids).fill_null(-1)
                for chunk in places.chunks:
                    nodes = known.nodes[np.asarray(chunk)]
                    complete = complete and not (nodes < 0).any()
                    nodes.tofile(file)
        if complete:  # otherwise an id is still to be named
            self._files.drop(number)

    def nodes(self) -> Iterator[npt.NDArray[np.int64]]:
        """The dense ids, in the order in which ids were added, after all ranges were answered. May be read again.

        Raises:
            InputError: an id that is not there; names the first.
        """
        taken = np.zeros(self._ranges.count, np.int64)
        position = 0
        with (self._folder / "turns").open("rb") as file:
            while len(turns := np.fromfile(file, np.uint16, NODES_AT_ONCE)):
                order = np.argsort(turns, kind="stable")
                counts = np.bincount(turns, minlength=len(taken))
                answers = [
                    np.fromfile(self._answers(number), np.int64, int(counts[number]), offset=8 * int(taken[number]))
                    for number in np.flatnonzero(counts).tolist()
                ]
                nodes = np.empty(len(turns), np.int64)
                nodes[order] = np.concatenate(answers)
                if not self._skips_unknown and (missing := nodes < 0).any():
                    row = int(missing.argmax())
                    number = int(turns[row])
                    raise self._unknown(self._id(number, taken[number] + (turns[:row] == number).sum()), position + row)
                yield nodes
                taken += counts
                position += len(turns)

    def _id(self, number: int, place: int) -> Any:
        for ids in self.ids(number):
            if place < len(ids):
                return ids[int(place)].as_py()
            place -= len(ids)
        raise AssertionError

    def _unknown(self, found: Any, row: int) -> InputError:
        return InputError(
            f"{self.name}: expected ids of nodes, found {found!r} in {self._row_name} {row} (counted from 0), which no "
            f"node has{self._hint}"
        )

    def _answers(self, number: int) -> Path:
        return self._folder / f"answers-{number}"


def _grouped(arrays: Iterator[pa.Array], at_least: int) -> Iterator[pa.ChunkedArray]:
    group: list[pa.Array] = []
    for array in arrays:
        group.append(array)
        if sum(map(len, group)) >= at_least:
            yield pa.chunked_array(group)
            group = []
    if group:
        yield pa.chunked_array(group)


class IdFile:
    """The Parquet file of the ids of all nodes of a type: one column `id`, row i is node i."""

    def __init__(self, path: Path, kind: pa.DataType) -> None:
        self._path, self._kind, self.count = path, kind, 0
        self._writer = pq.ParquetWriter(path, pa.schema([("id", kind)]), compression="zstd", use_dictionary=False)
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


def id_file_kind(kind: pa.DataType) -> pa.DataType:
    """The type of the column in an `IdFile`: a plain one, which every reader of Parquet knows."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_fixed_size_binary(kind):
        return kind
    return {"large_string": pa.string(), "large_binary": pa.binary()}.get(str(id_kind(kind)), id_kind(kind))


Known = Callable[[int], KnownRange]


def table_ranges(path: Path, ranges: IdRanges, folder: Path, name: str, chunk_ids: int) -> Known:
    """The ids of an `IdFile` by range; a node is a row of the file.

    Args:
        path: of the file.
        ranges: of its ids.
        folder: for scratch; made here.
        name: of what the ids are from, for messages.
        chunk_ids: how many to hold at once.

    Raises:
        InputError: (by what is returned) an id is there twice.
    """
    with pq.ParquetFile(path) as parquet:
        kind = id_kind(parquet.schema_arrow.field("id").type)
        files = _RangeFiles(folder, pa.schema([("id", kind), ("node", pa.int64())]))
        position = 0
        for batch in parquet.iter_batches(min(chunk_ids, _ROW_GROUP_IDS)):
            ids = id_keys(batch.column(0))
            nodes = pa.array(np.arange(position, position + len(ids)))
            files.add(ranges.find(ids), pa.record_batch([ids, nodes], names=["id", "node"]))
            position += len(ids)

    def known(number: int) -> KnownRange:
        batches = list(files.read(number))
        ids = pa.concat_arrays([batch.column(0) for batch in batches] or [pa.array([], kind)])
        nodes = np.concatenate([*(np.asarray(batch.column(1)) for batch in batches), [-1]])
        if pc.count_distinct(ids).as_py() < len(ids):
            first = np.asarray(pc.index_in(ids, value_set=ids))
            twice = int((first != np.arange(len(ids))).argmax())
            raise InputError(
                f"{name}: expected every id once, found {ids[twice].as_py()!r} in row {nodes[first[twice]]} and in row "
                f"{nodes[twice]} (counted from 0); drop one of them, or name another id column if this one means "
                f"something else"
            )
        files.drop(number)
        return KnownRange(ids, nodes)

    return known


def mentioned_ranges(mentions: Sequence[Lookup], ids_file: IdFile, kind: pa.DataType) -> Known:
    """The ids that were added to `mentions`, by range; nodes are numbered in ascending order of their ids.

    Ranges are to be asked for in order: then `ids_file` gets all ids in order.
    """

    def known(number: int) -> KnownRange:
        ids = pa.array([], kind)
        for mention in mentions:
            for group in _grouped(mention.ids(number), _JOIN_IDS):
                ids = pc.unique(pa.chunked_array([ids, *group.chunks]))
        ids = _sorted(ids)
        nodes = np.append(np.arange(ids_file.count, ids_file.count + len(ids)), -1)
        ids_file.add(ids)
        return KnownRange(ids, nodes)

    return known
