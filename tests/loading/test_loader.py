"""The loader as a bad user, a bad disk and a stranger's artifact meet it: no hang, no crash, no thread left behind."""

import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from graphs import (
    assert_rows_are_features,
    bits_of,
    make_graph,
    prepare_graph,
    threads_of_this_process,
    threads_that_stay,
)

from diskgnn._native import HAVE_LIBURING, Pipeline, crc32c, io_uring_refusal
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.loading.loader import Loader
from diskgnn.storage import artifacts, extents
from diskgnn.storage.artifacts import ArtifactWriter, open_artifact

ENGINES = ["threads"] if io_uring_refusal() else ["threads", "io_uring"]
EPOCHS = 2  # prepared


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("loader") / "graph")


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    return prepare_graph(graph, folder, epochs=EPOCHS, cpu_cache="20%", static_cache="5%", eval_cpu_cache="10%")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threads_of_this_process()
    yield
    if threads_of_this_process() > before:
        gc.collect()
    assert threads_that_stay(before) <= before


def key(batch):
    return (
        batch.epoch,
        batch.batch_index,
        bits_of(batch),
        batch.seeds.tolist(),
        [b.indices.tolist() for b in batch.blocks],
    )


@pytest.fixture(scope="module")
def whole(packed):
    """All minibatches of five epochs, uninterrupted."""
    with Loader(packed) as loader:
        return [key(batch) for epoch in range(5) for batch in loader.epoch(epoch)]


def batches_of(whole, epoch, first=0):
    return [batch for batch in whole if batch[0] == epoch and batch[1] >= first]


# Going on, leaving early, going elsewhere


@pytest.mark.parametrize("prefetch", [1, 2, 100])
def test_goes_on_from_its_state_wherever_it_was_left(packed, whole, prefetch):
    with Loader(packed, prefetch=prefetch) as first, Loader(packed, prefetch=prefetch) as second:
        for epoch, consumed in ((0, 0), (0, 3), (1, 5), (3, 7), (4, 1), (2, len(first))):
            received = [key(batch) for batch in itertools.islice(first.epoch(epoch), consumed)]
            assert received == batches_of(whole, epoch)[:consumed]
            state = first.state_dict()
            second.load_state_dict(state)
            assert second.state_dict() == state
            assert [key(batch) for batch in second.epoch(epoch)] == batches_of(whole, epoch, consumed)
            # What was skipped is skipped once, and only in the epoch that the state names.
            assert [key(batch) for batch in second.epoch(epoch)] == batches_of(whole, epoch)
            second.load_state_dict(state)
            assert [key(batch) for batch in second.epoch((epoch + 1) % 5)] == batches_of(whole, (epoch + 1) % 5)


def test_state_counts_what_was_received_not_what_was_prefetched(packed):
    with Loader(packed, prefetch=5) as loader:
        batches = loader.epoch(1)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
        for received, _ in enumerate(batches, 1):
            assert loader.state_dict()["batch"] == received


def test_states_of_elsewhere_are_refused(packed, graph, tmp_path):
    other = prepare_graph(graph, tmp_path, seed=1)
    with Loader(packed) as train, Loader(packed, "valid") as valid, Loader(other) as foreign:
        for source in (valid, foreign):
            with pytest.raises(ArtifactError, match="another packed directory"):
                train.load_state_dict(source.state_dict())
        good = train.state_dict()
        for bad in ({}, None, {"epoch": 0}, good | {"batch": 10**6}, good | {"batch": -1}, good | {"epoch": "1"}):
            with pytest.raises((ConfigError, ArtifactError)):
                train.load_state_dict(bad)
        assert train.state_dict() == good


def test_leaving_early_and_epochs_out_of_order(packed, whole):
    with Loader(packed) as loader:
        for epoch, consumed in ((3, 2), (0, 0), (0, 1), (4, 8), (1, 8), (1, 1), (2, 3)):
            received = [key(batch) for batch in itertools.islice(loader.epoch(epoch), consumed)]
            assert received == batches_of(whole, epoch)[:consumed]


