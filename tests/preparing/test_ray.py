"""Preparing on Ray: a head and three nodes with scratch folders of their own, which die one after the other.

All run on this machine, so this says that the result is right whatever fails, not how it scales.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from graphs import make_graph

import diskgnn
from diskgnn.storage import faults

ray = pytest.importorskip("ray", reason="pip install 'diskgnn[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

SETTINGS = {"fanouts": [4, 4], "batch_size": 2, "epochs": 3, "cpu_cache": "10%", "keep_input_nodes": True}
# Where a node dies: while it samples, when a shard has left it, while it places, while it packs, when it has published.
POINTS = ("sample.minibatch", "worker.sampled", "pack.header", "pack.window", "worker.packed")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("ray") / "graph", num_nodes=300, splits={"train": 190, "valid": 37})


@pytest.fixture(scope="module")
def nodes():
    """A cluster whose workers die at a point where a file of `deaths` has its name, and take their node along."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets lie there: paths are to be short
    deaths = folder / "deaths"
    deaths.mkdir()

    def arm():
        armed = ExitStack()
        atexit.register(armed.close)  # as long as the worker lives
        for point in POINTS:
            armed.enter_context(faults.armed(point, partial(die, deaths / point)))

    def die(order):
        try:
            order.rename(f"{order}.{os.getpid()}")
        except FileNotFoundError:
            return
        os.kill(os.getppid(), signal.SIGKILL)  # the node: it goes down with its other workers
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        found = Nodes(folder)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(found.cluster.address, runtime_env={"worker_process_setup_hook": arm}, log_to_driver=False)
        yield found
        ray.shutdown()
        found.cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


class Nodes:
    def __init__(self, folder):
        self.folder, self.deaths = folder, folder / "deaths"
        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 5000}
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "_system_config": quick, "include_dashboard": False},
        )
        self.scratch = []
        for _ in range(3):
            self.add()

    def add(self):
        self.scratch.append(self.folder / f"scratch-{len(self.scratch)}")
        self.scratch[-1].mkdir()
        env = {"TMPDIR": str(self.scratch[-1]), "OMP_NUM_THREADS": "1"}
        self.cluster.add_node(num_cpus=1, memory=1 << 30, env_vars=env)

    def alive(self):
        return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def die_at(self, *points):
        for point in points:
            (self.deaths / point).touch()

    def died_at(self):
        return {file.name.rpartition(".")[0] for file in self.deaths.iterdir() if file.name not in POINTS}


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_dying_nodes_leave_no_trace_in_the_bytes(nodes, graph, tmp_path):
    diskgnn.prepare(graph, tmp_path / "one", **SETTINGS, ranks=2)
    nodes.die_at("worker.sampled", "pack.window")
    diskgnn.prepare(graph, tmp_path / "other", **SETTINGS, ranks=2, engine="ray", memory="64MiB", threads=1)
    assert nodes.died_at() == {"worker.sampled", "pack.window"}
    assert any(list(scratch.glob("diskgnn-*")) for scratch in nodes.scratch)  # of the workers, left by those that died
    assert files(tmp_path / "one") == files(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
