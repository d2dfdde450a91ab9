"""What the rows of a table of predictions are called: by ids of nodes; those of tasks by whose they are, and when."""

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
        _, sources = edges.topology()
        columns["id"] = ids_of(graph.nodes[edges.type[0]], sources[nodes].astype(np.int64))[1]
        if own_times and (times := graph.nodes[node_type].times) is not None:
            columns["time"] = _as_dates(times[nodes], graph.config.time_unit)
    return columns


def _edges_of_task(graph: Graph, node_type: str) -> EdgeSet | None:
    """Returns the edges from entities to the rows of a task, of which each has one; None: it is no task."""
    entities = {f"edges from {each}" for each in graph.nodes}
    if not any(each.of == node_type and each.use in entities for each in graph.config.contents.read):
        return None
    found = [edges for name, edges in graph.edges.items() if name[2] == node_type]
    num_rows = graph.nodes[node_type].num_nodes
    if len(found) != 1 or not np.array_equal(found[0].indptr, np.arange(num_rows + 1)):
        return None
    return found[0]


def _as_dates(times: npt.NDArray[np.int64], unit: str | None) -> pa.Array:
    """Returns times as timestamps where their unit has such, and as numbers like the graph's elsewhere."""
    found = pa.array(times, mask=is_missing(times))
    return found.cast(pa.timestamp(unit)) if unit in OF_DATES else found
