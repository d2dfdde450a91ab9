"""One drawn minibatch as PyG's samplers return it, and its rows of features as PyG's batches hold them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from diskgnn.batches.blocks import Block
from diskgnn.batches.minibatch import AnyMiniBatch, MiniBatch
from diskgnn.formats.record_view import DecodedRecords, RecordView
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.specs.schema import EdgeType


@dataclass(frozen=True)
class Rows:
    """Feature rows of a minibatch, by type: those of x and of tf of nodes, of edge_attr of edges; each with the ids it
    is of."""

    x: Mapping[str, tuple[Tensor, Tensor]]  # (ids [U], rows [U, D])
    edge_attr: Mapping[EdgeType, tuple[Tensor, Tensor]]  # (ids [E], rows [E, D])
    frames: Mapping[str, tuple[Tensor, DecodedRecords]]  # (ids [U], columns [U] or [U, width])


@dataclass(frozen=True)
class Drawn:
    """A minibatch whose nodes were expanded once each, before PyG's names."""

    nodes: Mapping[str, Tensor]  # [U] int64 ids of each type, by the hop that found them, the seeds first
    counts: Sequence[Mapping[str, int]]  # [hops + 1] nodes known after so many hops
    hops: Sequence[Mapping[EdgeType, Block]]  # [hops] from the seeds outwards; edges with ids
    trees: Mapping[str, Tensor] | None  # [U] the seed that a node belongs to, where each has nodes of its own
    rows: Rows

    @staticmethod
    def of_minibatch(graph: Graph, batch: AnyMiniBatch, framed: Collection[str]) -> Drawn:
        """Returns what a loader yields that was asked for input nodes and edge ids. The node types `framed` have tf in
        place of x."""
        if isinstance(batch, MiniBatch):
            (name,), (edge_type,) = graph.nodes, graph.edges
            batch = batch.by_type(name, edge_type)
        assert batch.input_nodes is not None
        nodes, hops = batch.input_nodes, batch.blocks[::-1]
        x = {name: (nodes[name], batch.x[name]) for name in batch.x if name not in framed and batch.x[name].shape[1]}
        columns, nulls = batch.columns or {}, batch.nulls or {}
        frames = {
            name: (nodes[name], DecodedRecords(dict(columns.get(name, {})), dict(nulls.get(name, {}))))
            for name in framed
        }
        edge_rows = {
            edge_type: (edge_ids(hops, edge_type), torch.cat([hop[edge_type].edge_x for hop in hops]))  # type: ignore[misc]
            for edge_type, block in hops[0].items()
            if block.edge_x is not None
        }
        return Drawn(nodes, batch.node_counts[::-1], hops, batch.trees, Rows(x, edge_rows, frames))

    @staticmethod
    def of_sample(graph: Graph, sample: SampledMinibatch, framed: Collection[str]) -> Drawn:
        """Returns what is sampled now: its rows are read where the graph has them."""
        nodes = {
            name: torch.from_numpy(ids.astype(np.int64))
            for name, ids in zip(graph.nodes, sample.input_nodes, strict=True)
        }
        counts = [dict(zip(graph.nodes, layer, strict=True)) for layer in sample.node_counts[::-1].tolist()]
        hops, positions = [], {edge_type: list[Any]() for edge_type in graph.edges}
        for number, layer in enumerate(sample.blocks[::-1]):
            hop = {}
            for edges, block in zip(graph.edges.values(), layer, strict=True):
                assert block.positions is not None
                ids = block.positions.astype(np.int64) if edges.edge_ids is None else edges.edge_ids[block.positions]
                positions[edges.type].append(block.positions)
                num_sources = counts[number + 1][edges.type[0]]
                hop[edges.type] = Block(torch.from_numpy(block.indptr), torch.from_numpy(block.indices), num_sources,
                                        edge_ids=torch.from_numpy(np.array(ids)))  # fmt: skip
            hops.append(hop)
        trees: dict[str, Tensor] | None = None
        if sample.trees is not None:
            trees = {
                name: torch.from_numpy(each.astype(np.int64))
                for name, each in zip(graph.nodes, sample.trees, strict=True)
            }
        x = {name: (nodes[name], rows_of(of_type, nodes[name].numpy()))
             for name, of_type in graph.nodes.items()
             if of_type.feature_file is not None and name not in framed}  # fmt: skip
        x |= {name: (nodes[name], torch.ones((len(nodes[name]), 1))) for name in graph.constants if name not in framed}
        frames = {name: (nodes[name], columns_of(graph.nodes[name], nodes[name].numpy())) for name in framed}
        edge_attr = {
            edges.type: (edge_ids(hops, edges.type), rows_of(edges, np.concatenate(positions[edges.type])))
            for edges in graph.edges.values() if edges.feature_file is not None
        }  # fmt: skip
        return Drawn(nodes, counts, hops, trees, Rows(x, edge_attr, frames))

    def output(self, *, is_typed: bool) -> SamplerOutput | HeteroSamplerOutput:
        """Returns what PyG's samplers do; `rows` is one more attribute."""
        edges = {edge_type: self._edges(edge_type) for edge_type in self.hops[0]}
        num_nodes = {name: self._per_hop(name) for name in self.nodes}
        if is_typed:
            out: Any = HeteroSamplerOutput(
                node=dict(self.nodes),
                row={edge_type: row for edge_type, (row, _, _, _) in edges.items()},
                col={edge_type: col for edge_type, (_, col, _, _) in edges.items()},
                edge={edge_type: ids for edge_type, (_, _, ids, _) in edges.items()},
                batch=None if self.trees is None else dict(self.trees),
                num_sampled_nodes=num_nodes,
                num_sampled_edges={edge_type: counts for edge_type, (_, _, _, counts) in edges.items()},
            )
        else:
            ((row, col, ids, counts),) = edges.values()
            ((name, nodes),) = self.nodes.items()
            out = SamplerOutput(
                node=nodes, row=row, col=col, edge=ids, batch=None if self.trees is None else self.trees[name],
                num_sampled_nodes=num_nodes[name], num_sampled_edges=counts,
            )  # fmt: skip
        out.rows = self.rows
        return out

    def _per_hop(self, name: str) -> list[int]:
        return [after - before for before, after in pairwise([0, *(count[name] for count in self.counts)])]

    def _edges(self, edge_type: EdgeType) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Returns (row [E], col [E], ids [E], how many each hop has)."""
        blocks = [hop[edge_type] for hop in self.hops]
        row = torch.cat([block.indices for block in blocks]).long()
        col = torch.cat([block.destinations for block in blocks]).long()
        return row, col, edge_ids(self.hops, edge_type), [block.num_edges for block in blocks]


def edge_ids(hops: Sequence[Mapping[EdgeType, Block]], edge_type: EdgeType) -> Tensor:
    """Returns [E] the ids of the edges of a type, hop after hop."""
    return torch.cat([hop[edge_type].edge_ids for hop in hops])  # type: ignore[misc]


def rows_of(data: NodeSet | EdgeSet, positions: Any) -> Tensor:
    """Returns [n, D] rows of features as loaders deliver them, from the memory map."""
    file = data.feature_file
    assert file is not None
    return file.x(_load_rows(data, file, positions))


def _load_rows(data: NodeSet | EdgeSet, file: FeatureFile, positions: Any) -> Tensor:
    stored = np.ascontiguousarray(data.features[positions]).view(np.uint8).reshape(-1)
    return file.rows.as_tensor(file.kept(stored))


def columns_of(nodes: NodeSet, ids: npt.NDArray[np.int64]) -> DecodedRecords:
    """Returns the columns of the records of `ids` [n], from the memory map; none of a type that keeps none."""
    file = nodes.feature_file
    if file is None:
        return DecodedRecords({}, {})
    assert isinstance(file.view, RecordView)
    return file.view.decode(_load_rows(nodes, file, ids))


def places_of(known: Tensor, ids: Tensor) -> Tensor | None:
    """Returns [n] where `ids` [n] are among those `known`; None if they are these, in order."""
    ids = ids.to(known.device)
    if torch.equal(known, ids):
        return None
    order = torch.argsort(known)
    return order[torch.searchsorted(known[order], ids).clamp(max=max(0, len(known) - 1))]


def placed(rows: tuple[Tensor, Tensor], ids: Tensor) -> Tensor:
    """Returns [n, D] the rows of `ids` [n], among those there are."""
    known, values = rows
    places = places_of(known, ids)
    return values if places is None else values[places]
