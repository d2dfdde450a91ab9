"""The native pipeline by itself, on the extents of a packed directory."""

import signal
import threading
import time

import numpy as np
import pytest
import torch
from packed_directories import ENGINES

from diskgnn._native import EXTENT_FIELDS, ROWS_FIELDS, Pipeline, PipelineOptions, Tiers
from diskgnn.formats import artifacts, extents
from diskgnn.formats.packed import Packed
from diskgnn.loading.cpu_tier import CpuTier
from diskgnn.loading.static_rows import open_static_rows

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def as_integers(index):
    extents = index.extents.view(np.int64).reshape(len(index), -1)
    return extents, index.rows.view(np.int64).reshape(*index.rows.shape, -1)


def make_pipeline(path, **options):
    """Over the train sequence of the packed directory `path`, at its start."""
    packed = Packed.open(path)
    (static,) = open_static_rows(packed, torch.device("cpu"), engine="threads")
    cpu_tier, index = CpuTier(packed, "train", 0, engine="threads", verify=False), packed.index("train")
    cpu_tier.restore(index, 0)
    tiers = Tiers(
        row_bytes=static.rows.row_bytes, num_device=static.num_device, num_static=static.num_static,
        pinned=static.pinned, cpu=cpu_tier.slots, next_cycle_slots=cpu_tier.next_cycle_slots,
    )  # fmt: skip
    path = packed.file(artifacts.extents_file("train"))
    engine = options.pop("engine", "auto")
    return Pipeline(str(path), *as_integers(index), [tiers], PipelineOptions(**options), engine=engine)


def test_stopping_from_another_thread_wakes_who_waits(packed):
    pipeline = make_pipeline(packed)
    pipeline.start(0, 8)
    for _ in range(8):
        pipeline.next()
    failures = []

    def wait():
        try:
            pipeline.next()
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    pipeline.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert "stopped" in failures[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_while_waiting_for_the_disk(packed, engine):
    """SIGINT arrives while the loop waits for a minibatch that does not come."""
    pipeline = make_pipeline(packed, engine=engine)
    pipeline.start(0, 8)
    for _ in range(8):
        pipeline.next()
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pipeline.next()
    assert time.monotonic() - started < 5
    timer.join()
    pipeline.stop()


@pytest.mark.parametrize(("row_bytes", "num_inputs"), [(1 << 62, 4), (1 << 31, 1), ((1 << 63) + 4096, 2)])
def test_rows_too_wide_to_count_are_refused(tmp_path, row_bytes, num_inputs):
    """Their bytes, modulo 2^64, would fit the file and a buffer."""
    (tmp_path / "train.bin").write_bytes(bytes(4096))
    index = extents.ExtentIndex.empty(1, [row_bytes])
    index.extents["header_bytes"] = index.rows["rows_offset"] = 64
    index.rows["num_inputs"] = num_inputs
    none = np.empty(0, np.uint8)

    def make(row_bytes):
        tiers = Tiers(
            row_bytes=row_bytes, num_device=0, num_static=0, pinned=none, cpu=none,
            next_cycle_slots=np.empty(0, np.int32),
        )  # fmt: skip
        return Pipeline(str(tmp_path / "train.bin"), *as_integers(index), [tiers], PipelineOptions(), engine="threads")

    make(4096)
    with pytest.raises(ValueError, match="wider"):
        make(row_bytes)


def test_locked_buffers_are_never_freed(packed):
    pipeline = make_pipeline(packed, prefetch=1)
    regions = pipeline.allocate_locked()
    assert len(regions) == 2
    pipeline.start(0, 8)
    minibatches = [pipeline.next() for _ in range(8)]  # more than there are locked buffers
    addresses = {header.ctypes.data for _, _, header, _ in minibatches}
    assert any(start <= address < start + size for start, size in regions for address in addresses)
    del minibatches
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        mapped = [[int(part, 16) for part in line.split()[0].split("-")] for line in maps]
    for start, size in regions:
        assert any(low <= start and start + size <= high for low, high in mapped)
    pipeline.stop()


def test_index_records_are_the_native_readers():
    for dtype, fields in ((extents.EXTENT_DTYPE, EXTENT_FIELDS), (extents.ROWS_DTYPE, ROWS_FIELDS)):
        assert {name: offset for name, (_, offset) in dtype.fields.items()} == fields
        assert dtype.itemsize == 8 * len(fields)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"threads": 0}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="at least 1"):
        PipelineOptions(**options)


def test_an_engine_that_there_is_not_is_refused(packed):
    with pytest.raises(ValueError, match="expected"):
        make_pipeline(packed, engine="aio")
