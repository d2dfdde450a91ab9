"""The passes of an `InferencePlan`, window by window, by several threads. What is finished is not made again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from diskgnn.inference.plan import AnyPass, DegreePass, InferencePlan, RowPass, Stored, SumPass
from diskgnn.inference.row_passes import RowPasses
from diskgnn.inference.scratch import Scratch
from diskgnn.inference.stored_windows import Rows, StoredWindows
from diskgnn.inference.sum_passes import SumPasses
from diskgnn.ordered import in_order
from diskgnn.progress import Advance, Reporter


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
        self._stored = StoredWindows(plan, scratch)
        self._rows, self._sums = RowPasses(plan, self._stored), SumPasses(plan, self._stored, self._pool)
        self.records: list[PassRecord] = []

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
            calls = (partial(self._rows.output, each, window) for window in self._windows(each))
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
                if not self._stored.is_whole(stored, window) and not self._is_used_up(done, stored, window):
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
        return bool(each.writes) and all(self._stored.is_whole(stored, window) for stored in each.writes)

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
                self._stored.remove(stored, window)

    def _run(self, each: AnyPass) -> None:
        if isinstance(each, DegreePass):
            with self._stage(each) as advance:
                self._sums.count_degrees(each, advance)
            return
        missing = [window for window in self._windows(each) if not self._is_finished(each, window)]
        with self._stage(each) as advance:
            work: Callable[[int], int]
            if isinstance(each, RowPass):
                work = partial(self._rows.store, each)
            else:
                work = partial(self._sums.store, each, self._sums.loaded(each) if missing else {})
            advance(sum(self._num_rows(each, window) for window in self._windows(each) if window not in missing))
            for num_rows in in_order(self._pool, (partial(work, window) for window in missing), self.plan.workers - 1):
                advance(num_rows)

    def _num_rows(self, each: RowPass | SumPass, window: int) -> int:
        first, last = self.plan.window(each.node_type, window)
        return last - first


def _marker(number: int) -> str:
    """The file that says that a pass is finished."""
    return f"pass-{number:04d}"
