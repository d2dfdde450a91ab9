"""Edges without those to ids that no node has, where these are no error: keys of tables whose rows are gone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.importers.containers.rows import EdgeStream
from diskgnn.importers.ids.id_streams import IdColumns

_ANY = np.iinfo(np.int64).max


def known_edges(
    found: IdColumns,
    edges: EdgeStream,
    num_nodes: tuple[int, int] = (_ANY, _ANY),
    such_as: Callable[[], str] = lambda: "",
) -> EdgeStream:
    """Returns the edges whose ends are nodes; warns of how many others there are. All are read once for it.

    Args:
        found: where they come from, which says that it `skips_unknown`.
        edges: of nodes by number; -1 is none.
        num_nodes: how many sources and destinations there are.
        such_as: ends the warning with an unknown id.
    """
    unknown = sum(int((~_are_known(chunk, num_nodes)).sum()) for chunk in edges.chunks())
    if not unknown:
        return edges
    warnings.warn(
        f"{found.name}: left out {unknown} of {found.num_rows} edges by {' and '.join(found.columns)}, to ids that no "
        f"node has{such_as()}",
        DataWarning,
        stacklevel=callers_level(),
    )
    return EdgeStream(found.name, found.num_rows - unknown, partial(_known_pairs, edges, num_nodes))


def _are_known(chunk: EdgeChunk, num_nodes: tuple[int, int]) -> npt.NDArray[np.bool_]:
    src, dst = chunk
    found: npt.NDArray[np.bool_] = (src >= 0) & (src < num_nodes[0]) & (dst >= 0) & (dst < num_nodes[1])
    return found


def _known_pairs(edges: EdgeStream, num_nodes: tuple[int, int]) -> Iterator[EdgeChunk]:
    for src, dst in edges.chunks():
        known = _are_known((src, dst), num_nodes)
        yield src[known], dst[known]
