"""Preparing and inferring on Ray: a head and nodes with scratch folders of their own, which die one after the other.

All run on this machine, so this says that the result is right whatever fails, not how it scales. Bytes are those of one
process, and what is inferred is NumPy's on the whole graph. A test says how many nodes it needs. Starting one takes 5
seconds of a core, with the process that works on it; so tests of both share a cluster, and follow each other so that
few need more nodes than those before them have left.
"""

import pickle
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from textwrap import dedent

import numpy as np
import pytest
import torch
from commands import run_python
from graphs import INDICES, make_graph
from object_store import MostAllocated, object_store
from typed_graphs import citations
from uneven_graph import CLASSES, NUM_NODES, WIDTH, uneven_graph

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
from diskgnn.nn.block_models import make_model
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_models import make_typed_model
from diskgnn.preparing import packing_tasks
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample_units import write_units
from diskgnn.specs.caches import CacheSpec
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import SourceSchema
from diskgnn.system.resources import Resources
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.runner import ALL_STEPS

ray = pytest.importorskip("ray", reason="pip install 'diskgnn[ray]'")
from ray_cluster import cluster_that_dies  # noqa: E402

SAMPLING = {"fanouts": [4, 4], "batch_size": 2, "epochs": 3, "edge_ids": True}
SETTINGS = SAMPLING | {"cpu_cache": "10%", "keep_input_nodes": True}
ON_RAY = {"engine": "ray", "memory": "64MiB", "threads": 1}
INFERRING = {"engine": "ray", "threads": 1}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("ray") / "graph", num_nodes=300, splits={"train": 190, "valid": 37})


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return uneven_graph(tmp_path_factory.mktemp("uneven"))


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


def test_nodes_that_die_while_preparing_leave_no_trace_in_the_bytes(nodes, graph, tmp_path):
    nodes.start(3)
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS, ranks=2)
    nodes.die_at("sample.minibatch", "pack.schedule")  # the third one does the rest
    bars = Bars()
    diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, **ON_RAY, ranks=2, reporter=bars)
    assert nodes.died_at() == ["pack.schedule", "sample.minibatch"]
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


def test_preparing_goes_on_after_a_driver_was_killed_with_what_has_arrived(nodes, graph, tmp_path):
    nodes.start(1)
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
    nodes.start(1)
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
    nodes.start(1)

    def orphan(given, tell):
        raise ray.exceptions.OwnerDiedError("00" * 28, None, "")

    with RayEngine() as engine:
        sent = engine.send(1, "expected a number", "give one")
        with pytest.raises(WorkerLostError, match=r"Ray lost .* needed \(OwnerDiedError: .*the same command goes on"):
            engine.call(orphan, sent, Resources(64 << 20, threads=1))


def test_workers_that_die_again_and_again_are_an_error_that_keeps_what_is_done(nodes, graph, tmp_path):
    nodes.start(1)
    diskgnn.prepare(graph, tmp_path / "other", **SETTINGS | {"cpu_cache": "20%"})
    again = {**SETTINGS, **ON_RAY, "overwrite": True}
    (nodes.folder / "crashes" / "pack.window").touch()
    with pytest.warns(match="what was sampled is kept"), pytest.raises(WorkerLostError, match="4 times in one task"):
        diskgnn.prepare(graph, tmp_path / "other", **again)
    (nodes.folder / "crashes" / "pack.window").unlink()
    reports = diskgnn.prepare(graph, tmp_path / "other", **again)
    assert [report.stage for report in reports] == ["pack"]
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS)
    assert files(tmp_path / "one") == files(tmp_path / "other")


def watched(nodes, program):
    """The most bytes of each worker of a program, all of which start with it; what it prints."""
    with nodes.most_anonymous_bytes() as most:
        ran = run_python("-c", f"import torch, diskgnn\n{dedent(program)}", capture_output=True, text=True, check=True)
    return most, ran.stdout


