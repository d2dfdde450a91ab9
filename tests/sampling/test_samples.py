"""A samples directory: its bytes, killed and resumed, full disks, damaged and hostile files."""

import errno
import os
import pickle
import signal
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from graphs import make_graph

from diskgnn.errors import ArtifactError, DiskFullError, OutputExistsError
from diskgnn.files import faults
from diskgnn.files.checked_files import checksum_file
from diskgnn.formats import artifacts
from diskgnn.formats.samples import Samples
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.sampling.sample_units import sample_units, write_units
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("samples") / "graph", num_nodes=120, splits={"train": 50, "valid": 17})


def files(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def sample_in_shards(graph, out, shard_minibatches, *, threads=1, memory="auto", **spec):
    """`sample` with shards of so few minibatches."""
    plan = SamplingPlan(graph, SamplingSpec(**spec))
    return sample_plan(plan, out, Resources.of(memory, threads), shard_minibatches=shard_minibatches)


@pytest.mark.parametrize("threads", [2, 4])
def test_bytes_do_not_depend_on_threads_or_memory(graph, tmp_path, threads):
    spec = {"fanouts": [3, 3], "batch_size": 2, "epochs": 3, "seed": 5}
    sample_in_shards(graph, tmp_path / "one", 3, **spec)
    # Without memory the topology stays on disk.
    sample_in_shards(graph, tmp_path / "more", 3, threads=threads, memory=0, **spec)
    assert len(files(tmp_path / "one")) == 3 * 9 + 3 + 1
    assert files(tmp_path / "one") == files(tmp_path / "more")
    sample_in_shards(graph, tmp_path / "seed", 3, **(spec | {"seed": 6}))
    assert files(tmp_path / "one") != files(tmp_path / "seed")


def test_minibatches_do_not_depend_on_shards(graph, tmp_path):
    """Whoever reads them takes the shards that are there."""
    spec = {"fanouts": [3, 3], "batch_size": 4, "epochs": 2}
    for shard_minibatches in (1, 5, 100):
        sample_in_shards(graph, tmp_path / str(shard_minibatches), shard_minibatches, **spec)
    found = [list(Samples.open(tmp_path / name).read("train")) for name in ("1", "5", "100")]
    assert [len(minibatches) for minibatches in found] == [26, 26, 26]
    for first, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_array_equal(first.seeds, other.seeds)
            np.testing.assert_array_equal(first.only_nodes, other.only_nodes)


@pytest.mark.parametrize("memory", ["1GiB", 0])
def test_units_depend_on_nothing_but_the_plan(graph, tmp_path, memory):
    """Made in any order, a few at a time, from what was pickled, they are the shards that `sample` makes."""
    spec, found = {"fanouts": [3, 3], "batch_size": 4, "epochs": 2, "first_epoch": 5}, {}

    plan = SamplingPlan(graph, SamplingSpec(**spec))
    units = pickle.loads(pickle.dumps(sample_units(plan, 5)))
    for few in (units[::-2], units[-2::-2]):
        for made in write_units(plan, iter(few), tmp_path, Resources.of(memory, 2), lambda _: None):
            path = tmp_path / made.unit.name
            found[path.name] = path.read_bytes()
            assert made.checksums == {path.name: checksum_file(path)}
    sample_in_shards(graph, tmp_path / "samples", 5, **spec)
    assert found == {name: data for name, data in files(tmp_path / "samples").items() if name.endswith(".arrow")}


def test_ctrl_c_stops_soon_and_leaves_no_half_artifact(graph, tmp_path):
    calls = []

    def interrupt():
        calls.append(1)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)

    with faults.armed("sample.minibatch", interrupt), pytest.raises(KeyboardInterrupt):
        sample_in_shards(graph, tmp_path / "samples", 2, threads=2, fanouts=[3], batch_size=1, epochs=20)
    assert len(calls) < 20 * 50
    assert not (tmp_path / "samples").exists()


def test_a_failure_stops_what_is_under_way(graph, tmp_path):
    """Not one shard after the other is finished first."""
    calls = []

    def fail():
        calls.append(1)
        if len(calls) >= 5:
            raise MemoryError

    with faults.armed("sample.minibatch", fail), pytest.raises(MemoryError):
        sample_in_shards(graph, tmp_path / "samples", 50, threads=2, fanouts=[3], batch_size=1, epochs=20)
    assert len(calls) < 50


def test_a_disk_that_runs_full_is_named_and_sampling_goes_on_later(graph, tmp_path):
    spec = {"fanouts": [3], "batch_size": 5}
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with faults.armed("sample.minibatch", full, after=6), pytest.raises(DiskFullError, match="goes on"):
        sample_in_shards(graph, tmp_path / "samples", 2, **spec)
    assert len(list((tmp_path / ".samples.partial").glob("*.arrow"))) >= 3  # the three before, and what was under way
    sample_in_shards(graph, tmp_path / "samples", 2, **spec)
    sample_in_shards(graph, tmp_path / "whole", 2, **spec)
    assert files(tmp_path / "samples") == files(tmp_path / "whole")


