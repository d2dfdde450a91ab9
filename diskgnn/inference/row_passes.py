"""Passes over rows: what enters a layer becomes what its sums are of, and its own part of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from diskgnn.formats.feature_scan import read_checked_span
from diskgnn.inference.pass_schedule import InferencePlan, RowPass
from diskgnn.inference.sizes import CHUNK_ROWS
from diskgnn.inference.stored_windows import Rows, StoredWindows, window_file
from diskgnn.work.runner import UnitFiles


class RowPasses:
    """Computes windows of the row passes of a plan; several threads may do so side by side."""

    def __init__(self, plan: InferencePlan, stored: StoredWindows) -> None:
        self._plan, self._stored = plan, stored

    @torch.no_grad()
    def store(self, each: RowPass, window: int) -> UnitFiles:
        """Makes a window of all that the pass writes; returns the files with their checksums."""
        plan = self._plan
        first, last = plan.window(each.node_type, window)
        layer, panels = plan.network.layers[each.layer], plan.panels[each.layer]
        outputs = {stored.name: np.empty((last - first, stored.columns), np.float32) for stored in each.writes}
        arrays = [name for node_type, name in layer.arrays if node_type == each.node_type]
        degrees = next((self._stored.read(s, window, np.int32)[:, 0] for s in each.reads if s.name == "degrees"), None)
        for begin, end, x in self._chunks(each, window):
            known = None if degrees is None else torch.from_numpy(degrees[begin:end])
            messages = layer.steps.messages(each.node_type, x, known)
            for name in arrays:
                columns, rows = layer.columns((each.node_type, name)), messages[name].numpy()
                for place, panel in enumerate(panels):
                    outputs[f"{each.layer}-{name}-{each.node_type}-{place}"][begin:end] = rows[:, panel.of_row(columns)]
            if (own := outputs.get(f"{each.layer}-own-{each.node_type}")) is not None:
                own[begin:end] = layer.steps.own(each.node_type, x).numpy()
        return {
            window_file(stored, window): self._stored.write(stored, window, outputs[stored.name])
            for stored in each.writes
        }

    @torch.no_grad()
    def output(self, each: RowPass, window: int) -> tuple[int, int, Rows]:
        """Returns (first, last, [last - first, columns] rows) of a window, by the pass that makes the model's
        output."""
        first, last = self._plan.window(each.node_type, window)
        out = np.empty((last - first, self._plan.network.out_columns), np.float32)
        for begin, end, x in self._chunks(each, window):
            out[begin:end] = x.numpy()
        return first, last, out

    def _chunks(self, each: RowPass, window: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yields (first, last, rows that enter the pass's layer) of each chunk, counted from the window's first row."""
        plan = self._plan
        first, last = plan.window(each.node_type, window)
        read = [self._stored.read(stored, window) for stored in each.reads if stored.name != "degrees"]
        before = plan.network.layers[each.layer - 1] if each.layer else None
        num_sums = 0
        if before is not None and before.edge_types(each.node_type):
            num_sums = len(plan.panels[each.layer - 1])
        own_parts, sum_parts = read[: len(read) - num_sums], read[len(read) - num_sums :]
        features = self._features(each, first, last)
        for begin in range(0, last - first, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, last - first)
            x = None if features is None else plan.network.inputs[each.node_type](features(begin, end))
            if before is not None:
                steps = before.steps
                own = steps.own(each.node_type, x) if x is not None else _joined(own_parts, begin, end)
                sums = _joined(sum_parts, begin, end) if sum_parts else torch.zeros(end - begin, before.sum_columns)
                x = steps.after(each.node_type, own, sums)
                x = x if before.head is None else before.head(x)
            assert x is not None
            yield begin, end, x

    def _features(self, each: RowPass, first: int, last: int) -> Callable[[int, int], Tensor] | None:
        """Returns what gives a chunk of what the model's inputs take: features, or ids. None where the pass needs
        neither."""
        plan = self._plan
        graph, network = plan.graph, plan.network
        if each.layer and not network.layers[each.layer - 1].own_is_input(each.node_type, graph):
            return None
        if network.is_embedded(each.node_type):
            return lambda begin, end: torch.arange(first + begin, first + end)
        nodes = graph.nodes[each.node_type]
        if nodes.config.is_constant:
            return lambda begin, end: torch.ones(end - begin, 1)
        file = nodes.feature_file
        assert file is not None
        rows, read_bytes = read_checked_span(file, nodes.feature_checksums, first, last)
        self._stored.traffic.add(read=read_bytes)
        stored = file.rows.as_tensor(rows)
        return lambda begin, end: file.x(stored[begin:end]).to(torch.float32)


def _joined(parts: Sequence[Rows], begin: int, end: int) -> Tensor:
    """Returns the rows of which each part has some columns."""
    if not parts:
        return torch.empty(end - begin, 0)
    return torch.cat([torch.from_numpy(part[begin:end]) for part in parts], dim=1)
