"""Reading ranges and rows past the page cache, against os.pread and another io_uring binding."""

import errno
import mmap
import os
import platform
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn._native import DIRECT_ALIGNMENT, HAVE_IO_URING, io_uring_refusal, read_ranges
from diskgnn.errors import ArtifactError
from diskgnn.files.row_reading import GAP_BYTES, read_rows, requests, row_buffer

ENGINES = ["auto", "threads"] if io_uring_refusal() else ["auto", "threads", "io_uring"]
FILE_BYTES = 3_000_001  # no multiple of anything


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("read") / "file"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, FILE_BYTES, np.uint8).tobytes())
    return path


def aligned(num_bytes):
    return np.frombuffer(mmap.mmap(-1, max(num_bytes, 1)), np.uint8)


def read(path, engine, ranges, base=0, capacity=FILE_BYTES + DIRECT_ALIGNMENT):
    destination = aligned(capacity)
    offsets, lengths = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    read_ranges(str(path), engine, offsets, lengths, offsets - base, destination)
    return destination


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40)
@given(data=st.data())
def test_ranges_are_what_pread_gives(path, engine, data):
    starts = data.draw(st.lists(st.integers(0, FILE_BYTES), min_size=1, max_size=20))
    ranges = [(start, data.draw(st.integers(0, min(FILE_BYTES - start, 1_500_000)))) for start in starts]
    base = min(start for start, _ in ranges) // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
    destination = read(path, engine, ranges, base)
    with path.open("rb") as file:
        for start, length in ranges:
            found = destination[start - base : start - base + length].tobytes()
            assert found == os.pread(file.fileno(), length, start)


@pytest.mark.skipif("io_uring" not in ENGINES, reason="io_uring is refused here")
def test_ranges_are_what_another_io_uring_binding_gives(path):
    liburing = pytest.importorskip("liburing")
    trial = subprocess.run([sys.executable, "-c", "import liburing; liburing.Ring()"], check=False)
    if trial.returncode == -signal.SIGILL:
        pytest.skip("the wheel of liburing was built for another processor")
    ring, cqe = liburing.Ring(), liburing.Cqe()
    liburing.io_uring_queue_init(4, ring, 0)
    ranges = [(0, 4096), (5000, 123_456), (FILE_BYTES - 77, 77)]
    destination = read(path, "io_uring", ranges)
    try:
        with path.open("rb") as file:
            for start, length in ranges:
                buffer = bytearray(length)
                sqe = liburing.io_uring_get_sqe(ring)
                liburing.io_uring_prep_read(sqe, file.fileno(), buffer, start)
                liburing.io_uring_submit_and_wait(ring, 1)
                liburing.io_uring_wait_cqe(ring, cqe)
                assert cqe[0].res == length
                liburing.io_uring_cq_advance(ring, 1)
                assert destination[start : start + length].tobytes() == bytes(buffer)
    finally:
        liburing.io_uring_queue_exit(ring)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "start", [FILE_BYTES - 100, FILE_BYTES, FILE_BYTES + 5000, FILE_BYTES + 10 * DIRECT_ALIGNMENT, 0]
)
def test_a_range_past_the_end_is_an_error(path, engine, start):
    """Whether the file ends within the first block that is read or long before it."""
    missing = [(start, FILE_BYTES + 1 - start if start < FILE_BYTES else 1)]
    with pytest.raises(ArtifactError, match="ends early"):
        read(path, engine, missing, 0, FILE_BYTES + 20 * DIRECT_ALIGNMENT)


@pytest.mark.parametrize("engine", ENGINES)
def test_files_that_cannot_be_read(tmp_path, engine):
    with pytest.raises(FileNotFoundError, match="missing"):
        read(tmp_path / "missing", engine, [(0, 1)])
    with pytest.raises(OSError) as caught:  # noqa: PT011
        read(tmp_path, engine, [(0, 1)])
    assert caught.value.errno in (errno.EISDIR, errno.EINVAL)


@pytest.mark.parametrize(
    ("ranges", "base", "capacity"),
    [
        ([(0, 4097)], 0, 4096),  # does not fit
        ([(0, 1)], 4096, 8192),  # before the base
        ([(-100, 50)], 0, 4096),
        ([(0, -1)], 0, 4096),
        ([((1 << 63) - 10, 100)], 0, 4096),
        ([(1 << 62, 1)], 0, 4096),
    ],
)
def test_ranges_that_lead_outside_are_refused(path, ranges, base, capacity):
    with pytest.raises(ValueError, match=r"destination|at least 0"):
        read(path, "threads", ranges, base, capacity)


def test_engines_have_names(path):
    with pytest.raises(ValueError, match="engine"):
        read(path, "aio", [(0, 1)])


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40)
@given(data=st.data())
def test_rows(path, engine, data):
    row_bytes = data.draw(st.sampled_from([1, 7, 64, 4096, 5732, 70_000]))
    data_offset = data.draw(st.sampled_from([0, 128, 4096, 5000]))
    num_rows = (FILE_BYTES - data_offset) // row_bytes
    chosen = data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1, max_size=12))
    rows = np.array(sorted(chosen))
    buffer = row_buffer(int(rows[-1] - rows[0]) + 1, row_bytes)
    found, read_bytes = read_rows(path, data_offset, row_bytes, rows, buffer, engine=engine)
    expected = np.fromfile(path, np.uint8, num_rows * row_bytes, offset=data_offset).reshape(-1, row_bytes)[rows]
    assert found.reshape(-1, row_bytes)[rows - rows[0]].tobytes() == expected.tobytes()
    assert len(rows) * row_bytes <= read_bytes <= len(rows) * (row_bytes + GAP_BYTES)


