"""GraphBolt's own pipeline over the same arrays: features on disk behind its cpu cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diskgnn.baselines.dgl_loader import import_dgl
from diskgnn.baselines.library_source import LibraryOptions, LibrarySource, Loaded
from diskgnn.batches.blocks import Block
from diskgnn.errors import ConfigError, UnavailableError
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.specs.caches import cache_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack


def import_graphbolt() -> Any:
    """Returns the module dgl.graphbolt.

    Raises:
        UnavailableError: it cannot be imported, or its disk features cannot be used.
    """
    import_dgl()
    try:
        import dgl.graphbolt as graphbolt
    except Exception as error:  # DGL raises whatever its libraries do when they do not fit
        raise UnavailableError(
            f"the loader 'graphbolt' needs dgl.graphbolt of DGL 2.4 or newer, found {error!r}; DGL 2 has builds for "
            "some versions of torch only: see https://www.dgl.ai/pages/start.html"
        ) from error
    if not hasattr(graphbolt, "cpu_cached_feature"):
        raise UnavailableError("the loader 'graphbolt' needs DGL 2.4 or newer, found an older one; install a newer dgl")
    if not torch.ops.graphbolt.detect_io_uring():
        raise UnavailableError("the loader 'graphbolt' needs io_uring, found that the kernel refuses it; allow it")
    return graphbolt


class GraphBolt(LibrarySource):
    """A `BatchSource` over GraphBolt's datapipe: `DiskBasedFeature` behind a `cpu_cached_feature`.

    Kept: DGL 2.4's example of node classification from disk (`examples/graphbolt/pyg/labor`): topology in memory,
    neighbour sampling on threads, feature fetching overlapped with the rest, two minibatches loaded ahead.
    Different: nothing on purpose, but **it was never run**: no GraphBolt could be imported where this was written.
    Every call was checked against the Python and C++ sources of DGL's main branch after 2.4 (commit 9e6602f and those
    before it), and that example. `CachedReads` is the same design on our sampler and reader.

    GraphBolt locks the rows of the cache that it reads, those of some five minibatches at once: with a cache of fewer
    rows it hangs, and an epoch that is left early leaves its last rows locked. It opens the features for writing,
    though it does not write. All rows count as disk_rows: its cache says no more than a rate of misses. Its threads
    take random numbers as they come: the same seed draws other neighbours in another run.

    Args beside those of `LibrarySource` (`advice` and `workers` mean nothing here):
        cpu_cache: bytes, '512MiB', or '10%' of all rows.
        policy: 'sieve', 's3-fifo', 'lru' or 'clock'.

    Raises beside what `LibrarySource` does:
        ConfigError: bfloat16 features, which NumPy's files, and so GraphBolt, do not know.

    Example:
        >>> source = GraphBolt("graph", fanouts=[10, 10], batch_size=1024, cpu_cache="10%", policy="sieve")
    """

    name = "graphbolt"

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        cpu_cache: int | str = "10%",
        policy: str = "sieve",
        **library: Unpack[LibraryOptions],
    ) -> None:
        self._graphbolt = import_graphbolt()
        self._cpu_cache, self._policy = cpu_cache, policy
        super().__init__(graph, split, **library)

    def _load_topology(self) -> Any:
        file = self._graph.feature_file
        if file.rows.dtype != file.rows.storage.name:
            raise ConfigError(
                f"the loader 'graphbolt' reads no {file.rows.dtype} features; convert them to float16 or float32"
            )
        indptr, indices = torch.tensor(self._graph.indptr), torch.tensor(self._graph.indices)
        feature = self._graphbolt.DiskBasedFeature(os.fspath(file.local_path))
        cached_bytes = cache_rows(self._cpu_cache, file.row_bytes, self._graph.num_nodes) * file.row_bytes
        if cached_bytes:
            feature = self._graphbolt.cpu_cached_feature(feature, cached_bytes, self._policy)
        return self._graphbolt.fused_csc_sampling_graph(indptr, indices), feature

    def _load(self, seeds: Tensor, key: int) -> Iterator[Loaded]:
        graph, feature = self._topology
        self._graphbolt.seed(key % (1 << 31))  # it has nothing from PyTorch's
        items = self._graphbolt.ItemSet(seeds.to(graph.indices.dtype), names="seeds")
        pipe = self._graphbolt.ItemSampler(items, batch_size=self.spec.batch_size, shuffle=False)
        # GraphBolt lists fanouts from the input; ours start at the seeds.
        pipe = pipe.sample_neighbor(graph, list(reversed(self.spec.fanouts_of("train"))))
        store = self._graphbolt.BasicFeatureStore({("node", None, "x"): feature})
        pipe = pipe.fetch_feature(store, node_feature_keys=["x"])
        pipe = pipe.copy_to(torch.device("cpu"))  # the DataLoader prefetches what comes before
        for batch in self._graphbolt.DataLoader(pipe):
            blocks = tuple(
                Block(layer.sampled_csc.indptr.int(), layer.sampled_csc.indices.int(), len(layer.original_row_node_ids))
                for layer in batch.sampled_subgraphs
            )
            yield Loaded(batch.input_nodes, blocks, batch.node_features["x"])
