import gc
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
import torch
from forked_python import fork_command
from object_store import ObjectStore, object_store
from pyarrow import csv as pacsv

from diskgnn.compare import measurement
from diskgnn.files import faults

if not torch.cuda.is_available():  # before anything imports triton: its kernels then run in NumPy
    os.environ.setdefault("TRITON_INTERPRET", "1")

# An example that takes long says that the machine is busy, not that the code is wrong; pytest's own limit ends a hang.
hypothesis.settings.register_profile("diskgnn", deadline=None)
hypothesis.settings.load_profile("diskgnn")


@pytest.fixture(scope="session", autouse=True)
def budgets_of_data_alone() -> Iterator[None]:
    """A budget in tests is that of arrays and buffers: pytest has loaded far more than most stages may take."""
    with faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0):
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests with tiny tensors: more threads of torch would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def arrow_on_one_thread() -> Iterator[None]:
    """For tests that count threads: Arrow's pools grow when they are used, and stay; here they have grown before."""
    before = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pacsv.read_csv(io.BytesIO(b"a\n1\n"))
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])


# Rooms and files whose tests are about disks: what is read past the page cache, takes room, or counts in a cgroup.
ON_DISK = {
    "baselines", "compare", "embeddings", "engines", "files", "loading", "system",
    "test_bench.py", "test_bench_inference.py", "test_failing_disk.py", "test_gpu_bench.py", "test_sweeping.py",
    "test_upload_memory.py",
}  # fmt: skip
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """In memory, if there is room: most tests write many small files, and would wait until each is durable."""
    place = request.path.relative_to(Path(__file__).parent).parts
    if ON_DISK.intersection(place) or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield request.getfixturevalue("tmp_path")  # pytest's own, which looks through all that it has made
    else:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            yield Path(folder)


@pytest.fixture(scope="module")
def started_store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(started_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An S3 server that answers without faults; scratch of this process and its children is in tmp_path / "scratch"."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    started_store.proxy.reset()
    return started_store


@pytest.fixture
def measured_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that benchmarks of tools/ measure without a limit find torch imported: 2 seconds of a core for each."""

    def start(command: Sequence[str], **given: Any) -> subprocess.Popen[Any]:
        return (fork_command if command[0] == sys.executable else subprocess.Popen)(command, **given)

    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "tools"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(measurement, "subprocess", SimpleNamespace(Popen=start))


@pytest.fixture
def forks() -> None:
    """For tests that fork this process: on Python 3.13 (3.13.0 was tried) such a child crashes once Ray has worked in
    its parent, as it does in another test."""
    if sys.version_info[:2] == (3, 13) and "ray" in sys.modules:
        pytest.skip("Ray has worked in this process, whose children crash on Python 3.13")


def pytest_sessionstart() -> None:
    """Has signals do what tests rely on: a shell has what runs in its background ignore Ctrl-C, and nohup a hang-up."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Has the garbage collector leave alone what is there before the first test.

    Those are 600,000 objects: 0.4 seconds each time that a test asks for a collection, or has made enough others.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then long ones, so that no process is left alone with one when the others have
    ended.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    order = {path: (path not in slow, -path.stat().st_size, path) for path in {item.path for item in items}}
    items.sort(key=lambda item: order[item.path])
