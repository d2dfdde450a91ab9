"""Sampling while training: the pipeline that all baselines with our sampler share, whatever serves their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import NeighborSampler
from diskgnn.baselines.epoch_source import EpochSource, RowCounts
from diskgnn.draws import batch_key
from diskgnn.errors import ConfigError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import Block, MiniBatch
from diskgnn.specs import PathLike


class FeatureRows(Protocol):
    """What serves feature rows: memory, a memory map, a cache in front of a disk."""

    @property
    def ordered(self) -> bool:
        """Whether what a call costs depends on those before it: then one thread gathers, minibatch after minibatch."""
        ...

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, RowCounts]:
        """(x [U, D] = features[nodes], where the rows came from). Called by several threads unless `ordered`."""
        ...

    def close(self) -> None:
        """Free memory and files. Idempotent."""
        ...


@dataclass(frozen=True)
class SampledBlocks:
    """One minibatch without its features."""

    seeds: npt.NDArray[np.int64]  # [B]
    nodes: npt.NDArray[Any]  # [U] int32 or int64, the seeds first
    blocks: tuple[Block, ...]  # outermost first

    def minibatch(self, x: Tensor, y: Tensor, epoch: int, index: int) -> MiniBatch:
        """The minibatch, now that its features are there."""
        return MiniBatch(
            x=x,
            y=y,
            blocks=self.blocks,
            seeds=torch.from_numpy(self.seeds),
            epoch=epoch,
            index=index,
            input_nodes=torch.from_numpy(self.nodes.astype(np.int64, copy=False)),
        )


class OnlineSource(EpochSource):
    """A `BatchSource` that samples in background threads and gets its rows from a `FeatureRows`.

    It draws exactly what `diskgnn.sample` prepares from the same seed, fanouts and batch size, whatever `threads` is:
    comparisons with training from disk see the same minibatches. Sampling runs ahead of gathering, and gathering
    ahead of the user; rows whose cost depends on their order are gathered by one thread, minibatch after minibatch, so
    that hits and misses are the same in every run.

    Args beside those of `EpochSource`:
        rows: opens what serves the features; it is closed with the source.
        topology: 'memory' loads indptr and indices, 'mmap' maps them (`Graph.topology_at_random`).
        prefetch: minibatches gathered ahead of the user, each holding its x; by default 1 if they are gathered in
            order, otherwise one per thread.
        share: another source of this class over the same graph, whose topology and rows to use, with what they hold
            in memory; it is the one to close last.

    Raises beside what `EpochSource` does:
        ConfigError: `share` of another graph or class.
    """

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        rows: Callable[[Graph], FeatureRows],
        topology: str = "memory",
        prefetch: int | None = None,
        share: OnlineSource | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(graph, split, **sampling)
        at_least_one("prefetch", prefetch)
        self._check_shared(share)
        self._owns_rows = share is None
        self._sampler: NeighborSampler = load_sampler(self._graph, topology) if share is None else share._sampler
        self._rows: FeatureRows = rows(self._graph) if share is None else share._rows
        self._prefetch = prefetch or (1 if self._rows.ordered else self._threads)

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        sampled_epoch = self._sampled_epoch(epoch)
        key, seeds = batch_key(self._seed, self.split, sampled_epoch), self._seeds(sampled_epoch)
        sampled: deque[tuple[int, Future[SampledBlocks]]] = deque()
        gathered: deque[Future[tuple[MiniBatch, RowCounts]]] = deque()
        with self._pools(sample=self._threads, gather=1) as (pool, in_order):
            gatherer, sampled_ahead = (in_order, self._threads) if self._rows.ordered else (pool, 0)

            def gather() -> None:
                # In a pool of both, sampling is asked for first, so no worker waits for what no worker has begun.
                while sampled and len(gathered) <= self._prefetch:
                    gathered.append(gatherer.submit(self._fill, epoch, *sampled.popleft()))

            submitted = start
            for _ in range(start, len(seeds)):
                gather()
                while submitted < len(seeds) and len(sampled) + len(gathered) <= self._prefetch + sampled_ahead:
                    sampled.append((submitted, pool.submit(self._sample, epoch, submitted, seeds[submitted], key)))
                    submitted += 1
                    gather()
                yield gathered.popleft().result()

    def _sample(self, epoch: int, index: int, seeds: npt.NDArray[np.int64], key: int) -> SampledBlocks:
        with self._traced("sample", index):
            return sample_blocks(self._sampler, seeds, self._fanouts, key, index)

    def _fill(self, epoch: int, index: int, pending: Future[SampledBlocks]) -> tuple[MiniBatch, RowCounts]:
        sampled = pending.result()
        with self._traced("gather", index):
            x, counts = self._rows.gather(sampled.nodes)
        return sampled.minibatch(x, self._labels(sampled.seeds), epoch, index), counts

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free what the source holds. Idempotent."""
        super().close()
        if self._owns_rows:
            self._rows.close()


def sample_blocks(
    sampler: NeighborSampler, seeds: npt.NDArray[np.int64], fanouts: Sequence[int], key: int, index: int
) -> SampledBlocks:
    """Minibatch `index` of the epoch that `key` is of (`sampling.batch_key`)."""
    nodes, sampled = sampler.sample(seeds, np.array(fanouts, np.int32), key, index)
    return as_blocks(seeds, nodes, sampled)


def as_blocks(
    seeds: npt.NDArray[np.int64],
    nodes: npt.NDArray[Any],
    sampled: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]],
) -> SampledBlocks:
    """(indptr, indices) per block, outermost first, as blocks."""
    num_src, blocks = len(nodes), []
    for indptr, indices in sampled:
        blocks.append(Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src))
        num_src = len(indptr) - 1
    return SampledBlocks(seeds, nodes, tuple(blocks))


def load_sampler(graph: Graph, topology: str) -> NeighborSampler:
    """A sampler over the graph's topology, loaded into memory or mapped.

    Raises:
        ConfigError: `topology` is neither 'memory' nor 'mmap'.
    """
    if topology == "mmap":
        return NeighborSampler(*graph.topology_at_random())
    if topology != "memory":
        raise ConfigError(f"topology: expected 'memory' or 'mmap', found {topology!r}")
    return NeighborSampler(*graph.topology())