@pytest.mark.slow
def test_workers_that_prepare_keep_to_their_budgets(nodes, tmp_path):
    """Of memory that is no file's, a worker takes no more than it asked Ray for, though topology does not fit."""
    nodes.start(2)
    diskgnn.generate(tmp_path / "graph", num_nodes=300_000, avg_degree=25, num_classes=4, num_features=64,
                     train_fraction=0.02, valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    most, _ = watched(nodes, f"""
        diskgnn.prepare({str(tmp_path / "graph")!r}, {str(tmp_path / "packed")!r}, fanouts=[10, 10], batch_size=256,
                        epochs=2, cpu_cache="5%", address={nodes.cluster.address!r}, **{ON_RAY | {"memory": "32MiB"}!r})
    """)  # fmt: skip
    assert len(most) > 1
    assert max(most.values()) < PROCESS_BYTES // 2 + (32 << 20)


def test_all_machines_that_prepare_keep_to_a_disk_budget(nodes, graph, tmp_path):
    nodes.start(2)
    settings = SETTINGS | {"cpu_cache": "1%"}
    diskgnn.prepare(graph, tmp_path / "one", **settings, ranks=2, samples=tmp_path / "samples")
    needed_bytes = allocated_bytes(tmp_path / "one") + allocated_bytes(tmp_path / "samples")
    (tmp_path / "shared").mkdir()
    others_bytes = sum(map(allocated_bytes, nodes.scratch))
    given = {**settings, **ON_RAY, "ranks": 2}
    too_little = rf"bytes are allowed, a part of {needed_bytes // 2}: \d+ bytes are missing"
    with pytest.raises(DiskFullError, match=too_little), pytest.warns(match="is kept"), \
            MostAllocated(tmp_path / "shared", *nodes.scratch, seconds=0.02) as found:  # fmt: skip
        diskgnn.prepare(graph, tmp_path / "shared" / "out", **given, disk=needed_bytes // 2)
    assert found.num_bytes <= others_bytes + needed_bytes // 2
    enough_bytes = needed_bytes * 3 // 2 + (1 << 20)  # with scratch of placing, in whole pages
    with MostAllocated(tmp_path / "shared", *nodes.scratch, seconds=0.02) as found:
        diskgnn.prepare(graph, tmp_path / "shared" / "out", **given, disk=enough_bytes)
    assert needed_bytes // 2 < found.num_bytes - others_bytes <= enough_bytes
    assert files(tmp_path / "one") == files(tmp_path / "shared" / "out")


def test_graph_and_output_may_be_on_a_store(nodes, graph, tmp_path, monkeypatch):
    nodes.start(3)
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
    run_python("-c", f"{script}; assert 'ray' not in sys.modules", check=True)
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


def model(name):
    torch.manual_seed(7)
    return make_model(name, WIDTH, 8, CLASSES, 2).eval()


def least_memory(graph, folder, net, **arguments):
    """What the refusal of one byte says that it takes."""
    with pytest.raises(ConfigError, match=r"memory: expected at least (\d+) bytes") as refused:
        diskgnn.infer(graph, folder / "refused.npy", net, memory=1, **INFERRING, **arguments)
    return int(str(refused.value).split()[4])


def sage_in_numpy(net, graph):
    """Own rows and means of neighbours, in float64."""
    x, indptr = np.array(graph.features, np.float64), np.array(graph.indptr)
    destinations = np.repeat(np.arange(NUM_NODES), np.diff(indptr))
    for number, layer in enumerate(net.layers):
        sums = np.zeros_like(x)
        np.add.at(sums, destinations, x[np.array(graph.indices)])
        means = sums / np.maximum(np.diff(indptr), 1)[:, None]
        own, bias, neighbours = (
            each.detach().numpy().astype(np.float64)
            for each in (layer.own.weight, layer.own.bias, layer.neighbours.weight)
        )
        x = x @ own.T + bias + means @ neighbours.T
        x = np.maximum(x, 0) if number == 0 else x
    return x


def test_what_infer_refuses(nodes, uneven, tmp_path, monkeypatch):
    nodes.start(1)
    net = model("sage")
    for wrong, message in (
        ({"memory": "2GiB"}, r"memory: no node of Ray has room for a worker of 1 cores and 2\.0 GiB"),
        ({"threads": 9}, "a worker of 9 cores"),
        ({"engine": "spark"}, "engine: expected one of local, ray, found 'spark'"),
        ({"engine": "local", "address": "auto"}, "address: only engine='ray' takes it"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.infer(uneven, tmp_path / "out.npy", net, **{"memory": "128MiB", **INFERRING} | wrong)
    locked, lock = model("sage"), threading.Lock()

    def activation(h, layer):
        with lock:
            return h.relu()

    locked.between[0].activation = activation
    with pytest.raises(ConfigError, match=r"model: expected a module that can be pickled.*lock.*engine 'local'"):
        diskgnn.infer(uneven, tmp_path / "out.npy", locked, memory="128MiB", **INFERRING)
    with pytest.raises(DiskFullError, match=r"bytes are allowed: \d+ bytes are missing"):
        diskgnn.infer(uneven, tmp_path / "out.npy", net, memory="128MiB", disk=200_000, **INFERRING)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=re.escape("pip install 'diskgnn[ray]'")):
        diskgnn.infer(uneven, tmp_path / "out.npy", net, engine="ray")
    assert not list(tmp_path.iterdir())


def test_a_model_of_functions_of_ones_own_and_some_nodes(nodes, uneven, tmp_path):
    """A lambda is sent as it is."""
    nodes.start(1)
    net, given = model("sage"), {"nodes": [8999, 3, 3, 5000], "what": "probabilities"}
    net.between[0].activation = lambda h, _: h.tanh()
    diskgnn.infer(uneven, tmp_path / "here.npy", net, **given)
    diskgnn.infer(uneven, tmp_path / "there.npy", net, memory="128MiB", **given, **INFERRING)
    assert (tmp_path / "here.npy").read_bytes() == (tmp_path / "there.npy").read_bytes()


def test_a_graph_that_is_not_shared_is_refused(nodes, uneven, tmp_path):
    nodes.start(1)
    here = diskgnn.Graph.open(shutil.copytree(uneven.manifest.path, tmp_path / "elsewhere"))
    net = model("sage")

    def hidden():  # when the command has checked it
        with suppress(FileNotFoundError):
            (tmp_path / "elsewhere").rename(tmp_path / "not-shared")

    class Hiding(Bars):
        @contextmanager
        def stage(self, description, total, unit):
            with super().stage(description, total, unit) as advance:
                yield advance
            if description == "check the topology":
                hidden()

    with pytest.raises(ConfigError, match=r"does not see what the driver sees.*elsewhere is not there.*nodes share"):
        diskgnn.infer(here, tmp_path / "out.npy", net, memory="128MiB", reporter=Hiding(), **INFERRING)


def test_what_a_worker_finds_gone_is_made_again(nodes, uneven, tmp_path):
    """The error of a worker says which step, here as well."""
    nodes.start(1)
    error = pickle.loads(pickle.dumps(DamagedStepError(ALL_STEPS, "gone")))
    assert (error.step, str(error)) == (ALL_STEPS, "gone; run the same command again")
    net, out, before, gone = model("sage"), tmp_path / "out.npy", [], []

    def remove():
        if len(before) > 5 and not gone:
            gone.append(before[0])
            before[0].unlink()
        before[:] = sorted((tmp_path / ".out.npy.partial").glob("0-*-0000*"))

    diskgnn.infer(uneven, tmp_path / "whole.npy", net)
    with faults.armed("work.unit", remove), faults.pretending("unit.bytes", 1):
        diskgnn.infer(uneven, out, net, memory=least_memory(uneven, tmp_path, net), **INFERRING)
    assert gone
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_inferring_goes_on_after_a_driver_was_killed_with_what_has_arrived(nodes, uneven, tmp_path):
    """On Ray, and then in this process: units whose bytes are committed are not made again."""
    nodes.start(1)
    net, out = model("sage"), tmp_path / "out.npy"
    torch.save(net, tmp_path / "net.pt")
    keywords = {"memory": "256MiB", **INFERRING}
    made = []
    with faults.armed("work.unit", lambda: made.append("undisturbed")):
        diskgnn.infer(uneven, tmp_path / "undisturbed.npy", net, **keywords)
    script = f"""
        import os, signal, torch, diskgnn
        from diskgnn.files import faults
        net = torch.load({str(tmp_path / "net.pt")!r}, weights_only=False)
        killed = faults.armed("work.unit", lambda: os.kill(os.getpid(), signal.SIGKILL), after=5)
        with killed, faults.pretending("unit.bytes", 1):
            diskgnn.infer({str(uneven.manifest.path)!r}, {str(out)!r}, net, address={nodes.cluster.address!r},
                          **{keywords!r})
    """
    died = run_python("-c", re.sub(r"(?m)^ {8}", "", script))
    assert died.returncode == -signal.SIGKILL
    assert (tmp_path / ".out.npy.partial").is_dir()
    with faults.armed("work.unit", lambda: made.append("after")):
        diskgnn.infer(uneven, out, net, **keywords)
    assert made.count("after") == made.count("undisturbed") - 5
    assert out.read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()
    assert not (tmp_path / ".out.npy.partial").exists()
    with faults.armed("work.unit", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1), \
            pytest.raises(KeyboardInterrupt):  # fmt: skip
        diskgnn.infer(uneven, out, net, overwrite=True, **keywords)
    diskgnn.infer(uneven, out, net, overwrite=True)
    assert out.read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()


@pytest.mark.slow
def test_workers_that_infer_keep_to_their_budgets(nodes, tmp_path):
    """Of memory that is no file's, a worker takes no more than it asked Ray for."""
    nodes.start(1)
    diskgnn.generate(tmp_path / "graph", num_nodes=300_000, avg_degree=10, num_classes=4, num_features=64,
                     train_fraction=0.02, valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    torch.manual_seed(0)
    torch.save(make_model("sage", 64, 128, 4, 2), tmp_path / "net.pt")
    memory = 128 << 20
    most, said = watched(
        nodes,
        f"""
        net = torch.load({str(tmp_path / "net.pt")!r}, weights_only=False)
        report = diskgnn.infer({str(tmp_path / "graph")!r}, {str(tmp_path / "out.npy")!r}, net, memory={memory},
                               address={nodes.cluster.address!r}, **{INFERRING!r})
        print(report.details["panels"])
    """,
    )
    assert said.strip() != "1, 1"
    assert most
    assert max(most.values()) < PROCESS_BYTES + memory


def test_a_typed_model(nodes, tmp_path):
    nodes.start(1)
    graph = citations(tmp_path / "graph")
    schema = SourceSchema(
        tuple((each.name, each.num_nodes, each.feature_file and each.feature_file.rows.num_features)
              for each in graph.nodes.values()),
        tuple((each.type, each.feature_file and each.feature_file.rows.num_features) for each in graph.edges.values()),
        "paper", "class", 3,
    )  # fmt: skip
    torch.manual_seed(3)
    net = make_typed_model(ModelSpec(name="hgt", hidden=12, heads=3, num_layers=2), schema, 3).eval()
    diskgnn.infer(graph, tmp_path / "here.parquet", net, ignore_times=True)
    memory = least_memory(graph, tmp_path, net, ignore_times=True)
    diskgnn.infer(graph, tmp_path / "there.parquet", net, ignore_times=True, memory=memory, **INFERRING)
    assert (tmp_path / "here.parquet").read_bytes() == (tmp_path / "there.parquet").read_bytes()


def test_nodes_that_die_while_inferring_leave_no_trace_in_the_bytes(nodes, uneven, tmp_path):
    """In panels, since the memory is the least that works. The last run has one worker."""
    nodes.start(3)
    net = model("sage")
    diskgnn.infer(uneven, tmp_path / "here.npy", net)
    np.testing.assert_allclose(np.load(tmp_path / "here.npy"), sage_in_numpy(net, uneven), rtol=1e-4, atol=1e-5)
    memory = least_memory(uneven, tmp_path, net)
    nodes.die_at("infer.window", "worker.unit")  # the third one does the rest
    bars = Bars()
    report = diskgnn.infer(uneven, tmp_path / "dying.npy", net, memory=memory, reporter=bars, **INFERRING)
    assert nodes.died_at() == ["infer.window", "worker.unit"]
    assert all(int(number) > 1 for number in report.details["panels"].split(", "))
    assert all(bar["done"] == bar["total"] for bar in bars.stages)
    diskgnn.infer(uneven, tmp_path / "alone.npy", net, memory=memory, **INFERRING)
    assert len({path.read_bytes() for path in tmp_path.glob("*.npy")}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.npy", "dying.npy", "here.npy"]


def test_all_machines_that_infer_keep_to_a_disk_budget(nodes, uneven, tmp_path):
    nodes.start(2)
    net, out = model("sage"), tmp_path / "shared" / "out.npy"
    out.parent.mkdir()
    memory = least_memory(uneven, tmp_path, net)
    report = diskgnn.infer(uneven, tmp_path / "free.npy", net, memory=memory, **INFERRING)
    enough_bytes = 2 * (report.details["scratch_bytes"] + allocated_bytes(tmp_path / "free.npy")) + (1 << 20)
    others_bytes = sum(map(allocated_bytes, nodes.scratch))
    with MostAllocated(out.parent, *nodes.scratch, seconds=0.02) as found:
        diskgnn.infer(uneven, out, net, memory=memory, disk=enough_bytes, **INFERRING)
    assert 0 < found.num_bytes - others_bytes <= enough_bytes
    assert out.read_bytes() == (tmp_path / "free.npy").read_bytes()
