"""Preparing on Ray: a head and three nodes with scratch folders of their own, which die one after the other.

All run on this machine, so this says that the result is right whatever fails, not how it scales.
"""

import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from commands import run_python
from graphs import INDICES, make_graph
from object_store import MostAllocated, object_store

import diskgnn
from diskgnn.engines import worker_tasks
from diskgnn.engines.ray_engine import RayEngine
from diskgnn.engines.ray_nodes import PROCESS_BYTES
from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, UnavailableError, WorkerLostError
from diskgnn.files import faults
from diskgnn.files.destination import staging_of
from diskgnn.files.disk_space import allocated_bytes
from diskgnn.files.locks import FileLock
from diskgnn.formats.manifest import read_manifest
from diskgnn.graph.graph import Graph
from diskgnn.preparing import packing_tasks
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample_units import write_units
from diskgnn.specs.caches import CacheSpec
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

ray = pytest.importorskip("ray", reason="pip install 'diskgnn[ray]'")
from ray_cluster import cluster_that_dies  # noqa: E402

SAMPLING = {"fanouts": [4, 4], "batch_size": 2, "epochs": 3, "edge_ids": True}
SETTINGS = SAMPLING | {"cpu_cache": "10%", "keep_input_nodes": True}
ON_RAY = {"engine": "ray", "memory": "64MiB", "threads": 1}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("ray") / "graph", num_nodes=300, splits={"train": 190, "valid": 37})


@pytest.fixture(scope="module")
def nodes():
    with cluster_that_dies() as found:
        yield found


class Bars:
    """A reporter that notes how far each stage got."""

    def __init__(self):
        self.stages = []

    @contextmanager
    def stage(self, description, total, unit):
        bar = {"description": description, "unit": unit, "total": total, "done": 0}
        self.stages.append(bar)
        yield lambda amount: bar.update(done=bar["done"] + amount)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nodes_that_die_leave_no_trace_in_the_bytes(nodes, graph, tmp_path):
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS, ranks=2)
    nodes.die_at("worker.unit", "pack.schedule")  # the third one does the rest
    bars = Bars()
    diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, **ON_RAY, ranks=2, reporter=bars)
    assert nodes.died_at() == ["pack.schedule", "worker.unit"]
    assert any(list(scratch.glob("diskgnn-*")) for scratch in nodes.scratch)  # left by those that died
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    sampled = [bar for bar in bars.stages if bar["unit"] == "minibatches" and "sample" in bar["description"]]
    assert sorted((bar["description"], bar["done"]) for bar in sampled) == [
        ("rank-0-of-2: sample", 3 * 48 + 10), ("rank-1-of-2: sample", 3 * 47 + 9)
    ]  # fmt: skip
    assert all(bar["done"] <= bar["total"] for bar in bars.stages)
    assert {bar["description"].split(": ")[0] for bar in bars.stages} == {"rank-0-of-2", "rank-1-of-2"}
    assert len(bars.stages) > 4  # those of workers, too


def test_a_driver_that_is_killed_goes_on_with_what_has_arrived(nodes, graph, tmp_path):
    nodes.start_three()
    samples, keywords = tmp_path / "samples", {**SETTINGS, **ON_RAY}
    script = f"""
        import os, signal, diskgnn
        from diskgnn.files import faults
        killed = faults.armed("work.unit", lambda: os.kill(os.getpid(), signal.SIGKILL), after=3)
        with killed, faults.pretending("unit.bytes", 1):
            diskgnn.prepare({str(graph.manifest.path)!r}, {str(tmp_path / "packed")!r}, samples={str(samples)!r},
                            address={nodes.cluster.address!r}, **{keywords!r})
    """
    died = run_python("-c", re.sub(r"(?m)^ {8}", "", script))
    assert died.returncode == -signal.SIGKILL
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / ".samples.partial").glob("*.arrow")}
    assert len(before) == 4  # of 3 x 3 + 1
    with faults.armed("work.unit", lambda: signal.raise_signal(signal.SIGINT), after=2), \
            pytest.warns(match="what was sampled is kept"), pytest.raises(KeyboardInterrupt):  # fmt: skip
        diskgnn.prepare(graph, tmp_path / "packed", samples=samples, **keywords)
    busy, give_up = True, time.monotonic() + 60
    while busy and time.monotonic() < give_up:
        busy = ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]
        time.sleep(0.1)
    assert not busy  # nothing runs any more
    assert not (tmp_path / "packed").exists()
    diskgnn.prepare(graph, tmp_path / "packed", samples=samples, **keywords)
    diskgnn.prepare(graph, tmp_path / "one", samples=tmp_path / "one-samples", **SETTINGS)
    after = {file.name: file.stat().st_mtime_ns for file in samples.iterdir()}
    assert len(before.items() - after.items()) == 1  # the last one was not in the journal yet
    assert files(tmp_path / "one-samples") == files(samples)
    assert files(tmp_path / "one") == files(tmp_path / "packed")


