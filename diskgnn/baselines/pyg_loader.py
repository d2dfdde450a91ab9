"""PyG's own NeighborLoader over the same arrays, features in a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diskgnn.baselines.library_source import LibraryOptions, LibrarySource, Loaded, blocks_of_subgraph
from diskgnn.errors import UnavailableError
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


def require_sampler() -> None:
    """Refuse where NeighborLoader cannot sample.

    Raises:
        UnavailableError: torch_geometric cannot be imported, or neither pyg-lib nor torch-sparse can.
    """
    try:
        from torch_geometric import typing as found
    except ImportError as error:
        raise UnavailableError(
            f"the loader 'pyg' needs torch-geometric, found {error}; install it: pip install torch-geometric"
        ) from error
    if not (found.WITH_PYG_LIB or found.WITH_TORCH_SPARSE):
        raise UnavailableError(
            "the loader 'pyg' needs pyg-lib or torch-sparse, found that torch-geometric has neither: its "
            "NeighborLoader samples with one of them; install the faster one: "
            "pip install pyg-lib, with the wheel index for your torch that PyG's installation page names"
        )


class PyG(LibrarySource):
    """A `BatchSource` over `torch_geometric.loader.NeighborLoader`: what PyG's users have today.

    Kept: PyG 2 on pyg-lib, or on torch-sparse where there is no pyg-lib, with the topology in memory and `data.x` in a
    memory map. Workers sample, read the rows and convert subgraphs to blocks, trimmed as by `trim_to_layer`. PyG draws
    a node's neighbours once and uses them in every layer, where ours are drawn anew: its minibatches are smaller.
    Different: the sampler is given the CSC that it works on, so no edge_index of 16 bytes an edge is made first. Random
    numbers are seeded for each minibatch: same seed, same minibatches, with any number of workers, also after
    `load_state_dict`.

    It was run with PyG 2.8 on torch-sparse 0.6.18, built from source. There was no pyg-lib where this was written: in
    its place, a sampler written in Python was run. PyG calls torch-sparse deprecated, and it is slower than pyg-lib.

    Example:
        >>> source = PyG("graph", fanouts=[10, 10], batch_size=1024, workers=2)
    """

    name = "pyg"

    def __init__(self, graph: PathLike | Graph, split: str = "train", **library: Unpack[LibraryOptions]) -> None:
        require_sampler()
        super().__init__(graph, split, **library)

    def _load_topology(self) -> Any:
        indptr = torch.tensor(self._graph.indptr, dtype=torch.int64)
        return indptr, torch.tensor(self._graph.indices, dtype=torch.int64)  # the samplers take int64 only

    def _load(self, seeds: Tensor, key: int) -> Iterator[Loaded]:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.sampler import NeighborSampler

        num_hops, fanouts = self.num_layers, list(self.spec.fanouts_of("train"))

        class SeededNeighborSampler(NeighborSampler):  # type: ignore[misc]
            def sample_from_nodes(self, inputs: Any) -> Any:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed((key + int(inputs.node[0])) % (1 << 63))  # a node is the first of but one
                    return super().sample_from_nodes(inputs)

        def convert(batch: Any) -> Loaded:
            return Loaded(batch.n_id, blocks_of_subgraph(batch.edge_index, batch.batch_size, num_hops), batch.x)

        data = Data(x=self._features, edge_index=torch.empty((2, 0), dtype=torch.int64))
        sampler = SeededNeighborSampler(data, num_neighbors=fanouts)
        sampler.colptr, sampler.row = self._topology
        sampler.perm = None
        yield from NeighborLoader(
            data,
            num_neighbors=fanouts,
            neighbor_sampler=sampler,
            input_nodes=seeds,
            batch_size=self.spec.batch_size,
            shuffle=False,
            transform=convert,
            filter_per_worker=True,
            **self._worker_options,
        )
