"""Names the rows of a table of predictions: by ids of nodes, those of tasks by whose they are, and when."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.inference.prediction_files import ids_of
from diskgnn.specs.null_times import is_missing
from diskgnn.specs.time_windows import OF_DATES

Columns = dict[str, pa.Array | pa.ChunkedArray]


def names_of(graph: Graph | None, node_type: str, nodes: npt.NDArray[np.int64], *, own_times: bool) -> Columns:
    """Returns the columns of ids of `nodes` [n].

    Args:
        graph: that they are of; None: nobody has it, and they have their numbers.
        node_type: theirs.
        nodes: in the order of the table.
        own_times: the rows of a task are asked at these, which say which of an entity's rows it is.
    """
    if graph is None:
        return dict([ids_of(None, nodes)])
    columns: Columns = dict([ids_of(graph.nodes[node_type], nodes)])
    if (edges := _edges_of_task(graph, node_type)) is not None:
        rows, positions = np.unique(nodes, return_inverse=True)
        entities = edges.manifest.take(edges.topology_files[1], rows)[positions]
        columns["id"] = ids_of(graph.nodes[edges.type[0]], entities.astype(np.int64))[1]
        if own_times and graph.nodes[node_type].config.has_times:
            columns["time"] = _as_dates(graph.nodes[node_type].times_of(nodes), graph.config.time_unit)
    return columns


def _edges_of_task(graph: Graph, node_type: str) -> EdgeSet | None:
    """Returns the edges from entities to the rows of a task, of which each has one; None: it is no task."""
    entities = {f"edges from {each}" for each in graph.nodes}
    if not any(each.of == node_type and each.use in entities for each in graph.config.contents.read):
        return None
    found = [edges for name, edges in graph.edges.items() if name[2] == node_type]
    return found[0] if len(found) == 1 and _leads_once_to_each(found[0]) else None


def _leads_once_to_each(edges: EdgeSet) -> bool:
    """Returns True if edge i leads to node i, of all of them."""
    first, is_so = 0, True
    for offsets in edges.manifest.parts(edges.topology_files[0]):
        is_so &= np.array_equal(offsets, np.arange(first, first + len(offsets)))
        first += len(offsets)
    return is_so


def _as_dates(times: npt.NDArray[np.int64], unit: str | None) -> pa.Array:
    """Returns times as timestamps where their unit has such, and as numbers like the graph's elsewhere."""
    found = pa.array(times, mask=is_missing(times))
    return found.cast(pa.timestamp(unit)) if unit in OF_DATES else found
