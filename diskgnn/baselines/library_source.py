"""What the sources over other libraries' own loaders share: the arrays they get, the minibatches they yield."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diskgnn.artifacts import PathLike
from diskgnn.baselines.epoch_source import EpochSource, RowCounts, as_rows
from diskgnn.baselines.mmap import bytes_read_by_process, map_features
from diskgnn.graph import Graph
from diskgnn.minibatch import Block, MiniBatch


@dataclass(frozen=True)
class Loaded:
    """What a library's loader yielded for one minibatch."""

    input_nodes: Tensor  # [U] ids, the seeds first
    blocks: tuple[Block, ...]  # outermost first
    x: Tensor  # [U, D]


class LibrarySource(EpochSource):
    """A `BatchSource` over another library's loader. Subclasses give `_load_topology` and `_load`.

    Minibatches have the seeds that `diskgnn.sample` would give them, in the same order; their neighbours are drawn by
    the library, from its own random numbers, which are seeded when an epoch starts (on several threads, DGL's draws
    differ from run to run all the same). What goes on from a state has the same seeds, but other neighbours.

    All rows count as disk_rows, read_requests is 0 for not known, and read_bytes is what the kernel says that this
    process has read meanwhile; unless a subclass knows better.

    Args beside those of `EpochSource`:
        advice: 'random' or 'normal', for the memory map of the features: see `MMap`.
        share: another source of this class over the same graph, whose topology and memory map to use.

    Raises beside what `EpochSource` does:
        UnavailableError: the library cannot be imported.
        ConfigError: `share` of another graph or class, unknown `advice`.
    """

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        advice: str = "random",
        share: LibrarySource | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(graph, split, **sampling)
        self._check_shared(share)
        self._topology: Any = self._load_topology() if share is None else share._topology
        self._features: Tensor = self._map(advice) if share is None else share._features

    def _map(self, advice: str) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return as_rows(map_features(self._graph, advice), self._graph)

    def _load_topology(self) -> Any:
        """The topology as the library wants it."""
        raise NotImplementedError

    def _load(self, seeds: Tensor, epoch: int) -> Iterator[Loaded]:
        """What the library's loader yields for [n] int64 `seeds`, `batch_size` at a time, with draws of `epoch`."""
        raise NotImplementedError

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        sampled_epoch = self._sampled_epoch(epoch)
        remaining = self._seeds(sampled_epoch)[start:]
        if not remaining:
            return
        loader = self._load(torch.from_numpy(np.concatenate(remaining)), sampled_epoch)
        try:
            for index, seeds in enumerate(remaining, start):
                before = bytes_read_by_process()
                with self._traced("load", index):
                    loaded = next(loader)
                batch = MiniBatch(
                    x=loaded.x,
                    y=self._labels(seeds),
                    blocks=loaded.blocks,
                    seeds=torch.from_numpy(seeds),
                    epoch=epoch,
                    index=index,
                    input_nodes=loaded.input_nodes.long(),
                )
                yield batch, RowCounts(disk_rows=len(loaded.x), read_bytes=bytes_read_by_process() - before)
        finally:
            if isinstance(loader, Generator):
                loader.close()

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "sampler": self.name}


def blocks_of_subgraph(
    edge_index: Tensor, num_sampled_nodes: list[int], num_sampled_edges: list[int]
) -> tuple[Block, ...]:
    """Blocks, outermost first, of a subgraph as PyG's samplers yield it: nodes and edges by the hop that reached them.

    edge_index is [2, edges], sources above destinations, each hop's edges after those of the hop before. A layer uses
    all edges whose destinations it computes, as PyG's `trim_to_layer` has it: a node's neighbours are the same in
    every layer.
    """
    nodes, edges = list(accumulate(num_sampled_nodes)), list(accumulate(num_sampled_edges))
    sources, destinations = edge_index
    order = torch.argsort(destinations, stable=True)
    if bool((order.diff() < 0).any()):
        raise ValueError("expected edges in the order of their destinations")
    blocks = []
    for hop in reversed(range(len(edges))):
        counts = torch.bincount(destinations[: edges[hop]], minlength=nodes[hop])
        indptr = torch.zeros(nodes[hop] + 1, dtype=torch.int32)
        torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
        blocks.append(Block(indptr, sources[: edges[hop]].int(), nodes[hop + 1]))
    return tuple(blocks)
