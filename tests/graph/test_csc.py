"""Edges to CSC: SciPy is the oracle; every budget and thread count must give the same bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from graphs import INDICES, INDPTR
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_order import in_order, order_hash

from diskgnn._native import EdgeBuffers, count_edges, sort_bucket
from diskgnn.errors import ConfigError, DiskFullError, InputError
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.bucket_layout import BinnedEdges, lay_out_buckets
from diskgnn.graph.csc import EdgeList, EdgeOptions, write_csc
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.specs.schema import ONE_EDGE_TYPE
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter


def write(
    folder: Path, src: np.ndarray, dst: np.ndarray, num_nodes: int, *, chunk: int = 1000,
    memory_bytes: int = 1 << 20, threads: int = 2, **options: bool,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    def edges() -> Iterator[EdgeChunk]:
        for start in range(0, len(src), chunk):
            yield src[start : start + chunk], dst[start : start + chunk]

    with ArtifactWriter(folder / "graph", artifacts.GRAPH, config={}, overwrite=True) as writer:
        given = EdgeList(ONE_EDGE_TYPE, edges, num_nodes, num_nodes, EdgeOptions(**options))
        count = write_csc(writer, given, Resources(memory_bytes, threads))
        manifest = writer.publish()
    indptr, indices = manifest.array(INDPTR), manifest.array(INDICES)
    verify_artifact(folder / "graph")  # checksums computed while writing
    assert sorted(path.name for path in (folder / "graph").iterdir()) == [
        INDICES, INDPTR, artifacts.MANIFEST]  # fmt: skip
    assert count == len(indices)
    return indptr, indices


def scipy_csc(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, reverse: bool, self_loops: bool, drop_duplicates: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The same with SciPy: multiplicities are matrix entries."""
    src, dst = src.astype(np.int64), dst.astype(np.int64)
    if reverse:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    matrix = scipy.sparse.coo_matrix((np.ones(len(src), np.int64), (src, dst)), (num_nodes, num_nodes)).tocsc()
    matrix.sum_duplicates()
    if drop_duplicates:
        matrix.data[:] = 1
    if self_loops:
        missing = scipy.sparse.diags((matrix.diagonal() == 0).astype(np.int64), format="csc", dtype=np.int64)
        matrix = (matrix + missing).tocsc()
        matrix.eliminate_zeros()
        matrix.sort_indices()
    columns = np.repeat(np.arange(num_nodes), np.diff(matrix.indptr))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(columns, matrix.data, num_nodes).astype(np.int64))])
    return indptr, in_order(indptr, np.repeat(matrix.indices, matrix.data))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("drop_duplicates", [False, True])
@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("memory_bytes", [6_000, 60_000, 1 << 22])
def test_like_scipy(
    tmp_path: Path, reverse: bool, self_loops: bool, drop_duplicates: bool, id_dtype: type, memory_bytes: int
) -> None:
    rng = np.random.default_rng(1)
    num_nodes = 300
    # Few heavy nodes, repeated edges and self-loops.
    src = (num_nodes * rng.random(5000) ** 2).astype(id_dtype)
    dst = (num_nodes * rng.random(5000) ** 1.2).astype(id_dtype)
    options = {"reverse": reverse, "self_loops": self_loops, "drop_duplicates": drop_duplicates}
    indptr, indices = write(tmp_path, src, dst, num_nodes, memory_bytes=memory_bytes, **options)
    expected_indptr, expected_indices = scipy_csc(src, dst, num_nodes, **options)
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32
    np.testing.assert_array_equal(indptr, expected_indptr)
    np.testing.assert_array_equal(indices, expected_indices)


@settings(max_examples=60)
@given(st.data())
def test_budget_chunks_and_threads_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    num_nodes = data.draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    edges = np.array(data.draw(st.lists(st.tuples(node, node), max_size=120)), np.int64).reshape(-1, 2)
    options = {name: data.draw(st.booleans()) for name in ("reverse", "self_loops", "drop_duplicates")}
    indptr, indices = write(
        tmp_path_factory.mktemp("csc"), edges[:, 0], edges[:, 1], num_nodes,
        chunk=data.draw(st.integers(1, 130)), memory_bytes=data.draw(st.integers(4000, 20_000)),
        threads=data.draw(st.integers(1, 4)), **options,
    )  # fmt: skip
    expected_indptr, expected_indices = scipy_csc(edges[:, 0], edges[:, 1], num_nodes, **options)
    np.testing.assert_array_equal(indptr, expected_indptr)
    np.testing.assert_array_equal(indices, expected_indices)


def test_by_hand(tmp_path: Path) -> None:
    # 2 -> 0, 1 -> 0, 1 -> 0 again, 0 -> 2. Hashes of 0, 1, 2 begin with 81, 3f, 9f.
    src, dst = np.array([2, 1, 1, 0], np.int32), np.array([0, 0, 0, 2], np.int32)
    indptr, indices = write(tmp_path, src, dst, 3)
    assert (indptr.tolist(), indices.tolist()) == ([0, 3, 3, 4], [1, 1, 2, 0])
    indptr, indices = write(tmp_path, src, dst, 3, drop_duplicates=True, self_loops=True)
    assert (indptr.tolist(), indices.tolist()) == ([0, 3, 4, 6], [1, 0, 2, 1, 0, 2])


