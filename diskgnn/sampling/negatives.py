"""Pairs without an edge, for link prediction: drawn exactly, without trying again.

A source's negatives are uniform among the destinations that are not to be avoided. By default these are those of its
seed edges, in all splits. PyG's `NegativeSampling` avoids nothing: some of its negatives are edges. Benchmarks of
knowledge graphs rank an edge among pairs that are no known edge at all ('filtered').

With times, destinations are numbered by when they appear: those that exist at a time are then the first ones, in every
list, too, so a source's negatives are uniform among these. A source with edges to all that exist at a time, as the
first ones mostly have, is given some of these: nothing is drawn from the future.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.draws import random_below, random_bits
from diskgnn.errors import ConfigError, DataWarning
from diskgnn.formats.graph_config import id_dtype
from diskgnn.graph.known_edges import CHUNK_EDGES, Edges

_ALL_AVOIDED = (
    "negatives: some sources have edges to all destinations that exist at the time of their seed edges; negatives of "
    "these seed edges are drawn among these destinations, so some are edges"
)
_WORK_BYTES = 96  # of an edge, while a chunk is counted, filled or sorted


class AvoidedDestinations:
    """By source, the destinations that are not drawn: `destinations[indptr[i]:indptr[i + 1]]` of `sources[i]`.

    The lists are made by counting and filling, and sorted a few at a time, so they take no more than what they are: 4
    bytes for each edge, or 8 where there are 2^31 destinations.

    Args:
        edges: arrays [n, 2] of them.
        num_destinations: N.
        known: what iterates over others, of any source: those of the sources of `edges` count. Called twice.
        numbers: [N] by which destinations go here; None: their own.

    Attributes:
        sources: [S] int64, ascending; those of `edges`.
        indptr: [S + 1] int64, once `fill` was called.
        destinations: ascending and distinct in each list, once `fill` was called.
    """

    def __init__(
        self,
        edges: Sequence[npt.NDArray[np.int64]],
        num_destinations: int,
        known: Callable[[], Iterable[Edges]] = lambda: (),
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._numbers = numbers
        self.sources = _distinct_sources(edges)
        self._edges, self._num_destinations, self._known = edges, num_destinations, known
        self._dtype = id_dtype(num_destinations)
        self._counts = np.zeros(len(self.sources), np.int64)
        for rows, _ in self._pieces():
            found, counts = np.unique(rows, return_counts=True)
            self._counts[found] += counts

    @property
    def num_bytes(self) -> int:
        """Returns what the lists take at most, and making them."""
        worked_on = max(min(CHUNK_EDGES, self.num_edges), int(self._counts.max(initial=0)))
        return self.num_edges * self._dtype.itemsize + 5 * self.sources.nbytes + _WORK_BYTES * worked_on

    @property
    def num_edges(self) -> int:
        """Returns the edges in all lists at most: what is there twice counts twice."""
        return int(self._counts.sum())

    def fill(self) -> None:
        """Make the lists."""
        ends = np.cumsum(self._counts)
        found, cursors = np.empty(self.num_edges, self._dtype), ends - self._counts
        for rows, destinations in self._pieces():
            order = np.argsort(rows, kind="stable")
            of_lists, first, counts = np.unique(rows[order], return_index=True, return_counts=True)
            within = np.arange(len(rows)) - np.repeat(first, counts)
            numbers = destinations if self._numbers is None else self._numbers[destinations]
            found[np.repeat(cursors[of_lists], counts) + within] = numbers[order]
            cursors[of_lists] += counts
        self.indptr, self.destinations = self._sorted(found, np.concatenate([[0], ends]))

    def _pieces(self) -> Iterator[Edges]:
        """Yields (places of sources, destinations) of all edges, some at a time."""
        for edges in self._edges:
            for begin in range(0, len(edges), CHUNK_EDGES):
                sources, destinations = edges[begin : begin + CHUNK_EDGES].T
                yield np.searchsorted(self.sources, sources), destinations
        for sources, destinations in self._known() if len(self.sources) else ():
            rows = np.minimum(np.searchsorted(self.sources, sources), len(self.sources) - 1)
            wanted = self.sources[rows] == sources
            yield rows[wanted], destinations[wanted]

    def _sorted(
        self, lists: npt.NDArray[np.signedinteger], indptr: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.signedinteger]]:
        """Returns the lists, each ascending and without repetitions, in place."""
        distinct, written, first = np.zeros(len(indptr), np.int64), 0, 0
        while first < len(indptr) - 1:
            last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + CHUNK_EDGES, side="right")) - 1)
            rows = np.repeat(np.arange(last - first), np.diff(indptr[first : last + 1]))
            keys = rows * self._num_destinations + lists[indptr[first] : indptr[last]]
            keys.sort()
            keys = keys[np.diff(keys, prepend=-1) > 0]
            lists[written : written + len(keys)] = keys % self._num_destinations
            distinct[first + 1 : last + 1] = np.bincount(keys // self._num_destinations, minlength=last - first)
            written, first = written + len(keys), last
        return np.cumsum(distinct), lists[:written]


def _distinct_sources(edges: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Returns [S] those of edges [n, 2], ascending; they take as much as there are distinct ones, however many
    edges."""
    found, waiting, num_waiting = np.empty(0, np.int64), [np.empty(0, np.int64)], 0
    for each in edges:
        for begin in range(0, len(each), CHUNK_EDGES):
            waiting.append(np.unique(each[begin : begin + CHUNK_EDGES, 0]))
            num_waiting += len(waiting[-1])
            if num_waiting >= max(CHUNK_EDGES, len(found)):  # so each is merged a few times only
                found, waiting, num_waiting = _merge([found, *waiting]), [], 0
    return _merge([found, *waiting])


