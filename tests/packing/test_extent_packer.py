"""The native packer of extents, by itself: what lands in the file, byte for byte."""

import errno
from itertools import pairwise

import numpy as np
import pytest

from diskgnn._native import (
    ExtentRows,
    PageWriter,
    crc32c,
    crc32c_of_remainder,
    crc32c_part,
    flush_tails,
    pack_window,
    scatter_rows,
    start_extent,
)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("row_bytes", [3, 512])
def test_long_runs_of_many_extents(tmp_path, dtype, row_bytes):
    """Longer than the stretches in which a run's end is looked for, and, with 512 bytes, than a block of the writer.

    Each window may have all, some or none. Headers leave a page begun, full, or are none.
    """
    random = np.random.default_rng(0)
    num_nodes = 60_000
    rows = random.integers(0, 256, (num_nodes, row_bytes), np.uint8)
    extents_nodes = [np.flatnonzero(random.random(num_nodes) < share).astype(dtype) for share in (0.9, 0, 0.01, 0.5, 1)]
    headers = [random.integers(0, 256, size, np.uint8) for size in (100, 5000, 0, 4096, 3 << 20)]
    bounds = np.cumsum([0, *map(len, extents_nodes)])
    starts = [64 * -(-len(header) // 64) for header in headers]
    sizes = [start + len(each) * row_bytes for start, each in zip(starts, extents_nodes, strict=True)]
    offsets = 4096 * np.cumsum([0, *(-(-size // 4096) for size in sizes)])
    cursors, checksums, tails = bounds[:-1].copy(), np.zeros(5, np.uint32), np.zeros(5 * 4096, np.uint8)
    nodes = np.concatenate(extents_nodes)
    path = tmp_path / "rows"
    pages = PageWriter()
    for t, header in enumerate(headers):
        tail = tails[4096 * t : 4096 * (t + 1)]
        found = start_extent(pages, str(path), int(offsets[t]), header, starts[t] - len(header), tail)
        assert found == crc32c(header)
    pages.finish()
    extents = ExtentRows(
        path=str(path), nodes=nodes, bounds=bounds, offsets=offsets[:-1] + starts, cursors=cursors, checksums=checksums,
        tails=tails, padding_bytes=np.diff(offsets) - sizes, row_bytes=row_bytes,
    )  # fmt: skip
    for first, last in pairwise([0, 1, 4095, 4097, 30_000, 30_001, num_nodes]):
        # In memory, runs lie in any order, with anything between them.
        runs = sorted({first, (first + last) // 2, (first + 3 * last) // 4})
        places, data = {}, bytearray()
        for run, after in reversed(list(pairwise([*runs, last]))):
            data += bytes(5)
            places[run] = len(data)
            data += rows[run:after].tobytes()
        run_places = np.array([places[run] for run in runs])
        pack_window(pages, extents, np.frombuffer(data, np.uint8), np.array(runs), run_places, last, 2)
        if first == 4097:  # somebody looks at what is there so far
            flush_tails(pages, extents)
            pages.finish()
            content = path.read_bytes()
            for start, each in zip(offsets[:-1] + starts, extents_nodes, strict=True):
                found = rows[each[each < last]].tobytes()
                assert content[start : start + len(found)] == found
    pages.finish()
    expected = bytearray(int(offsets[-1]))
    for offset, start, header, each in zip(offsets, starts, headers, extents_nodes, strict=False):
        expected[offset : offset + len(header)] = header.tobytes()
        expected[offset + start : offset + start + len(each) * row_bytes] = rows[each].tobytes()
    assert path.read_bytes() == expected
    assert cursors.tolist() == bounds[1:].tolist()
    assert checksums.tolist() == [crc32c(rows[each].tobytes()) for each in extents_nodes]


def test_a_write_that_fails_is_an_error(small_disk):
    """A short write, then none, in the background: whoever goes on writing, or waits for the end, is told."""
    pages = PageWriter()
    header, tail = np.zeros(1 << 20, np.uint8), np.zeros(4096, np.uint8)

    def write_all():
        for i in range(20):
            start_extent(pages, str(small_disk / "file"), i << 20, header, 0, tail)
        pages.finish()

    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as caught:
            write_all()
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"padding_bytes": 4096}, "padding_bytes"),
        ({"offset": 100}, "multiple of 4096"),
        ({"tail": np.zeros(1, np.uint8)}, "4096 bytes"),
        ({"path": "/proc/no/file"}, "No such file"),
    ],
)
def test_extents_that_cannot_start(tmp_path, changed, message):
    arguments = {
        "path": str(tmp_path / "file"),
        "offset": 0,
        "header": np.zeros(100, np.uint8),
        "padding_bytes": 28,
        "tail": np.zeros(4096, np.uint8),
    }
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start_extent(PageWriter(), **{**arguments, **changed})


def test_extents_that_do_not_fit_together(tmp_path):
    sound = {
        "nodes": np.array([3, 5, 1], np.int32),
        "bounds": np.array([0, 2, 3]),
        "offsets": np.array([0, 4096]),
        "cursors": np.array([0, 2]),
        "checksums": np.zeros(2, np.uint32),
        "tails": np.zeros(2 * 4096, np.uint8),
        "padding_bytes": np.array([4088, 4092]),
    }
    for name in ("bounds", "cursors", "checksums", "tails", "padding_bytes"):
        with pytest.raises(ValueError, match="the same extents"):
            ExtentRows(path=str(tmp_path / "file"), row_bytes=4, **{**sound, name: sound[name][:-1]})
    with pytest.raises(TypeError, match="int32 or int64"):
        ExtentRows(path=str(tmp_path / "file"), row_bytes=4, **{**sound, "nodes": np.array([3, 5, 1], np.int16)})
    nowhere = ExtentRows(path=str(tmp_path / "no" / "file"), row_bytes=4, **sound)
    with pytest.raises(FileNotFoundError):
        pack_window(PageWriter(), nowhere, np.zeros(8, np.uint8), np.array([0]), np.array([0]), 2, 1)
    extents = ExtentRows(path=str(tmp_path / "file"), row_bytes=4, **sound)
    rows, zero = np.zeros(8, np.uint8), np.array([0])
    for run_nodes, run_places in (
        (zero, np.array([5])),
        (zero, np.array([-1])),
        (zero, zero[:0]),
        (zero[:0], zero[:0]),
    ):
        with pytest.raises(ValueError, match="run_"):
            pack_window(PageWriter(), extents, rows, run_nodes, run_places, 2, 1)
    with pytest.raises(IndexError, match="node 3 is not in the window"):
        pack_window(PageWriter(), extents, rows, zero, zero, 4, 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_scattered_rows(tmp_path, threads):
    """More than one thread's share, with runs of neighbours and without."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (5000, 3000), np.uint8)
    places = np.flatnonzero(random.random(9000) < 0.6)[:5000]
    sources = random.permutation(5000)[: len(places)] * 3000
    path = tmp_path / "rows"
    path.write_bytes(bytes(10 + 9000 * 3000))
    with path.open("r+b") as file:
        half = len(places) // 2  # the checksum comes from both calls, the last rows first
        remainder = crc32c_part(bytes(10), 9000 * 3000)
        for part in (slice(half, None), slice(half)):
            remainder ^= scatter_rows(
                file.fileno(), 10, 9000, places[part], sources[part], rows.reshape(-1), 3000, threads
            )
    expected = np.zeros((9000, 3000), np.uint8)
    expected[places] = rows[sources // 3000]
    assert path.read_bytes() == bytes(10) + expected.tobytes()
    assert crc32c_of_remainder(remainder, 10 + 9000 * 3000) == crc32c(path.read_bytes())
    with path.open("r+b") as file, pytest.raises(ValueError, match="row of the window"):
        scatter_rows(
            file.fileno(), 10, 9000, places[:1], np.array([5000 * 3000 - 2999]), rows.reshape(-1), 3000, threads
        )
    with path.open("r+b") as file, pytest.raises(ValueError, match="rows of the file"):
        scatter_rows(file.fileno(), 10, 9000, np.array([9000]), sources[:1], rows.reshape(-1), 3000, threads)