def test_no_edges_and_one_node(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    indptr, indices = write(tmp_path, none, none, 1)
    assert (indptr.tolist(), indices.tolist()) == ([0, 0], [])
    indptr, indices = write(tmp_path, none, none, 5, self_loops=True)
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("edge", "src", "dst", "word"), [(1500, -1, 3, "source -1"), (1999, 3, 10, "destination 10"),
                                     (0, 2**40, 3, f"source {2**40}")])  # fmt: skip
def test_out_of_range(tmp_path: Path, edge: int, src: int, dst: int, word: str, reverse: bool) -> None:
    ends = np.zeros((2, 2000), np.int64)
    ends[:, edge] = src, dst
    ends[:, 1999] = ends[:, 1999] if edge == 1999 else (99, 99)  # a later one, not to be named
    with pytest.raises(InputError, match=rf"from 0 to 9, found {word} in edge {edge} "):
        write(tmp_path, ends[0], ends[1], 10, reverse=reverse)
    assert list(tmp_path.iterdir()) == []


def test_a_hub_needs_memory(tmp_path: Path) -> None:
    src, dst = np.arange(10_000, dtype=np.int32), np.full(10_000, 7, np.int32)
    least_bytes = 10_000 * 3 * 4 + 16  # the edges, their sources, a degree and a sum of degrees
    named = rf"expected at least {least_bytes} bytes .* to sort the 10000 in-edges of nodes 7 to 7"
    with pytest.raises(ConfigError, match=named):
        write(tmp_path, src, dst, 10_000, memory_bytes=least_bytes - 1)
    indptr, indices = write(tmp_path, src, dst, 10_000, memory_bytes=least_bytes)
    np.testing.assert_array_equal(indices, src[np.argsort(order_hash(src))])
    assert indptr[7:9].tolist() == [0, 10_000]


@pytest.mark.parametrize("memory_bytes", [20_000, 1 << 20])
@pytest.mark.parametrize("second", [(4000, 0), (6000, 0), (5000, 100)])
def test_a_source_that_changes_is_refused(tmp_path: Path, memory_bytes: int, second: tuple[int, int]) -> None:
    readings = iter([(5000, 0), second])  # edges, and what is added to every id

    def edges() -> Iterator[EdgeChunk]:
        number, added = next(readings)
        ids = np.arange(number, dtype=np.int32) % 99 + added
        yield ids, ids

    with (
        pytest.raises(InputError, match="changed between two readings"),
        ArtifactWriter(tmp_path / "graph", artifacts.GRAPH, config={}) as writer,
    ):
        write_csc(writer, EdgeList(ONE_EDGE_TYPE, edges, 100, 100), Resources(memory_bytes, 2))


