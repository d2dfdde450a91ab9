"""`infer` on Ray: a head and three nodes with scratch folders of their own, which die one after the other.

The bytes are those of one process, and its numbers those of NumPy on the whole graph.
"""

import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from commands import run_python
from object_store import MostAllocated
from typed_graphs import citations
from uneven_graph import CLASSES, NUM_NODES, WIDTH, uneven_graph

import diskgnn
from diskgnn.engines.ray_nodes import PROCESS_BYTES
from diskgnn.errors import ConfigError, DiskFullError, UnavailableError
from diskgnn.files import faults
from diskgnn.files.disk_space import allocated_bytes
from diskgnn.nn.block_models import make_model
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_models import make_typed_model
from diskgnn.specs.schema import SourceSchema
from diskgnn.work.runner import ALL_STEPS
from diskgnn.work.shuffle import DamagedStepError

ray = pytest.importorskip("ray", reason="pip install 'diskgnn[ray]'")
from ray_cluster import cluster_that_dies  # noqa: E402

ON_RAY = {"engine": "ray", "threads": 1}


@pytest.fixture(scope="module")
def nodes():
    with cluster_that_dies() as found:
        yield found


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return uneven_graph(tmp_path_factory.mktemp("graph"))


def model(name):
    torch.manual_seed(7)
    return make_model(name, WIDTH, 8, CLASSES, 2).eval()


def least_memory(graph, folder, net, **arguments):
    """What the refusal of one byte says that it takes."""
    with pytest.raises(ConfigError, match=r"memory: expected at least (\d+) bytes") as refused:
        diskgnn.infer(graph, folder / "refused.npy", net, memory=1, **ON_RAY, **arguments)
    return int(str(refused.value).split()[4])


class Bars:
    """A reporter that notes how far each stage got."""

    def __init__(self):
        self.stages = []

    @contextmanager
    def stage(self, description, total, unit):
        bar = {"description": description, "total": total, "done": 0}
        self.stages.append(bar)
        yield lambda amount: bar.update(done=bar["done"] + amount)


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