def test_neighbouring_rows_are_one_request_however_wide():
    width = 2 * GAP_BYTES
    starts, lengths = requests(np.arange(5), width)
    assert (starts.tolist(), lengths.tolist()) == ([0], [5 * width])
    starts, lengths = requests(np.array([3, 4, 300, 20_000]), 100)
    assert (starts.tolist(), lengths.tolist()) == ([300, 2_000_000], [298 * 100, 100])


def test_rows_past_4_gib(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    last = np.memmap(path, np.uint8, "r+")[-300:]
    last[:] = np.arange(300) % 251
    rows = np.arange((5 << 30) // 100 - 3, (5 << 30) // 100)
    for engine in ENGINES:
        found, _ = read_rows(path, (5 << 30) % 100, 100, rows, row_buffer(3, 100), engine=engine)
        assert found.tobytes() == last.tobytes()


REFUSE = """
    import ctypes, struct, sys
    def refuse(code, *numbers):
        '''Install a seccomp filter under which these system calls fail with `code`.'''
        def instruction(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
        checks = [instruction(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
        program = [instruction(0x20, 0, 0, 0), *checks, instruction(0x06, 0, 0, 0x7fff0000),
                   instruction(0x06, 0, 0, 0x00050000 | code)]
        buffer = ctypes.create_string_buffer(b"".join(program))
        class Filter(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0    # no new privileges
        found = Filter(len(program), ctypes.addressof(buffer))
        assert libc.prctl(22, 2, ctypes.byref(found), 0, 0) == 0, ctypes.get_errno()
    import errno, mmap, numpy as np
    from diskgnn._native import HAVE_IO_URING, ExtentRows, PageWriter, io_uring_refusal, pack_window, read_ranges
    def read(engine):
        buffer = np.frombuffer(mmap.mmap(-1, 3_000_001 + 8192), np.uint8)
        read_ranges(sys.argv[1], engine, np.array([0]), np.array([3_000_001]), np.array([0]), buffer)
        assert buffer[:3_000_001].tobytes() == open(sys.argv[1], "rb").read()
"""


def run_script(path, script):
    script = textwrap.dedent(REFUSE) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.skipif("io_uring" not in ENGINES, reason="io_uring is refused here")
@pytest.mark.parametrize(
    ("call", "code", "told"),
    [(425, errno.EPERM, "io_uring_setup"), (426, errno.EPERM, "io_uring_enter"), (427, errno.EINVAL, "cannot read")],
)
def test_wherever_the_kernel_refuses_io_uring_threads_read(path, call, code, told):
    """setup, enter, or register, by which it is asked whether it can read: kernels before 5.6 do not know that."""
    run_script(
        path,
        f"""
        from diskgnn.system.doctor import look_at_io_uring
        assert io_uring_refusal() == "" and look_at_io_uring().usable
        refuse({code}, {call})
        assert {told!r} in io_uring_refusal(), io_uring_refusal()
        assert not look_at_io_uring().usable and {told!r} in look_at_io_uring().kernel
        read("auto")
        try:
            read("io_uring")
        except OSError as error:
            assert {told!r} in str(error), error
        else:
            sys.exit(5)
        """,
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of clone is not known")
def test_where_no_thread_can_be_started(path):
    """Reading with threads is an error, work that this thread can do by itself is done; the process lives."""
    clone = 56 if platform.machine() == "x86_64" else 220
    run_script(
        path,
        f"""
        refuse(errno.EAGAIN, {clone}, 435)
        try:
            read("threads")
        except OSError as error:
            assert error.errno == errno.EAGAIN, error
        else:
            sys.exit(5)
        rows = np.arange(12, dtype=np.uint8)
        pages, tails = PageWriter(), np.zeros(2 * 4096, np.uint8)
        extents = ExtentRows(path=sys.argv[1] + ".out", nodes=np.array([0, 2, 1, 2], np.int32),
                             bounds=np.array([0, 2, 4]), offsets=np.array([0, 4096]), cursors=np.array([0, 2]),
                             checksums=np.zeros(2, np.uint32), tails=tails,
                                 padding_bytes=np.full(2, 4088), row_bytes=4)
        pack_window(pages, extents, rows, np.array([0]), np.array([0]), 3, 3)
        pages.finish()
        with open(sys.argv[1] + ".out", "rb") as file:
            found = file.read()
        assert len(found) == 8192
        assert list(found[:8]) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert list(found[4096:4104]) == [4, 5, 6, 7, 8, 9, 10, 11]
        """,
    )


def test_where_few_threads_can_be_started_they_read(path):
    """Memory for the stacks of some of the 16."""
    run_script(
        path,
        """
        import resource
        read("threads")
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (28 << 20), resource.RLIM_INFINITY))
        read("threads")
        """,
    )


@pytest.mark.skipif(not HAVE_IO_URING, reason="built without io_uring")
def test_that_threads_read_is_said_once_by_whoever_comes_first(path, tmp_path):
    run_script(
        path,
        f"""
        import warnings, diskgnn
        from pathlib import Path
        folder = Path({str(tmp_path)!r})
        refuse(errno.EPERM, 426)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            diskgnn.generate(folder / "graph", num_nodes=500, avg_degree=4, num_classes=2, num_features=4,
                             train_fraction=0.2, valid_fraction=0.1, test_fraction=0.1, homophily=0.5, threads=1)
            arguments = dict(fanouts=[2], batch_size=50, cpu_cache="10%", threads=1)
            diskgnn.estimate(folder / "graph", folder / "packed", **arguments)
            assert len([w for w in caught if "refuses io_uring_enter" in str(w.message)]) == 1
            diskgnn.prepare(folder / "graph", folder / "packed", **arguments)
        assert len([w for w in caught if "io_uring" in str(w.message)]) == 1
        """,
    )
