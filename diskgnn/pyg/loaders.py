"""`NeighborLoader` and `LinkNeighborLoader` with PyG's arguments and PyG's batches, prepared on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling

from diskgnn.paths import PathLike
from diskgnn.pyg.loader_data import opened, seeds_of
from diskgnn.pyg.loader_request import IGNORED, LoaderRequest, check_lengths
from diskgnn.pyg.prepared_batches import PreparedBatches
from diskgnn.pyg.prepared_cache import argument
from diskgnn.pyg.sampler import DiskSampler, StartedNodes


class NeighborLoader(PreparedBatches, NodeLoader):  # type: ignore[misc]
    """PyG's `NeighborLoader` with features and sampled neighbourhoods on disk.

    The first loop prepares minibatches in a cache folder, and says how large that will be; later loops, and later runs
    with the same data and arguments, read them. Batches have what PyG's have, in the same order.

    Args:
        data: as PyG has it, or the path of a graph directory that `diskgnn convert` made: then nothing is in memory. Or
            an opened `Graph`, such as one `without` some columns.
        num_neighbors: per hop; a mapping has a list for each edge type. -1 takes all.
        input_nodes: ids, a mask, a node type, or (node type, either); "train" or ("paper", "train") of a path.
        input_time: of input_nodes, with `time_attr`.
        replace: refused: draws with replacement are not prepared.
        subgraph_type: 'directional' or 'bidirectional'; 'induced' is refused.
        disjoint: each seed has nodes of its own.
        temporal_strategy: 'uniform' or 'last'.
        time_attr: of nodes or edges: nothing later than a seed is drawn for it.
        weight_attr: of edges: draws are in proportion to it.
        transform: of a batch.
        transform_sampler_output: of what was sampled, before rows are put to it.
        is_sorted, filter_per_worker, num_workers and what else is for worker processes: accepted, and without effect,
            since minibatches are drawn in advance and read by threads.
        neighbor_sampler: refused: diskgnn draws.
        directed: as PyG has it; False is refused with `subgraph_type='induced'`.
        cache: the cache folder; $XDG_CACHE_HOME/diskgnn/pyg or ~/.cache/diskgnn/pyg by default. Removing it, or a
            folder in it, costs preparing again: `diskgnn cache list` shows what is there, `diskgnn cache clear`
            removes it. Nobody else may write to the folder.
        cache_limit: bytes, or text such as '10GiB', that the cache folder may take. Before something is made that would
            exceed it, what was used longest ago is removed, unless a loader uses it now. No limit by default.
        cpu_cache: memory for rows of features while training, in bytes, as '2GiB' or '10%' of all rows. By default
            10 %, but at least 256 MiB. Rows that do not fit are on disk once for each minibatch that reads them.
        prepared_epochs: epochs that are drawn in advance, and repeat then; 4 by default, 1 with shuffle=False. With 0,
            epochs are drawn anew each time, as PyG does, in windows that are prepared as the loop goes and deleted
            after it: a loop that leaves an epoch early has prepared little more than it used.
        memory, threads: that preparing may use.
        device: where rows and ids are delivered.
        seed: of draws and of shuffling; torch.manual_seed has no effect on them.
        progress: say on stderr what is prepared.
        time_window: with `time_attr`: a seed at time t draws only edges in (t - time_window, t]. One number is for
            edges with times, and of edge types called as by RelBench for those to the row that is referred to
            ('f2p_...'); rows that are referred to are drawn whatever their age. A mapping says for which edge types it
            is.
        input_start_time: of input_nodes, with `time_attr`: a seed at time t draws only edges in (input_start_time, t],
            of the edge types that `time_window` is or would be for; with one, edges are in both. cuGraph's loaders
            draw what is of the start itself, too.
        **kwargs: those of torch's DataLoader: batch_size, shuffle, drop_last.

    Raises:
        ConfigError: what cannot be prepared, with the way round it.

    Example:
        >>> from diskgnn.pyg import NeighborLoader
        >>> loader = NeighborLoader(data, num_neighbors=[10, 5], input_nodes=data.train_mask, batch_size=1024)
        >>> for batch in loader:
        ...     out = model(batch.x, batch.edge_index)[: batch.batch_size]
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        cache: PathLike | None = None,
        cache_limit: int | str | None = None,
        cpu_cache: int | str | None = None,
        prepared_epochs: int | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        progress: bool = True,
        time_window: int | str | dict[tuple[str, str, str], int | str] | None = None,
        input_start_time: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        request = LoaderRequest.of(
            num_neighbors, time_attr, weight_attr, subgraph_type, replace=replace, disjoint=disjoint,
            temporal_strategy=temporal_strategy, time_window=time_window, neighbor_sampler=neighbor_sampler,
            directed=directed, seed_time=input_time, seed_start=input_start_time,
            cache=cache, cache_limit=cache_limit, cpu_cache=cpu_cache, prepared_epochs=prepared_epochs,
            memory=memory, threads=threads, device=device, seed=seed,
            progress=progress, arguments=kwargs,
        )  # fmt: skip
        data, request.graph = opened(data)
        request.check_types(data)
        self._begin(request, sampler := DiskSampler(seed))
        super().__init__(
            data=data, node_sampler=sampler,
            input_nodes=seeds_of(data, request.graph, input_nodes, is_link=False),
            input_time=input_time, transform=transform, transform_sampler_output=transform_sampler_output,
            filter_per_worker=True, **{name: value for name, value in kwargs.items() if name not in IGNORED},
        )  # fmt: skip
        request.check_seeds(self.input_data.node, "input_nodes")
        check_lengths(len(self.input_data.node), input_time=input_time, input_start_time=input_start_time)
        if input_start_time is not None:
            self.input_data = StartedNodes(self.input_data, input_start_time)

    @staticmethod
    def _pyg_loader() -> Any:
        return NodeLoader

    def _identity(self) -> dict[str, Any]:
        """Returns what minibatches start from, for the key."""
        found = self.input_data
        return {"nodes": argument(found.node), "time": argument(found.time), "type": found.input_type,
                "start": argument(self._request.starts)}  # fmt: skip


