"""Packed directories against NumPy, against each other, on small disks and with foreign samples."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from graphs import make_graph, prepare_graph, write_graph

from diskgnn._native import PageWriter, crc32c, pack_partition, scatter_rows, start_extent
from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, OutputExistsError
from diskgnn.graph.graph import Graph
from diskgnn.loading.loader import Loader
from diskgnn.packing import pack as packing
from diskgnn.packing import rows as row_packing
from diskgnn.packing.headers import SplitPlanner
from diskgnn.specs import cache_rows
from diskgnn.packing.pack import pack
from diskgnn.storage.samples import Samples
from diskgnn.sampling.sample import sample
from diskgnn.storage import artifacts, extents
from diskgnn.storage.artifacts import ArtifactWriter, open_artifact, verify_artifact


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("packing") / "graph")


@pytest.fixture(scope="module")
def samples(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("packing") / "samples"
    sample(graph, path, fanouts=[3, 2], batch_size=8, epochs=2, threads=1)
    return Samples.open(path)


def files(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_the_files_hold_what_the_format_says(graph, samples, tmp_path):
    report = pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache="5%", keep_input_nodes=True)
    manifest = verify_artifact(tmp_path / "packed")
    config = manifest.config
    row_bytes = graph.feature_file.row_bytes
    features = graph.features
    static = manifest.array("static.npy")
    counts = np.zeros(graph.num_nodes, int)
    for minibatch in samples.read("train"):
        counts[minibatch.input_nodes] += 1
    hottest = np.lexsort((np.arange(graph.num_nodes), -counts))[: graph.num_nodes // 20]
    assert static.tobytes() == features[hottest].tobytes()
    assert not list((tmp_path / "packed").glob("*.nodes"))
    schema = extents.header_schema(2, pa.int32())
    for split in ("train", "valid"):
        index, data = manifest.array(f"{split}-index.npy"), (tmp_path / "packed" / f"{split}.bin").read_bytes()
        assert len(index) == samples.epochs(split) * samples.batches_per_epoch(split)
        assert (index["offset"] % 4096 == 0).all()
        assert index["rows_offset"].max() % 64 == 0
        end = 0
        for record, minibatch in zip(index, samples.read(split), strict=True):
            start = int(record["offset"])
            assert start == end
            header_end = start + int(record["header_bytes"])
            header = extents.decode_header(data[start:header_end], schema)
            np.testing.assert_array_equal(header.seeds, minibatch.seeds)
            np.testing.assert_array_equal(header.labels, graph.labels[minibatch.seeds])
            np.testing.assert_array_equal(header.input_nodes, minibatch.input_nodes)
            for found, expected in zip(header.blocks, minibatch.blocks, strict=True):
                np.testing.assert_array_equal(found[0], expected[0])
                np.testing.assert_array_equal(found[1], expected[1])
            assert record["header_crc32c"] == crc32c(data[start:header_end])
            first = int(config["num_static"]) + int(config["splits"][split]["cpu_rows"])
            on_disk = header.addresses >= first
            nodes = np.empty(record["num_rows"], int)
            nodes[header.addresses[on_disk] - first] = minibatch.input_nodes[on_disk]
            assert (np.diff(nodes) > 0).all()
            rows_start = start + int(record["rows_offset"])
            rows = data[rows_start : rows_start + len(nodes) * row_bytes]
            assert rows == features[nodes].tobytes()
            assert record["rows_crc32c"] == crc32c(rows)
            end = -(-(rows_start + len(rows)) // 4096) * 4096
            assert not any(data[header_end:rows_start])
            assert not any(data[rows_start + len(rows) : end])
        assert len(data) == end
        rows = config["splits"][split]["rows"]
        assert rows["disk"] == index["num_rows"].sum() == report.details[f"{split}_disk_rows"]
        assert rows["requested"] == index["num_inputs"].sum() == rows["static"] + rows["cpu"] + rows["disk"]
    assert len(manifest.array("train-initial.npy")) <= config["splits"]["train"]["cpu_rows"] == 20


@pytest.mark.parametrize("partition_bytes", [1, 28, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_do_not_depend_on_memory_or_threads(graph, samples, tmp_path, monkeypatch, partition_bytes, threads):
    """28 bytes are one row: as many partitions as rows."""
    options = {"cpu_cache": "10%", "static_cache": "5%"}
    pack(graph, samples, tmp_path / "large", threads=1, **options)
    monkeypatch.setattr(row_packing, "MIN_PARTITION_BYTES", partition_bytes)
    pack(graph, samples, tmp_path / "small", threads=threads, memory=0, **options)
    assert files(tmp_path / "large") == files(tmp_path / "small")
    assert len(files(tmp_path / "large")) == 1 + 1 + 2 * 4


def test_gaps_that_nobody_needs_are_not_read(tmp_path, monkeypatch):
    """Rows past 4 GiB of a sparse feature file: 3 of 2,000,000 nodes are needed."""
    num_nodes, width = 2_000_000, 700
    needed = np.array([5, num_nodes // 2, num_nodes - 1])
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[6:] = 2
    with ArtifactWriter(
        tmp_path / "graph", artifacts.GRAPH,
        config={"num_nodes": num_nodes, "num_classes": 2, "feature_width": width, "feature_dtype": "float32"},
    ) as writer:  # fmt: skip
        writer.save_array(artifacts.INDPTR, indptr)
        writer.save_array(artifacts.INDICES, needed[1:].astype(np.int32))
        writer.save_array(artifacts.LABELS, np.zeros(num_nodes, np.int64))
        writer.save_array("train.npy", needed[:1])
        header = artifacts.npy_header_bytes("<f4", (num_nodes, width))
        path = writer.path(artifacts.FEATURES)
        path.write_bytes(header)
        os.truncate(path, len(header) + num_nodes * width * 4)
        np.load(path, mmap_mode="r+")[needed] = np.random.default_rng(0).random((3, width), np.float32)
        writer.add(artifacts.FEATURES, crc32c=0)  # not asked for here
        writer.publish()
    graph = Graph.open(tmp_path / "graph")
    assert graph.manifest.files[artifacts.FEATURES].bytes > 1 << 32
    packed = prepare_graph(graph, tmp_path, fanouts=[2], batch_size=1, epochs=1, cpu_cache=0, memory="4MiB")
    with Loader(packed) as loader:
        (batch,) = loader.epoch(0)
    np.testing.assert_array_equal(np.sort(batch.input_nodes), needed)
    np.testing.assert_array_equal(batch.x, graph.features[batch.input_nodes])
    report = pack(graph, tmp_path / "samples", tmp_path / "again", cpu_cache=0, static_cache=0, memory="4MiB")
    assert report.read_bytes < 1 << 20


def test_samples_of_another_graph_are_refused(samples, tmp_path):
    other = make_graph(tmp_path / "graph", seed=1)
    with pytest.raises(ArtifactError, match="another graph"):
        pack(other, samples, tmp_path / "packed", cpu_cache=0)
    assert not (tmp_path / "packed").exists()


def test_damaged_samples_are_refused(graph, samples, tmp_path):
    broken = tmp_path / "samples"
    broken.mkdir()
    for name, content in files(samples.manifest.path).items():
        (broken / name).write_bytes(content)
    shard = broken / artifacts.shard_file("train", 1, 0)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        pack(graph, broken, tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert [path.name for path in tmp_path.iterdir()] == ["samples"]


def test_features_that_end_early_are_refused(tmp_path):
    graph = make_graph(tmp_path / "graph")
    sample(graph, tmp_path / "samples", fanouts=[3], batch_size=8, threads=1)
    os.truncate(graph.feature_file.path, 2000)
    with pytest.raises(OSError, match="ends early"):
        pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert not (tmp_path / "packed").exists()
    assert not (tmp_path / ".packed.partial").exists()


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_refused_with_the_bytes_missing(small_disk, tmp_path):
    graph = make_graph(tmp_path / "graph", width=1433)
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=8, threads=1)
    with pytest.raises(DiskFullError, match=r"\d+ bytes are missing"):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
    assert list(small_disk.iterdir()) == []
    whole = pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert whole.written_bytes > 256 << 10


def test_a_disk_that_fills_up_meanwhile_is_named(small_disk, tmp_path, monkeypatch):
    graph = make_graph(tmp_path / "graph", width=1433)
    monkeypatch.setattr(artifacts, "require_free_bytes", lambda *arguments: None)
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=8, threads=1)
    with pytest.raises(DiskFullError, match="ran full"):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
    assert list(small_disk.iterdir()) == []
    (small_disk / "ballast").write_bytes(bytes(250 << 10))
    with pytest.raises(DiskFullError, match="ran full"):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_a_file_system_without_fallocate(graph, samples, tmp_path, monkeypatch):
    pack(graph, samples, tmp_path / "expected", cpu_cache="10%", static_cache=0)

    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert files(tmp_path / "packed") == files(tmp_path / "expected")


def test_more_memory_never_means_more_reads(graph, samples, tmp_path):
    disk_rows = []
    for share in ("0%", "5%", "10%", "20%", "40%", "100%"):
        report = pack(graph, samples, tmp_path / share, cpu_cache=share, static_cache=0)
        disk_rows.append(report.details["train_disk_rows"])
    assert all(left > right for left, right in pairwise(disk_rows))
    assert disk_rows[-1] == 0
    assert disk_rows[0] == report.details["train_requested_rows"]


def test_static_rows_serve_splits_that_never_ask_for_them(tmp_path):
    """The valid split knows other nodes than train, from which the static rows come."""
    graph = write_graph(
        tmp_path / "graph", [0, 1, 1, 2, 2], np.array([1, 3], np.int32), np.arange(8, dtype=np.int8).reshape(4, 2),
        {"train": [0], "valid": [2]}, dtype="int8",
    )  # fmt: skip
    packed = prepare_graph(graph, tmp_path, fanouts=[1], batch_size=1, static_cache="50%", cpu_cache=0)
    with Loader(packed, "valid") as loader:
        (batch,) = loader.epoch(0)
    assert batch.x.tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("cache", "rows"),
    [(0, 0), (99, 0), (100, 1), (250, 2), ("1KiB", 10), ("1GiB", 50), ("0%", 0),
     ("10%", 5), ("100%", 50), (" 9 % ", 4)],
)  # fmt: skip
def test_sizes_of_caches(cache, rows):
    assert cache_rows(cache, 100, 50) == rows


@pytest.mark.parametrize("cache", ["101%", "-1%", "%", "ten%", "nan%", -1, "", "5 rows"])
def test_bad_sizes_of_caches(graph, samples, tmp_path, cache):
    with pytest.raises(ConfigError, match="expected a"):
        pack(graph, samples, tmp_path / "packed", cpu_cache=cache)
    assert list(tmp_path.iterdir()) == []


def test_output_that_exists_and_arguments(graph, samples, tmp_path):
    pack(graph, samples, tmp_path / "packed", cpu_cache=0, static_cache=0)
    before = files(tmp_path / "packed")
    with pytest.raises(OutputExistsError):
        pack(graph, samples, tmp_path / "packed", cpu_cache="50%", static_cache=0)
    with pytest.raises(ConfigError, match="threads"):
        pack(graph, samples, tmp_path / "packed", cpu_cache=0, threads=0, overwrite=True)
    assert files(tmp_path / "packed") == before
    pack(graph, samples, tmp_path / "packed", cpu_cache="50%", static_cache=0, overwrite=True)
    assert open_artifact(tmp_path / "packed").config["splits"]["train"]["cpu_rows"] == 100


def test_ctrl_c_leaves_nothing(graph, samples, tmp_path, monkeypatch):
    for stage in ("_pack_partition", "_target"):

        def interrupt(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(row_packing, stage, interrupt)
            with pytest.raises(KeyboardInterrupt):
                pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_being_written_to_a_file_while_space_is_reserved_in_it(graph, samples, tmp_path, monkeypatch):
    """Without fallocate, the C library reads and writes bytes of it: of pages that are just being written, too."""
    calls = []

    class Pages(PageWriter):
        def finish(self):
            super().finish()
            calls.append("finish")

    def noted(function, name):
        def call(*arguments):
            calls.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(_native, "PageWriter", Pages)
    monkeypatch.setattr(SplitPlanner, "plan", noted(SplitPlanner.plan, "headers"))
    monkeypatch.setattr(row_packing, "_extents_target", noted(row_packing._extents_target, "reserve"))
    pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert calls == ["headers"] * len(samples.splits) + ["finish"] + ["reserve"] * len(samples.splits) + ["finish"]


def test_a_failure_that_is_kept_keeps_no_threads(graph, samples, tmp_path, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    threads = len(list(Path("/proc/self/task").iterdir()))
    monkeypatch.setattr(row_packing, "_target", fail)
    with pytest.raises(MemoryError) as kept:
        pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert len(list(Path("/proc/self/task").iterdir())) <= threads
    assert kept.traceback


def test_labels_are_read_once_in_ascending_order(graph, samples, tmp_path):
    """They may be cold, on a disk that is slow at random."""
    asked = []

    class Labels:
        def __getitem__(self, nodes):
            asked.append(np.asarray(nodes).tolist())
            return graph.labels[nodes]

    pack(replace(graph, labels=Labels()), samples, tmp_path / "packed", cpu_cache=0, static_cache=0)
    pack(graph, samples, tmp_path / "expected", cpu_cache=0, static_cache=0)
    assert asked == [sorted(graph.splits[split]) for split in ("train", "valid")]
    assert files(tmp_path / "packed") == files(tmp_path / "expected")


def test_the_nodes_of_rows_are_not_read_ahead(graph, samples, tmp_path, monkeypatch):
    flags = []
    pack_partition = row_packing._pack_partition

    def look(pages, target, *arguments):
        if target.path.suffix == ".bin":
            mapping = Path("/proc/self/smaps").read_text().split(f"{target.path.stem}.nodes\n")[1]
            flags.append(mapping.split("VmFlags:")[1].splitlines()[0].split())
        pack_partition(pages, target, *arguments)

    monkeypatch.setattr(row_packing, "_pack_partition", look)
    pack(graph, samples, tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert len(flags) == 2
    assert all("rr" in found for found in flags)  # MADV_RANDOM


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("row_bytes", [3, 512])
def test_long_runs_of_many_extents(tmp_path, dtype, row_bytes):
    """Longer than the stretches in which a run's end is looked for, and, with 512 bytes, than a block of the writer.

    Each partition may have all, some or none. Headers leave a page begun, full, or are none.
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
        complete = len(extents_nodes[t]) == 0
        tail = tails[4096 * t : 4096 * (t + 1)]
        found = start_extent(pages, str(path), int(offsets[t]), header, starts[t], tail, complete)
        assert found == crc32c(header)
    for first, last in pairwise([0, 1, 4095, 4097, 30_000, 30_001, num_nodes]):
        pack_partition(pages, str(path), nodes, bounds, offsets[:-1] + starts, cursors, checksums, tails,
                               rows[first:last].reshape(-1), first, last, row_bytes, 2)  # fmt: skip
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
            start_extent(pages, str(small_disk / "file"), i << 20, header, len(header), tail, True)
        pages.finish()

    for _ in range(2):
        with pytest.raises(OSError, match="No space left") as caught:
            write_all()
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows_offset": 99}, "rows_offset"),
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
        "rows_offset": 128,
        "tail": np.zeros(4096, np.uint8),
    }
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start_extent(PageWriter(), **{**arguments, **changed}, complete=True)


