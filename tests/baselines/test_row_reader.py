"""Random reads of rows against NumPy, in any alignment, and what they cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn._native import RowReader, gather_rows, io_uring_refusal
from diskgnn.errors import ArtifactError

ENGINES = ["threads"] if io_uring_refusal() else ["threads", "io_uring"]
NO_CACHE = (np.empty(0, np.int32), np.empty(0, np.uint8))


def make_file(folder, offset, row_bytes, num_rows):
    data = np.random.default_rng(row_bytes).integers(0, 256, offset + row_bytes * num_rows, np.uint8)
    path = folder / f"{offset}-{row_bytes}-{num_rows}"
    data.tofile(path)
    return str(path), data[offset:].reshape(num_rows, row_bytes)


def read(reader, rows, nodes):
    nodes = np.asarray(nodes, np.int32)
    x = np.full((len(nodes), rows.shape[1]), 7, np.uint8)
    counts = reader.gather(nodes, np.full(len(nodes), -1, np.int32), *NO_CACHE, x.reshape(-1))
    np.testing.assert_array_equal(x, rows[nodes])
    return counts


def pages_of(nodes, offset, row_bytes):
    """The pages that hold a byte of any row, by brute force."""
    return {
        page
        for node in nodes
        for page in range((offset + node * row_bytes) // 4096, (offset + (node + 1) * row_bytes - 1) // 4096 + 1)
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("offset", [0, 128, 4095])
@pytest.mark.parametrize("row_bytes", [1, 14, 512, 4096, 5732, 70_001])
def test_rows_in_any_alignment(tmp_path, engine, offset, row_bytes):
    num_rows = 60 if row_bytes > 5000 else 3000
    path, rows = make_file(tmp_path, offset, row_bytes, num_rows)
    reader = RowReader(path, offset, row_bytes, num_rows, engine)
    assert reader.engine == engine
    random = np.random.default_rng(0)
    for count in (0, 1, 50, num_rows):
        nodes = random.permutation(num_rows)[:count]
        requests, read_bytes = read(reader, rows, nodes)
        assert requests <= count
        assert read_bytes % 4096 == 0
    read(reader, rows, [num_rows - 1, 0, num_rows - 1])  # twice the same: served twice


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_each_page_is_read_once(tmp_path_factory, data):
    offset, row_bytes = data.draw(st.integers(0, 9000)), data.draw(st.sampled_from([4, 100, 700, 5000]))
    num_rows = 100
    path, rows = make_file(tmp_path_factory.mktemp("rows"), offset, row_bytes, num_rows)
    nodes = data.draw(st.lists(st.integers(0, num_rows - 1), unique=True, max_size=5))
    reader = RowReader(path, offset, row_bytes, num_rows, "threads")
    requests, read_bytes = read(reader, rows, nodes)
    pages = pages_of(nodes, offset, row_bytes)
    runs = sum(page - 1 not in pages for page in pages)
    assert read_bytes == 4096 * len(pages)
    assert requests == runs  # five rows never fill a request's buffer


def test_hits_come_from_the_cache_and_admissions_go_there(tmp_path):
    path, rows = make_file(tmp_path, 100, 33, 50)
    reader = RowReader(path, 100, 33, 50, "auto")
    cache = np.arange(4 * 33).astype(np.uint8).reshape(4, 33)
    before = cache.copy()
    nodes, slots = np.array([9, 8, 7, 6], np.int64), np.array([2, -1, -1, 0], np.int32)
    x = np.empty((4, 33), np.uint8)
    # Row 8 takes the slot of row 6, which is a hit; then row 7 takes it.
    admissions = np.array([1, 0, 1, 3, 2, 0], np.int32)
    requests, _ = reader.gather(nodes, slots, admissions, cache.reshape(-1), x.reshape(-1))
    assert requests == 1
    np.testing.assert_array_equal(x, [before[2], rows[8], rows[7], before[0]])
    np.testing.assert_array_equal(cache, [rows[7], before[1], before[2], rows[8]])


def test_what_is_wrong_is_refused(tmp_path):
    path, rows = make_file(tmp_path, 0, 10, 20)
    with pytest.raises(OSError, match="cannot open"):
        RowReader(str(tmp_path / "none"), 0, 10, 20)
    with pytest.raises(ValueError, match="too short"):
        RowReader(path, 1, 10, 20)
    reader = RowReader(path, 0, 10, 20)
    one, x, cache = np.zeros(1, np.int32), np.empty(10, np.uint8), np.empty(20, np.uint8)
    none = np.empty(0, np.int32)
    for node in (-1, 20):
        with pytest.raises(IndexError, match=f"row {node}"):
            reader.gather(np.array([node], np.int32), one - 1, none, cache, x)
    with pytest.raises(IndexError, match="slot"):
        reader.gather(one, one + 2, none, cache, x)
    for admission in ([0, 2], [1, 0], [-1, 0]):
        with pytest.raises(IndexError, match="admission"):
            reader.gather(one, one - 1, np.array(admission, np.int32), cache, x)
    with pytest.raises(ValueError, match="size of its rows"):
        reader.gather(one, one - 1, none, cache, x[:5])
    with pytest.raises(ValueError, match="differ in length"):
        reader.gather(one, none, none, cache, x)
    read(reader, rows, range(20))  # still works


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_was_cut_is_an_error_for_good(tmp_path, engine):
    path, _ = make_file(tmp_path, 0, 4096, 20)
    reader = RowReader(path, 0, 4096, 20, engine)
    with open(path, "r+b") as file:  # noqa: PTH123
        file.truncate(4096 * 10 + 5)
    nodes, x = np.array([3, 10], np.int32), np.empty(2 * 4096, np.uint8)
    with pytest.raises(ArtifactError, match="ends early"):
        reader.gather(nodes, nodes * 0 - 1, *NO_CACHE, x)
    with pytest.raises(RuntimeError, match="failed before"):
        reader.gather(nodes[:1], nodes[:1] * 0 - 1, *NO_CACHE, x[:4096])


@pytest.mark.parametrize("threads", [1, 3, 64])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gathering_from_memory(threads, dtype):
    rows = np.random.default_rng(0).integers(0, 256, (999, 13), np.uint8)
    for count in (0, 1, 255, 256, 5000):
        nodes = np.random.default_rng(count).integers(0, 999, count).astype(dtype)
        x = np.empty((count, 13), np.uint8)
        gather_rows(rows.reshape(-1), 13, nodes, x.reshape(-1), threads)
        np.testing.assert_array_equal(x, rows[nodes])
    for node in (-1, 999):
        with pytest.raises(IndexError, match=f"node {node}"):
            gather_rows(rows.reshape(-1), 13, np.array([node], dtype), np.empty(13, np.uint8), threads)
