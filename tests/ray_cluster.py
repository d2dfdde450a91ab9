"""A cluster of Ray on this machine, whose nodes die when a test says so."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import pytest
import ray
import ray_deaths
import ray_workers
from object_store import SECRET
from ray.cluster_utils import Cluster

STORE_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": SECRET}


@contextmanager
def cluster_that_dies():
    """A cluster whose workers die where a test says so; see `ray_deaths`."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets lie there: paths are to be short
    deaths, crashes = folder / "deaths", folder / "crashes"
    deaths.mkdir()
    crashes.mkdir()

    with pytest.MonkeyPatch.context() as patch, ExitStack() as exits:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("PYTHONPATH", str(Path(ray_deaths.__file__).parent), prepend=os.pathsep)  # workers import it
        patch.setenv(ray_deaths.FOLDER, str(folder))
        (folder / "ray").mkdir()
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        exits.enter_context(_forking(folder))
        found = Nodes(folder)
        exits.callback(found.cluster.shutdown)
        ray.init(found.cluster.address, log_to_driver=False)
        exits.callback(ray.shutdown)
        yield found


@contextmanager
def _forking(folder):
    """While the server of `ray_workers` runs."""
    command = [sys.executable, ray_workers.__file__, "serve", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}) as server:
        try:
            assert server.stdout.readline() == b"listening\n"
            yield
        finally:
            server.kill()


class Nodes:
    def __init__(self, folder):
        self.folder, self.deaths, self.scratch = folder, folder / "deaths", []
        configured = {
            "health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 5000,
            # A `runtime_env` with a hook would do as well, but each worker would then start Python twice.
            "preload_python_modules": ["ray_deaths"],
        }  # fmt: skip
        head = {
            "num_cpus": 0, "_system_config": configured,
            "include_dashboard": False, "include_log_monitor": False, "no_monitor": True,  # nobody looks at them
        }  # fmt: skip
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    def start(self, number):
        """As many as are missing of so many, each with a scratch folder of its own."""
        for node in [each for each in self.cluster.worker_nodes if not each.remaining_processes_alive()]:
            self.cluster.remove_node(node, allow_graceful=False)
        for _ in range(number - len(self.cluster.worker_nodes)):
            self.scratch.append(self.folder / f"scratch-{len(self.scratch)}")
            self.scratch[-1].mkdir()
            env = {"TMPDIR": str(self.scratch[-1]), "OMP_NUM_THREADS": "1", **STORE_CREDENTIALS}
            self.cluster.add_node(num_cpus=1, memory=1 << 30, env_vars=env, worker_path=ray_workers.__file__)

    def die_at(self, *points):
        for point in points:
            (self.deaths / point).touch()

    @contextmanager
    def most_anonymous_bytes(self):
        """Yields {process: most bytes of memory that is no file's} of the workers that start meanwhile, which are not
        forked."""
        (self.folder / ray_workers.FRESH).touch()
        most, stopped, workers = {}, threading.Event(), set()

        def look():
            for number in count():
                if number % 50 == 0:  # looking at all processes costs much more
                    workers.update(self._pids())
                for pid in workers:
                    with suppress(OSError, IndexError):
                        status = Path(f"/proc/{pid}/status").read_text()
                        if status.startswith("Name:\tray::diskgnn"):
                            anonymous_bytes = int(status.split("RssAnon:")[1].split()[0]) << 10
                            most[pid] = max(anonymous_bytes, most.get(pid, 0))
                if stopped.wait(0.02):
                    return

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield most
        finally:
            stopped.set()
            looking.join()
            (self.folder / ray_workers.FRESH).unlink()

    def _pids(self):
        """Processes of the nodes that work."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError, KeyError):
                if Path(process.environ()["TMPDIR"]).parent == self.folder:
                    yield process.pid

    def died_at(self):
        """The points since it was asked last, each once for each node that died there."""
        died = [file for file in self.deaths.iterdir() if file.name not in ray_deaths.POINTS]
        for file in died:
            file.unlink()
        return sorted(file.name.rpartition(".")[0] for file in died)
