"""The native sampler and its peers, all on the same minibatches of seeds, with the same fanouts and cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from diskgnn._native import NeighborSampler
from diskgnn.graph.graph import Graph
from diskgnn.draws import batch_key
from diskgnn.sampling.sample import epoch_seeds

if TYPE_CHECKING:
    from benchmarks.stages import Settings

MAX_MINIBATCHES = 16

Sample = Callable[[tuple[int, Any]], int]  # (number, seeds) -> edges
Topology = tuple[Any, Any]  # indptr, indices


def samplers(graph: Graph, settings: Settings) -> list[tuple[str, Callable[[], tuple[float, float]]]]:
    """(name, function that samples all minibatches and returns edges per second and per CPU second), ours first."""
    seeds = epoch_seeds(
        graph.splits["train"], split="train", epoch=0, seed=settings.seed, batch_size=settings.batch_size
    )[:MAX_MINIBATCHES]
    cores, fanouts = len(os.sched_getaffinity(0)), settings.fanouts
    topology = np.array(graph.indptr), np.array(graph.indices)
    found = [("diskgnn", cores, _native_sampler(topology, fanouts, settings.seed))]
    found += _dgl_samplers(topology, fanouts, cores)
    found += _pyg_sampler(topology, fanouts)
    return [(name, partial(_rate, sample, list(enumerate(seeds)), threads)) for name, threads, sample in found]


def _rate(sample: Sample, minibatches: list[tuple[int, Any]], threads: int) -> tuple[float, float]:
    with ThreadPoolExecutor(threads) as pool:
        started, started_cpu = time.perf_counter(), time.process_time()
        edges = sum(pool.map(sample, minibatches))
        return edges / (time.perf_counter() - started), edges / (time.process_time() - started_cpu)


def _native_sampler(topology: Topology, fanouts: list[int], seed: int) -> Sample:
    native = NeighborSampler(*topology)
    layers, key = np.array(fanouts, np.int32), batch_key(seed, "train", 0)

    def sample(minibatch: tuple[int, Any]) -> int:
        number, seeds = minibatch
        return sum(len(indices) for _, indices in native.sample(seeds, layers, key, number)[1])

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

    def sample(threads: int, minibatch: tuple[int, Any]) -> int:
        dgl.utils.set_num_threads(threads)
        seeds = torch.from_numpy(minibatch[1]).to(graph.idtype)
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

    def sample(minibatch: tuple[int, Any]) -> int:
        found = pyg_lib.sampler.neighbor_sample(indptr, indices, torch.from_numpy(minibatch[1]), fanouts, csc=True)
        return int(found[0].numel())

    yield f"pyg-lib {pyg_lib.__version__}", 1, sample