def test_epochs_in_order_restore_the_cpu_tier_once(packed):
    with Loader(packed) as loader:
        list(loader.epoch(0))
        restored = loader.stats()["restored_bytes"]
        assert restored > 0
        for epoch in range(1, 5):
            list(loader.epoch(epoch))
        assert loader.stats()["restored_bytes"] == restored
        list(itertools.islice(loader.epoch(0), 1))
        assert loader.stats()["restored_bytes"] > restored


def test_starting_another_epoch_ends_the_one_before(packed):
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        next(batches)
        list(loader.epoch(1))
        with pytest.raises(ConfigError, match="another epoch was started"):
            next(batches)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_keeping_every_minibatch_also_beyond_the_loader(packed, whole, graph, prefetch):
    with Loader(packed, prefetch=prefetch) as loader:
        batches = [batch for epoch in range(3) for batch in loader.epoch(epoch)]
    del loader
    gc.collect()
    assert [key(batch) for batch in batches] == [batch for batch in whole if batch[0] < 3]
    for batch in batches:
        assert_rows_are_features(batch, graph)
        batch.x.zero_()  # the user's to write to; no neighbour suffers
        batch.y.zero_()
        batch.blocks[0].indices.zero_()


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_user_who_keeps_some_minibatches_still_has_the_next_assembled_ahead(packed, prefetch):
    with Loader(packed, prefetch=prefetch) as loader:
        assert len(loader) > 5 + prefetch
        kept, batches = deque(maxlen=4), loader.epoch(0)
        kept.extend(itertools.islice(batches, 5))
        deadline = time.monotonic() + 60
        while loader.stats()["minibatches"] < 5 + prefetch:  # without being asked for
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_part_of_a_minibatch_keeps_it_valid(packed, whole):
    with Loader(packed, prefetch=1) as loader:
        seeds = [batch.seeds for epoch in range(3) for batch in loader.epoch(epoch)]
    assert [one.tolist() for one in seeds] == [batch[3] for batch in whole if batch[0] < 3]


def test_writing_into_x_does_not_reach_the_tiers(packed, whole):
    with Loader(packed, device_cache=0) as loader:
        for epoch in range(4):
            for batch, expected in zip(loader.epoch(epoch), batches_of(whole, epoch), strict=True):
                assert key(batch) == expected
                batch.x.fill_(7)


def test_two_loaders_at_once(packed, whole):
    with Loader(packed, engine=ENGINES[0]) as one, Loader(packed, engine=ENGINES[-1]) as other:
        for left, right in zip(one.epoch(0), other.epoch(3), strict=True):
            assert (key(left), key(right)) == (whole[left.index], batches_of(whole, 3)[right.index])


def test_two_loaders_in_two_threads(packed, whole):
    results = {}

    def iterate(number):
        with Loader(packed) as loader:
            results[number] = [key(batch) for epoch in range(5) for batch in loader.epoch(epoch)]

    threads = [threading.Thread(target=iterate, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: whole, 1: whole}


# The end


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["close", "close twice", "drop", "with", "drop the loop"])
def test_no_thread_outlives_the_loader(packed, engine, how):
    before = threads_of_this_process()
    loader = Loader(packed, engine=engine)
    assert threads_of_this_process() == before  # nothing is taken before it is wanted
    batches = loader.epoch(0)
    batch = next(batches)
    assert threads_of_this_process() > before
    if how == "with":
        with loader:
            pass
    elif how.startswith("close"):
        loader.close()
        if how == "close twice":
            loader.close()
    if how.startswith("drop"):
        if how == "drop the loop":
            del batches
        else:
            batches = None
        del loader
        gc.collect()
    assert threads_that_stay(before) == before
    assert len(batch.x) > 0


def test_closing_while_iterating(packed, whole):
    loader = Loader(packed)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    with pytest.raises(ConfigError, match="closed"):
        next(batches)
    assert key(next(loader.epoch(2))) == batches_of(whole, 2)[0]  # it opens itself again
    counted = loader.stats()["requested_rows"]
    loader.close()
    assert loader.stats()["requested_rows"] >= counted > 0


