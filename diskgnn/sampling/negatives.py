"""Pairs without an edge, for link prediction: drawn exactly, without trying again.

A source's negatives are uniform among the destinations that are not to be avoided. By default these are those of its
seed edges, in all splits. PyG's `NegativeSampling` avoids nothing: some of its negatives are edges. Benchmarks of
knowledge graphs rank an edge among pairs that are no known edge at all ('filtered').
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskgnn.draws import random_below, random_bits
from diskgnn.errors import ConfigError
from diskgnn.graph.type_data import EdgeSet
from diskgnn.storage.checked_files import npy_data_offset
from diskgnn.storage.file_reading import read_array
from diskgnn.storage.verification import verify_input

_CHUNK_NODES, _CHUNK_EDGES = 1 << 18, 1 << 20


class NegativeDestinations:
    """For a source, the destinations that are not avoided; one is drawn as fast as another.

    Let destination d have w(d) places, side by side: C(d) are those before it, W is their number. A source with
    distinct destinations d_0 < d_1 < ... leaves W - w(d_0) - w(d_1) - ... places. The r-th of these, counted from 0, is
    r plus w(d_j) for each j with C(d_j) - w(d_0) - ... - w(d_j-1) <= r: one binary search, since the left side never
    decreases. Another one in C tells whose place it is. Uniform draws are those with one place each.

    Args:
        edges: [n, 2] what is avoided.
        num_destinations: N.
        places: [N] of each destination, in proportion to which it is drawn; None: 1.

    Raises:
        ConfigError: numbers of pairs exceed 2^63.
    """

    def __init__(
        self,
        edges: npt.NDArray[np.int64],
        num_destinations: int,
        places: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._num_destinations = num_destinations
        self._before = None if places is None else np.concatenate([[0], np.cumsum(places)])  # [N + 1] C, and W
        self._num_places = num_destinations if self._before is None else int(self._before[-1])
        edges = np.unique(edges, axis=0)
        self._sources, first, degrees = np.unique(edges[:, 0], return_index=True, return_counts=True)
        if len(self._sources) * (self._num_places + 1) >= 1 << 63:
            raise ConfigError(
                f"negatives: {len(self._sources)} sources and {num_destinations} destinations exceed 2^63"
            )
        taken = np.ones(len(edges), np.int64) if places is None else places[edges[:, 1]]
        # [edges + 1] places of edges that are listed before, those of other sources included.
        self._taken_before = np.concatenate([[0], np.cumsum(taken)])
        self._first, self._end = first, first + degrees
        starts = edges[:, 1] if self._before is None else self._before[edges[:, 1]]
        own = self._taken_before[:-1] - np.repeat(self._taken_before[first], degrees)
        # Ascending: lists follow each other, each shifted past all values of the one before.
        self._shifted = np.repeat(np.arange(len(first)) * (self._num_places + 1), degrees) + starts - own

    def draw(self, sources: npt.NDArray[np.int64], bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """[n, K] destinations for [n] `sources`, each of which has an edge to avoid, or none; one for each of `bits`.

        Raises:
            ConfigError: a source has edges to all destinations that can be drawn.
        """
        if len(self._sources) == 0:
            return self._at(random_below(bits, np.full((1, 1), self._num_places)))
        rows = np.searchsorted(self._sources, sources)
        first = self._taken_before[self._first[rows]]
        left = self._num_places - (self._taken_before[self._end[rows]] - first)
        if bits.shape[1] and (left == 0).any():
            raise ConfigError(
                f"negatives: source {sources[left == 0][0]} has edges to all "
                + (f"{self._num_destinations} destinations" if self._before is None else "that can be drawn")
                + ": there is no pair without an edge; use negatives=0 and eval_negatives=0"
            )
        rank = random_below(bits, left[:, None])
        edges = np.searchsorted(self._shifted, rows[:, None] * (self._num_places + 1) + rank, side="right")
        return self._at(rank + self._taken_before[edges] - first[:, None])

    def _at(self, place: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return place if self._before is None else np.searchsorted(self._before, place, side="right") - 1


def known_edges(edges: EdgeSet, sources: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[n, 2] edges of one type of a graph from any of `sources` (ascending), read front to back and checked.

    Memory is some 64 bytes for each of these edges, and a chunk of the others.

    Raises:
        ArtifactError: the topology is damaged.
    """
    for name in edges.topology_files:
        verify_input(edges.manifest, name)
    indptr, indices = (edges.manifest.local(name) for name in edges.topology_files)
    starts, found = npy_data_offset(indptr), [np.empty((0, 2), np.int64)]
    for first in range(0, edges.num_destinations, _CHUNK_NODES):
        num_nodes = min(_CHUNK_NODES, edges.num_destinations - first)
        bounds = read_array(indptr, np.int64, num_nodes + 1, starts + 8 * first)
        for begin in range(int(bounds[0]), int(bounds[-1]), _CHUNK_EDGES):
            num_edges = min(_CHUNK_EDGES, int(bounds[-1]) - begin)
            start = npy_data_offset(indices) + begin * edges.id_dtype.itemsize
            from_nodes = read_array(indices, edges.id_dtype, num_edges, start).astype(np.int64)
            wanted = np.flatnonzero(np.isin(from_nodes, sources))
            to_nodes = first + np.searchsorted(bounds, begin + wanted, side="right") - 1
            found.append(np.stack([from_nodes[wanted], to_nodes], axis=1))
    return np.concatenate(found)


def negative_bits(key: int, positives: npt.NDArray[np.int64], per_positive: int) -> npt.NDArray[np.uint64]:
    """[n, per_positive] random bits for the positive pairs with these numbers: a function of key, number and place."""
    places = positives[:, None] * max(per_positive, 1) + np.arange(per_positive)
    return random_bits(key, places.astype(np.uint64))
