"""Bounds the nodes, edges and bytes of minibatches by fanouts and degrees, before any is drawn: as if no two edges had
one source.

What minibatches that were drawn take is counted exactly by `formats.minibatch_columns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diskgnn.graph.type_data import EdgeSet
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.schema import EdgeType
from diskgnn.specs.targets import LinkTarget

UNBOUNDED = 1 << 62  # nodes, edges or bytes: no machine has them
POSITION_BYTES = 8  # of an edge, at most: its position in samples, its id in headers
_DEGREES = 4  # of how many times the mean a node is taken to be, where all of its neighbours are drawn


@dataclass(frozen=True)
class MostCounts:
    """Counts what the largest minibatch of a split has at most."""

    seeds: int  # seed nodes
    nodes: int  # input nodes of all types
    edges: Mapping[EdgeType, int]  # of all layers
    bounds: int  # entries of all `indptr`

    @property
    def block_bytes(self) -> int:
        """Returns the bytes of `indptr` and `indices` of all blocks."""
        return 4 * (sum(self.edges.values()) + self.bounds)


def most_counts(plan: SamplingPlan, split: str, *, certain: bool) -> MostCounts:
    """Returns the counts of the largest minibatch of `split`.

    Where all neighbours are drawn, nodes are taken to have four times as many as they have on average; or, if the
    counts are to be `certain`, those that the whole graph has: if each seed has a tree of its own, there is no bound.
    """
    graph, target, trees = plan.graph, plan.target, plan.layout.trees
    edge_types, num_seeds = tuple(graph.edges), plan.most_seeds(split)
    ends = (target.edge_type[0], target.edge_type[2]) if isinstance(target, LinkTarget) else (str(target.node_type),)
    rows = dict.fromkeys(graph.nodes, 0) | dict.fromkeys(ends, num_seeds)
    num_edges, bounds = dict.fromkeys(edge_types, 0), 0
    for fanouts in plan.fanouts[split].tolist():
        found = dict(rows)
        for edge_type, fanout in zip(edge_types, fanouts, strict=True):
            edges, num_destinations = graph.edges[edge_type], rows[edge_type[2]]
            if fanout >= 0:
                drawn = num_destinations * _most_drawn(edges, fanout)
            elif certain:
                drawn = UNBOUNDED if trees else edges.num_edges
            else:
                drawn = int(num_destinations * (_DEGREES * edges.num_edges / max(1, edges.num_destinations)))
            drawn = drawn if trees else min(drawn, edges.num_edges)
            found[edge_type[0]] += drawn
            num_edges[edge_type] += drawn
            bounds += num_destinations + 1
        rows = {name: count if trees else min(count, graph.nodes[name].num_nodes) for name, count in found.items()}
    return MostCounts(num_seeds, sum(rows.values()), num_edges, bounds)


def _most_drawn(edges: EdgeSet, fanout: int) -> int:
    """Returns how many edges are drawn for a node at most. Rows of tables refer to one row each by a column, whatever
    the fanout; where nodes have nearly as many edges as are drawn, some have more, and nobody looks.
    """
    mean = edges.num_edges / max(1, edges.num_destinations)
    return fanout if fanout < _DEGREES * mean else min(fanout, edges.most_in_neighbours)


def most_minibatch_bytes(plan: SamplingPlan) -> int:
    """Returns the bytes of the arrays of the largest minibatch."""
    return max(_most_bytes(plan, split) for split in plan.splits)


def most_minibatch_nodes(plan: SamplingPlan) -> int:
    """Returns the input nodes of the largest minibatch, of all types."""
    return max(most_counts(plan, split, certain=False).nodes for split in plan.splits)


def _most_bytes(plan: SamplingPlan, split: str) -> int:
    most, layout = most_counts(plan, split, certain=False), plan.layout
    node_bytes = (8 if plan.parts.is_wide else 4) + 4 * layout.trees
    position_bytes = POSITION_BYTES * sum(most.edges[each] for each in layout.positions)
    return (32 + 8 * layout.seed_times) * most.seeds + most.block_bytes + position_bytes + most.nodes * node_bytes
