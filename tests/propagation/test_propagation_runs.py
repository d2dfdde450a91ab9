"""Runs of `propagate` that are killed, damaged, continued with another memory, or bounded by the disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from memory_watching import WATCHING
from propagated_graphs import OPERATORS, Given, convert, random_graph

import diskgnn
from diskgnn.cli import main
from diskgnn.errors import ArtifactError, DiskFullError
from diskgnn.files import faults
from diskgnn.files.destination import staging_of
from diskgnn.formats.hops import Hops
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import find_damage, verify_artifact
from diskgnn.propagation.propagate import estimate_propagation

ASKED = {"hops": 3, "operators": OPERATORS, "progress": False}
NARROW, WIDE = 111_000, 1 << 30  # bytes of memory: for panels of two columns, and of all


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(random_graph(1, width=9, weighted=True), tmp_path_factory.mktemp("given") / "graph")


@pytest.fixture(scope="module")
def digest(graph: Path) -> str:
    budgets = [estimate_propagation(graph, graph.parent / "none", memory=each, **ASKED) for each in (NARROW, WIDE)]
    assert [each.panels for each in budgets] == [5, 1]
    diskgnn.propagate(graph, graph.parent / "undisturbed", memory=WIDE, **ASKED)
    return open_artifact(graph.parent / "undisturbed").digest


def test_damage_of_the_artifact_is_found(graph: Path, tmp_path: Path) -> None:
    diskgnn.propagate(graph, tmp_path / "hops", **ASKED)
    path = tmp_path / "hops" / "records-train.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    _, damages = find_damage(tmp_path / "hops")
    assert [damage.file for damage in damages] == ["records-train.npy"]
    assert "`diskgnn propagate` it again" in damages[0].problem


def test_an_artifact_on_a_store_is_the_same(graph: Path, digest: str, tmp_path: Path) -> None:
    diskgnn.propagate(graph, f"local://{tmp_path / 'there'}", **ASKED)
    diskgnn.fetch(f"local://{tmp_path / 'there'}", tmp_path / "here", progress=False)
    assert verify_artifact(tmp_path / "here").digest == digest
    assert Hops.open(tmp_path / "here").config.operators == OPERATORS


def test_the_disk_that_is_predicted_suffices_and_less_is_refused(graph: Path, digest: str, tmp_path: Path) -> None:
    out = tmp_path / "hops"
    with pytest.raises(DiskFullError, match="propagating needs") as refused:
        diskgnn.propagate(graph, out, memory=NARROW, disk="70KiB", **ASKED)
    needed_bytes = int(re.search(r"(\d+) bytes in all", str(refused.value))[1])
    assert not out.exists()
    assert not any(staging_of(out).glob("hops.*"))
    most = 0

    class Disk:
        """Looks at the disk at each step."""

        def stage(self, description: str, total: int, unit: str):
            nonlocal most

            def advance(_: int) -> None:
                nonlocal most
                if staging_of(out).exists():
                    most = max(most, sum(path.stat().st_blocks * 512 for path in staging_of(out).iterdir()))

            return nullcontext(advance)

    diskgnn.propagate(graph, out, memory=NARROW, disk=needed_bytes, reporter=Disk(), **ASKED)
    assert open_artifact(out).digest == digest
    assert most <= needed_bytes


COUNTED = (
    WATCHING
    + """
