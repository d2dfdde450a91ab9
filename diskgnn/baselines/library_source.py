"""What the sources over other libraries' own loaders share: the arrays they get, the minibatches they yield."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diskgnn.baselines.epoch_source import EpochSource, SourceOptions
from diskgnn.baselines.mmap import bytes_read_by_process, map_features
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.blocks import Block
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Loaded:
    """Holds what a library's loader yielded for one minibatch."""

    input_nodes: Tensor  # [U] ids, the seeds first
    blocks: tuple[Block, ...]  # outermost first
    x: Tensor  # [U, D]


class LibraryOptions(SourceOptions, total=False):
    """Keyword arguments of `LibrarySource`, as the sources that derive from it take them."""

    workers: int
    advice: str
    share: LibrarySource | None


class LibrarySource(EpochSource):
    """A `BatchSource` over another library's loader. Subclasses give `_load_topology` and `_load`.

    Minibatches have the seeds that `diskgnn.sample` would give them, in the same order; their neighbours are drawn by
    the library, from its own random numbers.

    Worker processes end with their epoch, however it ends: dropping the iterator waits for them, and they end by
    themselves when the process that started them is gone. They are forked, so they share topology and memory map. The
    memory of workers counts in a cgroup, not in a measure of this process.

    All rows count as disk_rows. read_bytes is what the kernel says that this process and its workers have read
    meanwhile; read_requests is 0, for not known.

    Args beside those of `EpochSource` (`threads` means nothing here):
        workers: processes that load ahead; 0 loads in this one, when a minibatch is asked for.
        advice: 'random' or 'normal', for the memory map of the features: see `MMap`.
        share: another source of this class over the same graph, whose topology and memory map to use.

    Raises beside what `EpochSource` does:
        UnavailableError: the library cannot be imported.
        ConfigError: `share` of another graph or class, unknown `advice`, less than 0 workers.
    """

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        workers: int = 0,
        advice: str = "random",
        share: LibrarySource | None = None,
        **sampling: Unpack[SourceOptions],
    ) -> None:
        if workers < 0:
            raise ConfigError(f"workers: expected at least 0, found {workers}")
        super().__init__(graph, split, **sampling)
        self._require_independent_draws()
        self._identify(sampler=self.name)
        self._check_shared(share)
        self._workers = workers
        self._topology: Any = self._load_topology() if share is None else share._topology
        self._features: Tensor = self._map(advice) if share is None else share._features

    def _map(self, advice: str) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return self._graph.feature_file.rows.as_tensor(map_features(self._graph.feature_file, advice))

    def _load_topology(self) -> Any:
        """Returns the topology as the library wants it."""
        raise NotImplementedError

    def _load(self, seeds: Tensor, key: int) -> Iterator[Loaded]:
        """Yields what the library's loader does for [n] int64 `seeds`, `batch_size` at a time; draws follow from
        `key`."""
        raise NotImplementedError

    @property
    def _worker_options(self) -> dict[str, Any]:
        """Returns what a DataLoader of PyTorch's takes."""
        # What is forked needs no pickling: a graph would be copied.
        return {"num_workers": self._workers, "multiprocessing_context": "fork" if self._workers else None}

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, LoadStats], None, None]:
        remaining = self._planned(epoch)[start:]
        loader = self._load(torch.from_numpy(np.concatenate([each.seeds for each in remaining])), remaining[0].key)
        read_bytes = _bytes_read()
        try:
            for planned in remaining:
                with self._traced("load", planned.number):
                    loaded = next(loader)
                batch = MiniBatch(
                    x=loaded.x,
                    y=self._labels(planned.seeds, planned.places),
                    blocks=loaded.blocks,
                    seeds=torch.from_numpy(planned.seeds.copy()),
                    epoch=epoch,
                    batch_index=planned.number,
                    input_nodes=loaded.input_nodes.long(),
                )
                before, read_bytes = read_bytes, _bytes_read()
                yield batch, LoadStats(disk_rows=len(loaded.x), read_bytes=read_bytes - before)
        finally:
            if isinstance(loader, Generator):
                loader.close()


def _bytes_read() -> int:
    """Returns what this process and its workers read, those that have ended included."""
    workers = [worker.pid for worker in multiprocessing.active_children()]
    return sum(bytes_read_by_process(process) for process in ("self", *workers) if process is not None)


def blocks_of_subgraph(edge_index: Tensor, num_seeds: int, num_hops: int) -> tuple[Block, ...]:
    """Returns the blocks, outermost first, of a subgraph as PyG's samplers yield it.

    edge_index is [2, edges], sources above destinations, edges by destination. Nodes are numbered as they are reached,
    seeds first, so a hop's edges say which nodes it reached: pyg-lib says it, too, torch-sparse does not. A layer uses
    all edges whose destinations it computes, as PyG's `trim_to_layer` has it: a node's neighbours are the same in
    every layer.
    """
    sources, destinations = edge_index.contiguous()
    if bool((destinations.diff() < 0).any()):
        raise ValueError("expected edges in the order of their destinations")
    blocks: list[Block] = []
    num_nodes = num_seeds
    for _ in range(num_hops):
        indptr = torch.searchsorted(destinations, torch.arange(num_nodes + 1), out_int32=True)
        indices = sources[: int(indptr[-1])].int()
        num_nodes = max(num_nodes, int(indices.max()) + 1 if len(indices) else 0)
        blocks.insert(0, Block(indptr, indices, num_nodes))
    return tuple(blocks)