def test_what_was_read_is_counted(graph, samples, tmp_path):
    """Samples in two passes; the scratch file of input nodes twice backwards and twice forwards with next uses."""
    report = pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    requested = report.details["train_requested_rows"] + report.details["valid_requested_rows"]
    disk = report.details["train_disk_rows"] + report.details["valid_disk_rows"]
    least = 2 * samples.manifest.total_bytes + 6 * 4 * requested + 4 * disk + graph.features.nbytes * 0.9
    assert least < report.read_bytes < 3 * least


@pytest.mark.parametrize(
    ("free_bytes", "memory_bytes", "rows"),
    [(1000, 1 << 40, 5), (1 << 40, 4000, 10), (1 << 40, 1 << 40, (4 << 30) // 100), (None, 1 << 40, 0)],
)
def test_automatic_static_rows(monkeypatch, free_bytes, memory_bytes, rows):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(packing, "_has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: free_bytes is not None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_bytes, 1 << 41))
    assert packing.static_rows("auto", 100, 1 << 40, memory_bytes) == rows


def test_torch_is_not_imported_for_nothing(graph, samples, tmp_path):
    """It takes seconds; without a driver there is no GPU to give rows to."""
    torch = pytest.importorskip("torch")
    assert packing._has_gpu_driver() or not torch.cuda.is_available()
    script = """
import sys
from diskgnn.packing import pack as packing
from diskgnn import pack
packing._has_gpu_driver = lambda: False
pack(*sys.argv[1:], cpu_cache=0)
sys.exit("torch" in sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", script, graph.manifest.path, samples.manifest.path, tmp_path / "packed"], check=True
    )


@pytest.mark.parametrize("reserved", [True, False])
def test_a_disk_that_static_rows_fill_is_an_error(small_disk, tmp_path, monkeypatch, reserved):
    """An error and no SIGBUS, also on a file system that cannot reserve space."""
    graph = make_graph(tmp_path / "graph", width=1433)
    sample(graph, tmp_path / "samples", fanouts=[3], batch_size=8, threads=1)
    monkeypatch.setattr(artifacts, "require_free_bytes", lambda *arguments: None)
    if not reserved:

        def refuse(*arguments):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DiskFullError, match="ran full"):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache="100%")
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_scattered_rows(tmp_path, threads):
    """More than one thread's share, with runs of neighbours and without."""
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (5000, 3000), np.uint8)
    places = np.flatnonzero(random.random(9000) < 0.6)[:5000]
    sources = random.permutation(5000)[: len(places)]
    path = tmp_path / "rows"
    path.write_bytes(bytes(10 + 9000 * 3000))
    with path.open("r+b") as file:
        scatter_rows(file.fileno(), 10, places, sources, rows.reshape(-1), 3000, threads)
    expected = np.zeros((9000, 3000), np.uint8)
    expected[places] = rows[sources]
    assert path.read_bytes() == bytes(10) + expected.tobytes()
    with path.open("r+b") as file, pytest.raises(ValueError, match="row of the partition"):
        scatter_rows(file.fileno(), 10, places[:1], np.array([5000]), rows.reshape(-1), 3000, threads)