def test_errors_of_workers_are_those_of_one_process(nodes, graph, tmp_path):
    nodes.start_three()
    shutil.copytree(graph.manifest.path, tmp_path / "graph")
    damaged = tmp_path / "graph" / INDICES
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    raised = []
    for engine in ({}, ON_RAY):
        with pytest.raises(ArtifactError) as caught:
            diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", **SETTINGS, **engine)
        raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1]

    lock = threading.Lock()

    def locked(seeds, rng):
        with lock:
            return seeds

    with pytest.raises(ConfigError, match=r"sampler: expected a function that can be pickled.*lock"):
        diskgnn.prepare(
            graph, tmp_path / "packed", **SETTINGS | {"fanouts": [-1], "edge_ids": False}, **ON_RAY, sampler=locked
        )

    def alone(seeds, rng):
        return diskgnn.Neighbourhood(seeds, [(np.zeros(len(seeds) + 1, int), np.empty(0, int))])

    for name, engine in (("one", {}), ("other", ON_RAY)):
        diskgnn.prepare(
            graph, tmp_path / name, **SETTINGS | {"fanouts": [-1], "edge_ids": False}, **engine, sampler=alone
        )
    assert files(tmp_path / "one") == files(tmp_path / "other")

    here = Graph.open(shutil.copytree(graph.manifest.path, tmp_path / "elsewhere"))
    shutil.move(tmp_path / "elsewhere", tmp_path / "not-shared")
    with pytest.raises(ConfigError, match=r"does not see what the driver sees.*elsewhere is not there.*nodes share"):
        diskgnn.prepare(here, tmp_path / "packed", **SETTINGS, **ON_RAY)
    with pytest.raises(ConfigError, match=r"memory: no node of Ray has room for a worker of 1 cores and 2\.0 GiB"):
        diskgnn.prepare(graph, tmp_path / "packed", **SETTINGS, **ON_RAY | {"memory": "2GiB"})
    with pytest.raises(ConfigError, match="a worker of 9 cores"):
        diskgnn.prepare(graph, tmp_path / "packed", **SETTINGS, **ON_RAY | {"threads": 9})
    assert not (tmp_path / "packed").exists()


def test_what_ray_itself_loses_is_told_in_a_sentence(nodes):
    """Ray raises this in a task whose argument lay in a process that is gone, and in the driver."""
    nodes.start_three()

    def orphan(given, tell):
        raise ray.exceptions.OwnerDiedError("00" * 28, None, "")

    with RayEngine() as engine:
        sent = engine.send(1, "expected a number", "give one")
        with pytest.raises(WorkerLostError, match=r"Ray lost .* needed \(OwnerDiedError: .*the same command goes on"):
            engine.call(orphan, sent, Resources(64 << 20, threads=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "overwrite"), [(["pack.header", "sample.minibatch"], False), (["pack.window", "worker.packed"], True)]
)
def test_nodes_die_at_all_other_points(nodes, graph, tmp_path, points, overwrite):
    nodes.start_three()
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS)
    if overwrite:
        diskgnn.prepare(graph, tmp_path / "other", **SETTINGS | {"cpu_cache": "20%"})
    nodes.die_at(*points)
    diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, **ON_RAY, overwrite=overwrite)
    assert nodes.died_at() == points
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


@pytest.mark.slow
def test_workers_keep_to_their_budgets(nodes, tmp_path):
    """Of memory that is no file's, a worker takes no more than it asked Ray for, though topology does not fit."""
    nodes.start_three()
    diskgnn.generate(tmp_path / "graph", num_nodes=300_000, avg_degree=25, num_classes=4, num_features=256,
                     train_fraction=0.02, valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    with nodes.most_anonymous_bytes() as most:
        diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[10, 10], batch_size=256, epochs=2,
                        cpu_cache="5%", **ON_RAY | {"memory": "32MiB"})  # fmt: skip
    assert len(most) > 1
    assert max(most.values()) < PROCESS_BYTES // 2 + (32 << 20)