@pytest.mark.parametrize("point", ["shuffle.write", "work.piece", "artifact.write"])
def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, point: str) -> None:
    ids = np.arange(20_000, dtype=np.int32) % 999
    with faults.armed(point, OSError(errno.EIO, "the disk failed"), after=1), pytest.raises(OSError, match="failed"):
        write(tmp_path, ids, ids, 999, memory_bytes=100_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("point", ["shuffle.write", "work.piece"])
def test_a_disk_that_runs_full_is_said_to(tmp_path: Path, point: str) -> None:
    ids = np.arange(20_000, dtype=np.int32) % 999
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with faults.armed(point, full, after=1), pytest.raises(DiskFullError, match=r"ran full .* nothing is left"):
        write(tmp_path, ids, ids, 999, memory_bytes=100_000)
    assert list(tmp_path.iterdir()) == []


def test_the_layout_covers_all_and_obeys_the_budget() -> None:
    rng = np.random.default_rng(2)
    bin_edges = rng.integers(0, 3_000_000_000, 1000)  # far more than 2^31 edges
    shift, num_nodes = 22, (999 << 22) + 17  # and nodes
    layout = lay_out_buckets(BinnedEdges(bin_edges, shift, num_nodes, num_nodes), Resources(300 << 30, 4))
    assert layout.dtype == np.int64
    assert not layout.in_memory
    assert layout.num_edges == bin_edges.sum() > 2**40
    assert (layout.node_starts[0], layout.node_starts[-1]) == (0, num_nodes)
    assert (np.diff(layout.node_starts) > 0).all()
    for bucket in range(layout.num_buckets):
        bins = np.flatnonzero(layout.bucket_of_bin == bucket)
        assert layout.node_starts[bucket] == bins[0] << shift
        assert layout.edge_starts[bucket + 1] - layout.edge_starts[bucket] == bin_edges[bins].sum()
    bucket_bytes = np.diff(layout.edge_starts) * 24 + np.diff(layout.node_starts) * 16
    assert layout.buckets_at_once * bucket_bytes.max() <= 300 << 30
    assert layout.num_buckets * layout.buffer_edges * 16 <= 300 << 30


def test_kernels_with_ids_past_2_to_31() -> None:
    base = 2**33
    src = np.array([5, base + 1, base, 2**40], np.int64)
    dst = np.array([base, base + 2, base, base], np.int64)
    counts = np.zeros(3, np.int64)
    assert count_edges(src, dst, 2**41, 2**41, 40, counts) == 4
    assert counts.tolist() == [4, 0, 0]
    buffer = np.zeros((4, 2), np.int64)
    cursors, ends = np.zeros(1, np.int64), np.array([3], np.int64)
    buffers = EdgeBuffers(
        num_sources=2**41,
        num_nodes=2**41,
        shift=40,
        bucket_of_bin=np.zeros(1, np.int32),
        buffer=buffer,
        cursors=cursors,
        ends=ends,
    )
    assert buffers.scatter(src, dst, 0) == 3  # full
    ends[0] = 4
    assert buffers.scatter(src, dst, 3) == 4
    np.testing.assert_array_equal(buffer, np.stack([src, dst], 1))
    degrees, indices = np.zeros(3, np.int64), np.zeros(7, np.int64)
    assert sort_bucket(buffer, base, True, False, degrees, indices) == 6
    assert degrees.tolist() == [3, 1, 2]
    assert indices[:6].tolist() == [base, 5, 2**40, base + 1, base + 1, base + 2]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lists_of_every_length_are_in_order(dtype: type) -> None:
    """Also a hub's, of which parts are sorted at a time, and one that has the same source again and again."""
    rng = np.random.default_rng(0)
    lengths = np.array([*range(200), 1000, 8192, 8193, 50_000, 20_000])
    dst = np.repeat(np.arange(len(lengths)), lengths)
    src = rng.integers(0, 1 << 30, len(dst)) + (np.int64(1) << 40) * (dtype is np.int64)
    src[rng.random(len(src)) < 0.1] = src[0]
    src[-20_000:] = rng.integers(0, 3, 20_000)
    shuffled = rng.permutation(len(dst))
    edges = np.stack([src, dst], 1).astype(dtype)[shuffled]
    degrees, indices = np.zeros(len(lengths), np.int64), np.zeros(len(dst), dtype)
    assert sort_bucket(edges, 0, False, False, degrees, indices) == len(dst)
    np.testing.assert_array_equal(degrees, lengths)
    np.testing.assert_array_equal(indices, src[np.lexsort((order_hash(src), dst))])


def test_columns_of_pairs_are_read_where_they_are() -> None:
    """Backwards, too."""
    pairs = np.array([[0, 2], [1, 0], [2, 2], [1, 1]])
    for src, dst in ((pairs[:, 0], pairs[:, 1]), (pairs[::-1, 0], pairs[::-1, 1]), (pairs[::2, 1], pairs[1::2, 0])):
        counts, cursors, ends = np.zeros(3, np.int64), np.zeros(1, np.int64), np.array([len(src)])
        assert count_edges(src, dst, 3, 3, 0, counts) == len(src)
        assert counts.tolist() == np.bincount(dst, minlength=3).tolist()
        buffer = np.zeros((len(src), 2), np.int32)
        bins = np.zeros(3, np.int32)
        buffers = EdgeBuffers(num_sources=3, num_nodes=3, shift=0, bucket_of_bin=bins, buffer=buffer, cursors=cursors,
                              ends=ends)  # fmt: skip
        assert buffers.scatter(src, dst, 0) == len(src)
        assert buffer.tolist() == np.stack([src, dst], 1).tolist()


def test_kernels_refuse_what_would_write_elsewhere() -> None:
    one, none = np.array([1], np.int32), np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="fewer bins"):
        count_edges(one, one, 10, 10, 1, np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="differ in length"):
        count_edges(one, none, 10, 10, 1, np.zeros(5, np.int64))
    buffer, zero = np.zeros((1, 2), np.int32), np.zeros(1, np.int64)

    def scatter(num_nodes: int, bucket_of_bin: np.ndarray, end: int) -> None:
        EdgeBuffers(
            num_sources=num_nodes,
            num_nodes=num_nodes,
            shift=0,
            bucket_of_bin=bucket_of_bin,
            buffer=buffer,
            cursors=zero,
            ends=np.array([end]),
        ).scatter(one, one, 0)

    with pytest.raises(ValueError, match="outside the buffer"):
        scatter(2, np.zeros(2, np.int32), 2)
    with pytest.raises(IndexError):
        scatter(1, np.zeros(2, np.int32), 1)
    with pytest.raises(IndexError):
        scatter(2, np.zeros(1, np.int32), 1)
    with pytest.raises(IndexError):
        scatter(2, np.ones(2, np.int32), 1)
    with pytest.raises(TypeError, match="int32 or int64"):
        EdgeBuffers(num_sources=2, num_nodes=2, shift=0, bucket_of_bin=np.zeros(2, np.int32),
                    buffer=np.zeros((1, 2), np.float32),
                    cursors=zero, ends=zero)  # fmt: skip
    with pytest.raises(ValueError, match="too short"):
        sort_bucket(buffer, 0, True, False, zero, np.zeros(1, np.int32))
    with pytest.raises(IndexError):
        sort_bucket(buffer, 5, False, False, zero, np.zeros(1, np.int32))
