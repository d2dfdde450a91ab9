"""The graph directory: reading it. `importers` and `generation` write it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import Manifest
from diskgnn.storage.row_format import FEATURE_STORAGE, FeatureFile, RowFormat


@dataclass(frozen=True)
class Graph:
    """An opened graph directory. Arrays are read-only memory maps; nothing is loaded until it is touched."""

    manifest: Manifest
    indptr: npt.NDArray[np.int64]  # [N+1]: in-neighbours of v are indices[indptr[v]:indptr[v+1]] (CSC)
    indices: npt.NDArray[Any]  # [E] int32 when N < 2^31, otherwise int64
    labels: npt.NDArray[np.int64]  # [N], -1 where a node has none
    splits: dict[str, npt.NDArray[np.int64]]  # split name -> node ids, in the order given by the user

    @staticmethod
    def open(path: PathLike) -> Graph:
        """Open a graph directory.

        Raises:
            ArtifactError: see `artifacts.open_artifact`.
        """
        manifest = artifacts.open_artifact(path, artifacts.GRAPH)
        splits = {s: manifest.array(artifacts.split_file(s)) for s in artifacts.SPLITS
                  if artifacts.split_file(s) in manifest.files}  # fmt: skip
        graph = Graph(
            manifest,
            manifest.array(artifacts.INDPTR),
            manifest.array(artifacts.INDICES),
            manifest.array(artifacts.LABELS),
            splits,
        )
        graph._check_files_fit()
        return graph

    def _check_files_fit(self) -> None:
        """Whether the files are of one graph, as far as can be seen without reading them."""
        indptr, indices = self.indptr, self.indices
        valid = indptr.dtype == np.int64 and indptr.ndim == 1 and len(indptr) > 0
        valid = valid and indices.dtype in (np.int32, np.int64) and indices.ndim == 1
        if not valid or indptr[0] != 0 or indptr[-1] != len(indices):
            raise ArtifactError(f"{self.manifest.path} holds no CSC matrix; make it with `diskgnn convert` again")
        features = self.manifest.files.get(artifacts.FEATURES)
        stored_as = FEATURE_STORAGE.get(str(self.manifest.config.get("feature_dtype")))
        valid = features is not None and features.dtype == stored_as and len(features.shape or ()) == 2
        if not valid or {len(self.labels), (features.shape or (0,))[0]} != {self.num_nodes}:  # type: ignore[union-attr]
            raise ArtifactError(
                f"{self.manifest.path} has no row of features or no label for each of its {self.num_nodes} nodes; "
                f"make it with `diskgnn convert` again"
            )

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
        return int(self.manifest.config["num_classes"])

    def topology(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """`indptr` and `indices` read into memory, and not mapped as well, which would count twice."""
        return self.manifest.array(artifacts.INDPTR, mmap=False), self.manifest.array(artifacts.INDICES, mmap=False)

    def topology_at_random(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """`indptr` and `indices`, as memory maps that read no more than what is touched."""
        for array in (self.indptr, self.indices):
            mapped = getattr(array, "_mmap", None)
            if mapped is not None:  # an empty array has none
                mapped.madvise(mmap.MADV_RANDOM)
        return self.indptr, self.indices

    @cached_property
    def feature_file(self) -> FeatureFile:
        """Where the feature rows lie."""
        shape = self.manifest.files[artifacts.FEATURES].shape
        assert shape is not None
        path = self.manifest.file(artifacts.FEATURES)
        rows = RowFormat(self.manifest.config["feature_dtype"], shape[1])
        return FeatureFile(path, artifacts.npy_data_offset(path), shape[0], rows)

    @cached_property
    def features(self) -> npt.NDArray[Any]:
        """[N, D] memory map of the features, bfloat16 as uint16."""
        return self.manifest.array(artifacts.FEATURES)
