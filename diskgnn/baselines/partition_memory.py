"""The partitions in memory: their rows, their ids, and a sampler over the edges between them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, NeighborSampler, read_ranges
from diskgnn.baselines.partitions import EDGE_BYTES, EDGES, FEATURES, Partitions
from diskgnn.files import faults
from diskgnn.files.row_reading import row_buffer
from diskgnn.formats.graph_config import id_dtype

_READERS = 4
Edges = npt.NDArray[np.int32]  # [n, 2] destination and source, as positions in their partitions; by destination


@dataclass(frozen=True)
class BufferState:
    """Holds what a buffer state's minibatches are made from. Node ids are places in the buffer: slot * stride +
    position.
    """

    sampler: NeighborSampler  # over the edges between resident partitions
    nodes: npt.NDArray[np.int64]  # [slots * stride] the graph's ids
    slot_of: npt.NDArray[np.int64]  # [p] where each resident partition is
    # What was read for it:
    loaded_rows: int
    read_bytes: int
    read_requests: int


class PartitionMemory:
    """The partitions in memory. `load` is for one thread at a time."""

    def __init__(self, partitions: Partitions, num_slots: int, engine: str) -> None:
        self._partitions, self._engine = partitions, engine
        self._stride, self._row_bytes = partitions.config.stride, partitions.config.row_bytes
        memory = row_buffer(num_slots * self._stride, self._row_bytes)
        self.rows = memory[: num_slots * partitions.partition_bytes]  # [slots * stride * row_bytes]
        self._slot_rows = self.rows.reshape(num_slots, -1)
        self._slots = np.full(num_slots, -1, np.int64)  # the partition in each slot
        self._buckets: dict[tuple[int, int], Edges] = {}  # by (destination's, source's partition), both resident
        self._nodes = np.zeros((num_slots, self._stride), np.int64)

    def load(self, slots: npt.NDArray[np.int64]) -> BufferState:
        """Read what is missing for `slots` to hold these partitions; slots that keep theirs are not touched.

        Raises:
            OSError: the partitions cannot be read.
        """
        entering = np.flatnonzero((slots >= 0) & (slots != self._slots)).tolist()
        self._slots[entering] = -1  # also should reading fail
        resident = set(slots[slots >= 0].tolist())
        self._buckets = {pair: edges for pair, edges in self._buckets.items() if resident.issuperset(pair)}
        missing = [pair for pair in product(sorted(resident), repeat=2) if pair not in self._buckets]
        with ThreadPoolExecutor(_READERS) as readers:  # buckets may be small: several at a time keep the disk busy
            row_counts = readers.map(self._read_rows, entering, slots[entering].tolist())
            buckets = readers.map(self._read_bucket, *zip(*missing, strict=True)) if missing else iter(())
            rows = sum(row_counts)
            self._buckets.update(zip(missing, buckets, strict=True))
        self._slots[entering] = slots[entering]
        slot_of = np.full(self._partitions.config.num_partitions, -1, np.int64)
        slot_of[slots[slots >= 0]] = np.flatnonzero(slots >= 0)
        return BufferState(
            sampler=self._sampler(slots),
            nodes=self._nodes.reshape(-1).copy(),
            slot_of=slot_of,
            loaded_rows=rows,
            read_bytes=rows * (self._row_bytes + self._partitions.nodes.itemsize)
            + sum(self._buckets[pair].nbytes for pair in missing),
            read_requests=len(entering) + len(missing),
        )

    def _read_rows(self, slot: int, partition: int) -> int:
        """Read a partition's rows and ids into a slot; how many."""
        partitions = self._partitions
        first, last = int(partitions.starts[partition]), int(partitions.starts[partition + 1])
        offset, num_bytes = partition * partitions.partition_bytes, (last - first) * self._row_bytes
        self._read(FEATURES, offset, num_bytes, offset, self._slot_rows[slot])
        self._nodes[slot, : last - first] = partitions.nodes[first:last]
        return last - first

    def _read_bucket(self, destination: int, source: int) -> Edges:
        first, last = self._partitions.buckets[destination, source : source + 2].tolist()
        if first == last:
            return np.empty((0, 2), np.int32)
        offset, num_bytes = first * EDGE_BYTES, (last - first) * EDGE_BYTES
        base = offset // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
        buffer = row_buffer(last - first, EDGE_BYTES)
        self._read(EDGES, offset, num_bytes, base, buffer)
        return buffer[offset - base : offset - base + num_bytes].view(np.int32).reshape(-1, 2)

    def _read(self, name: str, offset: int, num_bytes: int, base: int, buffer: npt.NDArray[np.uint8]) -> None:
        """Read a part of a file, of which byte `base` belongs at the start of `buffer`."""
        faults.point("partition.read")
        path = os.fspath(self._partitions.manifest.local(name))
        read_ranges(path, self._engine, np.array([offset]), np.array([num_bytes]), np.array([offset - base]), buffer)

    def _sampler(self, slots: npt.NDArray[np.int64]) -> NeighborSampler:
        """Samples the edges between the partitions in `slots`: in-neighbours by slot, then as in the graph."""
        stride = self._stride
        resident = [(slot, int(slots[slot])) for slot in np.flatnonzero(slots >= 0).tolist()]
        degrees = np.zeros((len(slots), stride), np.int64)
        counts = {}
        for slot, destination in resident:
            for _, source in resident:
                found = np.bincount(self._buckets[destination, source][:, 0], minlength=stride)
                counts[destination, source] = found
                degrees[slot] += found
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        indices = np.empty(int(indptr[-1]), id_dtype(len(slots) * stride))
        for slot, destination in resident:
            cursor = indptr[slot * stride : (slot + 1) * stride].copy()
            for source_slot, source in resident:
                edges, found = self._buckets[destination, source], counts.pop((destination, source))
                # The edges of a destination lie together: edge e of the bucket goes `e - first of its destination`
                # places behind the cursor of its destination.
                shift = cursor - (np.cumsum(found) - found)
                indices[np.arange(len(edges)) + np.repeat(shift, found)] = edges[:, 1] + source_slot * stride
                cursor += found
        return NeighborSampler(indptr, indices)
