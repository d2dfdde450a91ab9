"""What an artifact holds and how it was made, for `diskgnn inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskgnn import artifacts
from diskgnn.artifacts import Manifest, PathLike
from diskgnn.graph import Graph

_KINDS = {
    artifacts.GRAPH: "a graph",
    artifacts.SAMPLES: "sampled minibatches",
    artifacts.PACKED: "packed minibatches",
}
_CHUNK_NODES = 1 << 20


@dataclass(frozen=True)
class FileFacts:
    """One file of an artifact; `dtype` and `shape` are those of .npy files."""

    name: str
    bytes: int
    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Description:
    """What one artifact holds. Names of facts end in their unit."""

    path: str
    kind: str
    format: str
    version: int
    digest: str
    source_digest: str | None  # of the artifact that it was made from
    facts: dict[str, Any]
    config: dict[str, Any]  # of the stage that made it, nested names joined with dots
    files: tuple[FileFacts, ...]


def describe(path: PathLike) -> Description:
    """Open an artifact and say what it holds. Of a graph the offsets are read once, front to back.

    Raises:
        ArtifactError: see `artifacts.open_artifact`.
    """
    manifest = artifacts.open_artifact(path)
    facts: dict[str, Any] = {"total_bytes": manifest.total_bytes}
    if manifest.format == artifacts.GRAPH:
        facts |= _graph_facts(Graph.open(path))
    return Description(
        path=str(path),
        kind=_KINDS[manifest.format],
        format=manifest.format,
        version=manifest.version,
        digest=manifest.digest,
        source_digest=None if manifest.source is None else manifest.source["digest"],
        facts=facts,
        config=_flat(manifest.config),
        files=_files(manifest),
    )


def _graph_facts(graph: Graph) -> dict[str, Any]:
    max_degree = isolated = 0
    for first in range(0, graph.num_nodes, _CHUNK_NODES):
        degrees = np.diff(graph.indptr[first : first + _CHUNK_NODES + 1])
        max_degree = max(max_degree, int(degrees.max()))
        isolated += int((degrees == 0).sum())
    features = graph.feature_file
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "mean_in_degree": graph.num_edges / graph.num_nodes,
        "max_in_degree": max_degree,
        "nodes_without_in_edges": isolated,
        "classes": graph.num_classes,
        "features": f"{features.width} x {features.dtype}",
        "features_file": str(features.path),
        "feature_row_bytes": features.row_bytes,
        **{f"{split}_nodes": len(nodes) for split, nodes in graph.splits.items()},
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _files(manifest: Manifest) -> tuple[FileFacts, ...]:
    return tuple(FileFacts(name, entry.bytes, entry.dtype, entry.shape) for name, entry in manifest.files.items())
