"""The graph directory: reading it. `importers` and `generation` write it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.specs import SPLITS, PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.checked_files import CHECKSUM_CHUNK_BYTES, npy_data_offset
from diskgnn.storage.graph_config import GraphConfig
from diskgnn.storage.manifest import Manifest, open_artifact
from diskgnn.storage.quantisation import Quantisation
from diskgnn.storage.row_format import FeatureFile


@dataclass(frozen=True)
class Graph:
    """An opened graph directory. Arrays but the splits are read-only memory maps: not loaded, and not checked."""

    manifest: Manifest
    indptr: npt.NDArray[np.int64]  # [N+1]: in-neighbours of v are indices[indptr[v]:indptr[v+1]] (CSC)
    indices: npt.NDArray[Any]  # [E] int32 when N < 2^31, otherwise int64
    labels: npt.NDArray[np.int64]  # [N], -1 where a node has none
    splits: dict[str, npt.NDArray[np.int64]]  # split name -> node ids, in the order given; loaded and checked

    @staticmethod
    def open(path: PathLike) -> Graph:
        """Open a graph directory.

        Raises:
            ArtifactError: see `open_artifact`, or its config is not one, its files are not of one graph, or
                a split is damaged.
        """
        manifest = open_artifact(path, artifacts.GRAPH)
        files = {split: artifacts.split_file(split) for split in SPLITS}
        graph = Graph(
            manifest,
            manifest.array(artifacts.INDPTR),
            manifest.array(artifacts.INDICES),
            manifest.array(artifacts.LABELS),
            {split: manifest.checked_array(file) for split, file in files.items() if file in manifest.files},
        )
        graph._check_files_fit()
        return graph

    def _check_files_fit(self) -> None:
        """Whether the files are of one graph, as far as can be seen without reading them."""
        indptr, indices = self.indptr, self.indices
        valid = indptr.dtype == np.int64 and indptr.ndim == 1 and len(indptr) > 0
        valid = valid and indices.dtype in (np.int32, np.int64) and indices.ndim == 1
        if not valid or indptr[0] != 0 or indptr[-1] != len(indices):
            raise ArtifactError(
                f"{self.manifest.path} holds no CSC matrix ({artifacts.INDPTR} and {artifacts.INDICES} do not fit each "
                f"other); make it with `diskgnn convert` again"
            )
        checksums = self.manifest.files.get(artifacts.FEATURE_CHECKSUMS)
        config, features = self.config, self.manifest.files.get(artifacts.FEATURES)
        shape = (self.num_nodes, config.rows.stored_columns)
        valid = features is not None and (features.dtype, features.shape) == (config.rows.storage.str, shape)
        if features is not None and valid:
            num_chunks = -(-features.bytes // CHECKSUM_CHUNK_BYTES)
            valid = checksums is not None and (checksums.dtype, checksums.shape) == ("<u4", (num_chunks,))
        if not valid or {len(self.labels), config.num_nodes} != {self.num_nodes}:
            raise ArtifactError(
                f"{self.manifest.path} has no row of features or no label for each of its {self.num_nodes} nodes; "
                f"make it with `diskgnn convert` again"
            )

    @cached_property
    def config(self) -> GraphConfig:
        """What its manifest says of it."""
        return self.manifest.parsed(GraphConfig.parse)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @property
    def topology_bytes(self) -> int:
        """Of `indptr` and `indices`, loaded."""
        return self.indptr.nbytes + self.indices.nbytes

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        return self.config.num_classes

    def topology(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """`indptr` and `indices` read into memory (not mapped as well, which would count twice) and checked.

        Raises:
            ArtifactError: one is damaged.
        """
        return self.manifest.checked_array(artifacts.INDPTR), self.manifest.checked_array(artifacts.INDICES)

    def topology_at_random(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """`indptr` and `indices`, as memory maps that read no more than what is touched."""
        read_at_random(self.indptr)
        read_at_random(self.indices)
        return self.indptr, self.indices

    @cached_property
    def feature_file(self) -> FeatureFile:
        """Where the feature rows lie, and what they mean.

        Raises:
            ArtifactError: what the codes of quantised rows mean is damaged.
        """
        path, rows = self.manifest.file(artifacts.FEATURES), self.config.rows
        quantisation = Quantisation.read(self.manifest, rows.dtype, rows.num_features)
        return FeatureFile(path, npy_data_offset(path), self.num_nodes, rows, quantisation)

    @cached_property
    def feature_checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32C of each CHECKSUM_CHUNK_BYTES of the feature file, its header included.

        Raises:
            ArtifactError: they are damaged themselves.
        """
        return self.manifest.checked_array(artifacts.FEATURE_CHECKSUMS)

    def labels_of(self, nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """[n] labels of ascending `nodes` [n]; all labels are read, front to back, and checked.

        Raises:
            ArtifactError: they are damaged.
        """
        return self.manifest.take(artifacts.LABELS, nodes).astype(np.int64)

    @cached_property
    def features(self) -> npt.NDArray[Any]:
        """[N, D] memory map of the features as stored: bfloat16 as uint16, int4 as uint8 [N, ceil(D / 2)]."""
        return self.manifest.array(artifacts.FEATURES)


def read_at_random(mapped: npt.NDArray[Any]) -> None:
    """Let a memory map read no more than what is touched: read-ahead would read megabytes for each value."""
    memory = getattr(mapped, "_mmap", None)  # NumPy's own; an empty array has none
    if memory is not None:
        memory.madvise(mmap.MADV_RANDOM)
