"""Ids that name nodes, and the dense ones in their place: a join that is partitioned by ranges of ids on disk.

Every id that is to be replaced goes to the file of its range, and beside it, in the order of the input, the number of
that range is kept. Then the ranges are joined one after the other, and the answers are dealt out in the order of the
input: whose turn it is, the kept numbers say. So nothing is sorted but the ids of one range, and each id is written and
read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError
from diskgnn.importers.ids.id_ranges import IdRanges
from diskgnn.importers.ids.id_types import readable_kind
from diskgnn.importers.ids.scratch_files import ScratchFiles, State, prefixed, within
from diskgnn.storage.disk_space import DiskBudget

NODES_AT_ONCE = 1 << 18  # of an answer
JOIN_IDS = 1 << 18  # at least as many are looked up at once: each time Arrow builds its hash table anew


@dataclass(frozen=True)
class KnownRange:
    """The ids of one range that there are."""

    ids: pa.Array  # [n], none twice
    nodes: npt.NDArray[np.int64]  # [n + 1], the last one -1: what an id becomes that is not there


class Ends(Protocol):
    """Ids given in pieces, and the dense ones in their place, in pieces of equal sizes."""

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        ...

    def nodes(self, first: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """The dense ids from the `first` on.

        Raises:
            DamagedScratchError: (at the end, too) what is read for it is not what was written.
        """
        ...

    def so_far(self) -> State:
        """What a run needs to know that goes on with adding."""
        ...

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        ...

    def require_whole(self) -> None:
        """Refuse what is not what was written, if it is read without a checksum (DamagedScratchError)."""
        ...


class DenseEnds:
    """Ids that are dense already, kept beside others that are not."""

    def __init__(self, name: str, folder: Path, disk: DiskBudget, state: State) -> None:
        self._name, self._file = name, ScratchFiles(folder, 1, disk, state)

    def add(self, ids: pa.Array) -> None:
        """`ids` follow what was added before."""
        if not pa.types.is_integer(ids.type):
            raise InputError(f"{self._name}: expected numbers of rows, found ids of type {ids.type}")
        self._file.append(0, np.ascontiguousarray(ids, np.int64))

    def nodes(self, first: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """What was added, from the `first` on."""
        count, file = int(self._file.sizes[0]) // 8, self._file.front_to_back()
        for start in range(first, count, NODES_AT_ONCE):
            yield file.read(0, np.int64, min(NODES_AT_ONCE, count - start), start)

    def so_far(self) -> State:
        """What a run needs to know that goes on from here."""
        return self._file.so_far()

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        return self._file.claims()

    def require_whole(self) -> None:
        """Refuse what is not what was written (DamagedScratchError)."""
        self._file.require_whole()


class Lookup:
    """A stream of ids, and then the dense ones in their place.

    Args:
        name: of what the ids are read from, for messages.
        row_name: of what has an id there, for messages: "edge", "row".
        ranges: of the ids that there are.
        folder: for scratch.
        kind: of the ids that there are.
        hint: what else may be wrong with an id that is not there, for messages.
        skips_unknown: such an id becomes -1, and is no error.
        disk: of which scratch is claimed.
        state: what `so_far` said in a killed run with which this one goes on, or nothing.
    """

    def __init__(
        self,
        name: str,
        row_name: str,
        ranges: IdRanges,
        folder: Path,
        kind: pa.DataType,
        *,
        hint: str = "",
        skips_unknown: bool = False,
        disk: DiskBudget,
        state: State,
    ) -> None:
        self.name, self._row_name, self._ranges, self._kind, self._hint = name, row_name, ranges, kind, hint
        self._skips_unknown, self._folder, self._disk = skips_unknown, folder, disk
        self._schema = pa.schema([("id", kind)])
        self._ids = ScratchFiles(folder / "ids", ranges.count, disk, within("ids", state))
        self._turns = ScratchFiles(folder / "turns", 1, disk, within("turns", state))  # uint16: the range of each id
        self._answers: ScratchFiles | None = None
        self._answered: list[int] = []  # ranges whose ids nobody needs any more

    @property
    def count(self) -> int:
        """How many ids were added."""
        return int(self._turns.sizes[0]) // 2

    def add(self, ids: pa.Array) -> None:
        """`ids`, without null, follow what was added before.

        Raises:
            InputError: they cannot be compared with those that there are.
        """
        if ids.type != self._kind:
            ids = self._cast(ids)
        ranges = self._ranges.find(ids)
        self._turns.append(0, ranges)
        self._ids.add_batches(ranges, pa.record_batch([ids], names=["id"]))

    def so_far(self) -> State:
        """What a run needs to know that goes on with adding."""
        return prefixed("ids", self._ids.so_far()) | prefixed("turns", self._turns.so_far())

    def claims(self) -> list[Path]:
        """What has to be durable before `so_far` is."""
        return [*self._ids.claims(), *self._turns.claims(), self._folder]

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
            f"{readable_kind(ids.type)}{self._hint_of_kinds(ids.type)}; cast one of the two, or name another id column "
            f"of the nodes if these are numbers of rows"
        )

    def _hint_of_kinds(self, found: pa.DataType) -> str:
        if {readable_kind(found), readable_kind(self._kind)} != {"string", "int64"}:
            return ""
        return (
            "; the text '007' and the number 7 are different ids, and a CSV column of digits is read as numbers unless "
            "`columns` has types=NAME:string for it"
        )

    def ids(self, number: int) -> Iterator[pa.Array]:
        """What was added of one range."""
        return (batch.column(0) for batch in self._ids.batches(number, self._schema))

    def answer(self, number: int, known: KnownRange) -> int:
        """Look up what was added of one range; how many ids that were."""
        assert self._answers is not None
        complete = True
        for group in grouped(self.ids(number), max(8 * len(known.ids), JOIN_IDS)):
            places = pc.index_in(group, value_set=known.ids).fill_null(-1)
            for chunk in places.chunks:
                nodes = known.nodes[np.asarray(chunk)]
                complete = complete and not (nodes < 0).any()
                self._answers.append(number, nodes)
        if complete:  # otherwise an id is still to be named
            self._answered.append(number)
        return int(self._answers.sizes[number]) // 8

    def begin(self, answered: State) -> ScratchFiles:
        """Begin with answering, or go on where a killed run said `answered`; the files of the answers.

        Raises:
            DamagedScratchError: those that there are, are not what was written.
        """
        self._answers = ScratchFiles(self._folder / "answers", self._ranges.count, self._disk, answered)
        self._answers.require_whole()
        return self._answers

    def drop_answered(self) -> None:
        """Remove the ids that were answered, which nobody needs any more."""
        for number in self._answered:
            self._ids.drop(number)
        self._answered.clear()

    def require_whole(self) -> None:
        """Refuse numbers of ranges that are not what was written (DamagedScratchError)."""
        self._turns.require_whole()

    def nodes(self, first: int = 0) -> Iterator[npt.NDArray[np.int64]]:
        """The dense ids from the `first` on, in the order in which ids were added, after all ranges were answered.

        Raises:
            InputError: an id that is not there; names the first.
            DamagedScratchError: (at the end, too) what is read for it is not what was written.
        """
        assert self._answers is not None
        all_turns, answers = self._turns.front_to_back(), self._answers.front_to_back()
        taken = np.zeros(self._ranges.count, np.int64)
        for start in range(0, first, NODES_AT_ONCE):
            turns = all_turns.read(0, np.uint16, min(NODES_AT_ONCE, first - start), start)
            taken += np.bincount(turns, minlength=len(taken))
        for position in range(first, self.count, NODES_AT_ONCE):
            turns = all_turns.read(0, np.uint16, min(NODES_AT_ONCE, self.count - position), position)
            order = np.argsort(turns, kind="stable")
            counts = np.bincount(turns, minlength=len(taken))
            nodes = np.empty(len(turns), np.int64)
            nodes[order] = np.concatenate([
                answers.read(number, np.int64, int(counts[number]), int(taken[number]))
                for number in np.flatnonzero(counts).tolist()
            ])  # fmt: skip
            if not self._skips_unknown and (missing := nodes < 0).any():
                self._turns.require_whole()
                self._answers.require_whole()
                row = int(missing.argmax())
                number = int(turns[row])
                raise self._unknown(self._id(number, taken[number] + (turns[:row] == number).sum()), position + row)
            yield nodes
            taken += counts

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


def grouped(arrays: Iterator[pa.Array], at_least: int) -> Iterator[pa.ChunkedArray]:
    """The arrays in groups of `at_least` so many ids, but the last."""
    group: list[pa.Array] = []
    for array in arrays:
        group.append(array)
        if sum(map(len, group)) >= at_least:
            yield pa.chunked_array(group)
            group = []
    if group:
        yield pa.chunked_array(group)
