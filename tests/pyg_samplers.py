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
