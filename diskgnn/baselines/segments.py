"""Packed minibatches within a limit of disk space: `segmented_packing` writes them, `segmented_packed` reads them.

| file | dtype and shape | content |
|---|---|---|
| `static.bin` | | the rows that the sampled epoch needs most often, hottest first |
| `extents.bin` | | per minibatch, each part from a page boundary on: an extent's header, its rows sorted by node |
| `index.npy` | `INDEX_DTYPE` [T] | where the parts of each extent are |
| `caches.bin` | | the disk caches, segment after segment: rows that several minibatches of a segment share |

Addresses in a header: [0, S) static, [S, S + R) row of the extent, S + R + i row i of caches.bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.records import Record, one_of
from diskgnn.formats.verification import verify_file
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike

STATIC, EXTENTS, INDEX, CACHES = "static.bin", "extents.bin", "index.npy", "caches.bin"
INDEX_DTYPE = np.dtype(
    [
        ("offset", "<i8"),  # of the extent in the file, bytes
        ("header_bytes", "<i8"),
        ("header_crc32c", "<i8"),
        ("rows_offset", "<i8"),  # of row 0, from the extent's start, bytes
        ("num_rows", "<i8"),  # R
        ("num_inputs", "<i8"),  # U
    ]
)


@dataclass(frozen=True)
class SegmentedRowCounts:
    """Input rows of the sampled epoch, by where they are."""

    requested: int = 0
    static: int = 0
    cached: int = 0  # in the disk cache of their segment
    packed: int = 0  # in the extent of their minibatch

    def __add__(self, other: SegmentedRowCounts) -> SegmentedRowCounts:
        return SegmentedRowCounts(
            self.requested + other.requested,
            self.static + other.static,
            self.cached + other.cached,
            self.packed + other.packed,
        )


@dataclass(frozen=True)
class SegmentedConfig(Record):
    """Says what the segments were made from, and how."""

    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    row_bytes: int
    disk_limit: int  # of rows in extents and disk caches, bytes
    keep_input_nodes: bool
    node_dtype: Annotated[str, one_of("int32", "int64")]
    num_static: int  # S
    segment_batches: int  # minibatches in a segment
    cached_rows: int  # in each disk cache, at most
    rows: SegmentedRowCounts
    batches_per_epoch: int


@dataclass(frozen=True)
class Segmented:
    """An opened directory of segments."""

    manifest: Manifest
    index: npt.NDArray[Any]  # [T] INDEX_DTYPE

    @staticmethod
    def open(path: PathLike, graph: Graph) -> Segmented:
        """Open the segments of `graph`.

        Raises:
            ArtifactError: see `manifest.open_pinned`; or those of another graph, or damaged.
        """
        manifest = open_pinned(path, artifacts.DERIVED)
        if manifest.source != {"format": artifacts.GRAPH, "digest": graph.manifest.digest}:
            raise ArtifactError(
                f"{manifest.path} was made from another graph than {graph.manifest.path}; prepare it again "
                "(prepare_segmented_packed)"
            )
        verify_file(manifest, INDEX)  # a wrong one would give wrong rows
        found = Segmented(manifest, manifest.array(INDEX, mmap=False))
        if found.index.dtype != INDEX_DTYPE or len(found.index) != found.config.batches_per_epoch:
            raise ArtifactError(f"{manifest.path}: its index is not one; prepare it again (prepare_segmented_packed)")
        return found

    @cached_property
    def config(self) -> SegmentedConfig:
        """Returns what they were made from, and how."""
        return self.manifest.parsed(SegmentedConfig.parse)

    def header_layout(self, num_nodes: int) -> MinibatchLayout:
        """Returns the columns of the extents' headers."""
        config = self.config
        node_dtype = config.node_dtype if config.keep_input_nodes else None
        return MinibatchLayout.of_one_type(len(config.fanouts), num_nodes, node_dtype)

    @property
    def num_cached(self) -> int:
        """Returns the rows of all disk caches."""
        return self.manifest.files[CACHES].bytes // self.config.row_bytes
