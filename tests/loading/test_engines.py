"""What reads: io_uring where it is allowed, threads elsewhere, with and without direct reads."""

import os
import shutil
import textwrap
import warnings
from pathlib import Path

import pytest
from commands import run_python
from packed_directories import ENGINES, key

from diskgnn._native import HAVE_IO_URING, io_uring_refusal
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def refuse_io_uring():
    """Install a seccomp filter in this process under which io_uring_setup fails with EPERM, as in a container."""
    return textwrap.dedent("""
        import ctypes, struct
        def instruction(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
        program = b"".join([
            instruction(0x20, 0, 0, 0),           # load the number of the system call
            instruction(0x15, 0, 1, 425),         # io_uring_setup?
            instruction(0x06, 0, 0, 0x00050001),  # fail with EPERM
            instruction(0x06, 0, 0, 0x7fff0000),  # allow
        ])
        buffer = ctypes.create_string_buffer(program)
        class Filter(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0    # no new privileges
        found = Filter(4, ctypes.addressof(buffer))
        assert libc.prctl(22, 2, ctypes.byref(found), 0, 0) == 0, ctypes.get_errno()
    """)


@pytest.mark.skipif(not HAVE_IO_URING, reason="built without io_uring")
def test_where_io_uring_is_refused_threads_read_and_it_is_said_once(packed):
    script = refuse_io_uring() + textwrap.dedent("""
        import sys, warnings, diskgnn
        from diskgnn.errors import ConfigError
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                with diskgnn.Loader(sys.argv[1]) as loader:
                    for epoch in (1, 0):
                        assert len(list(loader.epoch(epoch))) == len(loader)
        told = [str(w.message) for w in caught if "io_uring" in str(w.message)]
        assert len(told) == 1 and "refuses io_uring_setup" in told[0], told
        try:
            diskgnn.Loader(sys.argv[1], engine="io_uring")
        except ConfigError as error:
            assert "Operation not permitted" in str(error) and "auto" in str(error)
        else:
            sys.exit(5)
    """)
    run_python("-c", script, packed, check=True, timeout=60)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no tmpfs to write to")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_system_without_direct_reads(packed, whole, engine):
    path = shutil.copytree(packed, f"/dev/shm/diskgnn-test-{os.getpid()}-{engine}")
    try:
        with Loader(path, engine=engine, verify=True) as loader:
            assert [key(batch) for epoch in range(5) for batch in loader.epoch(epoch)] == whole
    finally:
        shutil.rmtree(path)


def test_no_warning_where_io_uring_works(packed):
    if io_uring_refusal():
        pytest.skip("io_uring is refused here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Loader(packed) as loader:
            list(loader.epoch(0))
            opened = [Path(entry).readlink().name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
            assert "anon_inode:[io_uring]" in opened
