"""What placing hands on to row packing: where the extents of each split are, and which rows they contain.

Headers and the nodes of rows are in files. Everything else is in arrays, which can also be stored in a durable record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c, mark_nodes
from diskgnn.files.file_reading import fill
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.packed_config import PackedRows, PackedSplit, TierRowCounts
from diskgnn.packing.adopting import damaged, opened_scratch
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.tier_budgets import Division

_PIECE_NODES = 1 << 20

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PlacedHeaders:
    """The extents of a split. Their headers are in the split's file, and the nodes of their rows in scratch files."""

    index: ExtentIndex  # [n] rows_crc32c still 0
    static_accesses: npt.NDArray[np.int64]  # [K] addresses of static rows
    node_bytes: npt.NDArray[np.int64]  # [K] 4 or 8, of a node in the scratch file
    nodes_crc32c: npt.NDArray[np.uint32]  # [K] of the scratch files

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the fields as named arrays, for a record."""
        return {
            "extents": self.index.extents,
            "rows": self.index.rows,
            "static_accesses": self.static_accesses,
            "node_bytes": self.node_bytes,
            "nodes_crc32c": self.nodes_crc32c,
        }

    @staticmethod
    def from_arrays(found: Arrays, row_bytes: Sequence[int]) -> PlacedHeaders:
        """Restores the headers from the arrays of a record."""
        index = ExtentIndex(found["extents"], found["rows"], tuple(row_bytes))
        return PlacedHeaders(index, found["static_accesses"], found["node_bytes"], found["nodes_crc32c"])

    def node_dtype(self, number: int) -> np.dtype[Any]:
        """Returns the dtype of a row set's nodes in the scratch file: int32 or int64."""
        return np.dtype(np.int32 if self.node_bytes[number] == 4 else np.int64)

    def nodes_file_bytes(self, number: int) -> int:
        """Returns the length of the scratch file of a row set."""
        return int(self.index.rows["num_rows"][:, number].sum() * self.node_bytes[number])

    def adopt_nodes(self, paths: Sequence[Path], needed: Sequence[npt.NDArray[np.bool_]]) -> None:
        """Compares the scratch files [K] of a killed run with what was recorded, and marks the rows that are `needed`.

        Raises:
            DamagedStepError: they are not what was written.
        """
        for number, path in enumerate(paths):
            dtype, length = self.node_dtype(number), self.nodes_file_bytes(number)
            piece_bytes, crc = _PIECE_NODES * dtype.itemsize, 0
            buffer = memoryview(bytearray(min(piece_bytes, length)))
            with opened_scratch(path) as descriptor:
                for offset in range(0, length, piece_bytes):
                    piece = fill(descriptor, offset, buffer[: length - offset], path)
                    crc = crc32c(piece, crc)
                    nodes = np.frombuffer(piece, dtype)
                    if crc != self.nodes_crc32c[number] and offset + piece_bytes >= length:
                        raise damaged(f"{path} is not what was written")
                    if ((nodes < 0) | (nodes >= len(needed[number]))).any():
                        raise damaged(f"{path} has nodes that are none of the graph's")
                    mark_nodes(needed[number], nodes)


@dataclass(frozen=True)
class PlacedRows:
    """One row set in one split after placement."""

    bounds: npt.NDArray[np.int64]  # [T+1] extent t's nodes are disk_nodes[bounds[t]:bounds[t+1]]
    nodes_path: Path  # scratch: disk nodes of all extents
    node_dtype: np.dtype[Any]  # int32 or int64
    initial_cpu_nodes: npt.NDArray[np.int64]  # [C] those in the cpu tier when a cycle starts, by slot
    next_cycle_slots: npt.NDArray[np.int32]  # [C], see `placement.Schedule`
    rows: TierRowCounts  # per cycle


@dataclass(frozen=True)
class PlacedSplit:
    """One split after placement: its headers are on disk, its rows are still to come."""

    name: str  # train, valid or test
    headers: PlacedHeaders
    tails: npt.NDArray[np.uint8]  # [T * 4096] of each extent, the page that is not full yet
    row_sets: tuple[PlacedRows, ...]  # [K]
    adopted: bool  # headers are those of a run that was killed, and were not compared with their checksums yet

    @staticmethod
    def of(
        name: str,
        headers: PlacedHeaders,
        tails: npt.NDArray[np.uint8],
        nodes_paths: Sequence[Path],
        tiers: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]],
        *,
        adopted: bool,
    ) -> PlacedSplit:
        """Derives the row sets of a split from its headers.

        `tiers` [K] are the initial nodes and the next cycle's slots of each row set, see `PlacedRows`.
        """
        row_sets = []
        for number, (path, (initial, slots)) in enumerate(zip(nodes_paths, tiers, strict=True)):
            records, static = headers.index.rows[:, number], int(headers.static_accesses[number])
            requested, disk = (int(records[name].sum()) for name in ("num_inputs", "num_rows"))
            bounds = np.concatenate([[0], np.cumsum(records["num_rows"])]).astype(np.int64)
            rows = TierRowCounts(requested, static, requested - static - disk, disk)
            row_sets.append(PlacedRows(bounds, path, headers.node_dtype(number), initial, slots, rows))
        return PlacedSplit(name, headers, tails, tuple(row_sets), adopted)

    @property
    def index(self) -> ExtentIndex:
        """The index of all extents."""
        return self.headers.index

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns headers and tiers as named arrays, for a record."""
        found = self.headers.to_arrays()
        for number, rows in enumerate(self.row_sets):
            found |= {f"initial_{number}": rows.initial_cpu_nodes, f"slots_{number}": rows.next_cycle_slots}
        return found

    @staticmethod
    def tiers_in(found: Arrays) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
        """Returns the `tiers` [K] of a split from the arrays of a record."""
        num_sets = len(found["static_accesses"])
        return [(found[f"initial_{number}"], found[f"slots_{number}"]) for number in range(num_sets)]

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
    needed: tuple[npt.NDArray[np.bool_], ...]  # [K] each [N] whether any file needs a node's row
    splits: Sequence[PlacedSplit]
    divisions: Mapping[str, Division]  # by split, of a budget for the cpu tiers of several row sets
    read_bytes: int  # of scratch files, those included that are read when rows are packed
    by_reference: bool = False  # extents are complete: they have numbers of rows
    files: Collection[str] | None = None  # those that are wanted; None: all

    def wants(self, name: str) -> bool:
        """Returns True if the file is to be written."""
        return self.files is None or name in self.files
