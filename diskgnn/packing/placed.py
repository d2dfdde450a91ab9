"""What placing hands on to row packing: where the extents of each split are, and which rows they contain.

Headers and the nodes of rows are in files. Everything else is in arrays, the state of the step that placed the split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, mark_nodes
from diskgnn.files.file_reading import fill, opened
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.packed_config import PackedRows, PackedSplit, TierRowCounts
from diskgnn.packing.accesses import changes_named
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.tiers import Division
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.work_folder import State

_PIECE_NODES = 1 << 17


@dataclass(frozen=True)
class PlacedRows:
    """One row set in one split after placement."""

    bounds: npt.NDArray[np.int64]  # [T+1] extent t's nodes are disk_nodes[bounds[t]:bounds[t+1]]
    nodes: ArrayFile  # disk nodes of all extents
    initial_cpu_nodes: npt.NDArray[np.int64]  # [C] those in the cpu tier when a cycle starts, by slot
    next_cycle_slots: npt.NDArray[np.int32]  # [C], see `placement.Schedule`
    rows: TierRowCounts  # per cycle

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of the file of nodes, as far as it is of these extents."""
        return int(self.bounds[-1] - self.bounds[0]) * self.nodes.dtype.itemsize

    def mark(self, needed: npt.NDArray[np.bool_]) -> None:
        """Sets `needed` [N] to True for the rows of these extents."""
        first, last = int(self.bounds[0]), int(self.bounds[-1])
        if first == last:  # there may be no file
            return
        file, buffer = self.nodes, np.empty(min(_PIECE_NODES, last - first), self.nodes.dtype)
        with opened(file.path) as descriptor, changes_named(file.path):
            for begin in range(first, last, _PIECE_NODES):
                nodes = buffer[: last - begin]
                offset = file.header_bytes + begin * nodes.itemsize
                fill(descriptor, offset, nodes.view(np.uint8).data, file.path)
                mark_nodes(needed, nodes)


@dataclass(frozen=True)
class PlacedSplit:
    """One split after placement: its headers are on disk, its rows are still to come."""

    name: str  # train, valid or test
    index: ExtentIndex  # [T] rows_crc32c still 0
    tails: npt.NDArray[np.uint8]  # [T * 4096] of each extent, the page that is not full yet
    row_sets: tuple[PlacedRows, ...]  # [K]
    is_part: bool = False  # of a split, whose extents go to a store before others get their rows

    @staticmethod
    def of(
        name: str, state: State, row_bytes: Sequence[int], nodes: Sequence[ArrayFile], tails: npt.NDArray[np.uint8]
    ) -> PlacedSplit:
        """Describes a split by the state of the step that placed it: what `HeaderWriter.state` returns, and of each
        row set `initial_k` and `slots_k`, see `PlacedRows`. Its `nodes` [K] are in files.
        """
        index = ExtentIndex(state["extents"], state["rows"], tuple(row_bytes))
        row_sets = []
        for k, file in enumerate(nodes):
            records, static = index.rows[:, k], int(state["static_accesses"][k])
            requested, disk = (int(records[name].sum()) for name in ("num_inputs", "num_rows"))
            bounds = np.concatenate([[0], np.cumsum(records["num_rows"])]).astype(np.int64)
            rows = TierRowCounts(requested, static, requested - static - disk, disk)
            row_sets.append(PlacedRows(bounds, file, state[f"initial_{k}"], state[f"slots_{k}"], rows))
        return PlacedSplit(name, index, tails, tuple(row_sets))

    def part(self, first: int, last: int) -> PlacedSplit:
        """Returns some extents of the split, whose arrays are views of the same memory."""
        return replace(
            self,
            index=self.index[first:last],
            tails=self.tails[first * DIRECT_ALIGNMENT : last * DIRECT_ALIGNMENT],
            row_sets=tuple(replace(rows, bounds=rows.bounds[first : last + 1]) for rows in self.row_sets),
            is_part=True,
        )

    def config(self, epochs: int, batches_per_epoch: int) -> PackedSplit:
        """Returns the config of the split for the packed directory."""
        found = zip(self.row_sets, self.index.max_inputs, strict=True)
        return PackedSplit(
            epochs=epochs,
            batches_per_epoch=batches_per_epoch,
            max_header_bytes=self.index.max_header_bytes,
            row_sets=tuple(
                PackedRows(len(placed.next_cycle_slots), len(placed.initial_cpu_nodes), placed.rows, max_inputs)
                for placed, max_inputs in found
            ),
        )


@dataclass(frozen=True)
class Placed:
    """All splits after placement."""

    row_sets: tuple[RowSet, ...]  # [K]
    static_nodes: tuple[npt.NDArray[np.int64], ...]  # [K] each [S] hottest first
    splits: Sequence[PlacedSplit]
    divisions: Mapping[str, Division]  # by split, of a budget for the cpu tiers of several row sets
    note_bytes: int  # that the notes of placing take of the disk
    by_reference: bool = False  # extents are complete: they have numbers of rows
    files: Collection[str] | None = None  # those that are wanted; None: all

    def wants(self, name: str) -> bool:
        """Returns True if the file is to be written."""
        return self.files is None or name in self.files

    @property
    def steps(self) -> list[str]:
        """Returns the names of the steps that placed the splits."""
        return [placing_step(split.name) for split in self.splits]


def placing_step(split: str) -> str:
    """Returns the name of the step that places a split."""
    return f"place-{split}"
