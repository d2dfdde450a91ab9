"""Edges into a window of destinations, read from front to back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskgnn.batches.blocks import Block
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.row_reading import read_span
from diskgnn.files.traffic import Traffic
from diskgnn.formats.feature_scan import read_checked_span
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.inference.sizes import CHUNK_ROWS, EDGE_BUFFER_BYTES
from diskgnn.stores.locations import Location


class EdgeFiles:
    """The files of the edges of one type. Threads may share it.

    Args:
        graph: of the edges.
        edges: of one type.
        with_features: blocks have the features of edges, if there are some.
        traffic: what is read is counted there.
    """

    def __init__(self, graph: Graph, edges: EdgeSet, *, with_features: bool, traffic: Traffic) -> None:
        self.edges, self.traffic = edges, traffic
        self.num_src = graph.nodes[edges.type[0]].num_nodes
        self.features = edges.feature_file if with_features else None
        self._indptr, self._indices = ((path, npy_data_offset(path)) for path in
                                       map(edges.manifest.file, edges.topology_files))  # fmt: skip

    def indptr(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Returns [last - first + 1] offsets of the edges into destinations [first, last)."""
        return self._read(self._indptr, 8 * first, 8 * (last + 1 - first)).view(np.int64)

    def indices(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Returns the sources of edges [begin, end), at least one."""
        dtype = self.edges.id_dtype
        return self._read(self._indices, begin * dtype.itemsize, (end - begin) * dtype.itemsize).view(dtype)

    def all_indices(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the sources of all edges, some at a time."""
        step = EDGE_BUFFER_BYTES // 4 // self.edges.id_dtype.itemsize
        for first in range(0, self.edges.num_edges, step):
            yield self.indices(first, min(first + step, self.edges.num_edges))

    def _read(self, file: tuple[Location, int], begin: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        self.traffic.add(edges=num_bytes)
        return read_span(file[0], file[1] + begin, num_bytes)


class EdgeWindow:
    """The edges of one type into destinations [first, last), at least one."""

    def __init__(self, files: EdgeFiles, first: int, last: int) -> None:
        self._files, self._first = files, first
        self._indptr = files.indptr(first, last)
        self._indices: npt.NDArray[Any] = np.empty(0, files.edges.id_dtype)
        self._begin = self._end = int(self._indptr[0])  # which edges `_indices` has

    def block(self, first: int, last: int) -> Block:
        """Returns the edges into [first, last); asked for from front to back. Valid until the next one."""
        files, offsets = self._files, self._indptr[first - self._first : last + 1 - self._first]
        begin, end = int(offsets[0]), int(offsets[-1])
        if end > self._end:
            self._begin, self._end = begin, max(end, self._fitting(begin))
            self._indices = self._indices[:0].copy()  # frees its memory before the next ones take theirs
            self._indices = files.indices(self._begin, self._end)
        indices, edge_x = self._indices[begin - self._begin : end - self._begin], None
        if files.features is not None and end > begin:
            rows, read_bytes = read_checked_span(files.features, files.edges.feature_checksums, begin, end)
            files.traffic.add(edges=read_bytes)
            edge_x = files.features.x(files.features.rows.as_tensor(rows))
        indptr = torch.from_numpy((offsets - begin).astype(indices.dtype))
        return Block(indptr, torch.from_numpy(indices), files.num_src, edge_x=edge_x)

    def _fitting(self, begin: int) -> int:
        """Returns the end of the last chunk of edges that fits in the buffer, too."""
        ends = np.append(self._indptr[:-1:CHUNK_ROWS], self._indptr[-1:])
        most = begin + EDGE_BUFFER_BYTES // self._indices.itemsize
        return int(ends[ends <= most].max(initial=begin))
