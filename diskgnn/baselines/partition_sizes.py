"""How many partitions to write, and how many fit in memory."""

from __future__ import annotations

from itertools import chain

from diskgnn.baselines.partition_order import num_slots
from diskgnn.baselines.partitions import Partitions, partition_rows
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph

_GROUP = 4  # physical partitions in a logical one, where `fitting_partitions` may choose
_MOST_PARTITIONS = 128  # that it chooses: buckets of edges are p^2, and should not get too small to read


def resident_partitions(partitions: Partitions, memory_bytes: int, order: str = "comet") -> int:
    """Returns the most partitions that fit `memory_bytes` with their edges, and what `order` reads ahead of the next
    state.

    That is all of them, or two logical partitions, c = 2g such that p / g = 2p / c; any number with 'cached'.

    Raises:
        ConfigError: not even two do.
    """
    config = partitions.config
    p = config.num_partitions
    for resident in range(p, 1, -1):
        two_groups = resident == p or (resident % 2 == 0 and p % (resident // 2) == 0)
        needed_bytes = _buffer_bytes(p, resident, order, config.num_edges, config.stride, config.row_bytes)
        if (order == "cached" or two_groups) and needed_bytes <= memory_bytes:
            return resident
    raise ConfigError(
        f"memory: {memory_bytes} bytes do not hold two of the {p} partitions of {partitions.manifest.path}; raise it, "
        f"or write more partitions"
    )


def fitting_partitions(graph: Graph, memory_bytes: int) -> int:
    """Returns how many partitions to write so that COMET's order makes the most of `memory_bytes`.

    Logical partitions are as large as fit, two and one that is read ahead, and of 4 physical ones each; of fewer when
    that makes too many. If the memory does not even hold the smallest, `PartitionBuffer` will say so.
    """
    row_bytes = graph.feature_file.row_bytes
    for num_logical in chain([2], range(4, _MOST_PARTITIONS + 1)):  # two are all; and so are three, one read ahead
        group = min(_GROUP, _MOST_PARTITIONS // num_logical)
        p = num_logical * group
        stride = partition_rows(graph.num_nodes, p, row_bytes)
        if _buffer_bytes(p, 2 * group, "comet", graph.num_edges, stride, row_bytes) <= memory_bytes:
            break
    return min(p, graph.num_nodes)


def _buffer_bytes(p: int, resident: int, order: str, num_edges: int, stride: int, row_bytes: int) -> int:
    """Returns what a buffer takes in which `resident` of p partitions are sampled from."""
    # A slot has rows, ids and offsets. An edge takes 8 bytes in its bucket, and 4 in each of two states' topologies.
    slots_bytes = num_slots(order, p, resident) * stride * (row_bytes + 40)
    return slots_bytes + num_edges * resident * resident // (p * p) * 16
