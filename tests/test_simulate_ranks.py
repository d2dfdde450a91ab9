"""What tools/simulate_ranks counts equals what `prepare --ranks` writes, and its replay equals answers by hand."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

TOOL = Path(__file__).parents[1] / "tools" / "simulate_ranks"
PAGE = 4096


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """Those of the tool, as `python tools/simulate_ranks` finds them."""
    monkeypatch.syspath_prepend(str(TOOL))
    yield
    for name in ("counting", "measuring", "replay"):
        sys.modules.pop(name, None)


@pytest.fixture
def graph(tmp_path):
    diskgnn.generate(
        tmp_path / "graph", num_nodes=3000, avg_degree=8, num_classes=5, num_features=16, train_fraction=0.2,
        valid_fraction=0, test_fraction=0, homophily=0.7,
    )  # fmt: skip
    return tmp_path / "graph"


def simulated(graph, folder, world_size):
    from counting import Draws, work_of_ranks

    folder.mkdir()
    draws = Draws(
        SamplingPlan(Graph.open(graph), SamplingSpec([5, 5], 32, 2, splits=["train"])), folder, Resources.of("1GiB", 1)
    )
    return work_of_ranks(draws, world_size, row_bytes=64, cpu_rows=300, folder=folder, threads=1)


@pytest.mark.parametrize("world_size", [1, 3])
def test_counts_are_those_of_packed_directories(graph, tmp_path, world_size):
    ranks = simulated(graph, tmp_path / "scratch", world_size)
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[5, 5], batch_size=32, epochs=2, cpu_cache=300 * 64,
                    static_cache=0, ranks=world_size)  # fmt: skip
    folders = [tmp_path / "packed"] if world_size == 1 else sorted((tmp_path / "packed").iterdir())
    assert len(ranks) == len(folders) == world_size
    for work, folder in zip(ranks, folders, strict=True):
        packed = Packed.open(folder)
        rows = packed.config.splits["train"].rows
        assert (work.requested_rows, work.disk_rows) == (rows.requested, rows.disk)
        extent_bytes = packed.index("train").extent_bytes
        assert len(work.read_bytes) == len(extent_bytes)
        assert np.abs(work.read_bytes - extent_bytes).max() <= PAGE
        initial = packed.file(artifacts.initial_cpu_rows_file("train", "node"))
        assert work.initial_bytes == initial.stat().st_size - 128  # its header


def work(read_bytes, *, edges=0, x_bytes=0):
    from counting import RankWork

    read = np.array(read_bytes)
    return RankWork(read, np.full(len(read), x_bytes), np.full(len(read), edges), 0, 0, 0)


def test_steps_by_hand():
    from replay import Rates, replay

    rates = Rates(read_bytes=10.0, assembled_bytes=100.0, edge_seconds=1.0, gradient_bytes=0, latency_seconds=0.0)
    # Loading takes 1, 2 and 3 seconds, computing 2: the second and third minibatch are loaded while the one before is
    # computed with, and the third is late by one second.
    alone = replay([work([10, 20, 30], edges=2)], rates)
    assert (alone.seconds, alone.load_seconds, alone.compute_seconds, alone.bound_by) == (8, 6, 6, "loading")
    # A rank that is late keeps the other waiting, each in its turn.
    assert replay([work([10, 40]), work([40, 10])], rates).seconds == 5  # with a buffer ahead: 4, then 5
    # The last step of the epoch has one rank only.
    assert replay([work([10, 10]), work([10])], rates).steps == 2
    # Assembling is what takes longer, and takes it from computing where both share cores.
    slow = Rates(10.0, 1.0, 1.0, 0, latency_seconds=0.0)
    assert replay([work([10], x_bytes=4, edges=1)], slow).seconds == 5
    assert replay([work([10], x_bytes=4, edges=1)], Rates(10.0, 1.0, 1.0, 0, cores=2)).seconds == 4 + 1 + 4 / 2


def test_a_ring_sends_each_part_twice_but_for_a_ranks_own():
    from replay import Rates, replay

    rates = Rates(1.0, 1.0, 0.0, gradient_bytes=400, network_bytes=100.0, latency_seconds=0.5)
    assert rates.all_reduce_seconds(4) == 6 * (1 + 0.5)
    assert replay([work([0, 0])] * 4, rates).seconds == 2 * 9
    # What a step costs several ranks beside that, it does not cost one.
    costly = replace(rates, step_seconds=3.0)
    assert replay([work([0, 0])] * 4, costly).seconds == 2 * (9 + 3)
    assert replay([work([0, 0])], costly).seconds == 0


def test_what_a_step_of_all_ranks_costs_beside_computing_by_hand():
    from measuring import beyond

    computing = [[1, 2, 3], [3, 2, 1]]  # of two ranks: the slowest takes 3, 2 and 3
    assert beyond([[4, 4, 4], [3, 5, 4]], computing) == pytest.approx((4 + 5 + 4 - 8) / 3)
    assert beyond([[1, 1, 1], [1, 1, 1]], computing) == 0


def test_it_runs_as_written(graph, tmp_path, monkeypatch, capsys):
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%", static_cache=0)
    command = [str(TOOL), str(graph), "--fanouts", "5,5", "--batch-size", "32", "--folder", str(tmp_path / "scratch")]
    monkeypatch.setattr(sys, "argv", [*command, "--rates", str(tmp_path / "packed"), "--measured-minibatches", "2",
                                      "--hidden", "8", "--json", str(tmp_path / "found.json")])  # fmt: skip
    runpy.run_path(str(TOOL), run_name="__main__")
    assert "| 64 |" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())["ranks"]
    assert [each["ranks"] for each in found] == [1, 2, 4, 8, 16, 32, 64]
    assert [each["steps"] for each in found] == [19, 10, 5, 3, 2, 1, 1]
    assert all(each["epoch_seconds"] > 0 for each in found)
    assert not (tmp_path / "scratch").exists()
