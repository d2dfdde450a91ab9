"""What tests of packing share."""

import subprocess

import pytest
from graphs import make_graph

from diskgnn.formats.samples import Samples
from diskgnn.sampling.sample import sample


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("packing") / "graph")


@pytest.fixture(scope="module")
def samples(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("packing") / "samples"
    sample(graph, path, fanouts=[3, 2], batch_size=8, epochs=2, threads=1)
    return Samples.open(path)


@pytest.fixture
def small_disk(tmp_path):
    """256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    yield folder
    subprocess.run(["umount", folder], check=True)
