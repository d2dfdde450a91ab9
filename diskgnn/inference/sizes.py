"""How much memory the passes of inference take, and what fits: columns of a panel, rows of a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet
from diskgnn.inference.layer_steps import Panel
from diskgnn.inference.network import FLOAT_BYTES, Network, NetworkLayer

CHUNK_ROWS = 4096  # that are computed at once. It is the same in every run: so are the roundings
EDGE_BUFFER_BYTES = 4 << 20  # of the indices that are read at once
_CHUNKS_AT_ONCE = 4  # that a thread holds on the way from one window's rows to another's
_CACHE_LINE_COLUMNS = 16
_MAX_WINDOW_ROWS, _MAX_WINDOWS = 1 << 18, 512  # of a window, unless there would be more of them than this
_MIN_WINDOWS = 16  # of the largest type of nodes, so that all threads have some, and a kill costs little


class PassSizes:
    """Says how much memory passes take that compute `workers` windows side by side."""

    def __init__(self, graph: Graph, network: Network, workers: int) -> None:
        self._graph, self._network, self.workers = graph, network, workers
        self._chunk_edges = {each: _max_chunk_edges(graph.edges[each]) for each in network.edge_types}

    def window_rows(self, memory_bytes: int) -> int:
        """Returns as many as half of the memory has room for, so that the other half is left for a panel."""
        rows = memory_bytes // 2 // (self.workers * max(self._row_bytes())) - _CHUNKS_AT_ONCE * CHUNK_ROWS
        most = max(nodes.num_nodes for nodes in self._graph.nodes.values())
        rows = min(rows, max(_MAX_WINDOW_ROWS, most // _MAX_WINDOWS), most // _MIN_WINDOWS)
        return max(1, rows // CHUNK_ROWS) * CHUNK_ROWS

    def _row_bytes(self) -> Iterator[int]:
        """Yields the bytes that a window of each `RowPass` holds for each row."""
        network = self._network
        for number in range(len(network.layers) + 1):
            layer = network.layers[number] if number < len(network.layers) else None
            before = network.layers[number - 1] if number else None
            for name in layer.node_types if layer is not None else (network.node_type,):
                file = self._graph.nodes[name].feature_file
                row_bytes = FLOAT_BYTES  # a degree
                if before is None or before.own_is_input(name, self._graph):
                    row_bytes += 8 if file is None else file.row_bytes
                    row_bytes += 0 if file is None or file.projection is None else file.file_row_bytes
                if before is not None:
                    row_bytes += FLOAT_BYTES * (before.sum_columns + before.steps.own_columns(name))
                if layer is None:
                    row_bytes += FLOAT_BYTES * network.out_columns
                else:
                    columns = layer.steps.own_columns(name) + sum(
                        layer.steps.heads * layer.columns(array) for array in layer.arrays if array[0] == name
                    )
                    row_bytes += FLOAT_BYTES * columns
                yield row_bytes

    def panels(self, layer: NetworkLayer, window_rows: int, memory_bytes: int) -> list[Panel]:
        """Returns the fewest that fit in memory, of equal size; the smallest that there can be where none fits."""
        heads, width = layer.steps.heads, layer.steps.width
        whole = [(count, width) for count in range(heads, 0, -1)]
        lines = range(width // _CACHE_LINE_COLUMNS * _CACHE_LINE_COLUMNS, 0, -_CACHE_LINE_COLUMNS)
        parts = [(1, columns) for columns in (*lines, 8, 4, 2, 1) if columns < width] if layer.steps.divisible else []
        for count, columns in [*whole, *parts]:
            found = _cut(heads, width, count, columns)
            if self._sums_bytes(layer, found, window_rows) <= memory_bytes:
                break
        if columns == width:
            return _cut(heads, width, -(-heads // -(-heads // count)), width)
        even = -(-width // -(-width // columns))
        if columns >= _CACHE_LINE_COLUMNS:
            even = -(-even // _CACHE_LINE_COLUMNS) * _CACHE_LINE_COLUMNS
        return _cut(heads, width, 1, min(even, columns))

    def _sums_bytes(self, layer: NetworkLayer, panels: Sequence[Panel], window_rows: int) -> int:
        return max(
            (self._sum_bytes(layer, name, panels[0], window_rows) for name in layer.destinations
             if layer.edge_types(name)), default=0
        )  # fmt: skip

    def _sum_bytes(self, layer: NetworkLayer, destination: str, panel: Panel, window_rows: int) -> int:
        """Returns the bytes of a `SumPass`."""
        steps, edge_types = layer.steps, layer.edge_types(destination)
        held = sum(
            FLOAT_BYTES * panel.num_columns(layer.columns(array)) * self._graph.nodes[array[0]].num_nodes
            for array in steps.sources(destination)
        )
        own_columns = sum(panel.num_columns(layer.columns((destination, name))) for name in steps.beside(destination))
        out_columns = panel.num_columns(steps.width)
        rows = min(window_rows, self._graph.nodes[destination].num_nodes)
        per_window = rows * (FLOAT_BYTES * (own_columns + out_columns) + 8 * len(edge_types))
        per_chunk = CHUNK_ROWS * FLOAT_BYTES * _CHUNKS_AT_ONCE * (out_columns + own_columns)
        for edge_type in edge_types:
            edges, most = self._graph.edges[edge_type], self._chunk_edges[edge_type]
            id_bytes, features = edges.id_dtype.itemsize, edges.feature_file
            per_chunk += max(EDGE_BUFFER_BYTES, most * id_bytes) + most * (steps.edge_bytes + id_bytes)
            per_chunk += (
                0 if features is None else most * (features.row_bytes + FLOAT_BYTES * features.rows.num_features)
            )
        return held + self.workers * (per_window + per_chunk)

    def memory_bytes(self, panels: Sequence[Sequence[Panel]], window_rows: int) -> int:
        """Returns the bytes of the pass that takes most."""
        sums = [
            self._sums_bytes(layer, found, window_rows)
            for layer, found in zip(self._network.layers, panels, strict=True)
        ]
        most = max(nodes.num_nodes for nodes in self._graph.nodes.values())
        degrees = FLOAT_BYTES * most if any(layer.steps.uses_degrees for layer in self._network.layers) else 0
        rows = self.workers * (min(window_rows, most) + _CHUNKS_AT_ONCE * CHUNK_ROWS) * max(self._row_bytes())
        return max(*sums, rows, degrees + EDGE_BUFFER_BYTES if degrees else 0)


def _max_chunk_edges(edges: EdgeSet) -> int:
    """Returns how many edges lead into the CHUNK_ROWS destinations that have the most."""
    firsts = np.append(np.arange(0, edges.num_destinations, CHUNK_ROWS), edges.num_destinations)
    bounds = edges.manifest.take(edges.topology_files[0], firsts)
    return int(np.diff(bounds).max(initial=0))


def _cut(heads: int, width: int, count: int, columns: int) -> list[Panel]:
    """Returns panels of `count` heads, or of `columns` columns of one."""
    if columns == width:
        return [Panel(range(first, min(first + count, heads)), range(width), width) for first in range(0, heads, count)]
    return [
        Panel(range(head, head + 1), range(first, min(first + columns, width)), width)
        for head in range(heads)
        for first in range(0, width, columns)
    ]