def test_nodes_that_die_leave_no_trace_in_the_bytes(nodes, graph, tmp_path):
    """In panels, since the memory is the least that works. The last run has one worker."""
    net = model("sage")
    diskgnn.infer(graph, tmp_path / "here.npy", net)
    np.testing.assert_allclose(np.load(tmp_path / "here.npy"), sage_in_numpy(net, graph), rtol=1e-4, atol=1e-5)
    memory = least_memory(graph, tmp_path, net)
    nodes.die_at("infer.window", "worker.unit")  # the third one does the rest
    bars = Bars()
    report = diskgnn.infer(graph, tmp_path / "dying.npy", net, memory=memory, reporter=bars, **ON_RAY)
    assert nodes.died_at() == ["infer.window", "worker.unit"]
    assert all(int(number) > 1 for number in report.details["panels"].split(", "))
    assert all(bar["done"] == bar["total"] for bar in bars.stages)
    diskgnn.infer(graph, tmp_path / "alone.npy", net, memory=memory, **ON_RAY)
    assert len({path.read_bytes() for path in tmp_path.glob("*.npy")}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.npy", "dying.npy", "here.npy"]


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_other_layers_and_some_nodes(nodes, graph, tmp_path, name):
    nodes.start_three()
    net, given = model(name), {"nodes": [8999, 3, 3, 5000], "what": "probabilities"}
    diskgnn.infer(graph, tmp_path / "here.npy", net, **given)
    diskgnn.infer(graph, tmp_path / "there.npy", net, memory=least_memory(graph, tmp_path, net), **given, **ON_RAY)
    assert (tmp_path / "here.npy").read_bytes() == (tmp_path / "there.npy").read_bytes()


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_typed_models(nodes, tmp_path, name):
    nodes.start_three()
    graph = citations(tmp_path / "graph")
    schema = SourceSchema(
        tuple((each.name, each.num_nodes, each.feature_file and each.feature_file.rows.num_features)
              for each in graph.nodes.values()),
        tuple((each.type, each.feature_file and each.feature_file.rows.num_features) for each in graph.edges.values()),
        "paper", "class", 3,
    )  # fmt: skip
    torch.manual_seed(3)
    net = make_typed_model(ModelSpec(name=name, hidden=12, heads=3, num_layers=2), schema, 3).eval()
    diskgnn.infer(graph, tmp_path / "here.parquet", net, ignore_times=True)
    memory = least_memory(graph, tmp_path, net, ignore_times=True)
    nodes.die_at("infer.window")
    diskgnn.infer(graph, tmp_path / "there.parquet", net, ignore_times=True, memory=memory, **ON_RAY)
    assert nodes.died_at() == ["infer.window"]
    assert (tmp_path / "here.parquet").read_bytes() == (tmp_path / "there.parquet").read_bytes()


def test_a_driver_that_is_killed_goes_on_with_what_has_arrived(nodes, graph, tmp_path):
    """With fewer workers, and then in this process: units whose bytes are committed are not made again."""
    nodes.start_three()
    net, out = model("sage"), tmp_path / "out.npy"
    torch.save(net, tmp_path / "net.pt")
    keywords = {"memory": "256MiB", **ON_RAY}
    made = []
    with faults.armed("work.unit", lambda: made.append("undisturbed")):
        diskgnn.infer(graph, tmp_path / "undisturbed.npy", net, **keywords)
    script = f"""
        import os, signal, torch, diskgnn
        from diskgnn.files import faults
        net = torch.load({str(tmp_path / "net.pt")!r}, weights_only=False)
        killed = faults.armed("work.unit", lambda: os.kill(os.getpid(), signal.SIGKILL), after=5)
        with killed, faults.pretending("unit.bytes", 1):
            diskgnn.infer({str(graph.manifest.path)!r}, {str(out)!r}, net, address={nodes.cluster.address!r},
                          **{keywords!r})
    """
    died = run_python("-c", re.sub(r"(?m)^ {8}", "", script))
    assert died.returncode == -signal.SIGKILL
    assert (tmp_path / ".out.npy.partial").is_dir()
    nodes.die_at("worker.unit")
    with faults.armed("work.unit", lambda: made.append("after")):
        diskgnn.infer(graph, out, net, **keywords)
    assert nodes.died_at() == ["worker.unit"]
    assert made.count("after") == made.count("undisturbed") - 5
    assert out.read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()
    assert not (tmp_path / ".out.npy.partial").exists()
    with faults.armed("work.unit", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1), \
            pytest.raises(KeyboardInterrupt):  # fmt: skip
        diskgnn.infer(graph, out, net, overwrite=True, **keywords)
    diskgnn.infer(graph, out, net, overwrite=True)
    assert out.read_bytes() == (tmp_path / "undisturbed.npy").read_bytes()


def test_what_is_refused(nodes, graph, tmp_path, monkeypatch):
    nodes.start_three()
    net = model("sage")
    for wrong, message in (
        ({"memory": "2GiB"}, r"memory: no node of Ray has room for a worker of 1 cores and 2\.0 GiB"),
        ({"threads": 9}, "a worker of 9 cores"),
        ({"engine": "spark"}, "engine: expected one of local, ray, found 'spark'"),
        ({"engine": "local", "address": "auto"}, "address: only engine='ray' takes it"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.infer(graph, tmp_path / "out.npy", net, **{"memory": "128MiB", **ON_RAY} | wrong)
    locked, lock = model("sage"), threading.Lock()

    def activation(h, layer):
        with lock:
            return h.relu()

    locked.between[0].activation = activation
    with pytest.raises(ConfigError, match=r"model: expected a module that can be pickled.*lock.*engine 'local'"):
        diskgnn.infer(graph, tmp_path / "out.npy", locked, memory="128MiB", **ON_RAY)
    with pytest.raises(DiskFullError, match=r"bytes are allowed: \d+ bytes are missing"):
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory="128MiB", disk=200_000, **ON_RAY)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=re.escape("pip install 'diskgnn[ray]'")):
        diskgnn.infer(graph, tmp_path / "out.npy", net, engine="ray")
    assert not list(tmp_path.iterdir())


def test_a_model_of_functions_of_ones_own(nodes, graph, tmp_path):
    """A lambda is sent as it is."""
    nodes.start_three()
    net = model("sage")
    net.between[0].activation = lambda h, _: h.tanh()
    diskgnn.infer(graph, tmp_path / "here.npy", net)
    diskgnn.infer(graph, tmp_path / "there.npy", net, memory="128MiB", **ON_RAY)
    assert (tmp_path / "here.npy").read_bytes() == (tmp_path / "there.npy").read_bytes()


def test_a_graph_that_is_not_shared_is_refused(nodes, graph, tmp_path):
    nodes.start_three()
    here = diskgnn.Graph.open(shutil.copytree(graph.manifest.path, tmp_path / "elsewhere"))
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
        diskgnn.infer(here, tmp_path / "out.npy", net, memory="128MiB", reporter=Hiding(), **ON_RAY)


def test_what_a_worker_finds_gone_is_made_again(nodes, graph, tmp_path):
    """The error of a worker says which step, here as well."""
    error = pickle.loads(pickle.dumps(DamagedStepError(ALL_STEPS, "gone")))
    assert (error.step, str(error)) == (ALL_STEPS, "gone; run the same command again")
    nodes.start_three()
    net, out, before, gone = model("sage"), tmp_path / "out.npy", [], []

    def remove():
        if len(before) > 5 and not gone:
            gone.append(before[0])
            before[0].unlink()
        before[:] = sorted((tmp_path / ".out.npy.partial").glob("0-*-0000*"))

    diskgnn.infer(graph, tmp_path / "whole.npy", net)
    with faults.armed("work.unit", remove), faults.pretending("unit.bytes", 1):
        diskgnn.infer(graph, out, net, memory=least_memory(graph, tmp_path, net), **ON_RAY)
    assert gone
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_all_machines_together_keep_to_a_disk_budget(nodes, graph, tmp_path):
    nodes.start_three()
    net, out = model("sage"), tmp_path / "shared" / "out.npy"
    out.parent.mkdir()
    memory = least_memory(graph, tmp_path, net)
    report = diskgnn.infer(graph, tmp_path / "free.npy", net, memory=memory, **ON_RAY)
    enough_bytes = 2 * (report.details["scratch_bytes"] + allocated_bytes(tmp_path / "free.npy")) + (1 << 20)
    others_bytes = sum(map(allocated_bytes, nodes.scratch))
    with MostAllocated(out.parent, *nodes.scratch) as found:
        diskgnn.infer(graph, out, net, memory=memory, disk=enough_bytes, **ON_RAY)
    assert 0 < found.num_bytes - others_bytes <= enough_bytes
    assert out.read_bytes() == (tmp_path / "free.npy").read_bytes()


@pytest.mark.slow
def test_workers_keep_to_their_budgets(nodes, tmp_path):
    """Of memory that is no file's, a worker takes no more than it asked Ray for."""
    nodes.start_three()
    diskgnn.generate(tmp_path / "graph", num_nodes=300_000, avg_degree=10, num_classes=4, num_features=64,
                     train_fraction=0.02, valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    torch.manual_seed(0)
    torch.save(make_model("sage", 64, 128, 4, 2), tmp_path / "net.pt")
    memory = 128 << 20
    script = f"""
        import torch, diskgnn
        net = torch.load({str(tmp_path / "net.pt")!r}, weights_only=False)
        report = diskgnn.infer({str(tmp_path / "graph")!r}, {str(tmp_path / "out.npy")!r}, net, memory={memory},
                               address={nodes.cluster.address!r}, **{ON_RAY!r})
        print(report.details["panels"])
    """
    with nodes.most_anonymous_bytes() as most:
        printed = subprocess.check_output([sys.executable, "-c", re.sub(r"(?m)^ {8}", "", script)], text=True)
    assert printed.strip() != "1, 1"
    assert most
    assert max(most.values()) < PROCESS_BYTES + memory
