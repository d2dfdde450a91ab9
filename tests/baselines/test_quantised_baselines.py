"""On a quantised graph every baseline delivers what NumPy makes of the codes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import FEATURE_CODES

from diskgnn.baselines.cached_reads import CachedReads
from diskgnn.baselines.dgl_loader import DGL
from diskgnn.baselines.epoch_source import EpochSource
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.library_source import LibrarySource
from diskgnn.baselines.mmap import MMap
from diskgnn.baselines.partition_buffer import PartitionBuffer
from diskgnn.baselines.partitioning import write_partitions
from diskgnn.baselines.pyg_loader import PyG
from diskgnn.baselines.segmented_packed import SegmentedPacked
from diskgnn.baselines.segmented_packing import prepare_segmented_packed
from diskgnn.baselines.static_packed import StaticPacked, prepare_static_packed
from diskgnn.errors import UnavailableError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert

NUM_NODES, WIDTH = 200, 7
SAMPLING: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 8}


@pytest.fixture(scope="module", params=["int8", "int4"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("quantised") / "graph"
    rng = np.random.default_rng(2)
    convert(
        path, edges=rng.integers(0, NUM_NODES, (2, 1000)), labels=rng.integers(0, 4, NUM_NODES), train=np.arange(57),
        quantise=request.param, features=rng.normal(3, 2, (NUM_NODES, WIDTH)).astype(np.float32),
    )  # fmt: skip
    return Graph.open(path)


def dequantised(graph: Graph) -> torch.Tensor:
    """[N, D], by the words of docs/FORMAT.md."""
    scale, zero_point = np.load(graph.manifest.file(FEATURE_CODES))
    codes = np.array(graph.features)
    if codes.dtype == np.uint8:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)[:, :WIDTH]
    return torch.from_numpy((codes.astype(np.float32) - zero_point) * scale)


def partition_buffer(graph: Graph, folder: Path) -> EpochSource:
    write_partitions(graph, folder / "partitions", num_partitions=4)
    return PartitionBuffer(graph, folder / "partitions", resident=3, **SAMPLING)


def segmented_packed(graph: Graph, folder: Path) -> EpochSource:
    prepare_segmented_packed(
        graph, folder / "segmented", **SAMPLING, static_cache="10%", disk_limit="1GiB", keep_input_nodes=True
    )
    return SegmentedPacked(graph, folder / "segmented")


def static_packed(graph: Graph, folder: Path) -> StaticPacked:
    prepare_static_packed(graph, folder / "static", **SAMPLING, static_cache="10%", keep_input_nodes=True)
    return StaticPacked(folder / "static")


MAKERS: dict[str, Callable[[Graph, Path], Any]] = {
    "in-memory": lambda graph, _: InMemory(graph, **SAMPLING),
    "mmap": lambda graph, _: MMap(graph, **SAMPLING),
    "cached-reads": lambda graph, _: CachedReads(graph, **SAMPLING, cpu_cache="10%"),
    "ginex": lambda graph, _: Ginex(graph, **SAMPLING, superbatch=3),
    "partition-buffer": partition_buffer,
    "segmented-packed": segmented_packed,
    "static-packed": static_packed,
}


@pytest.mark.parametrize("name", MAKERS)
def test_x_is_what_the_codes_mean(graph: Graph, tmp_path: Path, name: str) -> None:
    expected = dequantised(graph)
    with closing(MAKERS[name](graph, tmp_path)) as source:
        assert source.num_features == WIDTH
        batches = 0
        for batch in source.epoch(0):
            assert torch.equal(batch.x, expected[batch.input_nodes])
            batches += 1
        assert batches == source.num_batches


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize("library", [PyG, DGL])
def test_loaders_of_other_libraries_too(graph: Graph, library: type[LibrarySource]) -> None:
    expected = dequantised(graph)
    try:
        source = library(graph, **SAMPLING)
    except UnavailableError as error:
        pytest.skip(str(error))
    with closing(source):
        for batch in source.epoch(0):
            assert torch.equal(batch.x, expected[batch.input_nodes])
