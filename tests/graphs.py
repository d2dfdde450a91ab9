"""Tiny graphs, and what tests ask of minibatches made from them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from diskgnn.batches.minibatch import MiniBatch
from diskgnn.files.checked_files import ChunkChecksums
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.sampling.sample import sample
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.work.writer import ArtifactWriter

# Files of a graph made from plain edges.
INDPTR, INDICES = (edge_file(kind, ONE_EDGE_TYPE) for kind in (artifacts.INDPTR, artifacts.INDICES))
FEATURES, FEATURE_CHECKSUMS, FEATURE_CODES, LABELS, TRAIN = (
    node_file(kind, ONE_NODE_TYPE)
    for kind in (artifacts.FEATURES, artifacts.FEATURE_CHECKSUMS, artifacts.FEATURE_CODES, artifacts.LABELS, "train")
)
SPLIT_SIZES = {"train": 57, "valid": 21}


def write_graph(
    path: Path,
    indptr: np.ndarray,
    indices: np.ndarray,
    features: np.ndarray,
    splits: Mapping[str, np.ndarray],
    *,
    dtype: str = "float32",
    num_classes: int = 4,
    labels: np.ndarray | None = None,
    seed: int = 0,
) -> Graph:
    """A graph directory of these arrays, with random labels by default; bfloat16 features come as uint16."""
    num_nodes, num_features = features.shape
    config = GraphConfig.of_one_type(num_nodes, len(indices), num_classes, RowFormat(dtype, num_features)).to_json({})
    if labels is None:
        labels = np.random.default_rng(seed).integers(0, num_classes, num_nodes)
    with ArtifactWriter(path, artifacts.GRAPH, config=config) as writer:
        writer.save_array(INDPTR, np.asarray(indptr, np.int64))
        writer.save_array(INDICES, indices)
        writer.save_array(FEATURES, features)
        writer.save_array(FEATURE_CHECKSUMS, chunk_checksums(writer.path(FEATURES)))
        writer.save_array(LABELS, labels)
        for split, nodes in splits.items():
            writer.save_array(node_file(split, ONE_NODE_TYPE), np.asarray(nodes, np.int64))
        writer.publish()
    return Graph.open(path)


def chunk_checksums(path: Path) -> np.ndarray:
    """What a graph directory says of its feature file: CRC-32C of each chunk."""
    checksums = ChunkChecksums()
    checksums.add(path.read_bytes())
    return checksums.chunks()


def random_bits(shape: tuple[int, int], dtype: str, seed: int = 0) -> np.ndarray:
    """Features of every bit pattern, NaNs and infinities too."""
    rows = RowFormat(dtype, shape[1])
    return np.random.default_rng(seed).integers(0, 256, (shape[0], rows.row_bytes), np.uint8).view(rows.storage)


def make_graph(
    path: Path,
    *,
    num_nodes: int = 200,
    dtype: str = "float32",
    width: int = 7,
    splits: Mapping[str, int] = SPLIT_SIZES,
    in_degree: int = 5,
    id_dtype: type = np.int32,
    seed: int = 0,
) -> Graph:
    """A random graph of `in_degree` distinct in-neighbours a node; node 0 has none. Splits are disjoint."""
    random = np.random.default_rng(seed)
    sources = [
        np.sort(random.choice(num_nodes, 0 if node == 0 else in_degree, replace=False)) for node in range(num_nodes)
    ]
    indptr = np.cumsum([0, *map(len, sources)])
    nodes = np.split(random.permutation(num_nodes), np.cumsum(list(splits.values())))[: len(splits)]
    return write_graph(
        path,
        indptr,
        np.concatenate(sources).astype(id_dtype),
        random_bits((num_nodes, width), dtype, seed),
        dict(zip(splits, nodes, strict=True)),
        dtype=dtype,
        seed=seed,
    )


def prepare_graph(graph: Graph, folder: Path, *, fanouts=(3, 2), batch_size=8, epochs=2, seed=0, **packing) -> Path:
    """samples/ and packed/ of `graph` in `folder`; the path of packed/, which keeps input nodes."""
    sample(graph, folder / "samples", fanouts=fanouts, batch_size=batch_size, epochs=epochs, seed=seed, threads=1)
    options = {"cpu_cache": "10%", "static_cache": 0, "keep_input_nodes": True, "threads": 1} | packing
    pack(graph, folder / "samples", folder / "packed", **options)
    return folder / "packed"


def bits_of(batch: MiniBatch) -> bytes:
    """The bytes of x: floats would say that a NaN is not itself."""
    import torch

    return batch.x.contiguous().view(torch.uint8).numpy().tobytes()


def assert_rows_are_features(batch: MiniBatch, graph: Graph) -> None:
    """x is features[input_nodes] bit for bit, y the labels of the seeds, and the seeds come first."""
    nodes, seeds = batch.input_nodes.numpy(), batch.seeds.numpy()
    assert tuple(batch.x.shape) == (len(nodes), graph.feature_file.rows.num_features)
    assert bits_of(batch) == graph.features[nodes].tobytes()
    np.testing.assert_array_equal(batch.y, graph.labels[seeds])
    np.testing.assert_array_equal(seeds, nodes[: len(seeds)])


def threads_of_this_process() -> int:
    """Threads that the kernel knows of, native ones included."""
    return len(list(Path("/proc/self/task").iterdir()))


def threads_that_stay(expected: int) -> int:
    """Threads of this process once there are `expected`, or after 30 seconds: the kernel lists a joined one on."""
    deadline = time.monotonic() + 30  # on a busy machine
    while (count := threads_of_this_process()) > expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return count
