"""Comparisons in which something goes wrong: a row says so, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
import timeit
from contextlib import suppress

import psutil
import pytest
from comparisons import cgroups_of, write_learnable_graph
from forked_python import Python

from diskgnn.compare import step_bodies
from diskgnn.compare.compare import SCRATCH
from diskgnn.compare.comparison_record import LoaderResult
from diskgnn.compare.loader_runs import Job, measure
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.settings import ComparedRows
from diskgnn.compare.step_runner import Steps
from diskgnn.compare.variants import RANDOM, Variant, find
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.graph.graph import Graph
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.memory_cgroup import refusal

ANONYMOUS_BYTES = """
import torch
status = open("/proc/self/status").read()
print(int(status.split("RssAnon:")[1].split()[0]) << 10)
"""
needs_cgroup = pytest.mark.skipif(bool(refusal()), reason="this process may make no memory cgroup")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "graph"
    write_learnable_graph(path)
    return Graph.open(path)


def measured(graph, folder, variant, timeout_seconds=120.0):
    """What three seeds of a variant come to."""
    inputs = LoaderInputs(
        str(graph.manifest.path), "", SamplingSpec([3, 2], 32, target=NodeTarget("node")), 1 << 16, 1 << 30
    )
    job = Job(inputs, ModelSpec("sage", hidden=8, heads=1, dropout=0.0), 0.01, 3, ComparedRows.of(graph))
    with Steps(graph.manifest, folder, None, timeout_seconds) as steps:
        return list(measure(steps, job, variant, lambda _: None))


@pytest.mark.usefixtures("forked_servers")
def test_a_loader_that_raises_is_a_row(graph, tmp_path):
    unknown = Variant("no-such-loader", "x", "broken", lambda _: None, RANDOM)
    (row,) = measured(graph, tmp_path, unknown)
    assert (row.status, row.name, row.loading) == ("failed", "broken", None)
    assert "ConfigError" not in row.message  # our own errors need no name
    assert "no-such-loader" in row.message


def test_a_loader_whose_library_is_missing_is_a_row(graph, tmp_path, monkeypatch):
    """PYTHONPATH hides torch behind a module that cannot be imported."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hidden"), *sys.path]))
    (row,) = measured(graph, tmp_path, find("in-memory", ""))
    assert row == LoaderResult("in-memory", "in-memory", "", "unavailable", "ImportError: no torch here", row_bytes=160,
                               peak_process_bytes=row.peak_process_bytes)  # fmt: skip


def test_a_loader_that_takes_too_long_is_a_row(graph, tmp_path):
    before = psutil.Process().children()  # of other tests: such as the process that tracks what others share
    (row,) = measured(graph, tmp_path, find("in-memory", ""), timeout_seconds=0.05)
    assert row.status == "failed"
    assert "no end after" in row.message
    assert [child for child in psutil.Process().children() if child not in before] == []


@needs_cgroup
def test_a_step_that_is_killed_for_memory_says_so(graph, tmp_path):
    with Steps(graph.manifest, tmp_path, 8 << 20, timeout_seconds=120.0) as steps:  # not enough to import torch
        outcome = steps.run(step_bodies.evaluate, {})
    assert outcome.status == "out of memory"
    assert "8.0 MiB" in outcome.message
    assert cgroups_of(os.getpid()) == []


@needs_cgroup
def test_a_step_finds_torch_imported_and_is_charged_for_it(graph, tmp_path):
    """As if it had imported it itself: memory that a fork shares with another process costs its own cgroup nothing."""
    with Steps(graph.manifest, tmp_path, 1 << 30, timeout_seconds=120.0) as steps:
        imported = {"stmt": "import sys; assert 'torch' in sys.modules, 'it is not imported'", "number": 1}
        outcome = steps.run(timeit.timeit, imported)
    assert (outcome.status, outcome.message) == ("ok", "")
    anonymous_bytes = int(subprocess.check_output([sys.executable, "-c", ANONYMOUS_BYTES]))
    assert outcome.peak_cgroup_bytes > 0.9 * anonymous_bytes


def wait_for_a_step(process):
    """The processes of a comparison, when one of its steps runs; none when it has ended."""
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # others come and go
            children = psutil.Process(process.pid).children(recursive=True)
            servers = [child for child in children if "diskgnn.compare.step_server" in child.cmdline()]
            if any(server.parent() in servers for server in servers):  # forked
                return children
        time.sleep(0.1)  # each look is at all processes of the machine
    return []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_however_it_is_stopped_no_process_stays(graph, tmp_path, number, code):
    (tmp_path / "scratch").mkdir()
    arguments = [graph.manifest.path, "--memory", "1GiB", "--fanouts", "3,2", "--size", "1MiB", "--scratch",
                 tmp_path / "scratch"]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = Python("-m", "diskgnn", "compare", *arguments, **quiet)
    try:
        children = wait_for_a_step(process)
        assert children
        process.send_signal(number)
        assert process.wait(30) == code
        _, running = psutil.wait_procs(children, timeout=30)
        assert running == []
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGKILL:  # nobody can clean up but the next comparison
        (left,) = (each for each in (tmp_path / "scratch").iterdir() if each.is_dir())
        both = [ScratchFolder(tmp_path / "scratch", SCRATCH, "scratch") for _ in range(2)]
        with both[0] as mine, both[1] as another:
            assert mine.is_dir()  # what is in use stays
            assert another.is_dir()
            assert not left.exists()
        refusal()  # makes a cgroup, which removes those of the dead
    assert list((tmp_path / "scratch").iterdir()) == []
    assert cgroups_of(process.pid) == []
