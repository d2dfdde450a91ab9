"""Feature rows by type: of the node types and edge types that have some, whatever serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.blocks import Block, Pairs
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import EdgeType


class FeatureRows(Protocol):
    """Serves the feature rows of one file: memory, a memory map, a cache in front of a disk."""

    @property
    def ordered(self) -> bool:
        """Returns True if what a call costs depends on those before it: then one thread gathers, minibatch after
        minibatch."""
        ...

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, LoadStats]:
        """Returns (x [U, D] = features[nodes], where the rows came from). Called by several threads unless
        `ordered`."""
        ...

    def close(self) -> None:
        """Free memory and files. Idempotent."""
        ...


@dataclass(frozen=True)
class GatheredRows:
    """The rows of one minibatch, as their files store them."""

    x: Mapping[str, Tensor]  # by node type [U, stored columns]
    edge_x: Mapping[EdgeType, Sequence[Tensor]]  # by edge type, of each layer [num_edges, stored columns]
    cost: LoadStats = field(default_factory=LoadStats)


class TypedRows:
    """Serves each feature file of a graph.

    Args:
        graph: opened.
        open_rows: opens what serves one of its files.
    """

    def __init__(self, graph: Graph, open_rows: Callable[[FeatureFile], FeatureRows]) -> None:
        self._files = feature_files(graph)
        self._numbers = {type_: number for types in (graph.nodes, graph.edges) for number, type_ in enumerate(types)}
        self._rows = {type_: open_rows(file) for type_, file in self._files.items()}

    @property
    def ordered(self) -> bool:
        """See `FeatureRows`."""
        return any(rows.ordered for rows in self._rows.values())

    def gather(self, sampled: SampledMinibatch) -> GatheredRows:
        """Returns the rows that a minibatch needs, each of them once."""
        x: dict[str, Tensor] = {}
        edge_x: dict[EdgeType, Sequence[Tensor]] = {}
        cost = LoadStats()
        for type_, rows in self._rows.items():
            number = self._numbers[type_]
            if isinstance(type_, str):
                nodes = sampled.input_nodes[number]
                x[type_], spent = rows.gather(nodes) if sampled.trees is None else _gathered_once(rows, nodes)
            else:
                positions = [_positions(layer[number].positions) for layer in sampled.blocks]
                found, spent = _gathered_once(rows, np.concatenate(positions))
                edge_x[type_] = torch.split(found, [len(each) for each in positions])
            cost += spent
        return GatheredRows(x, edge_x, cost)

    def close(self) -> None:
        """Close them all. Idempotent."""
        for rows in self._rows.values():
            rows.close()


def _gathered_once(rows: FeatureRows, wanted: npt.NDArray[Any]) -> tuple[Tensor, LoadStats]:
    """Returns the rows of ids that may repeat; each is read once."""
    distinct, places = np.unique(wanted, return_inverse=True)
    found, cost = rows.gather(distinct)
    return found[torch.from_numpy(places)], cost


def _positions(positions: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    assert positions is not None, "edge types with features are sampled with positions"
    return positions


def typed_minibatch(
    sampled: SampledMinibatch,
    graph: Graph,
    rows: GatheredRows,
    y: Tensor,
    target: str | EdgeType,
    place: tuple[int, int],
    timed: Sequence[str] = (),
) -> TypedMiniBatch:
    """Returns the minibatch of what was sampled and gathered.

    Args:
        sampled: its neighbourhood.
        graph: whose types are numbered as in `sampled`.
        rows: its features.
        y: of the seeds.
        target: type of the seeds.
        place: epoch and number of the minibatch.
        timed: types whose times it has.
    """
    names = list(graph.nodes)
    counts = [dict(zip(names, layer, strict=True)) for layer in sampled.node_counts.tolist()]
    blocks = []
    for layer, drawn in enumerate(sampled.blocks):
        by_type = {}
        for edges, block in zip(graph.edges.values(), drawn, strict=True):
            ids = block.positions
            if ids is not None:
                ids = ids.astype(np.int64) if edges.edge_ids is None else edges.edge_ids[ids]
            by_type[edges.type] = Block(
                torch.from_numpy(block.indptr), torch.from_numpy(block.indices), counts[layer][edges.type[0]],
                None if ids is None else torch.from_numpy(ids),
                rows.edge_x[edges.type][layer] if edges.type in rows.edge_x else None,
            )  # fmt: skip
        blocks.append(by_type)
    return TypedMiniBatch(
        x={**rows.x, **_constants(sampled, graph)}, y=y, blocks=tuple(blocks), node_counts=tuple(counts),
        seeds=torch.from_numpy(sampled.seeds.copy()), target=target, epoch=place[0], batch_index=place[1],
        input_nodes=_by_type(names, sampled.input_nodes), pairs=sampled_pairs(sampled),
        trees=None if sampled.trees is None else _by_type(names, sampled.trees),
        times=_kept_times(sampled, graph, timed),
        seed_times=None if sampled.seed_times is None else torch.from_numpy(sampled.seed_times),
    )  # fmt: skip


def _constants(sampled: SampledMinibatch, graph: Graph) -> dict[str, Tensor]:
    return {name: torch.ones((len(sampled.input_nodes[graph.nodes[name].number]), 1)) for name in graph.constants}


def _kept_times(sampled: SampledMinibatch, graph: Graph, timed: Sequence[str]) -> dict[str, Tensor] | None:
    found = {}
    for nodes, ids in zip(graph.nodes.values(), sampled.input_nodes, strict=True):
        if nodes.name in timed and nodes.times is not None:
            found[nodes.name] = torch.from_numpy(np.asarray(nodes.times[ids]))
    return found or None


def _by_type(names: Sequence[str], arrays: Sequence[npt.NDArray[Any]]) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(array.astype(np.int64, copy=False)) for name, array in zip(names, arrays, strict=True)
    }


def sampled_pairs(sampled: SampledMinibatch) -> Pairs | None:
    """Returns those of a minibatch whose seeds are links."""
    if sampled.pairs is None:
        return None
    src, dst = (torch.from_numpy(each.astype(np.int64)) for each in (sampled.pairs.src, sampled.pairs.dst))
    return Pairs(src, dst, torch.from_numpy(sampled.pairs.label))
