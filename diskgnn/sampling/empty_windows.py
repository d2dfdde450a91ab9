"""Seeds that are asked about so long after all rows that a window of time leaves them none: the data is stale."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats import artifacts
from diskgnn.graph.graph import Graph
from diskgnn.graph.time_units import some_times
from diskgnn.graph.type_files import TypeData
from diskgnn.specs.null_times import is_missing
from diskgnn.specs.schema import EdgeType, edge_type_name

_AT_ONCE = 1 << 20  # times


def warn_of_empty_windows(
    graph: Graph, windows: Mapping[EdgeType, int | None], seed_times: Sequence[npt.NDArray[np.int64]]
) -> None:
    """Warns with `DataWarning` of seeds that come when the windows of all edge types have passed their latest time.

    A window of 0 says that nothing is to be drawn of an edge type, so nobody is told.

    Args:
        graph: what is sampled.
        windows: of all edge types that are followed, in the unit of the graph's times; None for those without.
        seed_times: those that were given, if any.
    """
    lengths = {each: length for each, length in windows.items() if length}
    if not lengths or not seed_times:
        return
    last_seed = max(int(times.max()) for times in seed_times)
    timed = {each: _timed_data(graph, each) for each in lengths}
    for each, data in timed.items():  # a look at some is enough where windows are not empty, as they should be
        some = some_times(data)
        known = some[~is_missing(some)]
        if len(known) and int(known.max()) + lengths[each] > last_seed:
            return
    latest = {each: found for each, data in timed.items() if (found := _latest(data)) is not None}
    end = max((found + lengths[each] for each, found in latest.items()), default=None)
    if end is None or end > last_seed:
        return
    num_empty = sum(int((times >= end).sum()) for times in seed_times)
    of_types = "" if len(lengths) == len(windows) else f" of edges of {', '.join(map(edge_type_name, lengths))}"
    nothing = "none of these" if None in windows.values() else "nothing"  # other edges are drawn at any time
    warnings.warn(
        f"{num_empty} of {sum(map(len, seed_times))} seeds are asked at {end} or later, when the window of time has "
        f"passed the latest time{of_types} in {graph.manifest.path}, {max(latest.values())}: it leaves them {nothing} "
        "to draw. Make the graph of newer rows, take a longer window, or ask at earlier times",
        DataWarning,
        stacklevel=callers_level(),
    )


def _timed_data(graph: Graph, edge_type: EdgeType) -> TypeData:
    """Returns what has the times that the window of an edge type is of."""
    edges = graph.edges[edge_type]
    return edges if edges.config.has_times else graph.nodes[edge_type[0]]


def _latest(data: TypeData) -> int | None:
    """Returns the latest time; None: there is none. All are read once, some at a time."""
    name = data.file(artifacts.TIMES)
    path, num_times = data.manifest.file(name), data.manifest.num_rows(name)
    offset, latest = npy_data_offset(path), None
    for start in range(0, num_times, _AT_ONCE):
        times = read_array(path, np.int64, min(_AT_ONCE, num_times - start), offset + 8 * start)
        known = times[~is_missing(times)]
        if len(known):
            latest = int(known.max()) if latest is None else max(latest, int(known.max()))
    return latest
