"""The passes of an `InferencePlan`, window by window, by several threads. What is finished is not made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.inference.edges import EdgeFiles, EdgeWindow
from diskgnn.inference.network import NetworkLayer
from diskgnn.inference.plan import AnyPass, DegreePass, InferencePlan, RowPass, Stored, SumPass
from diskgnn.inference.scratch import Scratch
from diskgnn.inference.sizes import CHUNK_ROWS
from diskgnn.ordered import in_order
from diskgnn.progress import Advance, Reporter
from diskgnn.schema import EdgeType
from diskgnn.storage.feature_scan import read_checked_span
from diskgnn.storage.row_reading import row_buffer

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PassRecord:
    """What one pass did."""

    layer: int
    what: str  # 'rows', 'sums' or 'degrees'
    seconds: float
    read_bytes: int
    written_bytes: int


class Execution:
    """Carries out a plan.

    Args:
        plan: what to do.
        scratch: where rows are kept between passes.
        wanted: windows of the last sums that anybody needs; None: all.
        reporter: told of every window.
    """

    def __init__(self, plan: InferencePlan, scratch: Scratch, wanted: Sequence[int] | None, reporter: Reporter) -> None:
        self.plan, self._scratch, self._wanted, self._reporter = plan, scratch, wanted, reporter
        self._pool = ThreadPoolExecutor(plan.workers)
        self._edges: dict[int, dict[EdgeType, EdgeFiles]] = {
            number: self._edge_files(layer) for number, layer in enumerate(plan.network.layers)
        }
        self.records: list[PassRecord] = []

    def _edge_files(self, layer: NetworkLayer) -> dict[EdgeType, EdgeFiles]:
        features = dict(zip(layer.steps.types.edges, layer.steps.types.edge_features, strict=True))
        graph, traffic = self.plan.graph, self._scratch.traffic
        return {
            each: EdgeFiles(graph, graph.edges[each], with_features=features[each] is not None, traffic=traffic)
            for name in layer.destinations
            for each in layer.edge_types(name)
        }

    @contextmanager
    def running(self) -> Iterator[Execution]:
        """Threads and torch as they have to be."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # windows are computed side by side
        try:
            yield self
        finally:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)

    def store(self) -> None:
        """All passes but the last one.

        Raises:
            ArtifactError: a file of the graph is damaged.
            OSError: a file cannot be read or written.
        """
        done = self._passes_done()
        for number, each in enumerate(self.plan.passes[:-1]):
            if number < done:
                continue
            with self._recorded(each):
                self._run(each)
            self._scratch.write(_marker(number), np.empty(0, np.uint8))
            self._remove_drops(number)

    def output_windows(self) -> Iterator[tuple[int, int, Rows]]:
        """(first, last, rows) of the windows that are wanted, in order, by the last pass."""
        each = self.plan.passes[-1]
        assert isinstance(each, RowPass)
        with self._recorded(each):
            calls = (partial(self._out_rows, each, window) for window in self._windows(each))
            with self._stage(each) as advance:
                for found in in_order(self._pool, calls, self.plan.workers - 1):
                    yield found
                    advance(found[1] - found[0])

    @contextmanager
    def _recorded(self, each: AnyPass) -> Iterator[None]:
        traffic, started = self._scratch.traffic, time.perf_counter()
        before = traffic.read_bytes, traffic.written_bytes
        yield
        what = {RowPass: "rows", SumPass: "sums", DegreePass: "degrees"}[type(each)]
        layer = 0 if isinstance(each, DegreePass) else each.layer
        seconds = time.perf_counter() - started
        self.records.append(
            PassRecord(layer, what, seconds, traffic.read_bytes - before[0], traffic.written_bytes - before[1])
        )

    def _stage(self, each: AnyPass) -> AbstractContextManager[Advance]:
        plan = self.plan
        if isinstance(each, DegreePass):
            return self._reporter.stage("degrees", sum(edges.num_edges for edges in plan.graph.edges.values()), "edges")
        total = sum(last - first for first, last in (plan.window(each.node_type, w) for w in self._windows(each)))
        kind = f" {each.node_type}" if plan.graph.is_typed else ""
        if isinstance(each, SumPass):
            panels = len(plan.panels[each.layer])
            return self._reporter.stage(
                f"layer {each.layer + 1}: neighbours{kind}, part {each.panel + 1} of {panels}", total, "rows"
            )
        what = f"layer {each.layer + 1}: rows" if each.writes else "output"
        return self._reporter.stage(f"{what}{kind}", total, "rows")

    def _passes_done(self) -> int:
        """How many of the passes an earlier run finished. If anything that the others need is damaged: none."""
        passes, scratch = self.plan.passes, self._scratch
        done = 0
        while done < len(passes) - 1 and scratch.is_whole(_marker(done)):
            self._remove_drops(done)  # which a kill may have left
            done += 1
        for stored in self._needed(done):
            for window in self._windows_of(stored):
                if not scratch.is_whole(_file(stored, window)) and not self._is_used_up(done, stored, window):
                    scratch.clear()
                    return 0
        return done

    def _needed(self, done: int) -> list[Stored]:
        """What finished passes stored and others read."""
        written = [stored for each in self.plan.passes[:done] for stored in each.writes]
        dropped = {stored for each in self.plan.passes[:done] for stored in each.drops}
        return [stored for stored in written if stored not in dropped]

    def _is_used_up(self, number: int, stored: Stored, window: int) -> bool:
        """Whether the pass that is under way has dropped a window already, as it finished what it made of it."""
        each = self.plan.passes[number]
        return isinstance(each, RowPass) and stored in each.drops and self._is_finished(each, window)

    def _is_finished(self, each: AnyPass, window: int) -> bool:
        return bool(each.writes) and all(self._scratch.is_whole(_file(stored, window)) for stored in each.writes)

    def _windows_of(self, stored: Stored) -> Sequence[int]:
        layers = len(self.plan.network.layers)
        if self._wanted is not None and stored.name.startswith(f"{layers - 1}-sum-"):
            return self._wanted
        return range(self.plan.num_windows(stored.node_type))

    def _windows(self, each: RowPass | SumPass) -> Sequence[int]:
        layers = len(self.plan.network.layers)
        is_last = each.layer == layers if isinstance(each, RowPass) else each.layer == layers - 1
        if is_last and self._wanted is not None:
            return self._wanted
        return range(self.plan.num_windows(each.node_type))

    def _remove_drops(self, number: int) -> None:
        for stored in self.plan.passes[number].drops:
            for window in range(self.plan.num_windows(stored.node_type)):
                self._scratch.remove(_file(stored, window))

    def _run(self, each: AnyPass) -> None:
        if isinstance(each, DegreePass):
            self._count_degrees(each)
            return
        missing = [window for window in self._windows(each) if not self._is_finished(each, window)]
        with self._stage(each) as advance:
            work: Callable[[int], int]
            if isinstance(each, RowPass):
                work = partial(self._store_rows, each)
            else:
                work = partial(self._store_sums, each, self._loaded(each) if missing else {})
            advance(sum(self._num_rows(each, window) for window in self._windows(each) if window not in missing))
            for num_rows in in_order(self._pool, (partial(work, window) for window in missing), self.plan.workers - 1):
                advance(num_rows)

    def _num_rows(self, each: RowPass | SumPass, window: int) -> int:
        first, last = self.plan.window(each.node_type, window)
        return last - first

    # Rows

    @torch.no_grad()
    def _store_rows(self, each: RowPass, window: int) -> int:
        plan = self.plan
        first, last = plan.window(each.node_type, window)
        layer, panels = plan.network.layers[each.layer], plan.panels[each.layer]
        outputs = {stored.name: np.empty((last - first, stored.columns), np.float32) for stored in each.writes}
        arrays = [name for node_type, name in layer.arrays if node_type == each.node_type]
        degrees = next((self._read(s, window, np.int32)[:, 0] for s in each.reads if s.name == "degrees"), None)
        for begin, end, x in self._chunks(each, window):
            known = None if degrees is None else torch.from_numpy(degrees[begin:end])
            messages = layer.steps.messages(each.node_type, x, known)
            for name in arrays:
                columns, rows = layer.columns((each.node_type, name)), messages[name].numpy()
                for place, panel in enumerate(panels):
                    outputs[f"{each.layer}-{name}-{each.node_type}-{place}"][begin:end] = rows[:, panel.of_row(columns)]
            if (own := outputs.get(f"{each.layer}-own-{each.node_type}")) is not None:
                own[begin:end] = layer.steps.own(each.node_type, x).numpy()
        for stored in each.writes:
            self._write(stored, window, outputs[stored.name])
        for stored in each.drops:
            self._scratch.remove(_file(stored, window))
        return last - first

    @torch.no_grad()
    def _out_rows(self, each: RowPass, window: int) -> tuple[int, int, Rows]:
        first, last = self.plan.window(each.node_type, window)
        out = np.empty((last - first, self.plan.network.out_columns), np.float32)
        for begin, end, x in self._chunks(each, window):
            out[begin:end] = x.numpy()
        return first, last, out

    def _chunks(self, each: RowPass, window: int) -> Iterator[tuple[int, int, Tensor]]:
        """(first, last, rows that enter the pass's layer) of each chunk, counted from the window's first row."""
        plan = self.plan
        first, last = plan.window(each.node_type, window)
        read = [self._read(stored, window) for stored in each.reads if stored.name != "degrees"]
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
                x = before.after(steps.after(each.node_type, own, sums))
            assert x is not None
            yield begin, end, x

    def _features(self, each: RowPass, first: int, last: int) -> Callable[[int, int], Tensor] | None:
        """What gives a chunk of what the model's inputs take: features, or ids. None where the pass needs neither."""
        plan = self.plan
        graph, network = plan.graph, plan.network
        if each.layer and not network.layers[each.layer - 1].own_is_input(each.node_type, graph):
            return None
        if network.is_embedded(each.node_type):
            return lambda begin, end: torch.arange(first + begin, first + end)
        nodes = graph.nodes[each.node_type]
        file = nodes.feature_file
        assert file is not None
        rows, read_bytes = read_checked_span(file, nodes.feature_checksums, first, last)
        self._scratch.traffic.add(read=read_bytes)
        stored = file.rows.as_tensor(rows)
        return lambda begin, end: file.x(stored[begin:end]).to(torch.float32)

    # Sums

    def _loaded(self, each: SumPass) -> dict[Stored, Tensor]:
        """The panel of all sources: [N, heads, columns of each], where the rows of one head lie side by side."""
        heads = len(self.plan.panels[each.layer][each.panel].heads)
        found: dict[Stored, Tensor] = {}
        for stored in dict.fromkeys(stored for _, stored in each.sources):
            num_nodes, row_bytes = self.plan.graph.nodes[stored.node_type].num_nodes, stored.row_bytes
            buffer = row_buffer(num_nodes, row_bytes)
            calls = (partial(self._load, stored, window, buffer, heads) for window in self._windows_of(stored))
            for _ in in_order(self._pool, calls, self.plan.workers - 1):
                pass
            rows = torch.from_numpy(buffer[: num_nodes * row_bytes].view(np.float32))
            found[stored] = rows.view(heads, num_nodes, -1).transpose(0, 1)
        return found

    def _load(self, stored: Stored, window: int, buffer: npt.NDArray[np.uint8], heads: int) -> None:
        first, last = self.plan.window(stored.node_type, window)
        if heads == 1:
            num_bytes = (last - first) * stored.row_bytes
            self._scratch.read(_file(stored, window), num_bytes, buffer[first * stored.row_bytes :])
            return
        # torch would copy all rows of a head whenever it sums some of them, if they did not lie side by side.
        num_nodes = self.plan.graph.nodes[stored.node_type].num_nodes
        panel = buffer[: num_nodes * stored.row_bytes].view(np.float32).reshape(heads, num_nodes, -1)
        panel[:, first:last] = self._read(stored, window).reshape(last - first, heads, -1).swapaxes(0, 1)

    @torch.no_grad()
    def _store_sums(self, each: SumPass, loaded: Mapping[Stored, Tensor], window: int) -> int:
        plan = self.plan
        layer, panel = plan.network.layers[each.layer], plan.panels[each.layer][each.panel]
        first, last = plan.window(each.node_type, window)
        heads = len(panel.heads)
        edges = {
            edge_type: EdgeWindow(self._edges[each.layer][edge_type], first, last)
            for edge_type in layer.edge_types(each.node_type)
        }
        sources = {array: loaded[stored] for array, stored in each.sources}
        beside = {
            name: loaded[stored][first:last]
            if stored in loaded
            else torch.from_numpy(self._read(stored, window)).view(last - first, heads, -1)
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
        self._write(target, window, out)
        return last - first

    def _count_degrees(self, each: DegreePass) -> None:
        plan = self.plan
        (edges,), (stored,) = self._edges[0].values(), each.writes
        counts = torch.zeros(plan.graph.nodes[stored.node_type].num_nodes, dtype=torch.int32)
        with self._stage(each) as advance:
            for piece in edges.all_indices():
                counts.index_add_(0, torch.from_numpy(piece), torch.ones(len(piece), dtype=torch.int32))
                advance(len(piece))
        for window in range(plan.num_windows(stored.node_type)):
            first, last = plan.window(stored.node_type, window)
            self._write(stored, window, counts[first:last].numpy())

    def _write(self, stored: Stored, window: int, rows: npt.NDArray[Any]) -> None:
        if not self._scratch.is_whole(_file(stored, window)):
            self._scratch.write(_file(stored, window), rows)

    def _read(self, stored: Stored, window: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[np.float32]:
        first, last = self.plan.window(stored.node_type, window)
        return self._scratch.rows(_file(stored, window), last - first, stored.columns, dtype)


def _joined(parts: Sequence[Rows], begin: int, end: int) -> Tensor:
    """Rows of which each part has some columns."""
    if not parts:
        return torch.empty(end - begin, 0)
    return torch.cat([torch.from_numpy(part[begin:end]) for part in parts], dim=1)


def _file(stored: Stored, window: int) -> str:
    return f"{stored.name}-{window:05d}"


def _marker(number: int) -> str:
    """The file that says that a pass is finished."""
    return f"pass-{number:04d}"
