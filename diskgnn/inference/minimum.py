"""Counts the fewest bytes that inference can move, to compare with what it moved."""

from __future__ import annotations

from diskgnn.inference.network import FLOAT_BYTES
from diskgnn.inference.pass_schedule import InferencePlan


def minimum_bytes(plan: InferencePlan, num_asked: int) -> int:
    """Returns a bound for all ways to compute one layer after the other from disk, without the output itself.

    The rows of `num_asked` nodes are asked for. Features are read once. Between two layers lies of each node what is
    narrowest, written once and read once: the rows themselves, what the next layer makes of them, or the sums and own
    rows that they are made of.
    """
    graph, layers = plan.graph, plan.network.layers
    total = 0
    for name in layers[0].node_types:
        nodes = graph.nodes[name]
        is_source = any(node_type == name for node_type, _ in layers[0].arrays)
        if nodes.feature_file is not None:
            num_read = nodes.num_nodes if is_source or len(layers) > 1 else num_asked
            total += nodes.feature_file.row_bytes * num_read
    for number in range(1, len(layers)):
        total += sum(_between(plan, number, name, num_asked) for name in layers[number].node_types)
    return total


def _between(plan: InferencePlan, number: int, name: str, num_asked: int) -> int:
    """Returns the bytes of a node type before layer `number`, out and in."""
    graph, before, layer = plan.graph, plan.network.layers[number - 1], plan.network.layers[number]
    num_nodes, is_last = graph.nodes[name].num_nodes, number == len(plan.network.layers) - 1
    arrays = [array for array in layer.arrays if array[0] == name]
    # The last layer's own rows are needed only of the nodes that are asked for.
    own_nodes = 0 if name not in layer.destinations else num_asked if is_last else num_nodes
    rows_nodes = num_nodes if arrays else own_nodes
    as_rows = 2 * FLOAT_BYTES * before.out_columns * rows_nodes
    columns = sum(layer.steps.heads * layer.columns(array) for array in arrays)
    own_columns = 0 if layer.steps.own_array else layer.steps.own_columns(name)
    as_arrays = 2 * FLOAT_BYTES * (columns * num_nodes + own_columns * own_nodes)
    sum_columns = before.sum_columns if before.edge_types(name) else 0
    as_sums = (2 * FLOAT_BYTES * sum_columns + before.own_row_bytes(name, graph)) * rows_nodes
    return min(as_rows, as_arrays, as_sums)
