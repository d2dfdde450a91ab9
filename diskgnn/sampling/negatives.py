"""Pairs without an edge, for link prediction: drawn exactly, without trying again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskgnn.draws import random_below, random_bits
from diskgnn.errors import ConfigError


class NegativeDestinations:
    """For a source, the destinations to which it has no seed edge; one is drawn as fast as another.

    A source with p distinct destinations d_0 < d_1 < ... has N - p others. The r-th of these, counted from 0, is r plus
    the number of j with d_j - j <= r: one binary search, since d_j - j never decreases.

    Args:
        edges: [n, 2] seed edges of all splits.
        num_destinations: N.

    Raises:
        ConfigError: numbers of pairs exceed 2^63.
    """

    def __init__(self, edges: npt.NDArray[np.int64], num_destinations: int) -> None:
        self._num_destinations = num_destinations
        edges = np.unique(edges, axis=0)
        self._sources, first, degrees = np.unique(edges[:, 0], return_index=True, return_counts=True)
        if len(self._sources) * (num_destinations + 1) >= 1 << 63:
            raise ConfigError(
                f"negatives: {len(self._sources)} sources and {num_destinations} destinations exceed 2^63"
            )
        self._first, self._degrees = first, degrees
        place_in_list = np.arange(len(edges)) - np.repeat(first, degrees)
        # Ascending: lists follow each other, each shifted past all values of the one before.
        self._shifted = np.repeat(np.arange(len(first)) * (num_destinations + 1), degrees) + edges[:, 1] - place_in_list

    def draw(self, sources: npt.NDArray[np.int64], bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """[n, K] destinations for [n] `sources`, each of which has a seed edge: uniform, one for each of the `bits`.

        Raises:
            ConfigError: a source has seed edges to all destinations.
        """
        rows = np.searchsorted(self._sources, sources)
        left = self._num_destinations - self._degrees[rows]
        if bits.shape[1] and (left == 0).any():
            raise ConfigError(
                f"negatives: source {sources[left == 0][0]} has seed edges to all {self._num_destinations} "
                "destinations: there is no pair without an edge; use negatives=0 and eval_negatives=0"
            )
        rank = random_below(bits, left[:, None])
        before = np.searchsorted(self._shifted, rows[:, None] * (self._num_destinations + 1) + rank, side="right")
        return rank + before - self._first[rows][:, None]


def negative_bits(key: int, positives: npt.NDArray[np.int64], per_positive: int) -> npt.NDArray[np.uint64]:
    """[n, per_positive] random bits for the positive pairs with these numbers: a function of key, number and place."""
    places = positives[:, None] * max(per_positive, 1) + np.arange(per_positive)
    return random_bits(key, places.astype(np.uint64))
