"""Whether edges that are about to get their reverses hold them already: a sample of the edges, in bounded memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk, EdgeSource

_SAMPLED_EDGES = 1 << 17
_NOTED_SHARE = 0.5
_MIX = np.uint64(0x9E3779B97F4A7C15)


def noticing(edges: EdgeSource, name: str) -> EdgeSource:
    """Returns `edges`, of which the first pass samples some and warns at its end if most have their reverse among them.

    The sample is of pairs of nodes: an edge and its reverse are both in it, or neither is.

    Warns:
        DataWarning: so many edges would be there twice.
    """
    passes = iter([True])

    def stream() -> Iterator[EdgeChunk]:
        if not next(passes, False):
            yield from edges()
            return
        sample = _Sample()
        for src, dst in edges():
            sample.add(src, dst)
            yield src, dst
        sample.warn(name)

    return stream


class _Sample:
    """The edges whose key, which both directions share, is at most `_limit`."""

    def __init__(self) -> None:
        self._limit = np.uint64(2**64 - 1)
        self._parts: list[npt.NDArray[np.int64]] = []
        self._size = 0

    def add(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> None:
        """Takes edges that follow those added before."""
        chosen = _keys(src, dst) <= self._limit
        found = np.stack([src[chosen], dst[chosen]], axis=1).astype(np.int64)
        self._parts.append(found[found[:, 0] != found[:, 1]])
        self._size += len(self._parts[-1])
        while self._size > _SAMPLED_EDGES:
            self._limit >>= np.uint64(1)
            pairs = np.concatenate(self._parts)
            self._parts = [pairs[_keys(pairs[:, 0], pairs[:, 1]) <= self._limit]]
            self._size = len(self._parts[0])

    def warn(self, name: str) -> None:
        """Issue a DataWarning if most of the edges have their reverse in the sample."""
        if not self._size:
            return
        pairs = np.unique(np.concatenate(self._parts), axis=0)
        _, counts = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
        share = int((counts == 2).sum()) * 2 / len(pairs)
        if share < _NOTED_SHARE:
            return
        of = f"{len(pairs)} different edges" + ("" if int(self._limit) == 2**64 - 1 else " that were sampled")
        warnings.warn(
            f"{name}: {share:.0%} of {of} have their reverse in the source already, and reverse=True adds it once "
            "more; leave it out, or pass drop_duplicates=True as well",
            DataWarning,
            stacklevel=callers_level(),
        )


def _keys(src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return (src.astype(np.int64) + dst).view(np.uint64) * _MIX