def test_closing_from_another_thread_wakes_who_waits(packed, monkeypatch):
    loader = Loader(packed)
    batches = loader.epoch(0)
    for _ in range(len(loader)):  # what comes next would be the next epoch's: the pipeline has nothing to deliver
        next(batches)
    pipeline = loader._pipeline
    failures = []

    def wait():
        try:
            pipeline.next()
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    loader.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "stopped" in failures[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_while_waiting_for_the_disk(packed, engine):
    """SIGINT arrives while the loop waits for a minibatch that does not come."""
    loader = Loader(packed, engine=engine)
    batches = loader.epoch(0)
    for _ in range(len(loader)):
        next(batches)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loader._pipeline.next()
    assert time.monotonic() - started < 5
    timer.join()
    loader.close()


def test_ctrl_c_then_going_on(packed, whole, monkeypatch):
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        received = [key(next(batches)) for _ in range(3)]
        minibatch = loader._transfer._minibatch

        def interrupted(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(loader._transfer, "_minibatch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        monkeypatch.setattr(loader._transfer, "_minibatch", minibatch)
        loader.load_state_dict(loader.state_dict())
        received += [key(batch) for batch in loader.epoch(0)]
    assert received == batches_of(whole, 0)


def test_a_forked_child_can_drop_the_loader_and_is_told_not_to_use_it(packed):
    script = textwrap.dedent("""
        import gc, os, sys
        from diskgnn.loading.loader import Loader
        from diskgnn.errors import ConfigError

        def refused(call):
            try:
                call()
            except ConfigError as error:
                return "fork" in str(error)

        loader = Loader(sys.argv[1], prefetch=1)
        batches = loader.epoch(0)
        batch = next(batches)
        for how in ("exit", "drop", "close"):
            child = os.fork()
            if child == 0:
                if not refused(lambda: loader.epoch(1)) or not refused(lambda: next(batches)):
                    os._exit(3)
                del batch, batches
                if how == "close":
                    loader.close()
                if how != "exit":
                    del loader
                    gc.collect()
                sys.exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, (how, status)
        rest = len(list(batches))
        assert rest == len(loader) - 1, rest
    """)
    subprocess.run([sys.executable, "-c", script, packed], check=True, timeout=60)


def test_a_loader_that_is_alive_at_exit_does_not_hang(packed):
    script = "import sys, diskgnn; loader = diskgnn.Loader(sys.argv[1]); batches = loader.epoch(0); next(batches)"
    ended = subprocess.run([sys.executable, "-c", script, packed], timeout=60, capture_output=True, check=True)
    assert ended.stderr == b""


# A bad disk


@pytest.fixture
def mutable(packed, tmp_path):
    return shutil.copytree(packed, tmp_path / "packed")


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 8]))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keep_bytes", [0, 4096, 5000])
def test_a_file_truncated_after_opening(mutable, engine, keep_bytes):
    with Loader(mutable, engine=engine) as loader:
        loader._open()
        os.truncate(mutable / "train.bin", keep_bytes)
        with pytest.raises(OSError, match="ends early") as caught:
            list(loader.epoch(0))
        assert caught.value.errno == 5
        with pytest.raises(OSError, match="ends early"):  # again, not a hang
            list(loader.epoch(1))
    with pytest.raises(ArtifactError, match="expected"):
        Loader(mutable)


