"""What edges carry arrives in CSC order, whatever the budget; NumPy's lexsort is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from neighbor_order import order_hash

from diskgnn.errors import InputError
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.csc import EdgeList, EdgeOptions, write_csc
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.graph.edge_records import EdgeColumn
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter

TYPE = ("author", "writes", "paper")
NUM_SOURCES, NUM_NODES, NUM_EDGES = 37, 91, 4001


def chunks(array: np.ndarray, size: int, first: int) -> Iterator[np.ndarray]:
    """As files are read: each chunk overwrites the one before."""
    buffer = np.empty((size, *array.shape[1:]), array.dtype)
    for start in range(first, len(array), size):
        part = array[start : start + size]
        buffer[: len(part)] = part
        yield buffer[: len(part)]


def column(kind: str, array: np.ndarray, size: int) -> EdgeColumn:
    return EdgeColumn(kind, f"the {kind}", array.dtype, array.shape[1:], partial(chunks, array, size))


def carried(num_edges: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        artifacts.EDGE_IDS: np.arange(num_edges),
        artifacts.WEIGHTS: rng.random(num_edges, np.float32) + 1,
        artifacts.TIMES: rng.integers(0, 1000, num_edges),
        artifacts.EDGE_FEATURES: rng.random((num_edges, 5), np.float32).astype(np.float16),
    }


def write(
    folder: Path, src: np.ndarray, dst: np.ndarray, data: dict[str, np.ndarray],
    sizes: tuple[int, int] = (NUM_SOURCES, NUM_NODES), *, memory_bytes: int = 1 << 20, reverse: bool = False,
) -> Manifest:  # fmt: skip
    def edges() -> Iterator[EdgeChunk]:
        for start in range(0, len(src), 1000):
            yield src[start : start + 1000], dst[start : start + 1000]

    columns = tuple(column(kind, array, 100 + 7 * number) for number, (kind, array) in enumerate(data.items()))
    with ArtifactWriter(folder / "graph", artifacts.GRAPH, config={}, overwrite=True) as writer:
        write_csc(writer, EdgeList(TYPE, edges, *sizes, EdgeOptions(reverse), columns, name="x"),
                  Resources(memory_bytes, 2))  # fmt: skip
        assert sorted(path.name for path in writer.staging.iterdir()) == sorted(writer.files)  # no scratch
        manifest = writer.publish()
    verify_artifact(folder / "graph")
    return manifest


@pytest.mark.parametrize("memory_bytes", [40_000, 200_000, 1 << 24])
@pytest.mark.parametrize("reverse", [False, True])
def test_items_follow_their_edges(tmp_path: Path, memory_bytes: int, reverse: bool) -> None:
    """Many equal edges, and one node that has a fifth of all: with 40 kB, its records are read several times."""
    rng = np.random.default_rng(1)
    sizes = (NUM_NODES, NUM_NODES) if reverse else (NUM_SOURCES, NUM_NODES)
    src, dst = rng.integers(0, sizes[0], NUM_EDGES), rng.integers(0, sizes[1], NUM_EDGES)
    dst[rng.random(NUM_EDGES) < 0.2] = 17
    data = carried(NUM_EDGES)
    manifest = write(tmp_path, src, dst, data, sizes, memory_bytes=memory_bytes, reverse=reverse)
    numbers, backwards = np.arange(NUM_EDGES), np.zeros(NUM_EDGES, bool)
    if reverse:
        src, dst, numbers = np.concatenate([src, dst]), np.concatenate([dst, src]), np.tile(numbers, 2)
        backwards = np.repeat([False, True], NUM_EDGES)
    indptr, indices = (manifest.array(edge_file(kind, TYPE)) for kind in (artifacts.INDPTR, artifacts.INDICES))
    ids = manifest.array(edge_file(artifacts.EDGE_IDS, TYPE))
    expected = np.lexsort((backwards, numbers, order_hash(src), dst))  # equal edges in the order given
    np.testing.assert_array_equal(ids, numbers[expected])
    ends = np.repeat(np.arange(sizes[1]), np.diff(indptr))
    found = sorted(zip(indices.tolist(), ends.tolist(), ids.tolist(), strict=True))
    assert found == sorted(zip(src.tolist(), dst.tolist(), numbers.tolist(), strict=True))
    for kind, array in data.items():
        stored = manifest.array(edge_file(kind, TYPE))
        assert stored.dtype == array.dtype
        np.testing.assert_array_equal(stored, array[ids])


@pytest.mark.parametrize("reverse", [False, True])
def test_bytes_do_not_depend_on_memory(tmp_path: Path, reverse: bool) -> None:
    """Many edges are given in both directions."""
    rng = np.random.default_rng(2)
    src, dst = rng.integers(0, NUM_SOURCES, (2, NUM_EDGES))
    digests = {
        write(
            tmp_path / str(memory),
            src,
            dst,
            carried(NUM_EDGES),
            memory_bytes=memory,
            reverse=reverse,
            sizes=(NUM_SOURCES, NUM_SOURCES),
        ).digest
        for memory in (40_000, 200_000, 1 << 24)
    }
    assert len(digests) == 1


def test_no_edges_and_few_items(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    manifest = write(tmp_path, none, none, carried(0))
    assert manifest.array(edge_file(artifacts.EDGE_FEATURES, TYPE)).shape == (0, 5)
    with pytest.raises(InputError, match="the weights: found fewer than there are edges"):
        write(tmp_path, np.arange(3), np.arange(3), {artifacts.WEIGHTS: np.ones(2, np.float32)})


def test_weights_that_are_all_zero_for_a_node(tmp_path: Path) -> None:
    src, dst = np.array([0, 1, 2, 3]), np.array([4, 4, 6, 6])
    write(tmp_path, src, dst, {artifacts.WEIGHTS: np.array([0, 1, 1, 0], np.float32)})
    with pytest.raises(InputError, match=r"x: expected a weight above 0 among the 2 in-edges of node 6"):
        write(tmp_path, src, dst, {artifacts.WEIGHTS: np.array([0, 1, 0, 0], np.float32)})


def test_ids_of_either_side(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="x: expected node ids from 0 to 36, found source 37 in edge 1"):
        write(tmp_path, np.array([36, 37]), np.array([0, 0]), {})
    with pytest.raises(InputError, match="x: expected node ids from 0 to 90, found destination -1 in edge 1"):
        write(tmp_path, np.array([36, 3]), np.array([90, -1]), {})
