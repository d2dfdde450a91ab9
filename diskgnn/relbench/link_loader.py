"""RelBench's `LinkNeighborLoader` with tables on disk: sources, what they lead to, and other destinations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import HeteroSamplerOutput
from torch_geometric.sampler.base import SubgraphType

from diskgnn.errors import ConfigError
from diskgnn.formats.record_view import DecodedRecords
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.pyg.drawn import Drawn, Rows
from diskgnn.pyg.loader_data import opened
from diskgnn.pyg.loader_request import IGNORED, LoaderRequest, check_lengths
from diskgnn.pyg.prepared_batches import PreparedBatches
from diskgnn.pyg.sampler import DiskSampler, InputSeeds, Rules, seed_batch
from diskgnn.relbench.fresh_loaders import torch_seed
from diskgnn.sampling.seeds import SeedBatch
from diskgnn.specs.sampling import SamplingSpec

_TAKEN = ("batch_size", "shuffle", "drop_last", "sampler", "batch_sampler")  # of torch's DataLoader; two are refused


class LinkNeighborLoader:
    """RelBench's loader of this name, with rows and sampled neighbourhoods on disk.

    Each row of a task is a source at a time, with the destinations that it leads to. An epoch draws one of these for
    each row, and a destination at random beside it; all three are seeds at that time, of trees of their own. Epochs are
    drawn anew, in windows that are prepared as the loop goes, see `diskgnn.relbench.NeighborLoader`.

    Args:
        data, num_neighbors, subgraph_type, temporal_strategy, time_attr, cache, cpu_cache, memory, threads, device,
            progress: as those of `diskgnn.pyg.NeighborLoader`.
        src_nodes: (node type, ids [n]) of sources.
        dst_nodes: (node type, sparse CSR tensor [n, destinations]): those that each row leads to, at least one.
        num_dst_nodes: negatives are drawn of so many, at most all nodes of the type.
        src_time: [n] of the rows.
        share_same_time: the rows of a minibatch have one time, and rows that fill none are left out, as by RelBench's
            `TimestampSampler`.
        seed: of all that is drawn; by default torch's when the loader is made, which `seed_everything` sets.
        **kwargs: batch_size; shuffle, which share_same_time does in its own way; drop_last; num_workers and what else
            is for worker processes, without effect.

    Yields:
        (sources, positive destinations, negative destinations), a HeteroData each; `input_id` is the node, as in
        RelBench.

    Raises:
        ConfigError: what cannot be prepared, with the way round it.
        TypeError: there is another argument, which neither RelBench's loader nor torch's DataLoader takes or which has
            no place here.

    Example:
        >>> table_input = get_link_train_table_input(task.get_table("train"), task)
        >>> loader = LinkNeighborLoader(
        ...     data, [128, 64], table_input.src_nodes, table_input.dst_nodes, table_input.num_dst_nodes,
        ...     table_input.src_time, share_same_time=True, time_attr="time", batch_size=512,
        ... )
    """

    def __init__(
        self,
        data: HeteroData,
        num_neighbors: Any,
        src_nodes: tuple[str, Tensor],
        dst_nodes: tuple[str, Tensor],
        num_dst_nodes: int,
        src_time: Tensor | None = None,
        share_same_time: bool = False,
        subgraph_type: Any = "directional",
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        *,
        cache: PathLike | None = None,
        cpu_cache: int | str | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        device: str | torch.device = "cpu",
        seed: int | None = None,
        progress: bool = True,
        **kwargs: Any,
    ) -> None:
        if unknown := [name for name in kwargs if name not in (*_TAKEN, *IGNORED)]:
            raise TypeError(
                f"{unknown[0]}: expected {', '.join(_TAKEN[:3])}, or what is for worker processes; RelBench's "
                "LinkNeighborLoader takes no such argument, or it is not prepared"
            )
        if src_time is None:
            raise ConfigError("src_time: expected the time of each row, found None")
        seed = torch_seed() if seed is None else seed
        destinations = dst_nodes[1].cpu()
        check_lengths(len(src_nodes[1]), src_time=src_time, dst_nodes=destinations)
        request = LoaderRequest.of(
            num_neighbors, time_attr, None, subgraph_type, replace=False, disjoint=True,
            temporal_strategy=temporal_strategy, time_window=None, neighbor_sampler=None, directed=True,
            seed_time=src_time, cache=cache, cache_limit=None, cpu_cache=cpu_cache, prepared_epochs=0, memory=memory,
            threads=threads, device=device, seed=seed, progress=progress,
            arguments={**kwargs, "shuffle": False},  # the order is drawn with the destinations
        )  # fmt: skip
        data, request.graph = opened(data)
        request.check_types(data)
        _check_nodes(data, src_nodes, (dst_nodes[0], destinations.col_indices()), num_dst_nodes)
        rows = LinkRows(
            (src_nodes[0], dst_nodes[0]), src_nodes[1].cpu().numpy(), destinations.crow_indices().numpy(),
            destinations.col_indices().numpy(), src_time.cpu().numpy(), num_dst_nodes, request.batch_size,
            share_same_time=share_same_time, shuffle=bool(kwargs.get("shuffle")),
            drop_last=bool(kwargs.get("drop_last")), seed=seed,
        )  # fmt: skip
        self._rows, self._request = rows, request
        self._sources = _Side(data, request, rows, is_destination=False)
        self._destinations = _Side(data, request, rows, is_destination=True)
        self._epoch = 0

    def __len__(self) -> int:
        """Returns the minibatches of an epoch."""
        return -(-self._rows.num_rows // self._request.batch_size)

    def __iter__(self) -> Iterator[tuple[HeteroData, HeteroData, HeteroData]]:
        """Yields one epoch; other ones follow it."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._triples(epoch)

    def _triples(self, epoch: int) -> Iterator[tuple[HeteroData, HeteroData, HeteroData]]:
        sides = zip(self._sources.epoch(epoch), self._destinations.epoch(epoch), strict=True)
        for (sources,), (positive, negative) in sides:
            yield sources, positive, negative

    def close(self) -> None:
        """Stop reading ahead and preparing; the next loop begins anew."""
        self._sources.close()
        self._destinations.close()


