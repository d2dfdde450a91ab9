"""The first half of packing: places one split after another, and writes what comes before the rows of each extent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import DIRECT_ALIGNMENT, PageWriter, mark_nodes, start_extent
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.ordered import in_order
from diskgnn.packing.accesses import Accesses, hottest_nodes
from diskgnn.packing.placement import Placement, Schedule
from diskgnn.packing.reserving import scratch_pages
from diskgnn.packing.reuse import MAX_BATCHES, Reuse
from diskgnn.packing.tiers import TierRows
from diskgnn.progress import Advance
from diskgnn.storage import artifacts, extents, faults
from diskgnn.storage.packed import TierRowCounts
from diskgnn.storage.samples import Samples
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

_MAX_WAITING = 2  # minibatches that are placed and whose headers are not written yet


@dataclass(frozen=True)
class PlacedSplit:
    """One split after placement: headers are on disk, rows are still to come."""

    name: str  # train, valid or test
    index: npt.NDArray[Any]  # [T] extents.INDEX_DTYPE, rows_crc32c still 0
    bounds: npt.NDArray[np.int64]  # [T+1] extent t's nodes are disk_nodes[bounds[t]:bounds[t+1]]
    nodes_path: Path  # scratch: disk nodes of all extents
    node_dtype: np.dtype[Any]  # int32 or int64
    tails: npt.NDArray[np.uint8]  # [T * 4096] of each extent, the page that is not full yet
    initial_cpu_nodes: npt.NDArray[np.int64]  # [C] those in the cpu tier when a cycle starts, by slot
    next_cycle_slots: npt.NDArray[np.int32]  # [C], see `placement.Schedule`
    rows: TierRowCounts  # per cycle


@dataclass(frozen=True)
class Placed:
    """All splits after placement."""

    static_nodes: npt.NDArray[np.int64]  # [S] hottest first
    needed: npt.NDArray[np.bool_]  # [N] whether any file needs a node's row
    splits: Sequence[PlacedSplit]
    read_bytes: int  # of scratch files, those included that are read when rows are packed


class SplitPlacer:
    """Places one split after another; the static rows, chosen by the first, serve all."""

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        graph: Graph,
        samples: Samples,
        *,
        keep_input_nodes: bool,
        resources: Resources,
    ) -> None:
        self.writer, self.pages, self.graph, self.samples, self.resources = writer, pages, graph, samples, resources
        self.keep_input_nodes = keep_input_nodes
        self.static_nodes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.needed: npt.NDArray[np.bool_] = np.zeros(graph.num_nodes, np.bool_)  # see `Placed`
        self._read_bytes = 0

    def place_all(self, tiers: TierRows) -> Placed:
        """Place every split of the samples."""
        splits = [self._place(split, tiers) for split in self.samples.splits]
        return Placed(self.static_nodes, self.needed, splits, self._read_bytes)

    def _place(self, split: str, tiers: TierRows) -> PlacedSplit:
        """Place `split`: its headers go to their final offsets, the nodes of its rows to a scratch file."""
        num_batches = self.samples.config.splits[split].num_batches
        if num_batches > MAX_BATCHES:
            raise ConfigError(f"{split}: {num_batches} minibatches; at most {MAX_BATCHES} can be placed")
        threads = self.resources.threads
        with self.resources.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance:
            scratch = self.writer.path(f"{split}.accesses")
            accesses = Accesses(self._input_nodes(split, advance), self.graph.num_nodes, scratch, threads=threads)
            if split == self.samples.splits[0] and tiers.static > 0:
                self.static_nodes = hottest_nodes(accesses.counts(), tiers.static)
                self.needed[self.static_nodes] = True
            schedule = Schedule(Reuse(accesses, self.static_nodes, threads=threads), tiers.cpu(split))
            self.needed[schedule.initial_cpu_nodes] = True
            # Placing and encoding keep a core busy each.
            with _HeaderWriter(self, split, num_batches) as headers, ThreadPoolExecutor(1) as pool:
                for _ in in_order(pool, (partial(headers.write, placed) for placed in schedule), _MAX_WAITING):
                    advance(1)
        nodes_bytes = headers.nodes_path.stat().st_size  # to be read when the rows are packed
        self._read_bytes += accesses.read_bytes + nodes_bytes
        return headers.placed(schedule)

    def _input_nodes(self, split: str, advance: Advance) -> Iterator[npt.NDArray[Any]]:
        for minibatch in self.samples.read(split):
            yield minibatch.only_nodes
            advance(1)


class _HeaderWriter:
    """Writes the headers of one split, extent after extent, and notes what each extent consists of."""

    def __init__(self, placer: SplitPlacer, split: str, num_batches: int) -> None:
        writer, graph, samples = placer.writer, placer.graph, placer.samples
        self.nodes_path = writer.path(f"{split}.nodes")
        self._split, self._samples, self._pages, self._needed = split, samples, placer.pages, placer.needed
        self._path = str(writer.path(artifacts.extents_file(split)))
        self._tails = scratch_pages(writer.path(f"{split}.tails"), num_batches)
        self._index = np.zeros(num_batches, extents.INDEX_DTYPE)
        self._num_static = len(placer.static_nodes)
        self._row_bytes = graph.feature_file.row_bytes
        # Once: each minibatch's own labels would be read at random from a cold file.
        self._nodes = np.unique(graph.splits[split])
        self._labels = graph.labels_of(self._nodes)
        self._keep_input_nodes = placer.keep_input_nodes
        self._node_dtype = graph.indices.dtype
        node_type = pa.from_numpy_dtype(self._node_dtype) if placer.keep_input_nodes else None
        self._schema = extents.header_schema(samples.config.spec.num_layers, node_type)
        self._static_accesses = 0
        self._number = self._offset = 0  # of the next extent

    def __enter__(self) -> _HeaderWriter:
        self._nodes_file = self.nodes_path.open("wb")
        self._minibatches = self._samples.read(self._split)  # again, in the thread that writes
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes_file.close()
        self._minibatches.close()

    def write(self, placement: Placement) -> None:
        """Write the header of the next extent."""
        minibatch = next(self._minibatches)
        faults.point("pack.header")
        header = extents.encode_header(
            extents.Header(
                minibatch.seeds,
                self._labels[np.searchsorted(self._nodes, minibatch.seeds)],
                minibatch.only_blocks,
                placement.addresses,
                placement.admissions,
                minibatch.only_nodes if self._keep_input_nodes else None,
            ),
            self._schema,
        )
        num_inputs, num_rows = len(placement.addresses), len(placement.disk_nodes)
        record: Any = self._index[self._number]
        record["offset"] = self._offset
        num_bytes = extents.fill_record(
            record, header, num_inputs, num_rows, len(placement.admissions), self._row_bytes
        )
        record["header_crc32c"] = start_extent(
            self._pages, self._path, self._offset, np.frombuffer(header.message, np.uint8), int(record["rows_offset"]),
            self._tails[self._number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT], num_rows == 0,
        )  # fmt: skip
        self._nodes_file.write(placement.disk_nodes.data)
        mark_nodes(self._needed, placement.disk_nodes)
        self._static_accesses += int(np.count_nonzero(placement.addresses < self._num_static))
        self._offset += num_bytes
        self._number += 1

    def placed(self, schedule: Schedule) -> PlacedSplit:
        """What is left to write when all headers are."""
        assert self._number == len(self._index), (self._number, len(self._index))
        requested, disk = (int(self._index[name].sum()) for name in ("num_inputs", "num_rows"))
        static = self._static_accesses
        return PlacedSplit(
            name=self._split,
            index=self._index,
            bounds=np.concatenate([[0], np.cumsum(self._index["num_rows"])]).astype(np.int64),
            nodes_path=self.nodes_path,
            node_dtype=self._node_dtype,
            tails=self._tails,
            initial_cpu_nodes=schedule.initial_cpu_nodes,
            next_cycle_slots=schedule.next_cycle_slots,
            rows=TierRowCounts(requested, static, requested - static - disk, disk),
        )
