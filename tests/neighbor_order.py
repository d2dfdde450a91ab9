"""The order of in-neighbours in a graph, and the slices that coordinated draws take, with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def order_hash(nodes: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of node XOR "neighbor", as docs/FORMAT.md has it."""
    x = nodes.astype(np.int64).astype(np.uint64) ^ np.uint64(int.from_bytes(b"neighbor", "big"))
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def in_order(indptr: npt.NDArray[Any], indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`indices` with each node's in-neighbours in the order of a graph."""
    nodes = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return indices[np.lexsort((order_hash(indices), nodes))]


def neighbor_slice(neighbors: npt.NDArray[Any], fanout: int, start: int) -> npt.NDArray[Any]:
    """What a node with these in-neighbours, in order, draws in coordination: the first ones from hash `start` on."""
    if fanout < 0 or len(neighbors) <= fanout:
        return neighbors
    first = int(np.searchsorted(order_hash(neighbors), np.uint64(start)))
    return np.concatenate([neighbors[first:], neighbors[:first]])[:fanout]