def _check_nodes(data: Any, sources: tuple[str, Tensor], destinations: tuple[str, Tensor], num_drawn: int) -> None:
    """Refuse types and nodes that the data does not have.

    Raises:
        ConfigError: there are some.
    """
    known = data.node_types if isinstance(data, HeteroData) else []
    for name, (kind, ids) in (("src_nodes", sources), ("dst_nodes", destinations)):
        if kind not in known:
            raise ConfigError(f"{name}: expected a type of nodes of {', '.join(known) or 'HeteroData'}, found {kind!r}")
        num_nodes = data[kind].num_nodes
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
            raise ConfigError(
                f"{name}: expected ids of the {num_nodes} nodes of type {kind!r}, found {int(ids.min())} to "
                f"{int(ids.max())}"
            )
    num_nodes = data[destinations[0]].num_nodes
    if not 1 <= num_drawn <= num_nodes:
        raise ConfigError(
            f"num_dst_nodes: expected 1 to {num_nodes}, the nodes of type {destinations[0]!r}, found {num_drawn}"
        )


class LinkRows:
    """Draws the sources, positive and negative destinations of an epoch.

    Raises:
        ConfigError: a row leads nowhere, or no minibatch is full.
    """

    def __init__(
        self,
        types: tuple[str, str],
        sources: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        destinations: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        num_destinations: int,
        batch_size: int,
        *,
        share_same_time: bool,
        shuffle: bool,
        drop_last: bool,
        seed: int,
    ) -> None:
        self.types, self.num_destinations = types, num_destinations
        self._sources, self._starts, self._destinations, self.times = sources, starts, destinations, times
        self._batch_size, self._shares, self._shuffles, self._seed = batch_size, share_same_time, shuffle, seed
        if (np.diff(starts) < 1).any():
            raise ConfigError("dst_nodes: expected at least one destination of each row, found a row with none")
        counts = np.unique(times, return_counts=True)[1] if share_same_time else np.array([len(sources)])
        is_full = share_same_time or drop_last  # each minibatch
        self.num_rows = int((counts // batch_size).sum() * batch_size) if is_full else len(sources)
        if not self.num_rows:
            rows, other = ("rows of one time", "share_same_time") if share_same_time else ("rows", "drop_last")
            raise ConfigError(
                f"batch_size: expected some {rows} to fill a minibatch of {batch_size}, found at most "
                f"{counts.max(initial=0)}; pass a smaller one, or {other}=False"
            )
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns [4, n] sources, positive and negative destinations and times of an epoch, in its order."""
        random = np.random.default_rng([self._seed, epoch])
        rows = np.arange(len(self._sources))
        if self._shares:
            full = list[npt.NDArray[np.int64]]()
            for time in np.unique(self.times):
                shuffled = random.permutation(np.flatnonzero(self.times == time))
                count = len(shuffled) // self._batch_size
                full += np.split(shuffled[: count * self._batch_size], count) if count else []
            rows = np.concatenate([full[number] for number in random.permutation(len(full))])
        elif self._shuffles:
            rows = random.permutation(rows)
        rows = rows[: self.num_rows]
        counts = self._starts[rows + 1] - self._starts[rows]
        positive = self._destinations[self._starts[rows] + random.integers(0, counts)]
        negative = random.integers(0, self.num_destinations, len(rows))
        return np.stack([self._sources[rows], positive, negative, self.times[rows]])


class _LinkSeeds(InputSeeds):
    """Seeds of one side: the sources of some rows; or their positive destinations, and behind these the negative
    ones."""

    def __init__(self, graph: Graph, spec: SamplingSpec, rules: Rules, side: _Side) -> None:
        super().__init__(graph, spec, rules, side.input_data, len(side.dataset))
        self._side = side

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """See `sampling.seeds.Seeds`. Minibatches are not shuffled, so positions follow each other."""
        side, count = self._side, len(positions) // len(self._side.parts)
        first = int(positions[0]) // len(side.parts)
        drawn = torch.from_numpy(side.rows.epoch(epoch)[:, first : first + count])
        seeds = {side.kind: torch.cat([drawn[part] for part in side.parts])}
        times = {side.kind: drawn[-1].repeat(len(side.parts))}
        return seed_batch(self._graph, self._rules, seeds, times, is_link=False)


class _Side(PreparedBatches):
    """Minibatches of the sources, or of both destinations of each row, with what batches of PyG's `NodeLoader` have."""

    transform = transform_sampler_output = None
    drop_last, custom_cls = False, None

    def __init__(self, data: HeteroData, request: LoaderRequest, rows: LinkRows, *, is_destination: bool) -> None:
        self.data, self.rows = data, rows
        self.parts = (1, 2) if is_destination else (0,)
        self.kind = rows.types[is_destination]
        self.node_sampler = sampler = DiskSampler(request.seed)
        self._begin(replace(request, batch_size=len(self.parts) * request.batch_size), sampler)
        self.dataset = range(len(self.parts) * rows.num_rows)
        # Seeds are drawn for each epoch: only their number and the times of rows are known before.
        zeros = torch.zeros(len(self.dataset), dtype=torch.int64)
        times = torch.from_numpy(rows.times[: rows.num_rows]).repeat(len(self.parts))
        self.input_data = SimpleNamespace(input_type=self.kind, node=zeros, time=times)

    @staticmethod
    def _pyg_loader() -> Any:
        return NodeLoader

    def _seeds(self, graph: Graph, spec: SamplingSpec, rules: Rules) -> InputSeeds:
        return _LinkSeeds(graph, spec, rules, self)

    def epoch(self, epoch: int) -> Iterator[tuple[HeteroData, ...]]:
        """Yields the minibatches of an epoch: (sources,), or (positive, negative destinations)."""
        preparation = self.prepare()
        size = preparation.plan.spec.batch_size // len(self.parts)
        for number, batch in enumerate(preparation.batches.epoch(epoch)):
            drawn = torch.from_numpy(self.rows.epoch(epoch)[:, number * size : (number + 1) * size])
            out = Drawn.of_minibatch(preparation.plan.graph, batch, preparation.frames).output(is_typed=True)
            yield tuple(
                self._part(out, drawn[part], drawn[-1], place * drawn.shape[1]) for place, part in enumerate(self.parts)
            )

    def _part(self, whole: Any, ids: Tensor, times: Tensor, first_tree: int) -> HeteroData:
        out = _trees_between(whole, first_tree, first_tree + len(ids))
        out.metadata, rows = (ids, times), out.rows
        if self.prepare().rules.subgraph_type == SubgraphType.bidirectional:
            out = out.to_bidirectional()
            out.rows = rows
        found: HeteroData = self.filter_fn(out)
        return found


def _trees_between(out: Any, first: int, stop: int) -> Any:
    """Returns the trees `first` to `stop` of what was sampled, numbered from 0, with their rows."""
    kept = {name: (trees >= first) & (trees < stop) for name, trees in out.batch.items()}
    places = {name: torch.cumsum(each, 0) - 1 for name, each in kept.items()}
    row, col, edge, num_edges = {}, {}, {}, {}
    for edge_type, sources in out.row.items():
        source, _, destination = edge_type
        is_kept = kept[destination][out.col[edge_type]]
        row[edge_type] = places[source][sources[is_kept]]
        col[edge_type] = places[destination][out.col[edge_type][is_kept]]
        edge[edge_type] = out.edge[edge_type][is_kept]
        num_edges[edge_type] = _per_hop(is_kept, out.num_sampled_edges[edge_type])
    found = HeteroSamplerOutput(
        node={name: nodes[kept[name]] for name, nodes in out.node.items()}, row=row, col=col, edge=edge,
        batch={name: trees[kept[name]] - first for name, trees in out.batch.items()},
        num_sampled_nodes={name: _per_hop(kept[name], counts) for name, counts in out.num_sampled_nodes.items()},
        num_sampled_edges=num_edges,
    )  # fmt: skip
    rows: Rows = out.rows
    found.rows = Rows(
        {name: (ids[kept[name]], x[kept[name]]) for name, (ids, x) in rows.x.items()},
        rows.edge_attr,
        {
            name: (ids[kept[name]], DecodedRecords(
                {column: values[kept[name]] for column, values in decoded.columns.items()},
                {column: values[kept[name]] for column, values in decoded.nulls.items()},
            )) for name, (ids, decoded) in rows.frames.items()
        },
    )  # fmt: skip
    return found


def _per_hop(kept: Tensor, counts: list[int]) -> list[int]:
    return [int(each.sum()) for each in torch.split(kept, counts)]