def test_a_flipped_bit_in_a_header_is_always_noticed(mutable):
    index = open_artifact(mutable).array("train-index.npy")
    record = index[3]
    for offset in (0, int(record["header_bytes"]) // 2, int(record["addresses_offset"]) + 1):
        flip(mutable / "train.bin", int(record["offset"]) + offset)
        with Loader(mutable) as loader:
            batches = loader.epoch(0)
            for _ in range(3):
                next(batches)
            with pytest.raises(ArtifactError, match=r"extent 3 .* is damaged.*verify"):
                next(batches)
            with pytest.raises(StopIteration):
                next(batches)
            assert loader.state_dict()["batch"] == 3
            with pytest.raises(ArtifactError, match="damaged"):  # and again
                list(loader.epoch(0))
        flip(mutable / "train.bin", int(record["offset"]) + offset)


def test_a_flipped_bit_in_a_row_is_noticed_when_verifying(mutable, whole):
    index = open_artifact(mutable).array("train-index.npy")
    number = int(np.argmax(index["num_rows"] > 0))
    record = index[number]
    flip(mutable / "train.bin", int(record["offset"] + record["rows_offset"]) + 5)
    with Loader(mutable, verify=True) as loader, pytest.raises(ArtifactError, match=rf"extent {number} .*rows"):
        list(loader.epoch(0))
    with Loader(mutable) as loader:
        assert [key(batch) for batch in loader.epoch(0)] != batches_of(whole, 0)


@pytest.mark.parametrize("name", ["static.npy", "train-initial.npy"])
def test_a_flipped_bit_in_rows_kept_in_memory_is_noticed_when_verifying(mutable, name):
    flip(mutable / name, 128 + 7)
    with Loader(mutable, verify=True) as loader, pytest.raises(ArtifactError, match=name):
        list(loader.epoch(0))


def test_a_flipped_bit_in_rows_restored_from_extents_is_noticed_when_verifying(mutable):
    index = open_artifact(mutable).array("train-index.npy")
    admitting = np.flatnonzero(index["num_admissions"] > 0)
    record = index[admitting[0]]
    for part, offset in (("rows", record["rows_offset"]), ("header", record["admissions_offset"])):
        flip(mutable / "train.bin", int(record["offset"] + offset) + 1)
        with Loader(mutable, verify=True) as loader, pytest.raises(ArtifactError, match=part):
            list(loader.epoch(1))
        flip(mutable / "train.bin", int(record["offset"] + offset) + 1)


@pytest.mark.parametrize("name", ["train-index.npy", "train-wrap.npy", "train-initial.npy", "static.npy"])
def test_another_file_in_its_place_is_noticed(mutable, name):
    np.save(mutable / name, np.zeros(3, np.int32))
    with pytest.raises(ArtifactError, match=name):
        Loader(mutable)


# A stranger's artifact: everything fits its checksums, and nothing is what it should be


def forge(path, config=None, **arrays):
    """The packed directory `path` anew, with other arrays (by file name without .npy) or bytes."""
    manifest = open_artifact(path)
    forged = path.with_name("forged")
    with ArtifactWriter(forged, artifacts.PACKED, config=manifest.config | (config or {})) as writer:
        for name in manifest.files:
            replacement = arrays.get(name.removesuffix(".npy").removesuffix(".bin").replace("-", "_"))
            if isinstance(replacement, np.ndarray) and name.endswith(".npy"):
                writer.save_array(name, replacement)
                continue
            data = (path / name).read_bytes() if replacement is None or name.endswith(".npy") else replacement
            writer.path(name).write_bytes(data)
            writer.add(name)
        writer.publish()
    return forged


FIELDS = extents.INDEX_DTYPE.names
HOSTILE = (-1, -(1 << 63), (1 << 63) - 1, 1 << 31, 1 << 40, 12345)


@pytest.mark.parametrize("field", [name for name in FIELDS if not name.endswith("crc32c")])
def test_hostile_index_values_are_refused(packed, tmp_path, field):
    path = shutil.copytree(packed, tmp_path / "packed")
    for value in HOSTILE:
        index = open_artifact(path).array("train-index.npy", mmap=False)
        index[field][2] = value
        forged = forge(path, train_index=index)
        with Loader(forged) as loader, pytest.raises((ArtifactError, OSError)):
            list(loader.epoch(0))
        shutil.rmtree(forged)


@pytest.mark.parametrize(("row_bytes", "num_inputs"), [(1 << 62, 4), (1 << 31, 1), ((1 << 63) + 4096, 2)])
def test_rows_too_wide_to_count_are_refused(tmp_path, row_bytes, num_inputs):
    """Their bytes, modulo 2^64, would fit the file and a buffer."""
    (tmp_path / "train.bin").write_bytes(bytes(4096))
    index = np.zeros(1, extents.INDEX_DTYPE)
    index["header_bytes"] = index["rows_offset"] = 64
    index["num_inputs"] = num_inputs
    none = np.empty(0, np.uint8)

    def make(row_bytes):
        arrays = none, none, np.empty(0, np.int32)
        return Pipeline(
            str(tmp_path / "train.bin"), index.view(np.int64), row_bytes, 0, 0, *arrays, "threads", 1, 1, False
        )

    make(4096)
    with pytest.raises(ValueError, match="wider"):
        make(row_bytes)


def test_an_index_of_nothing_is_refused(packed, tmp_path):
    path = shutil.copytree(packed, tmp_path / "packed")
    index = open_artifact(path).array("train-index.npy", mmap=False)
    forged = forge(path, train_index=np.zeros_like(index), train=b"")
    with Loader(forged) as loader, pytest.raises(ArtifactError, match="index"):
        list(loader.epoch(0))


@pytest.mark.parametrize("column", ["addresses", "admissions"])
@pytest.mark.parametrize("value", [-1, -(1 << 31), (1 << 31) - 1, 150, 60, 0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_hostile_addresses_and_admissions_never_crash(packed, tmp_path, column, value, epoch):
    """The first value of each header is replaced and its checksum made anew; epoch 1 restores from these extents."""
    path = shutil.copytree(packed, tmp_path / "packed")
    index = open_artifact(path).array("train-index.npy", mmap=False)
    data = bytearray((path / "train.bin").read_bytes())
    for record in index:
        if column == "addresses" or record["num_admissions"] > 0:
            start = int(record["offset"])
            at = start + int(record[f"{column}_offset"])
            data[at : at + 4] = np.int32(value).tobytes()
            record["header_crc32c"] = crc32c(bytes(data[start : start + int(record["header_bytes"])]))
    forged = forge(path, train_index=index, train=bytes(data))
    with Loader(forged) as loader:
        try:
            batches = list(loader.epoch(epoch))
        except ArtifactError as error:
            assert "damaged" in str(error)  # noqa: PT017
        else:
            assert value in (0, 60)  # a row that is there, only not the right one
            assert len(batches) == len(loader)


def test_headers_that_are_no_arrow_messages_are_refused(packed, tmp_path):
    path = shutil.copytree(packed, tmp_path / "packed")
    index = open_artifact(path).array("train-index.npy", mmap=False)
    whole = (path / "train.bin").read_bytes()
    header_bytes = int(index[0]["header_bytes"])
    body = min(int(index[0]["addresses_offset"]), int(index[0]["admissions_offset"]) or header_bytes)
    random = np.random.default_rng(0)
    refused = 0
    for trial in range(25):
        data = bytearray(whole)
        if trial == 0:
            data[:body] = bytes(body)
        for position in random.integers(0, min(body, 900), 1 + trial % 4):
            data[position] = random.integers(0, 256)
        index[0]["header_crc32c"] = crc32c(bytes(data[:header_bytes]))
        forged = forge(path, train_index=index, train=bytes(data))
        with Loader(forged) as loader:
            try:
                next(loader.epoch(0))
            except ArtifactError:
                refused += 1
        shutil.rmtree(forged)
    assert refused > 0


@pytest.mark.parametrize(
    ("config", "arrays"),
    [
        ({"row_bytes": 1 << 40}, {}),
        ({"row_bytes": 0, "feature_width": 0}, {}),
        ({"feature_width": 6}, {}),
        ({"num_static": 1 << 40}, {}),
        ({"num_static": -1}, {}),
        ({"feature_dtype": "int8"}, {}),
        ({}, {"train_wrap": np.array([[0]], np.int32)}),
        ({}, {"train_wrap": np.arange(3, dtype=np.int32)}),
        ({}, {"train_wrap": np.arange(40, dtype=np.int64)}),
        ({}, {"train_wrap": np.full(40, 40, np.int32)}),
        ({}, {"train_wrap": np.full(40, -1, np.int32)}),
        ({}, {"train_index": np.zeros(3, np.int64)}),
    ],
)
def test_hostile_numbers_in_the_manifest_are_refused(packed, tmp_path, config, arrays):
    path = shutil.copytree(packed, tmp_path / "packed")
    assert len(open_artifact(path).array("train-wrap.npy")) == 40
    forged = forge(path, config, **arrays)
    with pytest.raises(ArtifactError), Loader(forged) as loader:
        list(loader.epoch(0))


# Engines


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


@pytest.mark.skipif(not HAVE_LIBURING, reason="built without liburing")
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
                    assert loader._pipeline.engine() == "threads"
        told = [str(w.message) for w in caught if "io_uring" in str(w.message)]
        assert len(told) == 1 and "refuses io_uring_setup" in told[0], told
        try:
            diskgnn.Loader(sys.argv[1], engine="io_uring")
        except ConfigError as error:
            assert "Operation not permitted" in str(error) and "auto" in str(error)
        else:
            sys.exit(5)
    """)
    subprocess.run([sys.executable, "-c", script, packed], check=True, timeout=60)


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
            assert loader._pipeline.engine() == "io_uring"


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "test"}, ArtifactError, "'test'"),
        ({"engine": "aio"}, ConfigError, "engine"),
        ({"prefetch": 0}, ConfigError, "prefetch"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"device_cache": 0, "pinned_cache": 0}, ConfigError, "too small"),
        ({"device_cache": "lots"}, ConfigError, "size"),
        ({"device_cache": -1}, ConfigError, "size"),
    ],
)
def test_arguments_are_checked(packed, arguments, error, message):
    with pytest.raises(error, match=message), Loader(packed, **arguments) as loader:
        list(loader.epoch(0))


def test_negative_epochs_are_refused(packed):
    with Loader(packed) as loader, pytest.raises(ConfigError, match="epoch"):
        loader.epoch(-1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(packed):
    with pytest.raises(ConfigError, match="CUDA"):
        Loader(packed, device="cuda")


def test_caches_without_static_rows_are_warned_of(graph, tmp_path):
    packed = prepare_graph(graph, tmp_path, epochs=1, static_cache=0)
    with Loader(packed, device_cache="1MiB") as loader, pytest.warns(UserWarning, match="static"):
        next(loader.epoch(0))


# What a review found


@pytest.mark.parametrize("name", ["train-wrap.npy", "train-index.npy"])
def test_a_flipped_bit_in_what_says_where_rows_are_is_always_noticed(mutable, name):
    first, size = artifacts.npy_data_offset(mutable / name), (mutable / name).stat().st_size
    for offset in range(first, size, max(1, (size - first) // 7)):
        flip(mutable / name, offset)
        with pytest.raises(ArtifactError, match="damaged"), Loader(mutable) as loader:
            next(loader.epoch(0))
        flip(mutable / name, offset)
    with Loader(mutable) as loader:
        next(loader.epoch(0))


def test_no_byte_is_read_that_was_not_asked_for(packed):
    index = np.load(packed / "valid-index.npy")
    row_bytes = open_artifact(packed).config["row_bytes"]
    initial_bytes = np.load(packed / "valid-initial.npy").nbytes
    with Loader(packed, "valid") as loader:
        for count in (1, 2, 3):
            assert len(list(loader.epoch(count - 1))) == loader.num_batches
            expected = count * extents.extent_bytes(index, row_bytes).sum() + initial_bytes
            stats = loader.stats()
            assert stats["read_bytes"] == expected
            # Each at most a chunk, and no smaller than a page.
            assert count <= stats["read_requests"] <= (expected - initial_bytes) // 4096


def test_locked_buffers_are_never_freed(packed):
    loader = Loader(packed)
    next(loader.epoch(0))
    loader.close()
    loader._open()
    regions = loader._pipeline.allocate_locked()
    assert len(regions) == 2
    batches = list(loader.epoch(0))  # more than there are locked buffers
    addresses = {batch.x.data_ptr() for batch in batches}
    assert any(start <= address < start + size for start, size in regions for address in addresses)
    del batches
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        mapped = [[int(part, 16) for part in line.split()[0].split("-")] for line in maps]
    for start, size in regions:
        assert any(low <= start and start + size <= high for low, high in mapped)
    loader.close()


def test_static_rows_are_shared_by_the_loaders_of_one_directory(packed):
    loaders = [Loader(packed, split) for split in ("train", "valid")]
    for loader in loaders:
        next(loader.epoch(0))
    first, second = (loader._store for loader in loaders)
    assert first.num_static > 0
    assert np.shares_memory(first.pinned, second.pinned)
    for loader in loaders:
        loader.close()


def test_memory_that_runs_out_is_not_called_damage(packed, monkeypatch):
    def full(*_):
        raise RuntimeError("CUDA out of memory")

    with Loader(packed) as loader:
        batches = loader.epoch(0)
        monkeypatch.setattr(loader._transfer, "_minibatch", full)
        with pytest.raises(RuntimeError, match="out of memory"):
            next(batches)
