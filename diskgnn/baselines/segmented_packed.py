"""DiskGNN's design with its segmented disk cache: packed minibatches within a limit of disk space.

Liu et al., DiskGNN: Bridging I/O Efficiency and Model Accuracy for Out-of-Core GNN Training, SIGMOD 2025.
`segmented_packing` writes what is read here; `static_packed` is the design without a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from diskgnn._native import RowReader, crc32c, read_ranges
from diskgnn.baselines.epoch_source import EpochSource, RowCounts
from diskgnn.baselines.online import as_blocks
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.segmented_packing import CACHES, EXTENTS, INDEX, STATIC
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import MiniBatch
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts, extents
from diskgnn.storage.manifest import SEGMENTED
from diskgnn.storage.row_reading import ALIGNMENT, row_buffer, warn_if_no_io_uring

_AREAS = 2  # extents in memory: one is read while one is gathered from


class _Memory:
    """The static rows, and areas for extents: one buffer, so that a row in memory has one number."""

    def __init__(self, packed: artifacts.Manifest, index: npt.NDArray[Any], row_bytes: int, engine: str) -> None:
        unit = ALIGNMENT // np.gcd(row_bytes, ALIGNMENT)  # rows: areas start on pages and on rows

        def rows(num_bytes: int) -> int:
            return int(extents.align(-(-num_bytes // row_bytes), unit))

        static_bytes = packed.files[STATIC].bytes
        self._path, self._engine, self._row_bytes = str(packed.file(EXTENTS)), engine, row_bytes
        self._header_rows = rows(int(index["rows_offset"].max()))
        self._area_rows = self._header_rows + rows(int(index["num_rows"].max()) * row_bytes + ALIGNMENT)
        self._static_rows = rows(static_bytes + ALIGNMENT)
        total_rows = self._static_rows + _AREAS * self._area_rows
        self.bytes = row_buffer(total_rows, row_bytes)[: total_rows * row_bytes]
        if static_bytes:
            everything = np.array([0]), np.array([static_bytes])
            read_ranges(str(packed.file(STATIC)), engine, *everything, 0, self.bytes)

    def read_extent(self, record: Any, area: int) -> tuple[int, npt.NDArray[np.uint8], int]:
        """(number of the extent's first row, header as bytes, bytes read)."""
        first_row = self._static_rows + area * self._area_rows + self._header_rows
        # The header comes to lie before the rows.
        begin, offset = first_row * self._row_bytes - int(record["rows_offset"]), int(record["offset"])
        num_bytes = int(record["rows_offset"] + record["num_rows"] * self._row_bytes)
        if record["num_rows"] == 0:
            num_bytes = int(record["header_bytes"])
        read_ranges(self._path, self._engine, np.array([offset]), np.array([num_bytes]), offset, self.bytes[begin:])
        # A copy: the minibatch outlives the area.
        return first_row, self.bytes[begin : begin + int(record["header_bytes"])].copy(), num_bytes


class SegmentedPacked(EpochSource):
    """A `BatchSource` of the train split over a directory from `prepare_segmented_packed`.

    Kept of the original: all that `static_packed.StaticPacked` keeps; consecutive minibatches form segments, each with
    a disk cache of the rows that most of its minibatches need, stored once, in MinHash order of the minibatches that
    need them; the disk caches are the smallest with which the stored rows keep to a limit; a minibatch reads its extent
    in one piece and its rows of the disk cache page by page, each page once.

    Different: segments have 200 minibatches, as by the default of the authors' program, or as many more as the limit
    asks for, where their search tries many lengths and extrapolates from the first segment; rows that only one
    minibatch of a segment needs never go to its disk cache; graph blocks are read with the extent; pages are read by
    io_uring with up to 256 requests in flight, and neighbouring ones in one request; rows in memory are all in host
    memory.

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
        manifest = artifacts.open_artifact(packed, SEGMENTED)
        config = manifest.config
        super().__init__(graph, "train", fanouts=config["fanouts"], batch_size=config["batch_size"], seed=seed,
                         threads=_AREAS, sample_epochs=1)  # fmt: skip
        if manifest.source != {"format": artifacts.GRAPH, "digest": self._graph.manifest.digest}:
            raise ArtifactError(
                f"{manifest.path} was made from another graph than {self._graph.manifest.path}; prepare it again "
                "(prepare_segmented_packed)"
            )
        artifacts.verify_file(manifest, INDEX)  # a wrong one would give wrong rows
        self._packed, self._index = manifest, manifest.array(INDEX, mmap=False)
        if self._index.dtype != extents.INDEX_DTYPE or len(self._index) != self._num_batches:
            raise ArtifactError(f"{manifest.path}: its index is not one; prepare it again (prepare_segmented_packed)")
        self._row_bytes, self._num_static = int(config["row_bytes"]), int(config["num_static"])
        node_type = pa.from_numpy_dtype(config["node_dtype"]) if config["keep_input_nodes"] else None
        self._schema = extents.header_schema(len(config["fanouts"]), node_type)
        self._engine = engine
        num_cached = manifest.files[CACHES].bytes // self._row_bytes
        self._reader = RowReader(str(manifest.file(CACHES)), 0, self._row_bytes, num_cached, engine)
        self._memory: _Memory | None = None  # taken when the first epoch starts
        self._buffers = RowBuffers(self._graph)
        self._filled_rows = 0
        warn_if_no_io_uring(engine)

    def stats(self) -> Mapping[str, int | float]:
        """Those of every source, and filled_rows: static rows that were read before the first minibatch."""
        return {**super().stats(), "filled_rows": self._filled_rows}

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        order = permutation(self._num_batches, batch_key(self._seed, "train/order", epoch))
        if self._memory is None:
            self._memory = _Memory(self._packed, self._index, self._row_bytes, self._engine)
            self._filled_rows += self._num_static
        in_flight: deque[Future[tuple[MiniBatch, RowCounts]]] = deque()
        last_of_area: list[Future[Any] | None] = [None] * _AREAS
        with self._pools(read=1, gather=1) as (reader, gatherer):
            submitted = start
            for _ in range(start, self._num_batches):
                while submitted < self._num_batches and len(in_flight) < _AREAS:
                    area, number = submitted % _AREAS, int(order[submitted])
                    extent = reader.submit(self._read, submitted, number, area, last_of_area[area])
                    gathered = gatherer.submit(self._gather, epoch, submitted, number, extent)
                    in_flight.append(gathered)
                    last_of_area[area] = gathered
                    submitted += 1
                yield in_flight.popleft().result()

    def _read(
        self, index: int, number: int, area: int, user: Future[Any] | None
    ) -> tuple[int, npt.NDArray[np.uint8], int]:
        if user is not None:
            with suppress(CancelledError):
                user.exception()  # waits until nobody needs what is in the area
        assert self._memory is not None
        with self._traced("read", index):
            return self._memory.read_extent(self._index[number], area)

    def _gather(
        self, epoch: int, index: int, number: int, extent: Future[tuple[int, npt.NDArray[np.uint8], int]]
    ) -> tuple[MiniBatch, RowCounts]:
        first_row, data, extent_bytes = extent.result()
        assert self._memory is not None
        with self._traced("gather", index):
            header, num_rows = self._decode(number, data), int(self._index[number]["num_rows"])
            addresses, num_static = header.addresses, self._num_static
            first_cached = num_static + num_rows
            slots = np.where(addresses < num_static, addresses, addresses - num_static + first_row)
            is_cached = addresses >= first_cached
            slots[is_cached] = -1
            rows = np.where(is_cached, addresses - first_cached, 0)
            x, x_bytes = self._buffers.take(len(addresses))
            requests, read_bytes = self._reader.gather(
                rows, slots.astype(np.int32, copy=False), np.empty(0, np.int32), self._memory.bytes, x_bytes
            )
        cached = int(np.count_nonzero(is_cached))
        nodes = header.input_nodes
        batch = MiniBatch(
            x=x,
            y=torch.from_numpy(header.labels.copy()),
            blocks=as_blocks(header.seeds, addresses, [(a.copy(), b.copy()) for a, b in header.blocks]).blocks,
            seeds=torch.from_numpy(header.seeds.copy()),
            epoch=epoch,
            index=index,
            input_nodes=None if nodes is None else torch.from_numpy(nodes.astype(np.int64)),
        )
        return batch, RowCounts(
            pinned_rows=len(addresses) - num_rows - cached,
            disk_rows=num_rows + cached,
            read_bytes=extent_bytes + read_bytes,
            read_requests=requests + 1,
        )

    def _decode(self, number: int, data: npt.NDArray[np.uint8]) -> extents.Header:
        record, error = self._index[number], "its header does not have the checksum that was written"
        if crc32c(data) == record["header_crc32c"]:
            try:
                header = extents.decode_header(data, self._schema)
                if len(header.addresses) == record["num_inputs"]:
                    return header
                error = "its header has another number of inputs than the index"
            except (pa.ArrowException, EOFError, OSError) as damage:
                error = str(damage)
        raise ArtifactError(
            f"extent {number} of {self._packed.file(EXTENTS)} is damaged: {error}; check with `diskgnn verify "
            f"{self._packed.path}`, prepare it again"
        )

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "packed": self._packed.digest}

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the rows in memory. Idempotent."""
        super().close()
        self._memory = None
        self._buffers.clear()
