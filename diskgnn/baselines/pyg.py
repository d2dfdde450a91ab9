"""PyG's own NeighborLoader over the same arrays, features in a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from diskgnn.artifacts import PathLike
from diskgnn.baselines.library_source import LibrarySource, Loaded, blocks_of_subgraph
from diskgnn.errors import ConfigError, UnavailableError
from diskgnn.graph import Graph
from diskgnn.sampling import batch_key


def require_sampler() -> None:
    """Refuse where NeighborLoader cannot sample.

    Raises:
        UnavailableError: torch_geometric cannot be imported, or pyg-lib cannot.
    """
    try:
        from torch_geometric import typing as found
    except ImportError as error:
        raise UnavailableError(
            f"the loader 'pyg' needs torch-geometric, found {error}; install it: pip install torch-geometric"
        ) from error
    if not found.WITH_PYG_LIB:
        raise UnavailableError(
            "the loader 'pyg' needs pyg-lib, found that torch-geometric has none: its NeighborLoader samples with it; "
            "install it: pip install pyg-lib -f https://data.pyg.org/whl/torch-<version>.html"
        )


class PyG(LibrarySource):
    """A `BatchSource` over `torch_geometric.loader.NeighborLoader`: what PyG's users have today.

    Faithful to: PyG 2 on pyg-lib, with the topology in memory and `data.x` in a memory map. PyG draws a node's
    neighbours once and uses them in every layer, where ours are drawn anew: its minibatches are smaller. Subgraphs are
    converted to blocks, trimmed as by `trim_to_layer`. Different: the sampler is given the CSC that it works on, so no
    edge_index of 16 bytes an edge is made first.

    Where this was written, no pyg-lib could be had: the loader was run with a sampler written in Python in its place.

    Args beside those of `LibrarySource`:
        workers: processes that sample and read ahead; 0 does both in this one.

    Example:
        >>> source = PyG("graph", fanouts=[10, 10], batch_size=1024, workers=2)
    """

    name = "pyg"

    def __init__(self, graph: PathLike | Graph, split: str = "train", *, workers: int = 0, **library: Any) -> None:
        if workers < 0:
            raise ConfigError(f"workers: expected at least 0, found {workers}")
        require_sampler()
        self._workers = workers
        super().__init__(graph, split, **library)

    def _load_topology(self) -> Any:
        indptr = torch.tensor(self._graph.indptr, dtype=torch.int64)
        return indptr, torch.tensor(self._graph.indices, dtype=torch.int64)  # pyg-lib takes int64 only

    def _load(self, seeds: Tensor, epoch: int) -> Iterator[Loaded]:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.sampler import NeighborSampler
        from torch_geometric.seed import seed_everything

        data = Data(x=self._features, edge_index=torch.empty((2, 0), dtype=torch.int64))
        sampler = NeighborSampler(data, num_neighbors=list(self._fanouts))
        sampler.colptr, sampler.row = self._topology
        sampler.perm = None
        seed_everything(batch_key(self._seed, self.split, epoch) % (1 << 31))
        loader = NeighborLoader(
            data,
            num_neighbors=list(self._fanouts),
            neighbor_sampler=sampler,
            input_nodes=seeds,
            batch_size=self._batch_size,
            shuffle=False,
            num_workers=self._workers,
            filter_per_worker=self._workers > 0,
        )
        for batch in loader:
            nodes, edges = list(batch.num_sampled_nodes), list(batch.num_sampled_edges)
            yield Loaded(batch.n_id, blocks_of_subgraph(batch.edge_index, nodes, edges), batch.x)
