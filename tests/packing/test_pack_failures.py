"""Packing that cannot go on: foreign, damaged or short inputs, outputs in the way, full disks, Ctrl-C."""

import errno
import os
from contextlib import nullcontext

import pytest
from graphs import make_graph, threads_of_this_process, threads_that_stay

from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, OutputExistsError
from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.packing.pack import pack
from diskgnn.sampling.sample import sample

PLENTY = 1 << 40


def no_fallocate():
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def files(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


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
    with pytest.raises(ArtifactError, match="ends early"):
        pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert not (tmp_path / "packed").exists()
    assert not (tmp_path / ".packed.partial").exists()


def test_output_that_exists_and_arguments(graph, samples, tmp_path):
    pack(graph, samples, tmp_path / "packed", cpu_cache=0, static_cache=0)
    before = files(tmp_path / "packed")
    with pytest.raises(OutputExistsError):
        pack(graph, samples, tmp_path / "packed", cpu_cache="50%", static_cache=0)
    with pytest.raises(ConfigError, match="threads"):
        pack(graph, samples, tmp_path / "packed", cpu_cache=0, threads=0, overwrite=True)
    assert files(tmp_path / "packed") == before
    pack(graph, samples, tmp_path / "packed", cpu_cache="50%", static_cache=0, overwrite=True)
    assert Packed.open(tmp_path / "packed").config.splits["train"].cpu_rows == 100


def test_a_full_disk_is_refused_with_the_bytes_missing(small_disk, tmp_path):
    graph = make_graph(tmp_path / "graph", width=1433)
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=8, threads=1)
    with pytest.raises(DiskFullError, match=r"\d+ bytes are missing"):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
    assert list(small_disk.iterdir()) == []
    whole = pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, static_cache=0)
    assert whole.written_bytes > 256 << 10


def test_a_disk_that_fills_up_meanwhile_is_named(small_disk, tmp_path):
    graph = make_graph(tmp_path / "graph", width=1433)
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=8, threads=1)
    with faults.pretending("disk.free", PLENTY):
        with pytest.raises(DiskFullError, match="ran full"):
            pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
        assert list(small_disk.iterdir()) == []
        (small_disk / "ballast").write_bytes(bytes(250 << 10))
        with pytest.raises(DiskFullError, match="ran full"):
            pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache=0)
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize("reserved", [True, False])
def test_a_disk_that_static_rows_fill_is_an_error(small_disk, tmp_path, reserved):
    """An error and no SIGBUS, also on a file system that cannot reserve space."""
    graph = make_graph(tmp_path / "graph", width=1433)
    sample(graph, tmp_path / "samples", fanouts=[3], batch_size=8, threads=1)
    reserving = nullcontext() if reserved else faults.armed("disk.reserve", no_fallocate)
    with (
        faults.pretending("disk.free", PLENTY),
        reserving,
        pytest.raises(DiskFullError, match="ran full"),
    ):
        pack(graph, tmp_path / "samples", small_disk / "packed", cpu_cache=0, static_cache="100%")
    assert list(small_disk.iterdir()) == []


def test_a_file_system_without_fallocate(graph, samples, tmp_path):
    pack(graph, samples, tmp_path / "expected", cpu_cache="10%", static_cache=0)
    with faults.armed("disk.reserve", no_fallocate):
        pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert files(tmp_path / "packed") == files(tmp_path / "expected")


@pytest.mark.parametrize("point", ["pack.header", "pack.rows", "pack.window", "artifact.sync"])
def test_ctrl_c_leaves_nothing(graph, samples, tmp_path, point):
    with faults.armed(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("arrow_on_one_thread")
@pytest.mark.parametrize("point", ["pack.header", "pack.rows", "pack.window"])
def test_a_failure_that_is_kept_keeps_no_threads(graph, samples, tmp_path, point):
    threads = threads_of_this_process()
    with faults.armed(point, MemoryError()), pytest.raises(MemoryError) as kept:
        pack(graph, samples, tmp_path / "packed", cpu_cache="10%", static_cache=0)
    assert threads_that_stay(threads) <= threads
    assert kept.traceback
