"""One packed directory for all tests of the loader, and what it yields uninterrupted."""

import gc
import shutil
from collections.abc import Iterator

import pytest
import torch
from graphs import make_graph, prepare_graph, threads_of_this_process, threads_that_stay
from packed_directories import key

from diskgnn.files import faults
from diskgnn.loading.loader import Loader


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("loader") / "graph")


@pytest.fixture(scope="session")
def packed(graph, tmp_path_factory):
    """Two epochs of 8 minibatches, with rows in every tier."""
    folder = tmp_path_factory.mktemp("loader")
    return prepare_graph(graph, folder, epochs=2, cpu_cache="20%", static_cache="5%", eval_cpu_cache="10%")


@pytest.fixture(scope="session")
def whole(packed):
    """Keys of all minibatches of five epochs, uninterrupted."""
    with Loader(packed) as loader:
        return [key(batch) for epoch in range(5) for batch in loader.epoch(epoch)]


@pytest.fixture
def mutable(packed, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(packed, tmp_path / "packed")


@pytest.fixture
def no_thread_is_left():
    """For modules whose tests start no other threads: torch keeps its own."""
    before = threads_of_this_process()
    yield
    if threads_of_this_process() > before:
        gc.collect()
    assert threads_that_stay(before) <= before


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the kernel fills x on the test's `device`; on a cpu in Triton's interpreter, where there is no GPU."""
    if request.param:
        pytest.importorskip("triton")
        if request.node.callspec.params["device"] == "cpu" and torch.cuda.is_available():
            pytest.skip("Triton compiles here, for the GPU alone")
    with faults.pretending("loading.runs_kernel", request.param):
        yield request.param