class LinkNeighborLoader(PreparedBatches, LinkLoader):  # type: ignore[misc]
    """PyG's `LinkNeighborLoader` with features and sampled neighbourhoods on disk: see `NeighborLoader`.

    Negatives are drawn by PyG's own code, in advance: other nodes in each prepared epoch. When prepared epochs come
    again, their negatives have the same ends, joined anew. PyG's loader draws other nodes in every epoch, and so does
    this one with as many `prepared_epochs` as are trained. Where each seed has nodes of its own (`disjoint`,
    `time_attr`), negatives keep their pairs.

    Args:
        data, num_neighbors, replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr, transform,
            transform_sampler_output, is_sorted, filter_per_worker, neighbor_sampler, directed, cache, cache_limit,
            cpu_cache, prepared_epochs, memory, threads, device, seed, progress, time_window, kwargs: as those of
            `NeighborLoader`.
        edge_label_index: the pairs to start from, [2, n], (edge type, those), or an edge type for all of its edges;
            (edge type, "train") of a path.
        edge_label: of the pairs.
        edge_label_time: of the pairs, with `time_attr`.
        neg_sampling, neg_sampling_ratio: as PyG has them.

    Raises:
        ConfigError: what cannot be prepared, with the way round it.

    Example:
        >>> from diskgnn.pyg import LinkNeighborLoader
        >>> loader = LinkNeighborLoader(data, [10, 5], edge_label_index=pairs, neg_sampling="binary", batch_size=1024)
        >>> for batch in loader:
        ...     h = model(batch.x, batch.edge_index)
        ...     score = (h[batch.edge_label_index[0]] * h[batch.edge_label_index[1]]).sum(-1)
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: list[int] | dict[tuple[str, str, str], list[int]],
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        cache: PathLike | None = None,
        cache_limit: int | str | None = None,
        cpu_cache: int | str | None = None,
        prepared_epochs: int | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        progress: bool = True,
        time_window: int | str | dict[tuple[str, str, str], int | str] | None = None,
        **kwargs: Any,
    ) -> None:
        request = LoaderRequest.of(
            num_neighbors, time_attr, weight_attr, subgraph_type, replace=replace, disjoint=disjoint,
            temporal_strategy=temporal_strategy, time_window=time_window, neighbor_sampler=neighbor_sampler,
            directed=directed,
            seed_time=edge_label_time, cache=cache, cache_limit=cache_limit, cpu_cache=cpu_cache,
            prepared_epochs=prepared_epochs, memory=memory, threads=threads, device=device, seed=seed,
            progress=progress, arguments=kwargs, is_link=True,
        )  # fmt: skip
        data, request.graph = opened(data)
        request.check_types(data)
        self._begin(request, sampler := DiskSampler(seed))
        super().__init__(
            data=data, link_sampler=sampler,
            edge_label_index=seeds_of(data, request.graph, edge_label_index, is_link=True),
            edge_label=edge_label, edge_label_time=edge_label_time, neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio, transform=transform,
            transform_sampler_output=transform_sampler_output, filter_per_worker=True,
            **{name: value for name, value in kwargs.items() if name not in IGNORED},
        )  # fmt: skip
        if self.neg_sampling is not None:
            request.say_negatives()
        check_lengths(len(self.input_data.row), edge_label=edge_label, edge_label_time=edge_label_time)

    @staticmethod
    def _pyg_loader() -> Any:
        return LinkLoader

    def _identity(self) -> dict[str, Any]:
        """Returns what minibatches start from, for the key."""
        found, sampling = self.input_data, self.neg_sampling
        negatives = sampling and {name: argument(value) for name, value in vars(sampling).items()}
        assert sampling is None or isinstance(sampling, NegativeSampling)
        pairs = argument(torch.stack([found.row, found.col]))
        return {"pairs": pairs, "time": argument(found.time), "type": found.input_type, "negatives": str(negatives)}
