"""What pyg-lib draws of typed graphs whose nodes have times, by NumPy: PyG's loaders run without it, slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler


def drawn_in_time(self: NeighborSampler, seed: Any, seed_time: Any = None, **_: Any) -> HeteroSamplerOutput:
    """Draws what pyg-lib draws of typed graphs whose nodes have times, in place of `NeighborSampler._sample`: each seed
    has a tree of its own, each node of it its in-neighbours in the hop after the one that found it, of those up to
    the seed's time the last ones or any, none twice."""
    ((kind, ids),) = seed.items()
    until, random = seed_time[kind].numpy(), np.random.default_rng(int(torch.randint(2**62, ())))
    fanouts = self.num_neighbors.get_mapped_values(self.edge_types)
    if isinstance(fanouts, list):
        fanouts = dict.fromkeys(self.to_rel_type.values(), fanouts)
    found = {name: np.empty(0, np.int64) for name in self.node_types}  # tree * nodes of the type + node
    found[kind] = np.arange(len(ids)) * self.num_nodes[kind] + ids.numpy()
    edges: dict[Any, list[tuple[Any, Any, Any]]] = {key: [] for key in self.edge_types}
    num_nodes = {name: [len(keys)] for name, keys in found.items()}
    start = dict.fromkeys(found, 0)
    for hop in range(self.num_neighbors.num_hops):
        for key in self.edge_types:
            source, _, destination = key
            relation = self.to_rel_type[key]
            rows, starts = self.row_dict[relation].numpy(), self.colptr_dict[relation].numpy()
            trees, nodes = np.divmod(found[destination][start[destination] :], self.num_nodes[destination])
            first, stop = starts[nodes], starts[nodes + 1]
            if (times := self.node_time.get(source)) is not None:
                stop = _seen_until(first, stop, rows, times.numpy(), until[trees])
            is_last = times is not None and self.temporal_strategy == "last"
            owners, places = _chosen(first, stop, fanouts[relation][hop], None if is_last else random)
            keys = trees[owners] * self.num_nodes[source] + rows[places]
            edges[key].append((keys, start[destination] + owners, places))
        start = {name: len(keys) for name, keys in found.items()}
        for name in found:
            new = [keys[-1][0] for (source, _, _), keys in edges.items() if source == name]
            added = np.setdiff1d(np.concatenate(new), found[name]) if new else found[name][:0]
            found[name] = np.concatenate([found[name], added])
            num_nodes[name].append(len(added))
    order = {name: np.argsort(keys) for name, keys in found.items()}
    row, col, edge, num_edges = {}, {}, {}, {}
    for key, hops in edges.items():
        keys, columns, places = (np.concatenate(parts) for parts in zip(*hops, strict=True))
        by_key = order[key[0]]
        rows = by_key[np.searchsorted(found[key[0]], keys, sorter=by_key)] if len(keys) else keys
        row[key], col[key], edge[key] = (torch.from_numpy(each) for each in (rows, columns, places))
        num_edges[key] = [len(each) for each, _, _ in hops]
    both = {name: np.divmod(keys, self.num_nodes[name]) for name, keys in found.items()}
    return HeteroSamplerOutput(
        {name: torch.from_numpy(nodes) for name, (_, nodes) in both.items()}, row, col, edge,
        {name: torch.from_numpy(trees) for name, (trees, _) in both.items()}, num_nodes, num_edges,
    )  # fmt: skip


def _seen_until(first: Any, stop: Any, rows: Any, times: Any, until: Any) -> Any:
    """Returns the ends of lists of neighbours, which are in the order of time, before the first that is too late."""
    low, high = first.copy(), stop.copy()
    while (low < high).any():
        middle = (low + high) // 2
        is_seen = (low < high) & (times[rows[np.minimum(middle, len(rows) - 1)]] <= until)
        high = np.where(is_seen | (low >= high), high, middle)
        low = np.where(is_seen, middle + 1, low)
    return low


def _chosen(first: Any, stop: Any, fanout: int, random: np.random.Generator | None) -> tuple[Any, Any]:
    """Returns (list, place) of the neighbours that are drawn of each list: the last ones, or at `random`."""
    sizes = stop - first
    counts = sizes if fanout < 0 else np.minimum(sizes, fanout)
    owners, ends = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts)
    places = np.arange(len(owners)) - (ends - counts)[owners] + (stop - counts if random is None else first)[owners]
    if random is not None:
        for each in np.flatnonzero(sizes > counts):
            drawn = random.choice(sizes[each], counts[each], replace=False, shuffle=False)
            places[ends[each] - counts[each] : ends[each]] = first[each] + drawn
    return owners, places
