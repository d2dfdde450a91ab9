"""Reads x of a node type, with which hops begin: as it is stored, or made as float32 of tables that keep columns."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.formats.feature_scan import read_checked_span
from diskgnn.formats.graph_config import NodeTypeConfig
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import FeatureFile, RowFormat
from diskgnn.graph.type_data import NodeSet
from diskgnn.propagation.needed_rows import RankedNodes
from diskgnn.propagation.record_order import window_rows

_SPANS_HELD = 4  # windows of rows: two that are read, one in use, its stripes
_PART_ROWS = 4096  # of records, of which x is made at a time
_PART_ROW_BYTES = 64  # that it takes for each of them beside what is delivered: a column in float64, some times


def hop_rows(config: NodeTypeConfig) -> RowFormat | None:
    """Returns how x of a node type lies where hops begin; None: it has no features."""
    if config.is_constant or isinstance(config.rows, RecordFormat):
        assert config.num_features is not None
        return RowFormat("float32", config.num_features)
    return config.rows


@dataclass(frozen=True)
class HopFeatures:
    """Reads x of the nodes of one type, which has features, a window of nodes at a time."""

    nodes: NodeSet

    @cached_property
    def rows(self) -> RowFormat:
        """Returns the format of the rows that are read."""
        found = hop_rows(self.nodes.config)
        assert found is not None
        return found

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns."""
        return self.rows.num_features

    @property
    def file(self) -> FeatureFile | None:
        """Returns the file that they are read from; None of a constant, which has none."""
        return self.nodes.feature_file

    @property
    def quantisation(self) -> Quantisation | None:
        """Returns what the codes of rows mean; None of numbers, as which x of records is."""
        return None if self.file is None or self.is_viewed else self.file.quantisation

    @property
    def is_viewed(self) -> bool:
        """Returns True if x is made from records."""
        return self.file is not None and self.file.view is not None

    @property
    def window_rows(self) -> int:
        """Returns how many nodes a window has at most: whole words of the bits of a set."""
        row_bytes = self.rows.row_bytes if self.file is None else max(self.rows.row_bytes, self.file.file_row_bytes)
        return -(-window_rows(row_bytes) // 64) * 64

    @property
    def most_bytes(self) -> int:
        """Returns the memory that reading takes."""
        most_rows = min(self.window_rows, self.nodes.num_nodes)
        found = _SPANS_HELD * most_rows * self.rows.row_bytes
        if self.file is not None and isinstance(self.file.rows, RecordFormat):
            found += most_rows * self.file.file_row_bytes
            found += most_rows * self.file.row_bytes * (self.file.projection is not None)
            found += min(_PART_ROWS, most_rows) * (self.file.rows.delivered_row_bytes + _PART_ROW_BYTES)
        return found

    @property
    def checksums_bytes(self) -> int:
        """Returns the bytes of the checksums, which are read once."""
        return 0 if self.file is None else 4 * -(-self.file.file_bytes // CHECKSUM_CHUNK_BYTES)

    def windows(self, needed: RankedNodes) -> Iterator[tuple[int, int]]:
        """Yields [first, last) of the nodes whose rows are read at a time: without those before and after, if they are
        not needed."""
        num_nodes, step = self.nodes.num_nodes, self.window_rows
        for first in range(0, num_nodes, step):
            members = np.flatnonzero(needed.members(first, min(first + step, num_nodes)))
            if len(members):
                yield first + int(members[0]), first + int(members[-1]) + 1

    def read_bytes(self, first: int, last: int) -> int:
        """Returns how many bytes are read for the rows of such a window: all chunks that have a checksum."""
        if self.file is None:
            return 0
        begin, end = (self.file.data_offset_bytes + node * self.file.file_row_bytes for node in (first, last))
        end = min(-(-end // CHECKSUM_CHUNK_BYTES) * CHECKSUM_CHUNK_BYTES, self.file.file_bytes)
        return end - begin // CHECKSUM_CHUNK_BYTES * CHECKSUM_CHUNK_BYTES

    def read(self, first: int, wanted: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.uint8], int]:
        """Returns bytes with the rows of nodes from `first` on, of which only those `wanted` count, and how many bytes
        were read.

        Raises:
            ArtifactError: a chunk that was read is damaged.
            OSError: the file cannot be read, or ends early.
        """
        if self.file is None:
            return np.ones(len(wanted), np.float32).view(np.uint8), 0
        data, num_bytes = read_checked_span(
            self.file, self.nodes.feature_checksums, first, first + len(wanted)
        )  # fmt: skip
        return self._x(self.file, data, wanted) if self.is_viewed else data, num_bytes

    def _x(
        self, file: FeatureFile, data: npt.NDArray[np.uint8], wanted: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint8]:
        stored = file.rows.as_tensor(data)
        memory = page_memory(len(wanted) * self.rows.row_bytes)
        x = self.rows.as_tensor(memory)
        for begin in range(0, len(wanted), _PART_ROWS):
            chosen = begin + np.flatnonzero(wanted[begin : begin + _PART_ROWS])
            if len(chosen):
                x[chosen] = file.x(stored[chosen])
        return memory


@contextmanager
def viewing(sources: Iterable[HopFeatures]) -> Generator[None, None, None]:
    """Lets torch make x of records with the thread that reads them, no more of them; nothing where there are none."""
    if not any(each.is_viewed for each in sources):
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load_what_views(sources: Iterable[HopFeatures]) -> None:
    """Loads torch if x is made from records: the memory that it takes is then among what the process holds."""
    if any(each.is_viewed for each in sources):
        import_module("torch")