def test_all_machines_together_keep_to_a_disk_budget(nodes, graph, tmp_path):
    nodes.start_three()
    settings = SETTINGS | {"cpu_cache": "1%"}
    diskgnn.prepare(graph, tmp_path / "one", **settings, ranks=2, samples=tmp_path / "samples")
    needed_bytes = allocated_bytes(tmp_path / "one") + allocated_bytes(tmp_path / "samples")
    (tmp_path / "shared").mkdir()
    others_bytes = sum(map(allocated_bytes, nodes.scratch))
    given = {**settings, **ON_RAY, "ranks": 2}
    too_little = rf"bytes are allowed, a part of {needed_bytes // 2}: \d+ bytes are missing"
    with pytest.raises(DiskFullError, match=too_little), pytest.warns(match="is kept"), \
            MostAllocated(tmp_path / "shared", *nodes.scratch) as found:  # fmt: skip
        diskgnn.prepare(graph, tmp_path / "shared" / "out", **given, disk=needed_bytes // 2)
    assert found.num_bytes <= others_bytes + needed_bytes // 2
    enough_bytes = needed_bytes * 3 // 2 + (1 << 20)  # with scratch of placing, in whole pages
    with MostAllocated(tmp_path / "shared", *nodes.scratch) as found:
        diskgnn.prepare(graph, tmp_path / "shared" / "out", **given, disk=enough_bytes)
    assert needed_bytes // 2 < found.num_bytes - others_bytes <= enough_bytes
    assert files(tmp_path / "one") == files(tmp_path / "shared" / "out")


def test_workers_that_die_again_and_again_are_an_error_that_keeps_what_is_done(nodes, graph, tmp_path):
    nodes.start_three()
    (nodes.folder / "crashes" / "pack.window").touch()
    with pytest.warns(match="what was sampled is kept"), pytest.raises(WorkerLostError, match="4 times in one task"):
        diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, **ON_RAY)
    (nodes.folder / "crashes" / "pack.window").unlink()
    reports = diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, **ON_RAY)
    assert [report.stage for report in reports] == ["pack"]
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_graph_and_output_may_be_on_a_store(nodes, graph, tmp_path, monkeypatch):
    nodes.start_three()
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))
    diskgnn.prepare(graph, tmp_path / "here", **SETTINGS, ranks=2)
    with object_store() as store:
        settings = f"?endpoint_override=127.0.0.1:{store.proxy.port}&scheme=http&region=us-east-1"
        given = store.upload(graph.manifest.path, "graph") + settings
        nodes.die_at("worker.placed", "worker.packed")
        diskgnn.prepare(given, store.url("packed") + settings, **SETTINGS, **ON_RAY, ranks=2)
        assert nodes.died_at() == ["worker.packed", "worker.placed"]
        for rank in ("rank-0-of-2", "rank-1-of-2"):
            sent = {name: store.read(f"packed/{rank}/{name}") for name in store.names(f"packed/{rank}")}
            assert sent == files(tmp_path / "here" / rank)


def no_tell(event):
    raise AssertionError(event)


def test_a_worker_refuses_what_would_not_give_the_same_bytes(tmp_path):
    here, other = worker_tasks.versions(), worker_tasks.versions() | {"pyarrow": "0.1"}
    with pytest.raises(ConfigError, match=r"pyarrow \d\S*, expected those of the driver, diskgnn .*, pyarrow 0.1: "):
        worker_tasks.work(worker_tasks.make_units, b"", other, no_tell)
    gone = b"cno_such_module\nfunction\n."  # a pickle by name
    with pytest.raises(ConfigError, match=r"cannot import what the driver has.*no_such_module"):
        worker_tasks.work(worker_tasks.make_units, gone, here, no_tell)
    arguments = [write_units, [], Resources(0, 1), str(tmp_path / "nowhere"), None]
    with pytest.raises(ConfigError, match=r"does not see .*nowhere: the output must lie in a folder"):
        worker_tasks.work(worker_tasks.make_units, pickle.dumps(None), here, no_tell, *arguments)


def test_a_task_whose_predecessor_lives_and_publishes_has_nothing_left_to_do(graph, tmp_path):
    """A node that is believed dead goes on: it has the lock, and publishes before it gives it back."""
    diskgnn.prepare(graph, tmp_path / "made", **SETTINGS, samples=tmp_path / "samples")
    cache, out = CacheSpec("10%", "auto"), tmp_path / "out"
    request = PrepareRequest.of(
        SamplingPlan(graph, SamplingSpec(**SAMPLING)), cache, Resources.of("256MiB", 1), out,
        samples=tmp_path / "samples", keep_input_nodes=True,
    )  # fmt: skip
    lock = FileLock(staging_of(out).with_suffix(".lock"))
    assert lock.acquire()

    def publish():
        shutil.move(tmp_path / "made", out)
        lock.release()

    later = threading.Timer(0.5, publish)
    later.start()
    digest = read_manifest(request.samples_path).digest
    report = packing_tasks.pack(request, lambda _: None, digest, None, False)
    later.join()
    assert (report.read_bytes, report.written_bytes) == (0, read_manifest(out).total_bytes)


def test_ray_is_asked_for_only_where_it_is_wanted(graph, tmp_path, monkeypatch):
    script = (
        f"import sys, diskgnn; diskgnn.prepare({str(graph.manifest.path)!r}, {str(tmp_path / 'one')!r}, **{SETTINGS!r})"
    )
    subprocess.run([sys.executable, "-c", f"{script}; assert 'ray' not in sys.modules"], check=True)
    for wrong, message in (
        ({"engine": "spark"}, "engine: expected one of local, ray, found 'spark'"),
        ({"address": "auto"}, "address: only engine='ray' takes it"),
        ({"engine": "ray", "address": "127.0.0.1:1"}, "address: expected that of a running Ray, found '127.0.0.1:1'"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.prepare(graph, tmp_path / "packed", **SETTINGS, **wrong)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=re.escape("pip install 'diskgnn[ray]'")):
        diskgnn.prepare(graph, tmp_path / "packed", **SETTINGS, engine="ray")
    assert not (tmp_path / "packed").exists()
