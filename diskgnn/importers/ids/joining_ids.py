"""Joins all that names nodes of a type with the ids that there are: those of a list, or all that edges mention."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile
from diskgnn.importers.ids.id_file import ROW_GROUP_IDS, IdFile
from diskgnn.importers.ids.id_ranges import sorted_ids
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import id_keys
from diskgnn.importers.ids.near_ids import ids_in_file, near_id
from diskgnn.importers.ids.partition_join import KnownRange, Lookup, by_range, to_batch
from diskgnn.importers.ids.sampling_ids import ID_BYTES, SampledIds
from diskgnn.progress.reporter import Reporter
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_MERGED_IDS = 1 << 18  # at least as many mentioned ids are merged at once with those before


@dataclass
class NodeIds:
    """The ids of one type of nodes, and all that names nodes by them."""

    name: str  # of the type
    sampled: SampledIds
    listed: IdColumns | None  # the ids of all nodes; None: edges mention them
    path: Path  # of the file of the ids; listed ones are there already
    lookups: list[Lookup] = field(default_factory=list)
    mentions: list[Lookup] = field(default_factory=list)  # of `lookups`, if what they name is there

    def near(self, unknown: object) -> str:
        """Says which id may be meant by one that no node has; "" if none is like it."""
        if self.listed is not None:
            return near_id(unknown, ids_in_file(self.path))
        ranges = range(self.sampled.ranges.count)
        return near_id(
            unknown, (ids for each in self.mentions for number in ranges for ids in each.pieces_of_ids(number))
        )

    def hint(self, unknown: object) -> str:
        """Says what may be wrong with an id that no node has."""
        if near := self.near(unknown):
            return near
        if self.listed is None:
            return "; expected those that edges mention"
        return f"; the nodes are those of {self.listed.told}: add it there, or leave it out here"

    @property
    def schema(self) -> pa.Schema:
        """Returns the columns in which the ids that there are lie in their ranges: nodes are in order if mentioned."""
        return pa.schema([("id", self.sampled.kind)] + [("node", pa.int64())] * (self.listed is not None))


def join_step(node_type: str) -> str:
    """Returns the name of the step that answers the lookups of a type."""
    return f"join-{node_type}"


def join_ids(work: Work, ids: NodeIds, writer: ArtifactWriter, reporter: Reporter, *, key: int) -> int:
    """Answers the lookups of one type of nodes. Returns the number of nodes.

    Raises:
        InputError: an id twice in the list; or one that is looked up, and that no node has.
    """
    ranges = ids.sampled.ranges
    spread, join = f"known-{ids.name}", join_step(ids.name)
    known = work.shuffle(join if ids.listed is None else spread, f"known-{ids.name}", ranges.count)
    asked = [lookup.ids for lookup in ids.lookups]
    if ids.listed is not None:
        spreading = partial(_spread_listed, ids, known)
        work.fold(spread, spreading, {"rows": 0}, key=key)
    first: State = {"ranges": np.array(0), "nodes": np.array(0), "unknown": np.zeros(len(ids.lookups), np.int64)}
    joined = work.fold(
        join, partial(_join, ids, known, reporter), first, key=key,
        consumes=asked if ids.listed is None else [*asked, known],
    )  # fmt: skip
    if ids.listed is None:
        file = IdFile(writer, ids.path.name, ids.sampled.file_kind, is_kept=False)
        numbering = partial(_write_ids, ids, file, known)
        work.fold(f"number-{ids.name}", numbering, {}, files=[file], consumes=[known])
    return int(joined["nodes"]) if ids.listed is None else ids.listed.num_rows


def _spread_listed(ids: NodeIds, known: Shuffle, state: State, output: Output) -> Generator[int, None, None]:
    """Brings the ids of a list to their ranges; a node is a row of the file."""
    del output
    first = int(state["rows"])
    with pq.ParquetFile(pa.PythonFile(ReadableFile(ids.path), mode="r")) as parquet:
        groups = range(first // ROW_GROUP_IDS, parquet.metadata.num_row_groups)
        position = groups.start * ROW_GROUP_IDS
        for batch in parquet.iter_batches(min(ids.sampled.part_ids, ROW_GROUP_IDS), groups):
            found = id_keys(batch.column(0))[max(0, first - position) :]
            position += batch.num_rows
            if len(found):
                nodes = pa.array(np.arange(position - len(found), position))
                named = found.is_valid()
                there = pa.record_batch([found.filter(named), nodes.filter(named)], ids.schema)
                found = there.column(0)
                for number, message in by_range(ids.sampled.ranges.find(found), there):
                    known.add(number, message)
                state["rows"][...] = position
                yield len(found) * ID_BYTES


def _join(ids: NodeIds, known: Shuffle, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
    """Answers the lookups, range by range."""
    count = ids.sampled.ranges.count
    with output.stage(reporter, "join ids", count, "ranges") as advance:
        for number in range(int(state["ranges"]), count):
            if ids.listed is None:
                there = _mentioned(ids, known, number, int(state["nodes"]))
            else:
                there = _listed(ids, known, number)
            state["unknown"] += np.array([lookup.join(number, there) for lookup in ids.lookups], np.int64)
            state["nodes"] += len(there.ids)
            state["ranges"] += 1
            advance(1)
            yield there.ids.nbytes + sum(int(lookup.ids.partition_bytes[number]) for lookup in ids.lookups)
    for lookup, num_unknown in zip(ids.lookups, state["unknown"].tolist(), strict=True):
        if num_unknown:
            raise lookup.first_unknown()
        if lookup.skipped is not None:
            lookup.hint_of_skipped = ids.near(lookup.skipped)


def _listed(ids: NodeIds, known: Shuffle, number: int) -> KnownRange:
    """Returns the ids of a list that are in a range.

    Raises:
        InputError: an id is there twice.
    """
    assert ids.listed is not None
    batches = [to_batch(message, ids.schema) for message in known.pieces(number)]
    found = pa.concat_arrays([batch.column(0) for batch in batches] or [pa.array([], ids.sampled.kind)])
    nodes = np.concatenate([np.empty(0, np.int64), *(np.asarray(batch.column(1)) for batch in batches)])
    if pc.count_distinct(found).as_py() < len(found):
        first = np.asarray(pc.index_in(found, value_set=found))
        twice = int((first != np.arange(len(found))).argmax())
        before, again = int(nodes[first[twice]]), int(nodes[twice])
        raise InputError(
            f"{ids.listed.name}: expected every id once, found {found[twice].as_py()!r} in row {before}"
            f"{ids.listed.line(before)} and in row {again}{ids.listed.line(again)} (rows are counted from 0); drop one "
            f"of them, or name another id column if this one means something else"
        )
    return KnownRange(found, nodes)


def _mentioned(ids: NodeIds, known: Shuffle, number: int, first_node: int) -> KnownRange:
    """Returns the ids of a range that edges mention, numbered in ascending order, and keeps them for their file."""
    found, waiting = pa.array([], ids.sampled.kind), list[pa.Array]()
    for mention in ids.mentions:
        for piece in mention.pieces_of_ids(number):
            waiting.append(piece)
            if sum(map(len, waiting)) >= _MERGED_IDS:
                found, waiting = pc.unique(pa.chunked_array([found, *waiting])), []
    found = sorted_ids(pc.unique(pa.chunked_array([found, *waiting])))
    for start in range(0, len(found), ROW_GROUP_IDS):
        part = pa.record_batch([found.slice(start, ROW_GROUP_IDS)], ids.schema)
        known.add(number, np.frombuffer(part.serialize(), np.uint8))
    return KnownRange(found, np.arange(first_node, first_node + len(found)))


def _write_ids(ids: NodeIds, file: IdFile, known: Shuffle, state: State, output: Output) -> Generator[int, None, None]:
    """Writes the file of mentioned ids. Nobody could go on within it, so it is one piece, without yields."""
    del state, output
    for number in range(ids.sampled.ranges.count):
        for message in known.pieces(number):
            file.add(to_batch(message, ids.schema).column(0))
    yield from ()
