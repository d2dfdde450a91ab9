"""The native sampler and its peers, all on the same minibatches of seeds, with the same fanouts and cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.settings import Settings
from diskgnn._native import NeighborSampler
from diskgnn.graph.graph import Graph
from diskgnn.sampling.planned_minibatch import PlannedMinibatch

MAX_MINIBATCHES = 16

Sample = Callable[[PlannedMinibatch], int]  # -> edges
Topology = tuple[Any, Any]  # indptr, indices


def sampling(settings: Settings) -> dict[str, Any]:
    """Edges per second of the native sampler and of others, same minibatches, fanouts and cores."""
    runners = samplers(Graph.open(settings.graph), settings)
    # First ours, then each peer, in turns; the first turn, which warms all of them up, does not count.
    runs: dict[str, list[tuple[float, float]]] = {}
    for turn in range(settings.repeat + 1):
        for name, run in runners:
            rates = run()
            if turn:
                runs.setdefault(name, []).append(rates)
    ours = runs.pop("diskgnn")
    return {
        "edges_per_second": median(rate for rate, _ in ours),
        "edges_per_cpu_second": median(rate for _, rate in ours),  # tells more while others use the cores
        "peers": {
            name: {
                "edges_per_second": median(rate for rate, _ in theirs),
                "edges_per_cpu_second": median(rate for _, rate in theirs),
                "ratio": [a / b for (a, _), (b, _) in zip(ours, theirs, strict=True)],
                "cpu_ratio": [a / b for (_, a), (_, b) in zip(ours, theirs, strict=True)],
            }
            for name, theirs in runs.items()
        },
    }


def samplers(graph: Graph, settings: Settings) -> list[tuple[str, Callable[[], tuple[float, float]]]]:
    """(name, function that samples all minibatches and returns edges per second and per CPU second), ours first."""
    minibatches = settings.plan(graph).minibatches("train", 0)[:MAX_MINIBATCHES]
    cores, topology = len(os.sched_getaffinity(0)), graph.topology()
    found = [("diskgnn", cores, _native_sampler(topology))]
    found += _dgl_samplers(topology, settings.fanouts, cores)
    found += _pyg_sampler(topology, settings.fanouts)
    return [(name, partial(_rate, sample, minibatches, threads)) for name, threads, sample in found]


def _rate(sample: Sample, minibatches: Sequence[PlannedMinibatch], threads: int) -> tuple[float, float]:
    with ThreadPoolExecutor(threads) as pool:
        started, started_cpu = time.perf_counter(), time.process_time()
        edges = sum(pool.map(sample, minibatches))
        return edges / (time.perf_counter() - started), edges / (time.process_time() - started_cpu)


def _native_sampler(topology: Topology) -> Sample:
    native = NeighborSampler(*topology)

    def sample(each: PlannedMinibatch) -> int:
        return each.draw(native).num_edges

    return sample


def _dgl_samplers(topology: Topology, fanouts: list[int], cores: int) -> Iterator[tuple[str, int, Sample]]:
    """DGL's sampler with its own threads inside, and with a minibatch for each of ours."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
        import torch
    except ImportError:
        return
    # With 32-bit ids DGL 1.1.3's fused sampler gives wrong blocks from its second call on.
    indptr, indices = (torch.from_numpy(array).to(torch.int64) for array in topology)
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))), num_nodes=len(indptr) - 1)
    graph = graph.formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(reversed(fanouts)))  # it counts layers from the input

    def sample(threads: int, minibatch: PlannedMinibatch) -> int:
        dgl.utils.set_num_threads(threads)
        seeds = torch.from_numpy(minibatch.seeds).to(graph.idtype)
        return sum(block.num_edges() for block in sampler.sample_blocks(graph, seeds)[2])

    yield f"DGL {dgl.__version__}, {cores} threads inside", 1, partial(sample, cores)
    yield f"DGL {dgl.__version__}, {cores} minibatches at once", cores, partial(sample, 1)


def _pyg_sampler(topology: Topology, fanouts: list[int]) -> Iterator[tuple[str, int, Sample]]:
    """pyg-lib's sampler, where it is installed; it has no threads of its own."""
    try:
        import pyg_lib
        import torch
    except ImportError:
        return
    indptr, indices = (torch.from_numpy(np.asarray(array, np.int64)) for array in topology)

    def sample(minibatch: PlannedMinibatch) -> int:
        found = pyg_lib.sampler.neighbor_sample(indptr, indices, torch.from_numpy(minibatch.seeds), fanouts, csc=True)
        return int(found[0].numel())

    yield f"pyg-lib {pyg_lib.__version__}", 1, sample
