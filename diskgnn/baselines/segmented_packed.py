"""DiskGNN's design with its segmented disk cache: packed minibatches within a limit of disk space.

Liu et al., DiskGNN: Bridging I/O Efficiency and Model Accuracy for Out-of-Core GNN Training, SIGMOD 2025.
`segmented_packing` writes what is read here; `static_packed` is the design without a limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from diskgnn._native import DIRECT_ALIGNMENT, RowReader, crc32c, read_ranges
from diskgnn.baselines.epoch_source import EpochSource
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.sampling_source import as_blocks
from diskgnn.baselines.segments import CACHES, EXTENTS, STATIC, Segmented
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.files.row_reading import row_buffer
from diskgnn.formats.extent_headers import decode_header
from diskgnn.formats.extents import align
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.ordered import in_order, submitted
from diskgnn.paths import PathLike

_AREAS = 2  # extents in memory: one is read while one is gathered from


class _Extent(NamedTuple):
    """Holds what was read of one minibatch's extent."""

    number: int  # of the extent
    first_row: int  # where its rows begin in memory
    header: npt.NDArray[np.uint8]
    read_bytes: int


class _Memory:
    """The static rows, and areas for extents: one buffer, so that a row in memory has one number."""

    def __init__(self, segments: Segmented, engine: str) -> None:
        row_bytes, files, index = segments.config.row_bytes, segments.manifest, segments.index
        unit = DIRECT_ALIGNMENT // np.gcd(row_bytes, DIRECT_ALIGNMENT)  # rows: areas start on pages and on rows

        def rows(num_bytes: int) -> int:
            return int(align(-(-num_bytes // row_bytes), unit))

        static_bytes = files.files[STATIC].bytes
        self._path, self._engine, self._row_bytes, self._index = files.local(EXTENTS), engine, row_bytes, index
        self._header_rows = rows(int(index["rows_offset"].max()))
        self._area_rows = self._header_rows + rows(int(index["num_rows"].max()) * row_bytes + DIRECT_ALIGNMENT)
        self._static_rows = rows(static_bytes + DIRECT_ALIGNMENT)
        total_rows = self._static_rows + _AREAS * self._area_rows
        self.bytes = row_buffer(total_rows, row_bytes)[: total_rows * row_bytes]
        if static_bytes:
            everything = np.array([0]), np.array([static_bytes]), np.array([0])
            read_ranges(os.fspath(files.local(STATIC)), engine, *everything, self.bytes)

    def read_extent(self, number: int, area: int) -> _Extent:
        """Reads extent `number` into an area that nobody uses."""
        record: Any = self._index[number]
        first_row = self._static_rows + area * self._area_rows + self._header_rows
        # The header comes to lie before the rows.
        begin, offset = first_row * self._row_bytes - int(record["rows_offset"]), int(record["offset"])
        num_bytes = int(record["rows_offset"] + record["num_rows"] * self._row_bytes)
        if record["num_rows"] == 0:
            num_bytes = int(record["header_bytes"])
        read_ranges(
            os.fspath(self._path),
            self._engine,
            np.array([offset]),
            np.array([num_bytes]),
            np.array([0]),
            self.bytes[begin:],
        )
        header = self.bytes[begin : begin + int(record["header_bytes"])].copy()  # the minibatch outlives the area
        return _Extent(number, first_row, header, num_bytes)


class SegmentedPacked(EpochSource):
    """A `BatchSource` of the train split over a directory from `prepare_segmented_packed`.

    Kept of the original: all that `static_packed.StaticPacked` keeps. Consecutive minibatches form segments, each with
    a disk cache of the rows that most of its minibatches need, stored once, in MinHash order of the minibatches that
    need them. The disk caches are the smallest with which the stored rows keep to a limit. A minibatch reads its extent
    in one piece and its rows of the disk cache page by page, each page once.

    Different: segments have 200 minibatches, as by the default of the authors' program, or as many more as the limit
    asks for, where their search tries many lengths and extrapolates from the first segment. Rows that only one
    minibatch of a segment needs never go to its disk cache. Graph blocks are read with the extent. Pages are read by
    io_uring with up to 256 requests in flight, and neighbouring ones in one request. Rows in memory are all in host
    memory, and count as pinned_rows; filled_rows are those that were read before the first minibatch.

    Args:
        graph: the graph directory that was prepared, or an opened one.
        packed: directory.
        seed: of the order of the minibatches; same seed, same order.
        engine: 'auto', 'io_uring' or 'threads'.

    Raises:
        ArtifactError: not such a directory, damaged, or made from another graph.

    Example:
        >>> prepare_segmented_packed("graph", "packed", fanouts=[10, 10], batch_size=1024, static_cache="10%",
        ...                          disk_limit="20GiB")
        >>> with SegmentedPacked("graph", "packed") as source:
        ...     diskgnn.train(source, epochs=10)
    """

    name = "segmented-packed"

    def __init__(self, graph: PathLike | Graph, packed: PathLike, *, seed: int = 0, engine: str = "auto") -> None:
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        self._segments = found = Segmented.open(packed, graph)
        config = found.config
        super().__init__(graph, "train", fanouts=config.fanouts, batch_size=config.batch_size, seed=seed,
                         threads=_AREAS, sample_epochs=1)  # fmt: skip
        self._identify(packed=found.manifest.digest)
        self._engine, self._layout = engine, found.header_layout(graph.num_nodes)
        path = os.fspath(found.manifest.local(CACHES))
        self._reader = RowReader(path, 0, config.row_bytes, found.num_cached, engine)
        self._memory: _Memory | None = None  # taken when the first epoch starts
        self._buffers = RowBuffers(graph.feature_file.rows)
        warn_if_no_io_uring(engine)

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, LoadStats], None, None]:
        order = permutation(self.num_batches, batch_key(self.spec.seed, "train/order", epoch)).tolist()
        if self._memory is None:
            self._memory = _Memory(self._segments, self._engine)
            self._stats += LoadStats(filled_rows=self._segments.config.num_static)
        with self._pools(read=1, gather=1) as (reader, gatherer):
            numbers = range(start, self.num_batches)
            extents_read = submitted(reader, (partial(self._read, number, order[number]) for number in numbers), 0)
            gathers = (
                partial(self._gather, future.result, epoch, number)
                for number, future in zip(numbers, extents_read, strict=True)
            )
            # No more minibatches are under way than there are areas: who reads into one finds it free.
            yield from in_order(gatherer, gathers, _AREAS - 1)

    def _read(self, number: int, extent: int) -> _Extent:
        assert self._memory is not None
        with self._traced("read", number):
            return self._memory.read_extent(extent, number % _AREAS)

    def _gather(self, extent: Callable[[], _Extent], epoch: int, number: int) -> tuple[MiniBatch, LoadStats]:
        found = extent()
        assert self._memory is not None
        with self._traced("gather", number):
            header, num_rows = self._decode(found), int(self._segments.index[found.number]["num_rows"])
            addresses, num_static = header.rows[0].addresses, self._segments.config.num_static
            first_cached = num_static + num_rows
            slots = np.where(addresses < num_static, addresses, addresses - num_static + found.first_row)
            is_cached = addresses >= first_cached
            slots[is_cached] = -1
            rows = np.where(is_cached, addresses - first_cached, 0)
            x, x_bytes = self._buffers.take(len(addresses))
            requests, read_bytes = self._reader.gather(
                rows, slots.astype(np.int32, copy=False), np.empty(0, np.int32), self._memory.bytes, x_bytes
            )
        cached = int(np.count_nonzero(is_cached))
        nodes = header.input_nodes[0]
        batch = MiniBatch(
            x=x,
            y=torch.from_numpy(np.array(header.y)),
            blocks=as_blocks(len(addresses), [(b.indptr.copy(), b.indices.copy()) for (b,) in header.blocks]),
            seeds=torch.from_numpy(header.seeds.copy()),
            epoch=epoch,
            batch_index=number,
            input_nodes=None if self._layout.node_dtypes == (None,) else torch.from_numpy(nodes.astype(np.int64)),
        )
        return batch, LoadStats(
            pinned_rows=len(addresses) - num_rows - cached,
            disk_rows=num_rows + cached,
            read_bytes=found.read_bytes + read_bytes,
            read_requests=requests + 1,
        )

    def _decode(self, extent: _Extent) -> SampledMinibatch:
        record, error = self._segments.index[extent.number], "its header does not have the checksum that was written"
        if crc32c(extent.header) == record["header_crc32c"]:
            try:
                header = decode_header(extent.header, self._layout)
                if len(header.rows[0].addresses) == record["num_inputs"]:
                    return header
                error = "its header has another number of inputs than the index"
            except (pa.ArrowException, EOFError, OSError, ValueError) as damage:
                error = str(damage)
        manifest = self._segments.manifest
        raise ArtifactError(
            f"extent {extent.number} of {manifest.local(EXTENTS)} is damaged: {error}; check with `diskgnn verify "
            f"{manifest.path}`, prepare it again"
        )

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the rows in memory. Idempotent."""
        super().close()
        self._memory = None
        self._buffers.clear()
