"""Writes the headers of one split, extent after extent, and notes what each extent consists of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, ROW_ALIGNMENT, PageWriter, mark_nodes, start_extent
from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import Placement, Schedule
from diskgnn.packing.reserving import scratch_pages
from diskgnn.packing.row_sets import RowSet
from diskgnn.storage import artifacts, faults
from diskgnn.storage.extent_headers import LABEL_DTYPES, Header, RowPlaces
from diskgnn.storage.extents import ExtentIndex, align
from diskgnn.storage.packed_config import PackedConfig, PackedRows, PackedSplit, TierRowCounts
from diskgnn.storage.samples import SampledBlock, SampledMinibatch, Samples
from diskgnn.storage.seed_files import read_given
from diskgnn.storage.writer import ArtifactWriter


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
    """One split after placement: headers are on disk, rows are still to come."""

    name: str  # train, valid or test
    index: ExtentIndex  # rows_crc32c still 0
    tails: npt.NDArray[np.uint8]  # [T * 4096] of each extent, the page that is not full yet
    row_sets: tuple[PlacedRows, ...]  # [K]

    def config(self, epochs: int, batches_per_epoch: int) -> PackedSplit:
        """What the packed directory says of it."""
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


class HeaderWriter:
    """Writes the headers of one split.

    Args:
        writer, pages: of the packed directory.
        graph: what was sampled.
        samples: what is placed.
        config: of the packed directory, as far as it is known before placing.
        row_sets: [K].
        split: train, valid or test.
        num_static: [K] static rows.
        needed: [K] each [N], to note the rows that extents have.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        graph: Graph,
        samples: Samples,
        config: PackedConfig,
        row_sets: Sequence[RowSet],
        split: str,
        *,
        num_static: Sequence[int],
        needed: Sequence[npt.NDArray[np.bool_]],
    ) -> None:
        num_batches = config.samples.splits[split].num_batches
        self._split, self._samples, self._pages = split, samples, pages
        self._needed, self._num_static = needed, num_static
        self._row_sets, self._layout = row_sets, config.header_layout()
        self._path = str(writer.path(artifacts.extents_file(split)))
        self._tails = scratch_pages(writer.path(f"{split}.tails"), num_batches)
        self._index = ExtentIndex.empty(num_batches, [row_set.row_bytes for row_set in row_sets])
        self._nodes_paths = [writer.path(f"{split}-{row_set.config.name}.nodes") for row_set in row_sets]
        self._node_dtypes: list[np.dtype[Any]] = [np.dtype(np.int32) for _ in row_sets]
        self._labels = None if config.target is None else _Labels.of(graph, samples, config, split)
        self._edge_ids = [edges.edge_ids for edges in graph.edges.values()] if config.keep_edge_ids else None
        self._static_accesses = [0] * len(row_sets)
        self._number = self._offset = 0  # of the next extent

    def __enter__(self) -> HeaderWriter:
        with ExitStack() as opening:
            self._nodes_files: list[BinaryIO] = [opening.enter_context(path.open("wb")) for path in self._nodes_paths]
            self._minibatches = self._samples.read(self._split)  # again, in the thread that writes
            opening.callback(self._minibatches.close)
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def write(self, placements: Sequence[Placement]) -> None:
        """Write the header of the next extent; `placements` [K] are those of the row sets."""
        minibatch = next(self._minibatches)
        faults.point("pack.header")
        number, layout = self._number, self._layout
        header = layout.encode(
            Header(
                seeds=minibatch.seeds,
                y=None if self._labels is None else self._labels.of_seeds(minibatch.seeds),
                node_counts=minibatch.node_counts,
                blocks=self._blocks(minibatch),
                rows=tuple(
                    RowPlaces(placement.addresses, placement.admissions, row_set.spread(minibatch))
                    for row_set, placement in zip(self._row_sets, placements, strict=True)
                ),
                input_nodes=tuple(
                    nodes if dtype is not None else None
                    for nodes, dtype in zip(minibatch.input_nodes, layout.node_dtypes, strict=True)
                ),
                trees=minibatch.trees,
                pairs=minibatch.pairs,
            )
        )
        num_rows = [len(placement.disk_nodes) for placement in placements]
        num_bytes = self._index.describe(number, self._offset, header, num_rows)
        self._index.extents["header_crc32c"][number] = start_extent(
            self._pages, self._path, self._offset, np.frombuffer(header.message, np.uint8),
            align(header.message.size, ROW_ALIGNMENT), self._tails[number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT],
            not any(num_rows),
        )  # fmt: skip
        for k, placement in enumerate(placements):
            self._nodes_files[k].write(placement.disk_nodes.data)
            self._node_dtypes[k] = placement.disk_nodes.dtype
            mark_nodes(self._needed[k], placement.disk_nodes)
            self._static_accesses[k] += int(np.count_nonzero(placement.addresses < self._num_static[k]))
        self._offset += num_bytes
        self._number += 1

    def _blocks(self, minibatch: SampledMinibatch) -> tuple[tuple[SampledBlock, ...], ...]:
        """With the user's edge ids in place of positions, if they are kept."""

        def with_ids(number: int, block: SampledBlock) -> SampledBlock:
            ids, positions = None if self._edge_ids is None else self._edge_ids[number], block.positions
            if self._edge_ids is None or positions is None:
                return SampledBlock(block.indptr, block.indices)
            found = positions.astype(np.int64) if ids is None else ids[positions]
            return SampledBlock(block.indptr, block.indices, found)

        return tuple(tuple(with_ids(e, block) for e, block in enumerate(blocks)) for blocks in minibatch.blocks)

    def placed(self, schedules: Sequence[Schedule]) -> PlacedSplit:
        """What is left to write when all headers are."""
        assert self._number == len(self._index), (self._number, len(self._index))
        return PlacedSplit(
            self._split, self._index, self._tails, tuple(self._rows(k, found) for k, found in enumerate(schedules))
        )

    def _rows(self, k: int, schedule: Schedule) -> PlacedRows:
        records = self._index.rows[:, k]
        requested, disk = (int(records[name].sum()) for name in ("num_inputs", "num_rows"))
        static = self._static_accesses[k]
        return PlacedRows(
            bounds=np.concatenate([[0], np.cumsum(records["num_rows"])]).astype(np.int64),
            nodes_path=self._nodes_paths[k],
            node_dtype=self._node_dtypes[k],
            initial_cpu_nodes=schedule.initial_cpu_nodes,
            next_cycle_slots=schedule.next_cycle_slots,
            rows=TierRowCounts(requested, static, requested - static - disk, disk),
        )


@dataclass(frozen=True)
class _Labels:
    """Those of a split's nodes, read once: each minibatch's own would be read at random from a cold file."""

    nodes: npt.NDArray[np.int64]  # ascending
    y: npt.NDArray[Any]  # [len(nodes)] or [len(nodes), C], in the dtype of a header's y

    @staticmethod
    def of(graph: Graph, samples: Samples, config: PackedConfig, split: str) -> _Labels:
        """Raises ArtifactError: the labels are damaged."""
        assert config.target is not None
        nodes = graph.nodes[str(config.schema().target)]
        given = read_given(samples.manifest, samples.config.spec).target.seeds
        of_split = np.unique((nodes.splits if given is None else given)[split])
        return _Labels(of_split, nodes.labels_of(of_split).astype(LABEL_DTYPES[config.target.kind], copy=False))

    def of_seeds(self, seeds: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """[B] or [B * C] y of seeds of the split."""
        return self.y[np.searchsorted(self.nodes, seeds)].reshape(-1)