def test_output_that_exists_is_kept(graph, tmp_path):
    sample(graph, tmp_path / "samples", fanouts=[3], batch_size=10, threads=1)
    before = files(tmp_path / "samples")
    with pytest.raises(OutputExistsError, match="overwrite"):
        sample(graph, tmp_path / "samples", fanouts=[4], batch_size=10, threads=1)
    assert files(tmp_path / "samples") == before
    sample(graph, tmp_path / "samples", fanouts=[4], batch_size=10, threads=1, overwrite=True)
    assert Samples.open(tmp_path / "samples").config.spec.fanouts == (4,)


def test_a_flipped_bit_or_another_file_is_noticed(graph, tmp_path):
    sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=25, threads=1, splits=["train"])
    shard = tmp_path / "samples" / artifacts.shard_file("train", 0, 0)
    samples, whole = Samples.open(tmp_path / "samples"), shard.read_bytes()
    for offset in range(0, len(whole), 97):
        shard.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(ArtifactError, match="damaged"):
            list(samples.read("train"))
    for damaged in (b"", whole[:1000], whole[: len(whole) // 2], whole[:-1]):
        shard.write_bytes(damaged)
        with pytest.raises(ArtifactError, match="damaged"):
            list(samples.read("train"))
    shard.unlink()
    with pytest.raises(ArtifactError, match="damaged"):
        list(samples.read("train"))


def rewrite(path, name, content):
    """Replace a file of samples and make the manifest fit: what a stranger's artifact may hold."""
    manifest = Samples.open(path).manifest
    with ArtifactWriter(path.with_name("forged"), artifacts.SAMPLES, config=manifest.config) as writer:
        for other in manifest.files:
            writer.path(other).write_bytes(content if other == name else manifest.file(other).read_bytes())
            writer.add(other)
        writer.publish()
    return Samples.open(path.with_name("forged"))


def forge(bad, minibatch, num_nodes):
    """What no sampler has made."""
    nodes, block = minibatch.only_nodes.copy(), minibatch.blocks[0][0]
    if bad in ("nodes", "negative"):
        nodes[-1] = -1 if bad == "negative" else num_nodes
    counts = {"counts": np.array([[1], [2]]), "layers": np.array([[len(nodes)]])}.get(bad, minibatch.node_counts)
    blocks = {"offsets": replace(block, indptr=block.indptr[:-1]), "edges": replace(block, indices=block.indices[:-1])}
    return replace(
        minibatch,
        seeds=minibatch.seeds[:0] if bad == "seeds" else minibatch.seeds,
        input_nodes=(nodes[:-1] if bad == "fewer nodes" else nodes,),
        node_counts=counts.astype(np.int32),
        blocks=((blocks.get(bad, block),),),
    )


BAD = ["nodes", "negative", "columns", "seeds", "fewer", "fewer nodes", "counts", "layers", "offsets", "edges"]


@pytest.mark.parametrize("bad", BAD)
def test_hostile_samples_are_refused(graph, tmp_path, bad):
    sample(graph, tmp_path / "samples", fanouts=[3], batch_size=25, threads=1, splits=["train"])
    name, samples = artifacts.shard_file("train", 0, 0), Samples.open(tmp_path / "samples")
    layout = samples.config.minibatch_layout(["int32"])
    schema = layout.schema
    if bad == "columns":
        schema = schema.set(1, pa.field("surprise", pa.list_(pa.int32())))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for minibatch in list(samples.read("train"))[: 1 if bad == "fewer" else 2]:
            batch = layout.encode(forge(bad, minibatch, graph.num_nodes))
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    forged = rewrite(tmp_path / "samples", name, sink.getvalue().to_pybytes())
    with pytest.raises(ArtifactError):
        list(forged.read("train"))


def test_what_is_written_is_read(graph, tmp_path):
    """Config and columns: as the plan has them, and the same again."""
    spec = {"fanouts": [3, 2], "batch_size": 20, "epochs": 2, "draws": "coordinated", "draw_period": 3}
    sample(graph, tmp_path / "samples", **spec)
    samples, plan = Samples.open(tmp_path / "samples"), SamplingPlan(graph, SamplingSpec(**spec))
    assert samples.config == plan.config() == SamplesConfig.parse(plan.config().to_json())
    for minibatch in samples.read("train"):
        assert [count.tolist() for count in minibatch.node_counts.T] == [
            [len(minibatch.only_nodes), *(len(indptr) - 1 for indptr, _ in minibatch.only_blocks)]
        ]
