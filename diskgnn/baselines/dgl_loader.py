"""DGL's own DataLoader and NeighborSampler over the same arrays, features in a memory map."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from diskgnn.baselines.library_source import LibraryOptions, LibrarySource, Loaded
from diskgnn.batches.blocks import Block
from diskgnn.errors import UnavailableError
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


def import_dgl() -> Any:
    """Returns the module dgl.

    Raises:
        UnavailableError: it cannot be imported.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except Exception as error:  # DGL raises whatever its libraries do when they do not fit
        raise UnavailableError(
            f"the loader 'dgl' needs dgl, found {error!r}; install it: pip install dgl==1.1.3 packaging"
        ) from error
    return dgl


class DGL(LibrarySource):
    """A `BatchSource` over `dgl.dataloading.DataLoader` with a `NeighborSampler`: what DGL's users have today.

    Kept: DGL 1.1 with the topology in memory (CSC, 64-bit ids), and features in a memory map as node data that the
    sampler prefetches. Workers sample, on one thread each; without them, all of DGL's threads do. DGL reads features in
    this process, when a minibatch is asked for, whatever `workers` is: so the page cache serves them, and reading is
    not overlapped with training.
    Different: random numbers are seeded for each minibatch, as DGL's workers would otherwise all draw the same ones.
    Blocks are converted to ours, which costs the time to build their CSC form.

    Same seed, same minibatches, also after `load_state_dict`, with any number of workers but 0: DGL's threads draw
    differently in each run.

    Example:
        >>> source = DGL("graph", fanouts=[10, 10], batch_size=1024, workers=2)
    """

    name = "dgl"

    def __init__(self, graph: PathLike | Graph, split: str = "train", **library: Unpack[LibraryOptions]) -> None:
        self._dgl = import_dgl()
        super().__init__(graph, split, **library)

    def _load_topology(self) -> Any:
        dtype = torch.int64  # from its second call on, DGL 1.1.3's fused sampler makes wrong blocks of 32-bit ids
        indptr, indices = (torch.tensor(array, dtype=dtype) for array in (self._graph.indptr, self._graph.indices))
        csc = ("csc", (indptr, indices, torch.empty(0, dtype=dtype)))
        return self._dgl.graph(csc, num_nodes=self._graph.num_nodes).formats("csc")

    def _load(self, seeds: Tensor, key: int) -> Iterator[Loaded]:
        graph = self._topology
        graph.ndata["x"] = self._features
        seed = self._dgl.seed

        class Sampler(self._dgl.dataloading.NeighborSampler):  # type: ignore[misc, name-defined]
            def sample_blocks(self, graph: Any, nodes: Tensor, exclude_eids: Any = None) -> Any:
                seed((key + int(nodes[0])) % (1 << 31))  # a node is the first of but one minibatch
                return super().sample_blocks(graph, nodes, exclude_eids)

        # DGL lists fanouts from the input; ours start at the seeds.
        sampler = Sampler(list(reversed(self.spec.fanouts_of("train"))), prefetch_node_feats=["x"])
        loader = self._dgl.dataloading.DataLoader(
            graph,
            _Minibatches(torch.split(seeds, self.spec.batch_size)),
            sampler,
            **self._worker_options,
        )
        for input_nodes, _, blocks in loader:
            yield Loaded(input_nodes, tuple(map(_as_block, blocks)), blocks[0].srcdata["x"])


class _Minibatches(IterableDataset[Tensor]):
    """Seeds by the minibatch, of which workers take one in turn: they come in order.

    What DGL makes of a tensor gives each worker a part of the epoch, and then takes one from each in turn.
    """

    device = torch.device("cpu")  # DGL asks for it

    def __init__(self, minibatches: Sequence[Tensor]) -> None:
        self._minibatches = minibatches

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        return iter(self._minibatches if worker is None else self._minibatches[worker.id :: worker.num_workers])


def _as_block(block: Any) -> Block:
    indptr, indices, _ = block.adj_tensors("csc")
    return Block(indptr.int(), indices.int(), block.num_src_nodes())
