"""Passes over edges: sums of neighbours' rows, of some columns of all sources at a time; and degrees."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.files.row_reading import row_buffer
from diskgnn.files.traffic import Traffic
from diskgnn.inference.edges import EdgeFiles, EdgeWindow
from diskgnn.inference.network import NetworkLayer
from diskgnn.inference.pass_schedule import DegreePass, InferencePlan, Stored, SumPass
from diskgnn.inference.sizes import CHUNK_ROWS
from diskgnn.inference.stored_windows import StoredWindows, window_file
from diskgnn.ordered import in_order
from diskgnn.progress.reporter import Advance
from diskgnn.specs.schema import EdgeType
from diskgnn.work.runner import UnitFiles


class SumPasses:
    """Computes windows of the sum passes of a layer; several threads may do so side by side, `workers` while
    loading."""

    def __init__(self, plan: InferencePlan, layer: int, stored: StoredWindows, workers: ThreadPoolExecutor) -> None:
        self._plan, self._stored, self._workers = plan, stored, workers
        self._layer = plan.network.layers[layer]
        self._edges = _edge_files(plan, self._layer, stored.traffic)

    def loaded(self, each: SumPass) -> dict[Stored, Tensor]:
        """Returns the panel of all sources: [N, heads, columns of each], where the rows of one head lie side by
        side."""
        heads = len(self._plan.panels[each.layer][each.panel].heads)
        found: dict[Stored, Tensor] = {}
        for stored in dict.fromkeys(stored for _, stored in each.sources):
            num_nodes, row_bytes = self._plan.graph.nodes[stored.node_type].num_nodes, stored.row_bytes
            buffer = row_buffer(num_nodes, row_bytes)
            calls = (
                partial(self._load, stored, window, buffer, heads)
                for window in range(self._plan.num_windows(stored.node_type))
            )
            for _ in in_order(self._workers, calls, self._plan.workers - 1):
                pass
            rows = torch.from_numpy(buffer[: num_nodes * row_bytes].view(np.float32))
            width = row_bytes // (heads * np.dtype(np.float32).itemsize)
            found[stored] = rows.view(heads, num_nodes, width).transpose(0, 1)
        return found

    def _load(self, stored: Stored, window: int, buffer: npt.NDArray[np.uint8], heads: int) -> None:
        first, last = self._plan.window(stored.node_type, window)
        if heads == 1:
            self._stored.fill(stored, window, buffer[first * stored.row_bytes :])
            return
        # torch would copy all rows of a head whenever it sums some of them, if they did not lie side by side.
        num_nodes = self._plan.graph.nodes[stored.node_type].num_nodes
        panel = buffer[: num_nodes * stored.row_bytes].view(np.float32).reshape(heads, num_nodes, -1)
        panel[:, first:last] = self._stored.read(stored, window).reshape(last - first, heads, -1).swapaxes(0, 1)

    @torch.no_grad()
    def store(self, each: SumPass, loaded: Mapping[Stored, Tensor], window: int) -> UnitFiles:
        """Makes a window of the sums of what was `loaded` for the pass; returns the file with its checksum."""
        plan, layer = self._plan, self._layer
        panel = plan.panels[each.layer][each.panel]
        first, last = plan.window(each.node_type, window)
        heads = len(panel.heads)
        edges = {
            edge_type: EdgeWindow(self._edges[edge_type], first, last) for edge_type in layer.edge_types(each.node_type)
        }
        sources = {array: loaded[stored] for array, stored in each.sources}
        beside = {
            name: loaded[stored][first:last]
            if stored in loaded
            else torch.from_numpy(self._stored.read(stored, window)).view(last - first, heads, -1)
            for name, stored in each.beside
        }
        (target,) = each.writes
        out = np.empty((last - first, target.columns), np.float32)
        for begin in range(first, last, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, last)
            blocks = {edge_type: found.block(begin, end) for edge_type, found in edges.items()}
            here = slice(begin - first, end - first)
            own = {name: rows[here] for name, rows in beside.items()}
            sums = layer.steps.aggregate(each.node_type, blocks, sources, own, panel)
            out[here] = sums.reshape(end - begin, -1).numpy()
        return {window_file(target, window): self._stored.write(target, window, out)}

    def count_degrees(self, each: DegreePass, advance: Advance) -> UnitFiles:
        """Writes how many edges leave each node; `advance` is told of edges. Returns the files with their checksums."""
        plan = self._plan
        (edges,), (stored,) = self._edges.values(), each.writes
        counts = torch.zeros(plan.graph.nodes[stored.node_type].num_nodes, dtype=torch.int32)
        for piece in edges.all_indices():
            counts.index_add_(0, torch.from_numpy(piece), torch.ones(len(piece), dtype=torch.int32))
            advance(len(piece))
        files = {}
        for window in range(plan.num_windows(stored.node_type)):
            first, last = plan.window(stored.node_type, window)
            files[window_file(stored, window)] = self._stored.write(stored, window, counts[first:last].numpy())
        return files


def _edge_files(plan: InferencePlan, layer: NetworkLayer, traffic: Traffic) -> dict[EdgeType, EdgeFiles]:
    features = dict(zip(layer.steps.types.edges, layer.steps.types.edge_features, strict=True))
    return {
        each: EdgeFiles(plan.graph, plan.graph.edges[each], with_features=features[each] is not None, traffic=traffic)
        for name in layer.destinations
        for each in layer.edge_types(name)
    }
