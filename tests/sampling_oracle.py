"""What a planned minibatch draws, edge by edge in Python: the definitions of docs/FORMAT.md and nothing faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diskgnn.graph.graph import Graph
from diskgnn.sampling.negatives import AvoidedDestinations, NegativeDestinations
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.specs.schema import EdgeType
from diskgnn.specs.targets import LinkTarget

MASK = (1 << 64) - 1


def mix64(x: int) -> int:
    """SplitMix64's output function after one step."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def combine(key: int, word: int) -> int:
    """A key of a key and a number."""
    return mix64(key ^ mix64(word & MASK))


def order_hash(node: int) -> int:
    """The place of a node in lists."""
    return mix64(node ^ 0x6E65696768626F72)


@dataclass
class Expected:
    """Plain lists; blocks outermost first, by edge type, each (indptr, indices, positions)."""

    nodes: list[list[tuple[int, int]]]  # (tree, id); tree 0 where there are none
    counts: list[list[int]]
    blocks: list[list[tuple[list[int], list[int], list[int]]]] = field(default_factory=list)


HeldOut = Mapping[EdgeType, set[tuple[int, int]]]  # (source, destination) that no minibatch draws


def held_out_by_hand(graph: Graph, target: object) -> HeldOut:
    """The seed edges of valid and test, and their reverses in the type that `citations` has for these."""
    if not isinstance(target, LinkTarget):
        return {}
    splits = graph.edges[target.edge_type].splits if target.seeds is None else target.seeds
    pairs = {tuple(pair) for split in ("valid", "test") for pair in splits.get(split, np.empty((0, 2))).tolist()}
    source, name, destination = target.edge_type
    reverse = set() if target.exclude == "self" else {(dst, src) for src, dst in pairs}
    return {target.edge_type: pairs, (destination, f"rev_{name}", source): reverse}


def sample_by_hand(graph: Graph, planned: PlannedMinibatch, held_out: HeldOut) -> Expected:
    """Layer by layer, edge type by edge type, node by node."""
    has_trees = planned.times is not None
    nodes: list[list[tuple[int, int]]] = []
    start = 0
    for count in planned.seed_counts:
        nodes.append([(i if has_trees else 0, int(planned.seeds[i])) for i in range(start, start + count)])
        start += count
    expected = Expected(nodes, [[len(each) for each in nodes]])
    for layer, fanouts in enumerate(planned.fanouts.tolist()):
        known = [list(each) for each in nodes]
        blocks = []
        for number, edges in enumerate(graph.edges.values()):
            source, destination = graph.nodes[edges.type[0]].number, graph.nodes[edges.type[2]].number
            indptr, indices, positions = [0], [], []
            for i, (tree, node) in enumerate(known[destination]):
                was_known = layer > 0 and i < expected.counts[1][destination]
                if planned.rules.expand_once and was_known:
                    indptr.append(len(indices))
                    continue
                for position in drawn(graph, planned, layer, number, fanouts[number], tree, node, held_out):
                    end = (tree, int(edges.indices[position]))
                    if end not in nodes[source]:
                        nodes[source].append(end)
                    indices.append(nodes[source].index(end))
                    positions.append(position)
                indptr.append(len(indices))
            blocks.append((indptr, indices, positions))
        expected.blocks.insert(0, blocks)
        expected.counts.insert(0, [len(each) for each in nodes])
    return expected


def drawn(graph, planned, layer, number, fanout, tree, node, held_out) -> list[int]:
    """CSC positions of the edges that one node draws from one edge type."""
    edges = list(graph.edges.values())[number]
    begin, end = int(edges.indptr[node]), int(edges.indptr[node + 1])
    source_times = graph.nodes[edges.type[0]].times
    is_timed = planned.times is not None and (source_times is not None or edges.times is not None)
    is_weighted = planned.rules.weighted and edges.weights is not None
    excluded = {source for source, destination in held_out.get(edges.type, ()) if destination == node}
    if planned.excluded and planned.excluded[number] is not None:
        excluded |= {int(s) for s, d in zip(*planned.excluded[number], strict=True) if d == node}
    word = node
    if planned.times is not None:
        word = tree * graph.nodes[edges.type[2]].num_nodes + node
    state = combine(combine(combine(planned.key, planned.number), layer + (number << 32)), word)
    is_slice = planned.slice_start is None or not edges.config.by_time  # of the order of hashes
    if not is_timed and not is_weighted and not excluded and is_slice:
        return [begin + i for i in drawn_plainly(edges.indices[begin:end], fanout, state, planned.slice_start)]
    keys = []
    for position in range(begin, end):
        source, time = int(edges.indices[position]), 0
        times = [int(source_times[source])] if is_timed and source_times is not None else []
        if is_timed and edges.times is not None:
            times.append(int(edges.times[position]))
        if any(each > planned.times[tree] for each in times) or source in excluded:
            continue
        if is_weighted and edges.weights[position] == 0:
            continue
        time = times[-1] if times else 0
        window = planned.rules.windows[number] if planned.rules.windows else None
        if window is not None and (time <= planned.times[tree] - window or time == -(2**63)):
            continue
        bits = mix64(state + position - begin & MASK)
        if planned.rules.latest and is_timed:
            key = -time
        elif is_weighted:
            if planned.slice_start is not None:
                bits = combine(planned.slice_start, source)
            key = -math.log(((bits >> 11) + 1) / (1 << 53)) / float(edges.weights[position])
        elif planned.slice_start is not None:
            key = order_hash(source) - planned.slice_start & MASK
        else:
            key = bits
        keys.append((key, position))
    return sorted(position for _, position in sorted(keys)[: len(keys) if fanout < 0 else fanout])


def drawn_plainly(neighbors, fanout, state, slice_start) -> list[int]:
    """Positions in a list of which every edge may be drawn alike."""
    degree = len(neighbors)
    if fanout < 0 or degree <= fanout:
        return list(range(degree))
    if slice_start is not None:
        first = sum(order_hash(int(each)) < slice_start for each in neighbors)
        return [(first + i) % degree for i in range(fanout)]
    chosen: list[int] = []
    for i in range(fanout):  # Floyd
        last = degree - fanout + i
        position = mix64(state + i & MASK) * (last + 1) >> 64
        chosen.append(last if position in chosen else position)
    return chosen


def assert_is(minibatch, expected: Expected, planned: PlannedMinibatch) -> None:
    """A sampled minibatch is what was expected, in every array."""
    assert minibatch.node_counts.tolist() == expected.counts
    for number, nodes in enumerate(expected.nodes):
        assert minibatch.input_nodes[number].tolist() == [node for _, node in nodes]
        if planned.times is not None:
            assert minibatch.trees[number].tolist() == [tree for tree, _ in nodes]
    assert (minibatch.trees is None) == (planned.times is None)
    for layer, expected_layer in zip(minibatch.blocks, expected.blocks, strict=True):
        for number, (block, (indptr, indices, positions)) in enumerate(zip(layer, expected_layer, strict=True)):
            assert (block.indptr.tolist(), block.indices.tolist()) == (indptr, indices)
            if planned.rules.positions and planned.rules.positions[number]:
                assert block.positions.tolist() == positions
                assert block.positions.dtype == np.int32
            else:
                assert block.positions is None


def negatives_of(edges, num_destinations, places=None):
    """What draws destinations that are not those of `edges` [n, 2]."""
    avoided = AvoidedDestinations([edges], num_destinations)
    avoided.fill()
    return NegativeDestinations(avoided, num_destinations, places)
