"""The passes of an `InferencePlan` as steps whose units are windows, computed side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from diskgnn.inference.pass_schedule import AnyPass, DegreePass, InferencePlan, RowPass, SumPass
from diskgnn.inference.row_passes import RowPasses
from diskgnn.inference.stored_windows import Rows, StoredWindows, Traffic, window_files
from diskgnn.inference.sum_passes import SumPasses
from diskgnn.ordered import as_finished, in_order
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.work_folder import WorkFolder

Unit = TypeVar("Unit")
Units = Generator[tuple[Unit, UnitFiles], None, None]


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
        folder: where rows are kept between passes.
        wanted: windows of the last sums that anybody needs; None: all.
        reporter: told of every window.
    """

    def __init__(
        self, plan: InferencePlan, folder: WorkFolder, wanted: Sequence[int] | None, reporter: Reporter
    ) -> None:
        self.plan, self._wanted, self._reporter = plan, wanted, reporter
        self.traffic = Traffic()
        self._work = Work(folder, "infer")
        self._pool = ThreadPoolExecutor(plan.workers)
        stored = StoredWindows(plan, folder, self.traffic)
        self._rows, self._sums = RowPasses(plan, stored), SumPasses(plan, stored, self._pool)
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

    def run(self, write: Callable[[Iterator[tuple[int, int, Rows]]], None]) -> None:
        """Carries out all passes. `write` gets (first, last, rows) of the windows that are wanted, in order; it is
        called again, and begins anew, if what a pass has stored for the last one turns out to be damaged.

        Raises:
            ArtifactError: a file of the graph is damaged, or the disk does not keep what is written.
            OSError: a file cannot be read or written.
        """

        def passes(work: Work) -> None:
            self._store(work)
            write(self._output_windows())

        self._work.run(passes)

    def _store(self, work: Work) -> None:
        for each in self.plan.passes[:-1]:
            with self._recorded(each), self._stage(each) as advance:
                if isinstance(each, DegreePass):
                    self._count_degrees(work, each, advance)
                elif isinstance(each, RowPass):
                    self._store_rows(work, each, advance)
                else:
                    self._store_sums(work, each, advance)

    def _count_degrees(self, work: Work, each: DegreePass, advance: Advance) -> None:
        (stored,) = each.writes
        files = window_files(each.writes, range(self.plan.num_windows(stored.node_type)))

        def run(missing: Iterator[DegreePass]) -> Units[DegreePass]:
            for unit in missing:
                yield unit, self._sums.count_degrees(unit, advance)

        work.map([each], run, files=lambda _: files)

    def _store_rows(self, work: Work, each: RowPass, advance: Advance) -> None:
        self._map(
            work, each, advance, lambda missing: (partial(self._rows.store, each, window) for window in missing),
            consumes=lambda window: window_files(each.drops, [window]),
        )  # fmt: skip

    def _store_sums(self, work: Work, each: SumPass, advance: Advance) -> None:
        def calls(missing: Iterator[int]) -> Iterator[Callable[[], tuple[int, UnitFiles]]]:
            loaded = None  # all windows share it
            for window in missing:
                loaded = self._sums.loaded(each) if loaded is None else loaded
                yield partial(self._sums.store, each, loaded, window)

        dropped = [
            file for stored in each.drops
            for file in window_files([stored], range(self.plan.num_windows(stored.node_type)))
        ]  # fmt: skip
        self._map(work, each, advance, calls, consumes_at_end=dropped)

    def _map(
        self,
        work: Work,
        each: RowPass | SumPass,
        advance: Advance,
        calls: Callable[[Iterator[int]], Iterator[Callable[[], tuple[int, UnitFiles]]]],
        *,
        consumes: Callable[[int], Collection[str]] = lambda _: (),
        consumes_at_end: Collection[str] = (),
    ) -> None:
        def run(missing: Iterator[int]) -> Units[int]:
            for window, files in as_finished(self._pool, calls(missing), self.plan.workers - 1):
                yield window, files
                advance(self._num_rows(each, window))

        work.map(
            self._windows(each), run, files=lambda window: window_files(each.writes, [window]), consumes=consumes,
            consumes_at_end=consumes_at_end, adopted=lambda window: advance(self._num_rows(each, window)),
        )  # fmt: skip

    def _output_windows(self) -> Iterator[tuple[int, int, Rows]]:
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
        traffic, started = self.traffic, time.perf_counter()
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

    def _windows(self, each: RowPass | SumPass) -> Sequence[int]:
        layers = len(self.plan.network.layers)
        is_last = each.layer == layers if isinstance(each, RowPass) else each.layer == layers - 1
        if is_last and self._wanted is not None:
            return self._wanted
        return range(self.plan.num_windows(each.node_type))

    def _num_rows(self, each: RowPass | SumPass, window: int) -> int:
        first, last = self.plan.window(each.node_type, window)
        return last - first
