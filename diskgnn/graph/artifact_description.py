"""Describes what an artifact holds and how it was made, for `diskgnn inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.hops import Hops
from diskgnn.formats.hops_config import HopsConfig
from diskgnn.formats.manifest import Manifest, open_artifact
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedSplit
from diskgnn.formats.samples import Samples
from diskgnn.formats.samples_config import SequenceSize
from diskgnn.formats.source_contents import SourceContents
from diskgnn.graph.graph import Graph
from diskgnn.graph.schema_facts import is_plain, schema_facts
from diskgnn.specs.schema import ONE_NODE_TYPE, ClassValue
from diskgnn.stores.locations import AnyPath

_KINDS = {
    artifacts.GRAPH: "a graph",
    artifacts.SAMPLES: "sampled minibatches",
    artifacts.PACKED: "packed minibatches",
    artifacts.HOPS: "hop features of seeds",
    artifacts.TABLES: "tables of a database, to make a graph of",
    artifacts.DERIVED: "made from a graph, for a loader to compare",
}
_TOLD_APART = ("node_types", "edge_types", "source_contents", "segments")  # of a config
_COUNTED_DEGREES = 1 << 20  # a larger median is not told apart
# Homophily is estimated on runs of consecutive edges, because single edges would cost one disk read each.
_HOMOPHILY_RUNS, _HOMOPHILY_RUN_EDGES = 64, 256


@dataclass(frozen=True)
class FileFacts:
    """One file of an artifact; `dtype` and `shape` are None unless it is a .npy file."""

    name: str
    bytes: int
    dtype: str | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Description:
    """The contents of one artifact. Names of facts end in their unit."""

    path: str
    kind: str
    format: str
    version: int
    digest: str
    source_digest: str | None  # of the artifact that it was made from
    facts: dict[str, Any]
    config: dict[str, Any]  # of the stage that made it, nested names joined with dots
    files: tuple[FileFacts, ...]
    contents: SourceContents | None = None  # of the data set that a graph was made from


def describe(path: AnyPath) -> Description:
    """Opens an artifact and describes what it holds. Offsets and labels of a graph are read front to back, twice.

    Raises:
        ArtifactError: see `open_artifact`; its config is not one, or what is read of a graph is damaged.
        ReadError: the disk failed.
    """
    manifest = open_artifact(path)
    return Description(
        path=str(path),
        kind=_KINDS[manifest.format],
        format=manifest.format,
        version=manifest.version,
        digest=manifest.digest,
        source_digest=None if manifest.source is None else manifest.source["digest"],
        facts={"total_bytes": manifest.total_bytes, **_facts(manifest)},
        config=flattened({name: value for name, value in manifest.config.items() if name not in _TOLD_APART}),
        files=tuple(FileFacts(name, e.bytes, e.dtype, e.shape) for name, e in manifest.files.items()),
        contents=manifest.parsed(GraphConfig.parse).contents if manifest.format == artifacts.GRAPH else None,
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    if manifest.format == artifacts.GRAPH:
        return _graph_facts(Graph.open(manifest.path))
    if manifest.format == artifacts.SAMPLES:
        return _sequence_facts(Samples(manifest).config.splits)
    if manifest.format == artifacts.PACKED:
        return _sequence_facts(Packed(manifest).config.splits)
    if manifest.format == artifacts.HOPS:
        return _record_facts(Hops.open(manifest.path).config)
    return {}


def _record_facts(config: HopsConfig) -> dict[str, Any]:
    return {
        **{f"{split}_records": count for split, count in config.num_rows.items()},
        "record_bytes": config.row_bytes,
        "segments": ", ".join(segment.name for segment in config.segments),
        "numbers_per_segment": config.widths[0] if len(config.widths) == 1 else ", ".join(map(str, config.widths)),
    }


def _graph_facts(graph: Graph) -> dict[str, Any]:
    if not is_plain(graph):
        return schema_facts(graph)
    features = graph.feature_file
    labels, edges = _labels_file(graph), graph.only_edges("degrees")
    labelled = sum(int(np.count_nonzero(part >= 0)) for part in graph.manifest.parts(labels))
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        **_degree_facts(map(edges.checked_offsets, graph.manifest.parts(edges.topology_files[0]))),
        "classes": graph.num_classes,
        **_class_values(graph),
        "labelled_nodes": labelled,
        "homophily_estimate": _homophily(graph),
        "features": features.rows.told,
        "quantisation": "none" if features.quantisation is None else "(code - zero_point) * scale, by column",
        "features_file": str(features.path),
        "feature_row_bytes": features.row_bytes,
        "unusual_values": str(graph.only_nodes("features").config.values) or "none",
        "user_ids": "none" if artifacts.ids_file(ONE_NODE_TYPE) not in graph.manifest.files else "kept, a row per node",
        **{f"{split}_nodes": len(nodes) for split, nodes in graph.splits.items()},
    }


def _class_values(graph: Graph) -> dict[str, list[ClassValue]]:
    target = graph.only_nodes("labels").config.target
    return {} if target is None or target.classes is None else {"class_values": list(target.classes)}


def _degree_facts(indptr: Iterable[npt.NDArray[np.int64]]) -> dict[str, int | float]:
    """Summarises in-degrees from the parts of indptr in one pass; the median is the lower one."""
    counts = np.zeros(0, np.int64)  # nodes of each degree
    largest, last = 0, np.empty(0, np.int64)  # the offset before a part
    for part in indptr:
        degrees = np.maximum(np.diff(part, prepend=last), 0)  # less than 0 between parts, where it is damaged
        last = part[-1:].copy()
        largest = max(largest, int(degrees.max(initial=0)))
        part_counts = np.bincount(np.minimum(degrees, _COUNTED_DEGREES), minlength=len(counts))
        part_counts[: len(counts)] += counts
        counts = part_counts
    num_nodes = int(counts.sum())
    return {
        "min_in_degree": int(counts.nonzero()[0][0]),
        "mean_in_degree": int(last[0]) / num_nodes,
        "median_in_degree": int(np.searchsorted(np.cumsum(counts), (num_nodes + 1) // 2)),
        "max_in_degree": largest,
        "nodes_without_in_edges": int(counts[0]),
    }


def _homophily(graph: Graph) -> float | None:
    """Returns the share of equal labels among edges between labelled nodes; None if none was met."""
    manifest, edges = graph.manifest, graph.only_edges("homophily")
    indptr, indices = edges.topology_files
    path = manifest.file(indices)
    start, item_bytes = npy_data_offset(path), edges.id_dtype.itemsize
    runs = np.unique(np.linspace(0, max(graph.num_edges - _HOMOPHILY_RUN_EDGES, 0), _HOMOPHILY_RUNS).astype(np.int64))
    looked_at = [np.arange(first, min(first + _HOMOPHILY_RUN_EDGES, graph.num_edges)) for first in runs]
    sources = [
        read_array(path, edges.id_dtype, len(run), start + int(run[0]) * item_bytes) for run in looked_at if len(run)
    ]
    if not sources:
        return None
    ends = np.stack([np.concatenate(sources), _destinations(manifest.parts(indptr), np.concatenate(looked_at))])
    nodes, positions = np.unique(ends, return_inverse=True)
    src, dst = manifest.take(_labels_file(graph), nodes)[positions.reshape(ends.shape)]
    known = (src >= 0) & (dst >= 0)
    return float((src == dst)[known].mean()) if known.any() else None


def _destinations(indptr: Iterable[npt.NDArray[np.int64]], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the nodes where `edges` [n] end, which are positions in the CSC.

    That is one less than the number of offsets that are not beyond the edge, so parts can be counted one by one.
    """
    found = np.full(len(edges), -1, np.int64)
    order = np.argsort(edges)
    for part in indptr:
        found[order] += np.searchsorted(part, edges[order], side="right")
    return found


def _labels_file(graph: Graph) -> str:
    return artifacts.node_file(artifacts.LABELS, graph.only_nodes("labels").name)


def _sequence_facts(splits: Mapping[str, SequenceSize] | Mapping[str, PackedSplit]) -> dict[str, Any]:
    """Returns the minibatches of each split, and where their rows come from if they are packed."""
    facts: dict[str, Any] = {}
    for split, sequence in splits.items():
        facts[f"{split}_minibatches"] = sequence.num_batches
        if isinstance(sequence, PackedSplit):
            facts |= {f"{split}_{tier}_rows": count for tier, count in asdict(sequence.rows).items()}
            if sequence.rows.requested:
                facts[f"{split}_rows_from_disk_share"] = sequence.rows.disk / sequence.rows.requested
    return facts


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a config with one name for each value: those of nested mappings are joined with dots."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(number): item for number, item in enumerate(value)}
        flat |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