def written(): return int(dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())["wchar"])
graph, out, memory, hops, operators, nodes = sys.argv[1:]
before = written()
report = diskgnn.propagate(graph, out, hops=int(hops), operators=operators, nodes=nodes or None, memory=memory)
is_over.set()
print(written() - before, report.read_bytes, report.written_bytes, most, report.details["memory_bytes"])
"""
)


def counted(graph: Path, out: Path, memory: str, hops: int, operators: str, nodes: str = "") -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, graph, out, memory, str(hops), operators, nodes], capture_output=True,
        text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return list(map(int, done.stdout.split()))


kernel_counts = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel does not count here")


@kernel_counts
@pytest.mark.parametrize("memory", ["120MiB", "1GiB"])
def test_bytes_and_memory_are_as_predicted(tmp_path: Path, memory: str) -> None:
    """Within 2 %, and memory no more than that. The kernel counts what is written, and the process's own memory; it
    does not count alike what is read past the page cache."""
    random = np.random.default_rng(0)
    num_nodes = 150_000
    edges = random.integers(0, num_nodes, (2, 10 * num_nodes))
    seeds = {"train": random.permutation(num_nodes)[:3000]}
    given = Given(edges, random.standard_normal((num_nodes, 48)).astype(np.float32), None, seeds)
    graph = convert(given, tmp_path / "graph")
    kernel_bytes, read_bytes, written_bytes, most_bytes, predicted_memory_bytes = counted(
        graph, tmp_path / "hops", memory, 3, "mean,symmetric"
    )
    with faults.pretending("memory.anonymous", 40 << 20):  # as that process has it
        predicted = estimate_propagation(graph, tmp_path / "other", hops=3, operators="mean,symmetric", memory=memory)
    assert read_bytes == pytest.approx(predicted.read_bytes, rel=0.02)
    assert written_bytes == pytest.approx(predicted.written_bytes, rel=0.02)
    assert kernel_bytes == pytest.approx(predicted.written_bytes, rel=0.02)
    # Of the threads that load stripes, a busy machine may run one after the other.
    assert 0.8 * predicted_memory_bytes < most_bytes <= 1.02 * predicted_memory_bytes
    assert predicted.output_bytes == pytest.approx(open_artifact(tmp_path / "hops").total_bytes, rel=0.02)


@kernel_counts
@pytest.mark.parametrize("case", ["one seed beside all nodes", "all nodes are seeds", "many hops"])
def test_memory_is_as_predicted_whatever_takes_most_of_it(tmp_path: Path, case: str) -> None:
    if case == "one seed beside all nodes":
        num_nodes = 8_000_000
        edges = np.stack([np.arange(num_nodes), np.zeros(num_nodes, int)])
        given = Given(edges, np.ones((num_nodes, 1), np.float32), None, {"train": np.array([0])})
        asked = ("1GiB", 1, "symmetric")
    elif case == "many hops":  # which need other rows each: a piece of the topology gives each a list as large
        num_nodes, degree = 200_000, 8
        edges = np.arange(num_nodes).repeat(degree)
        edges = np.stack([(edges + np.tile(np.arange(1, degree + 1), num_nodes)) % num_nodes, edges])
        seeds = {"train": np.arange(num_nodes // 2)}
        given = Given(edges, np.ones((num_nodes, 1), np.float32), np.ones(len(edges[0]), np.float32), seeds)
        asked = ("1GiB", 16, "mean")
    else:
        num_nodes = 150_000
        edges = np.random.default_rng(1).integers(0, num_nodes, (2, 2 * num_nodes))
        given = Given(edges, np.ones((num_nodes, 128), np.float32))
        asked = ("1GiB", 1, "symmetric", "all")
    *_, most_bytes, predicted_bytes = counted(convert(given, tmp_path / "graph"), tmp_path / "hops", *asked)
    assert most_bytes <= 1.02 * predicted_bytes


def test_the_command_says_what_it_took_and_what_it_would_take(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "hops"
    words = ["propagate", str(graph), str(out), "--hops", "2", "--operators", "mean,gcn"]
    said = CliRunner().invoke(main, [*words, "--estimate"])
    assert said.exit_code == 0, said.output
    assert not out.exists()
    assert "records" in said.output
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "predicted_read" in done.output
    looked = CliRunner().invoke(main, ["inspect", str(out)])
    assert "x, mean/1, mean/2, gcn/1, gcn/2" in looked.output
    assert CliRunner().invoke(main, ["verify", str(out)]).exit_code == 0
    assert CliRunner().invoke(main, words).exit_code == 5


def test_edges_that_change_between_two_reads_are_damage(tmp_path: Path) -> None:
    """The first read compares them with their checksum, the second one with the rows that the first one found."""
    given = Given(np.array([[1, 2], [0, 0]]), np.ones((70, 4), np.float32), None, {"train": np.array([0])})
    graph = convert(given, tmp_path / "graph")

    class Elsewhere:
        """Makes the last edge lead from the last node, of which no row was found to be needed."""

        def stage(self, description: str, total: int, unit: str):
            if description == "write the edges of hops":
                with (graph / "indices-node.to.node.npy").open("r+b") as file:
                    file.seek(-4, os.SEEK_END)
                    file.write(np.int32(69).tobytes())
            return nullcontext(lambda _: None)

    with pytest.raises(ArtifactError, match="damaged: edges that were others when they were read before"):
        diskgnn.propagate(graph, tmp_path / "hops", hops=1, reporter=Elsewhere())
    assert not (tmp_path / "hops").exists()
