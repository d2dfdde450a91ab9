"""PyG's own loaders without pyg-lib: its NeighborSampler, with neighbourhoods found in plain Python."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler, SamplerOutput


class AllNeighbors(NeighborSampler):
    """Takes all in-neighbours of each node that is new, hop by hop, each node once, as PyG documents it."""

    def __init__(self, data: Data | HeteroData, num_hops: int, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that pyg-lib is missing
            super().__init__(data, [-1] * num_hops, **options)
        self.num_hops = num_hops
        typed = isinstance(data, HeteroData)
        self.edges = {key: data[key].edge_index for key in data.edge_types} if typed else {None: data.edge_index}
        self.ends = {key: (None, None) if key is None else (key[0], key[2]) for key in self.edges}
        self.names = data.node_types if typed else [None]

    edge_permutation = None

    def _sample(self, seed: Any, seed_time: Any = None, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        assert seed_time is None
        is_typed = isinstance(seed, dict)
        nodes = {name: list[int]() for name in self.names}
        for name, ids in (seed if is_typed else {None: seed}).items():
            nodes[name] = ids.tolist()
        found = {key: ([], [], []) for key in self.edges}
        start = dict.fromkeys(self.names, 0)
        num_nodes = {name: [len(ids)] for name, ids in nodes.items()}
        num_edges = {key: list[int]() for key in self.edges}
        for _hop in range(self.num_hops):
            stop = {name: len(ids) for name, ids in nodes.items()}
            for key, (sources, destinations) in self.edges.items():
                (src, dst), before = self.ends[key], len(found[key][0])
                for place in range(start[dst], stop[dst]):
                    for edge in (destinations == nodes[dst][place]).nonzero().flatten().tolist():
                        source = int(sources[edge])
                        if source not in nodes[src]:
                            nodes[src].append(source)
                        for values, value in zip(found[key], (nodes[src].index(source), place, edge), strict=True):
                            values.append(value)
                num_edges[key].append(len(found[key][0]) - before)
            start = stop
            for name, ids in nodes.items():
                num_nodes[name].append(len(ids) - stop[name])
        tensors = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in nodes.items()}
        row, col, edge = ({key: _ids(values[part]) for key, values in found.items()} for part in range(3))
        if is_typed:
            return HeteroSamplerOutput(tensors, row, col, edge, None, num_nodes, num_edges)
        return SamplerOutput(tensors[None], row[None], col[None], edge[None], None, num_nodes[None], num_edges[None])


def _ids(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


class NeighborsInTime(NeighborSampler):
    """Takes in-neighbours of each node that is new, for each seed apart, which are no later than the seed.

    That is what pyg-lib does with `disjoint` and times of nodes, of a fanout of -1, or with `temporal_strategy="last"`
    of the newest: of these, nodes of one time are told apart by nobody, so tests give each a time of its own.
    """

    def __init__(
        self, data: HeteroData, fanouts: list[int], subgraph_type: str = "directional", time_attr: str = "time"
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that pyg-lib is missing
            super().__init__(data, fanouts, subgraph_type=subgraph_type)
        self.fanouts = fanouts
        self.node_time = {name: store[time_attr] for name, store in data.node_items() if time_attr in store}
        self.times = {name: times.tolist() for name, times in self.node_time.items()}
        self.names = data.node_types
        self.sources: dict[tuple[str, str, str], dict[int, list[tuple[int, int]]]] = {}
        for key in data.edge_types:
            lists = self.sources[key] = {}
            for edge, (source, destination) in enumerate(data[key].edge_index.t().tolist()):
                lists.setdefault(destination, []).append((source, edge))

    edge_permutation = None

    def _in_neighbors(self, key: tuple[str, str, str], node: int, until: int, fanout: int) -> list[tuple[int, int]]:
        found, times = self.sources[key].get(node, []), self.times.get(key[0])
        if times is None:
            assert fanout < 0 or len(found) <= fanout
            return found
        seen = [pair for pair in found if times[pair[0]] <= until]
        return seen if fanout < 0 else sorted(seen, key=lambda pair: times[pair[0]])[-fanout:]

    def _sample(self, seed: Any, seed_time: Any = None, **_: Any) -> HeteroSamplerOutput:
        until = list[int]()
        nodes: dict[str, list[tuple[int, int]]] = {name: [] for name in self.names}  # (tree, id)
        for kind, ids in seed.items():
            nodes[kind] = list(enumerate(ids.tolist(), len(until)))
            until += seed_time[kind].tolist()
        places = {name: {node: place for place, node in enumerate(found)} for name, found in nodes.items()}
        found = {key: ([], [], []) for key in self.sources}
        num_nodes = {name: [len(listed)] for name, listed in nodes.items()}
        num_edges = {key: list[int]() for key in self.sources}
        start = dict.fromkeys(self.names, 0)
        for fanout in self.fanouts:
            stop = {name: len(listed) for name, listed in nodes.items()}
            for key, (rows, cols, edges) in found.items():
                before = len(rows)
                for place in range(start[key[2]], stop[key[2]]):
                    tree, node = nodes[key[2]][place]
                    for source, edge in self._in_neighbors(key, node, until[tree], fanout):
                        at = places[key[0]].setdefault((tree, source), len(nodes[key[0]]))
                        if at == len(nodes[key[0]]):
                            nodes[key[0]].append((tree, source))
                        rows.append(at)
                        cols.append(place)
                        edges.append(edge)
                num_edges[key].append(len(rows) - before)
            start = stop
            for name, listed in nodes.items():
                num_nodes[name].append(len(listed) - stop[name])
        row, col, edge = ({key: _ids(values[part]) for key, values in found.items()} for part in range(3))
        return HeteroSamplerOutput(
            {name: _ids([node for _, node in listed]) for name, listed in nodes.items()}, row, col, edge,
            {name: _ids([tree for tree, _ in listed]) for name, listed in nodes.items()}, num_nodes, num_edges,
        )  # fmt: skip
