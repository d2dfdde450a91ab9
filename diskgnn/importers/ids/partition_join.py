"""Replaces ids by nodes: a join of two tables that may both be larger than memory, partitioned by ranges of ids.

It is a Grace hash join (Kitsuregawa, Tanaka and Moto-oka, Application of Hash to Data Base Machine and Its
Architecture, New Generation Computing 1, 1983) with ranges of ids in place of hash values, so that nodes can be
numbered in the order of their ids. Rows come in parts. First the ids of each part are spread over the ranges, a piece
for each range, and the range of each row is kept. Then one range after the other is joined with the ids that there are,
and the nodes of each piece go back to its part. So a part finds its nodes in the order of their ranges, and of what it
kept follows which row each is for. Nothing is sorted but the ids of one range, and each id is written and read once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError
from diskgnn.formats.graph_config import id_dtype
from diskgnn.importers.ids.id_streams import IdColumns
from diskgnn.importers.ids.id_types import readable_kind
from diskgnn.importers.ids.sampling_ids import SampledIds
from diskgnn.work.runner import Work
from diskgnn.work.shuffle import Shuffle

_JOIN_IDS = 1 << 18  # at least as many are looked up at once: each time Arrow builds its hash table anew
_PART = np.dtype(np.int64)  # of the number of a part, before its ids


@dataclass(frozen=True)
class Parts:
    """Rows cut into parts of as many rows each, but for the last."""

    num_rows: int
    part_rows: int

    @property
    def count(self) -> int:
        """Returns how many parts there are."""
        return -(-self.num_rows // self.part_rows)

    def from_row(self, first: int) -> Iterator[tuple[int, int]]:
        """Yields the number of each part that has a row from `first` on, and how many of its rows are before that."""
        if first < self.num_rows:
            part, skipped = divmod(first, self.part_rows)
            yield part, skipped
            yield from ((other, 0) for other in range(part + 1, self.count))


class Ends(ABC):
    """Ids given part by part, and the nodes in their place.

    Args:
        parts: of the rows.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @abstractmethod
    def add(self, part: int, ids: pa.Array) -> None:
        """Takes the `ids` of a part, without null.

        Raises:
            InputError: they cannot be compared with those that there are.
        """

    @abstractmethod
    def nodes_of(self, part: int) -> npt.NDArray[np.int64]:
        """Returns the nodes [rows of the part] when all is joined; -1 where an id may be one that no node has.

        Raises:
            DamagedStepError: what is read for it is not what was written.
        """

    def nodes(self, first: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the nodes of all rows from the `first` on, part by part; see `nodes_of`."""
        for part, skipped in self._parts.from_row(first):
            yield self.nodes_of(part)[skipped:]


class DenseEnds(Ends):
    """Numbers of nodes, kept beside ids that are not.

    Args:
        name: of what they are read from, for messages.
        parts: of the rows.
        given: a partition for each part.
    """

    def __init__(self, name: str, parts: Parts, given: Shuffle) -> None:
        super().__init__(parts)
        self._name, self._given = name, given

    def add(self, part: int, ids: pa.Array) -> None:
        """Takes the numbers of a part."""
        if not pa.types.is_integer(ids.type):
            raise InputError(f"{self._name}: expected numbers of rows, found ids of type {ids.type}")
        self._given.add(part, np.ascontiguousarray(ids, np.int64))

    def nodes_of(self, part: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of a part."""
        return self._given.content(part, np.int64)


@dataclass(frozen=True)
class KnownRange:
    """The ids of one range that there are."""

    ids: pa.Array  # [n], none twice
    nodes: npt.NDArray[np.int64]  # [n]


class AskedIds(Protocol):
    """The ids of a type of nodes, which others are looked up among."""

    sampled: SampledIds

    def hint(self, unknown: object) -> str:
        """Says what may be wrong with an id that no node has."""
        ...

    def near(self, unknown: object) -> str:
        """Says which id may be meant by one of another type."""
        ...


class Lookup(Ends):
    """A column of ids of one type of nodes.

    Args:
        work: of which it takes shuffles, named after `spread` and `side`.
        spread: the step that adds the ids.
        side: which of the columns it is that this step reads.
        join: the step that calls `join`.
        name: of the column, for messages.
        found: the columns of ids that it is one of. Where these skip unknown ids, such an id becomes -1.
        among: the ids that there are.
        parts: of the rows.
    """

    def __init__(
        self,
        work: Work,
        spread: str,
        side: int,
        join: str,
        *,
        name: str,
        found: IdColumns,
        among: AskedIds,
        parts: Parts,
    ) -> None:
        sampled = among.sampled
        self.ids = work.shuffle(spread, f"{spread}.{side}.ids", sampled.ranges.count)
        self._ranges_of_rows = work.shuffle(spread, f"{spread}.{side}.ranges", parts.count)
        self.answers = work.shuffle(join, f"{spread}.{side}.answers", parts.count)
        super().__init__(parts)
        self.name, self._place, self._skips_unknown = name, found.place, found.skips_unknown
        self._sampled, self._among, self._schema = sampled, among, pa.schema([("id", sampled.kind)])
        self.skipped: object = None  # an id that no node has, if that is no error
        self.hint_of_skipped = ""
        self._answer_dtype = id_dtype(sampled.count)  # there are no more nodes than ids were read

    def add(self, part: int, ids: pa.Array) -> None:
        """Brings the ids of a part to their ranges."""
        if ids.type != self._sampled.kind:
            ids = self._cast(ids, part * self._parts.part_rows)
        ranges, number = self._sampled.ranges.find(ids), np.array([part], _PART).view(np.uint8)
        self._ranges_of_rows.add(part, ranges)
        for found, message in by_range(ranges, pa.record_batch([ids], self._schema)):
            self.ids.add(found, np.concatenate([number, message]))

    def join(self, number: int, known: KnownRange) -> int:
        """Answers what was added of one range. Returns how many ids no node has, if that is an error."""
        nodes, num_unknown = np.append(known.nodes, -1).astype(self._answer_dtype), 0
        for group in _grouped(self._pieces(number), max(8 * len(known.ids), _JOIN_IDS)):
            asked = pa.chunked_array([ids for _, ids in group])
            places, start = pc.index_in(asked, value_set=known.ids).fill_null(-1), 0
            for part, ids in group:
                answers = nodes[np.asarray(places.slice(start, len(ids)))]
                start += len(ids)
                is_unknown = answers < 0
                num_unknown += int(is_unknown.sum())
                if self._skips_unknown and self.skipped is None and is_unknown.any():
                    self.skipped = ids[int(is_unknown.argmax())].as_py()
                self.answers.add(part, answers)
        return 0 if self._skips_unknown else num_unknown

    def nodes_of(self, part: int) -> npt.NDArray[np.int64]:
        """Returns the nodes of a part: its answers are in the order of ranges, and of rows in each."""
        ranges = self._ranges_of_rows.content(part, np.uint16)
        nodes = np.empty(len(ranges), np.int64)
        nodes[np.argsort(ranges, kind="stable")] = self.answers.content(part, self._answer_dtype)
        return nodes

    def pieces_of_ids(self, number: int) -> Iterator[pa.Array]:
        """Yields what was added of one range."""
        return (ids for _, ids in self._pieces(number))

    def first_unknown(self) -> InputError:
        """Returns an error that names the first id that no node has; there is one, and all is joined."""
        for part in range(self._parts.count):
            unknown = self.nodes_of(part) < 0
            if unknown.any():
                row, ranges = int(unknown.argmax()), self._ranges_of_rows.content(part, np.uint16)
                place = int((ranges[:row] == ranges[row]).sum())
                ids = next(ids for other, ids in self._pieces(int(ranges[row])) if other == part)
                return self._unknown(ids[place].as_py(), part * self._parts.part_rows + row)
        raise AssertionError

    def _pieces(self, number: int) -> Iterator[tuple[int, pa.Array]]:
        """Yields the ids of one range, with the part that they are of."""
        for piece in self.ids.pieces(number):
            batch = to_batch(piece[_PART.itemsize :], self._schema)
            yield int(piece[: _PART.itemsize].view(_PART)[0]), batch.column(0)

    def _cast(self, ids: pa.Array, first: int) -> pa.Array:
        """Returns `ids`, from row `first` on, in the type of those that there are."""
        kind = self._sampled.kind
        if pa.types.is_integer(ids.type) and pa.types.is_integer(kind):  # int64 and uint64
            largest = np.iinfo(np.int64).max
            outside = np.asarray(ids) > largest if pa.types.is_uint64(ids.type) else np.asarray(ids) < 0
            if not outside.any():
                return ids.cast(kind)
            row = int(outside.argmax())
            raise self._unknown(ids[row].as_py(), first + row)
        raise InputError(
            f"{self.name}: expected ids of type {readable_kind(kind)}, as the nodes have them, found "
            f"{readable_kind(ids.type)}{self._hint_of_kinds(ids)}; cast one of the two, or name another id column "
            f"of the nodes if these are numbers of rows"
        )

    def _hint_of_kinds(self, ids: pa.Array) -> str:
        if len(ids) and (near := self._among.near(ids[0].as_py())):
            return f" such as {ids[0].as_py()!r}{near}"
        if {readable_kind(ids.type), readable_kind(self._sampled.kind)} != {"string", "int64"}:
            return ""
        return (
            "; the text '007' and the number 7 are different ids, and a CSV column of digits is read as numbers unless "
            "`columns` has types=NAME:string for it"
        )

    def _unknown(self, found: Any, row: int) -> InputError:
        return InputError(
            f"{self.name}: expected ids of nodes, found {found!r} in {self._place(row)}, which no node has"
            f"{self._among.hint(found)}"
        )


def by_range(ranges: npt.NDArray[np.uint16], batch: pa.RecordBatch) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yields the rows of a batch that are in each range, as a message of Arrow's."""
    counts = np.bincount(ranges)
    rows = batch.take(pa.array(np.argsort(ranges, kind="stable"))) if len(counts) > 1 else batch
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        there = rows.slice(ends[number] - counts[number], counts[number])
        yield number, np.frombuffer(there.serialize(), np.uint8)


def to_batch(message: npt.NDArray[np.uint8], schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows that `by_range` made a message of."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(message)), schema)


def _grouped(pieces: Iterator[tuple[int, pa.Array]], at_least: int) -> Iterator[list[tuple[int, pa.Array]]]:
    """Yields the pieces in groups of `at_least` so many ids, but for the last."""
    group, num_ids = list[tuple[int, pa.Array]](), 0
    for part, ids in pieces:
        group.append((part, ids))
        num_ids += len(ids)
        if num_ids >= at_least:
            yield group
            group, num_ids = [], 0
    if group:
        yield group
