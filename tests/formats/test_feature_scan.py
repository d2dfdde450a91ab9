"""The one scan over needed feature rows, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import chunk_checksums
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES, ChunkChecksums, npy_data_offset
from diskgnn.formats.feature_scan import Window, scan_needed_rows
from diskgnn.formats.row_format import FeatureFile, RowFormat

NUM_NODES = 2000


@pytest.fixture(scope="module", params=[1, 7, 300])
def features(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FeatureFile:
    path = tmp_path_factory.mktemp("features") / "features.npy"
    np.save(path, np.random.default_rng(0).random((NUM_NODES, request.param), np.float32))
    return FeatureFile(path, npy_data_offset(path), NUM_NODES, RowFormat("float32", request.param))


def rows_of(window: Window) -> np.ndarray:
    """[n, row_bytes] of its nodes."""
    return window.data[window.places(window.nodes)[:, None] + np.arange(window.row_bytes)]


def check(features: FeatureFile, needed: np.ndarray, window_bytes: int) -> int:
    """Scan, and compare with NumPy; returns the number of windows."""
    expected, seen, windows, last = np.load(features.path).view(np.uint8), [], 0, 0
    for window in scan_needed_rows(features, chunk_checksums(features.path), needed, window_bytes):
        assert last <= window.first == window.nodes[0] <= window.nodes[-1] == window.last - 1
        np.testing.assert_array_equal(rows_of(window), expected[window.nodes])
        assert len(window.nodes) * features.row_bytes <= window.read_bytes
        assert window.read_bytes <= max(window_bytes, features.row_bytes + 2 * CHECKSUM_CHUNK_BYTES)
        seen.append(window.nodes)
        windows, last = windows + 1, window.last
    np.testing.assert_array_equal(np.concatenate(seen) if seen else np.zeros(0), np.flatnonzero(needed))
    return windows


@settings(max_examples=40)
@given(st.data())
def test_all_needed_rows_come_once_in_order(features: FeatureFile, data: st.DataObject) -> None:
    needed = np.zeros(NUM_NODES, bool)
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, NUM_NODES - 1))
        needed[start : start + data.draw(st.sampled_from([1, 3, 500])) : data.draw(st.integers(1, 9))] = True
    check(features, needed, data.draw(st.sampled_from([1, 500, 5000, 1 << 20])))


def test_windows_are_as_few_as_fit(features: FeatureFile) -> None:
    everything = np.ones(NUM_NODES, bool)
    file_bytes = features.data_offset_bytes + features.num_bytes
    assert check(features, everything, file_bytes + CHECKSUM_CHUNK_BYTES) == 1
    if file_bytes > 1 << 20:
        # A chunk that two windows need is read twice.
        assert check(features, everything, file_bytes // 4 + 2 * CHECKSUM_CHUNK_BYTES) == 4
    assert check(features, np.zeros(NUM_NODES, bool), 1 << 20) == 0


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """Rows of half a page, two of which are near each other, across more nodes than are looked through at a time."""
    path, num_nodes = tmp_path / "features.npy", 3_000_000
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (num_nodes, 512)})
        offset = file.tell()
        file.truncate(offset + num_nodes * 2048)
    features = FeatureFile(path, offset, num_nodes, RowFormat("float32", 512))
    nodes = np.array([0, 4, 1_500_000, 2_999_999])
    rows = np.load(path, mmap_mode="r+")
    rows[nodes] = np.random.default_rng(0).random((4, 512), np.float32)
    content, size = np.memmap(path, np.uint8, "r"), CHECKSUM_CHUNK_BYTES
    checksums = np.zeros(-(-len(content) // size), np.uint32)
    for begin in (offset + nodes * 2048).tolist():
        for chunk in range(begin // size, (begin + 2047) // size + 1):
            checksums[chunk] = crc32c(content[chunk * size : (chunk + 1) * size])
    needed = np.zeros(num_nodes, np.bool_)
    needed[nodes] = True
    (window,) = scan_needed_rows(features, checksums, needed, 64 << 10)
    np.testing.assert_array_equal(rows_of(window), rows[nodes].view(np.uint8))
    assert window.read_bytes <= (3 + 1 + 2) * CHECKSUM_CHUNK_BYTES
    assert len(list(scan_needed_rows(features, checksums, needed, 3 * CHECKSUM_CHUNK_BYTES))) == 2


def test_a_file_that_ends_early_is_an_error(features: FeatureFile, tmp_path: Path) -> None:
    path = tmp_path / "short.npy"
    path.write_bytes(features.path.read_bytes()[: NUM_NODES // 2 * features.row_bytes])
    checksums = chunk_checksums(features.path)
    short = FeatureFile(path, features.data_offset_bytes, NUM_NODES, features.rows)
    with pytest.raises(ArtifactError, match="ends early"):
        list(scan_needed_rows(short, checksums, np.ones(NUM_NODES, bool), 100 * features.row_bytes))


def test_a_scan_that_is_left_reads_no_further(features: FeatureFile) -> None:
    scan = scan_needed_rows(features, chunk_checksums(features.path), np.ones(NUM_NODES, bool), features.row_bytes)
    assert next(scan).first == 0
    scan.close()  # type: ignore[attr-defined]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_found_where_it_is_used(features: FeatureFile, tmp_path: Path, data: st.DataObject) -> None:
    """And nowhere else matters: what comes is right, or an error names the file."""
    content = bytearray(features.path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.npy"
    path.write_bytes(content)
    flipped = FeatureFile(path, features.data_offset_bytes, NUM_NODES, features.rows)
    needed = np.zeros(NUM_NODES, bool)
    needed[data.draw(st.integers(0, NUM_NODES - 1)) :: data.draw(st.integers(1, 900))] = True
    expected, checksums = np.load(features.path), chunk_checksums(features.path)
    try:
        for window in scan_needed_rows(flipped, checksums, needed, data.draw(st.sampled_from([1, 5000, 1 << 20]))):
            assert rows_of(window).tobytes() == expected[window.nodes].tobytes()
    except ArtifactError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    row = (position - features.data_offset_bytes) // features.row_bytes
    assert position < features.data_offset_bytes or not needed[row]


@pytest.mark.parametrize("num_bytes", [0, 1, CHECKSUM_CHUNK_BYTES, CHECKSUM_CHUNK_BYTES + 1, 3 * CHECKSUM_CHUNK_BYTES])
def test_chunk_checksums_however_the_data_come(num_bytes: int) -> None:
    random = np.random.default_rng(num_bytes)
    data = random.bytes(num_bytes)
    checksums, position = ChunkChecksums(), 0
    while position < num_bytes:
        step = int(random.integers(1, 2 * CHECKSUM_CHUNK_BYTES))
        checksums.add(data[position : position + step])
        position += step
    size = CHECKSUM_CHUNK_BYTES
    assert checksums.chunks().tolist() == [crc32c(data[first : first + size]) for first in range(0, num_bytes, size)]
    assert checksums.crc32c == crc32c(data)