def _merge(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    merged = np.concatenate(parts)
    merged.sort()
    is_new = np.ones(len(merged), np.bool_)
    np.not_equal(merged[1:], merged[:-1], out=is_new[1:])
    return merged[is_new]


class NegativeDestinations:
    """For a source, the destinations that are not avoided; one is drawn as fast as another.

    Let destination d have w(d) places, side by side: C(d) are those before it, W is their number. A source that avoids
    d_0 < d_1 < ... leaves W - w(d_0) - w(d_1) - ... places. The r-th of these, counted from 0, is r plus w(d_j) for
    each j with C(d_j) - w(d_0) - ... - w(d_j-1) <= r: one binary search in the source's list, since the left side
    never decreases. Another one in C tells whose place it is. Uniform draws are those with one place each.

    Args:
        avoided: the lists, filled.
        num_destinations: N.
        places: [N] of each destination, in proportion to which it is drawn; None: 1.
        appearing: when each appears: the numbers of `avoided` are then its places there; None: all are always there.
    """

    def __init__(
        self,
        avoided: AvoidedDestinations,
        num_destinations: int,
        places: npt.NDArray[np.int64] | None = None,
        appearing: Appearing | None = None,
    ) -> None:
        self._avoided, self._num_destinations, self._appearing = avoided, num_destinations, appearing
        self._before = self._taken_before = None
        if places is not None:
            places = places if appearing is None else places[appearing.nodes]
            self._before = _sums_before(num_destinations, lambda first, end: places[first:end])  # C, and W
            # Places of edges that are listed before, those of other sources included; None: as many as edges.
            listed = avoided.destinations
            self._taken_before = _sums_before(len(listed), lambda first, end: places[listed[first:end]])

    @staticmethod
    def num_bytes(avoided: AvoidedDestinations, num_destinations: int) -> int:
        """Returns what drawing by places takes at most beside the lists, with the places."""
        return 8 * (avoided.num_edges + 1) + 16 * (num_destinations + 1)

    def draw(
        self,
        sources: npt.NDArray[np.int64],
        bits: npt.NDArray[np.uint64],
        moments: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Returns [n, K] destinations for [n] `sources`, each of which has a list, or none has; one for each of `bits`.

        With `appearing`, `moments` [n] say when: destinations that appear later are not drawn. Where a source has edges
        to all that exist then, these edges are drawn from in place of nothing, with a DataWarning.

        Raises:
            ConfigError: no destination exists then, or, without times, a source has edges to all that can be drawn.
        """
        there = np.full(len(sources), self._num_destinations)
        if self._appearing is not None:
            assert moments is not None
            there = self._appearing.count_at(moments)
        num_places = there if self._before is None else self._before[there]
        first = end = np.zeros(len(sources), np.int64)
        if len(self._avoided.sources):
            rows = np.searchsorted(self._avoided.sources, sources)
            first, end = self._avoided.indptr[rows], self._avoided.indptr[rows + 1]
            if self._appearing is not None:
                end = self._first_from(there, first, end)
        left = num_places - (self._num_taken(end) - self._num_taken(first))
        if bits.shape[1] and (left == 0).any():
            if self._appearing is None or (num_places == 0).any():
                self._refuse(
                    int(np.argmax(num_places == 0 if (num_places == 0).any() else left == 0)), sources, moments
                )
            warnings.warn(_ALL_AVOIDED, DataWarning, stacklevel=2)
            end = np.where(left == 0, first, end)
            left = np.where(left == 0, num_places, left)
        rank = random_below(bits, left[:, None])
        return self._at(rank + self._taken_below(rank, first[:, None], end[:, None]))

    def _refuse(self, pair: int, sources: npt.NDArray[np.int64], moments: npt.NDArray[np.int64] | None) -> None:
        if self._appearing is not None and moments is not None:
            raise ConfigError(
                f"negatives: source {sources[pair]} has a seed edge at time {moments[pair]}, and no destination that "
                "can be drawn exists then: leave such edges out of the seeds, or use negatives=0 and eval_negatives=0"
            )
        every = f"{self._num_destinations} destinations" if self._before is None else "that can be drawn"
        raise ConfigError(
            f"negatives: source {sources[pair]} has edges to all {every}: there is no pair without an edge; use "
            "negatives=0 and eval_negatives=0"
        )

    def _first_from(
        self, numbers: npt.NDArray[np.int64], first: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns [n] where in each ascending list [first, end) the first destination of at least `numbers` [n]
        lies."""
        low, high = first.copy(), end.copy()
        while (searching := low < high).any():
            middle = (low + high) // 2
            below = self._avoided.destinations[np.where(searching, middle, 0)] < numbers
            low = np.where(searching & below, middle + 1, low)
            high = np.where(searching & ~below, middle, high)
        return low

    def _taken_below(
        self, rank: npt.NDArray[np.int64], first: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns [n, K] places of the avoided destinations that come before each [n, K] rank, within lists [first,
        end)."""
        low, high = np.broadcast_to(first, rank.shape).copy(), np.broadcast_to(end, rank.shape).copy()
        taken = self._num_taken(first)
        while (searching := low < high).any():
            middle = (low + high) // 2
            destinations = self._avoided.destinations[np.where(searching, middle, 0)].astype(np.int64)
            starts = destinations if self._before is None else self._before[destinations]
            below = starts - (self._num_taken(np.where(searching, middle, 0)) - taken) <= rank
            low = np.where(searching & below, middle + 1, low)
            high = np.where(searching & ~below, middle, high)
        return self._num_taken(low) - taken

    def _num_taken(self, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return edges if self._taken_before is None else self._taken_before[edges]

    def _at(self, place: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        number = place if self._before is None else np.searchsorted(self._before, place, side="right") - 1
        return number if self._appearing is None else self._appearing.nodes[number]


class Appearing:
    """Nodes in the order in which they appear, ties in the order of their ids.

    Args:
        times: [N] of each.

    Attributes:
        nodes: [N] in this order.
        times: [N] in this order.
    """

    def __init__(self, times: npt.NDArray[np.int64]) -> None:
        self.nodes = np.argsort(times, kind="stable")
        self.times = times[self.nodes]

    @staticmethod
    def num_bytes(num_nodes: int) -> int:
        """Returns what it takes at most, being made included, and `numbers`."""
        return 40 * num_nodes

    def numbers(self) -> npt.NDArray[np.int64]:
        """Returns [N] the place of each node in this order."""
        found = np.empty(len(self.nodes), np.int64)
        found[self.nodes] = np.arange(len(self.nodes))
        return found

    def count_at(self, moments: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns [n] how many nodes there are at each of `moments` [n]: those that appear no later."""
        return np.searchsorted(self.times, moments, side="right")


def _sums_before(count: int, part: Callable[[int, int], npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Returns [count + 1] sums of the numbers before each, and of all; `part` has those from one to another."""
    sums = np.zeros(count + 1, np.int64)
    for first in range(0, count, CHUNK_EDGES):
        end = min(count, first + CHUNK_EDGES)
        np.cumsum(part(first, end), out=sums[first + 1 : end + 1])
        sums[first + 1 : end + 1] += sums[first]
    return sums


def count_destinations(edges: npt.NDArray[np.int64], num_destinations: int) -> npt.NDArray[np.int64]:
    """Returns [num_destinations] how many of edges [n, 2] end in each."""
    found = np.zeros(num_destinations, np.int64)
    for first in range(0, len(edges), CHUNK_EDGES):
        destinations, counts = np.unique(edges[first : first + CHUNK_EDGES, 1], return_counts=True)
        found[destinations] += counts
    return found


def negative_bits(key: int, positives: npt.NDArray[np.int64], per_positive: int) -> npt.NDArray[np.uint64]:
    """Returns [n, per_positive] random bits for the positive pairs with these numbers: a function of key, number
    and place."""
    places = positives[:, None] * max(per_positive, 1) + np.arange(per_positive)
    return random_bits(key, places.astype(np.uint64))
