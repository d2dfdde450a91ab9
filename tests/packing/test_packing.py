"""Packed directories against NumPy and against each other."""

import os
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from graphs import FEATURE_CHECKSUMS, FEATURES, INDICES, INDPTR, LABELS, TRAIN, prepare_graph, write_graph

from diskgnn._native import PageWriter, crc32c
from diskgnn.files import faults
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES, npy_header_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.extent_headers import decode_header
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.packed import Packed
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.loading.loader import Loader
from diskgnn.packing.pack import pack, pack_request
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.tiers import TierRows
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter


def files(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_the_files_hold_what_the_format_says(graph, samples, tmp_path):
    report = pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache="5%", keep_input_nodes=True)
    manifest = verify_artifact(tmp_path / "packed")
    config = Packed.open(tmp_path / "packed").config
    row_bytes = graph.feature_file.row_bytes
    features = graph.features
    static = manifest.array("static-node.npy")
    counts = np.zeros(graph.num_nodes, int)
    for minibatch in samples.read("train"):
        counts[minibatch.only_nodes] += 1
    hottest = np.lexsort((np.arange(graph.num_nodes), -counts))[: graph.num_nodes // 20]
    assert static.tobytes() == features[hottest].tobytes()
    assert not list((tmp_path / "packed").glob("*.nodes"))
    layout = config.header_layout()
    for split in ("train", "valid"):
        data = (tmp_path / "packed" / f"{split}.bin").read_bytes()
        index, (rows_index,) = manifest.array(f"{split}-index.npy"), manifest.array(f"{split}-rows.npy").T
        assert len(index) == samples.config.splits[split].num_batches == config.splits[split].num_batches
        assert (index["offset"] % 4096 == 0).all()
        assert rows_index["rows_offset"].max() % 64 == 0
        end = 0
        for extent, record, minibatch in zip(index, rows_index, samples.read(split), strict=True):
            start = int(extent["offset"])
            assert start == end
            header_end = start + int(extent["header_bytes"])
            header = decode_header(data[start:header_end], layout)
            np.testing.assert_array_equal(header.seeds, minibatch.seeds)
            np.testing.assert_array_equal(header.y, graph.labels[minibatch.seeds])
            np.testing.assert_array_equal(header.input_nodes[0], minibatch.only_nodes)
            np.testing.assert_array_equal(header.node_counts, minibatch.node_counts)
            for (found,), expected in zip(header.blocks, minibatch.only_blocks, strict=True):
                np.testing.assert_array_equal(found.indptr, expected[0])
                np.testing.assert_array_equal(found.indices, expected[1])
            assert extent["header_crc32c"] == crc32c(data[start:header_end])
            first = config.num_static + config.splits[split].cpu_rows
            addresses = header.rows[0].addresses
            on_disk = addresses >= first
            nodes = np.empty(record["num_rows"], int)
            nodes[addresses[on_disk] - first] = minibatch.only_nodes[on_disk]
            assert (np.diff(nodes) > 0).all()
            rows_start = start + int(record["rows_offset"])
            rows = data[rows_start : rows_start + len(nodes) * row_bytes]
            assert rows == features[nodes].tobytes()
            assert record["rows_crc32c"] == crc32c(rows)
            end = -(-(rows_start + len(rows)) // 4096) * 4096
            assert not any(data[header_end:rows_start])
            assert not any(data[rows_start + len(rows) : end])
        assert len(data) == end
        rows = config.splits[split].rows
        assert rows.disk == rows_index["num_rows"].sum() == report.details[f"{split}_disk_rows"]
        assert rows.requested == rows_index["num_inputs"].sum() == rows.static + rows.cpu + rows.disk
    assert len(manifest.array("train-initial-node.npy")) <= config.splits["train"].cpu_rows == 20


@pytest.mark.parametrize("window_bytes", [1, 28, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_do_not_depend_on_memory_or_threads(graph, samples, tmp_path, window_bytes, threads):
    """28 bytes are one row: as many windows as rows."""
    tiers = [TierRows(static=10, train=20, valid=5, test=5)]
    request = PackRequest(graph, samples, tiers)
    pack_request(request, tmp_path / "large", Resources.of(threads=1))
    with faults.pretending("window.bytes", window_bytes):
        pack_request(request, tmp_path / "small", Resources.of(0, threads))
    assert files(tmp_path / "large") == files(tmp_path / "small")
    assert len(files(tmp_path / "large")) == 1 + 1 + 2 * 5


def sparse_checksums(path, nodes, data_offset, row_bytes):
    """Of each chunk; all are zeros but those of `nodes`."""
    num_bytes, chunk_bytes = path.stat().st_size, CHECKSUM_CHUNK_BYTES
    checksums = np.full(-(-num_bytes // chunk_bytes), crc32c(bytes(chunk_bytes)), np.uint32)
    with path.open("rb") as file:
        for node in nodes:
            begin = data_offset + int(node) * row_bytes
            for chunk in range(begin // chunk_bytes, (begin + row_bytes - 1) // chunk_bytes + 1):
                file.seek(chunk * chunk_bytes)
                checksums[chunk] = crc32c(file.read(chunk_bytes))
    return checksums


def test_gaps_that_nobody_needs_are_not_read(tmp_path):
    """Rows past 4 GiB of a sparse feature file: 3 of 2,000,000 nodes are needed."""
    num_nodes, width = 2_000_000, 700
    needed = np.array([5, num_nodes // 2, num_nodes - 1])
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[6:] = 2
    with ArtifactWriter(
        tmp_path / "graph", artifacts.GRAPH,
        config=GraphConfig.of_one_type(num_nodes, 2, 2, RowFormat("float32", width)).to_json({}),
    ) as writer:  # fmt: skip
        writer.save_array(INDPTR, indptr)
        writer.save_array(INDICES, needed[1:].astype(np.int32))
        writer.save_array(LABELS, np.zeros(num_nodes, np.int64))
        writer.save_array(TRAIN, needed[:1])
        header = npy_header_bytes("<f4", (num_nodes, width))
        path = writer.path(FEATURES)
        path.write_bytes(header)
        os.truncate(path, len(header) + num_nodes * width * 4)
        np.load(path, mmap_mode="r+")[needed] = np.random.default_rng(0).random((3, width), np.float32)
        writer.add(FEATURES, crc32c=0)  # not asked for here
        writer.save_array(FEATURE_CHECKSUMS, sparse_checksums(path, needed, len(header), 4 * width))
        writer.publish()
    graph = Graph.open(tmp_path / "graph")
    assert graph.manifest.files[FEATURES].bytes > 1 << 32
    packed = prepare_graph(graph, tmp_path, fanouts=[2], batch_size=1, epochs=1, cpu_cache=0, memory="4MiB")
    with Loader(packed) as loader:
        (batch,) = loader.epoch(0)
    np.testing.assert_array_equal(np.sort(batch.input_nodes), needed)
    np.testing.assert_array_equal(batch.x, graph.features[batch.input_nodes])
    report = pack(graph, tmp_path / "samples", tmp_path / "again", cpu_cache=0, static_cache=0, memory="4MiB")
    assert report.read_bytes < 1 << 20


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


def test_the_nodes_of_rows_are_not_read_ahead(graph, samples, tmp_path):
    flags = []

    def look():
        for split in samples.splits:
            mapping = Path("/proc/self/smaps").read_text().split(f"{split}-node.nodes\n")[1]
            flags.append(mapping.split("VmFlags:")[1].splitlines()[0].split())

    with faults.armed("pack.window", look):
        pack(graph, samples, tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert len(flags) == 2
    assert all("rr" in found for found in flags)  # MADV_RANDOM


def test_nothing_is_being_written_to_a_file_while_space_is_reserved_in_it(graph, samples, tmp_path, monkeypatch):
    """Without fallocate, the C library reads and writes bytes of it: of pages that are just being written, too."""
    calls = []
    fallocate = os.posix_fallocate

    class Pages(PageWriter):
        def finish(self):
            super().finish()
            calls.append("finish")

    def noted(descriptor, *arguments):
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fallocate(descriptor, *arguments)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    monkeypatch.setattr("diskgnn.packing.pack_run.PageWriter", Pages)
    pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    finished = calls.index("finish")
    assert not any(name.endswith(".bin") for name in calls[:finished])
    assert [name for name, _ in groupby(calls[finished:])] == [
        "finish", "valid.tails", "finish", "train.bin", "valid.bin", "static-node.npy", "train-initial-node.npy",
        "finish", "valid-initial-node.npy", "finish",
    ]  # fmt: skip


def test_what_was_read_is_counted(graph, samples, tmp_path):
    """Samples in two passes, the nodes of rows, and features. What is placed is in memory."""
    report = pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    disk = report.details["train_disk_rows"] + report.details["valid_disk_rows"]
    least = 2 * samples.manifest.total_bytes + 4 * disk + graph.features.nbytes * 0.9
    assert least < report.read_bytes < 2 * least
