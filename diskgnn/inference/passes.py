"""The passes of an `InferencePlan` as steps of a stage, whose units an engine makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from diskgnn.engines.engine import Engine
from diskgnn.engines.sent import Sent
from diskgnn.files.traffic import Traffic
from diskgnn.inference.pass_schedule import AnyPass, DegreePass, InferencePlan, RowPass, SumPass, reads_of
from diskgnn.inference.pass_units import (
    PassesMade,
    WindowUnit,
    instructions,
    make_windows,
    units_of,
    windows_side_by_side,
)
from diskgnn.inference.row_passes import RowPasses
from diskgnn.inference.stored_windows import Rows, StoredFiles, StoredWindows, window_files
from diskgnn.ordered import in_order
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.work_folder import WorkFolder

_TASKS_PER_WORKER = 4  # of passes whose windows share nothing, so that workers end at nearly the same time


@dataclass(frozen=True)
class PassRecord:
    """Counts what one pass did, or several that were made side by side."""

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
        engine: makes all but the output.
        resources: of each of its processes; the reporter is told of every window.
    """

    def __init__(
        self,
        plan: InferencePlan,
        folder: WorkFolder,
        wanted: Sequence[int] | None,
        engine: Engine,
        resources: Resources,
    ) -> None:
        self.plan, self._folder, self._wanted = plan, folder, wanted
        self._engine, self._resources = engine, replace(resources, disk=folder.disk)
        self._work = Work(folder, "infer")
        self.traffic, self.records = Traffic(), list[PassRecord]()

    def run(self, write: Callable[[Iterator[tuple[int, int, Rows]]], None]) -> None:
        """Carries out all passes. `write` gets (first, last, rows) of the windows that are wanted, in order; it is
        called again, and begins anew, if what a pass has stored for the last one turns out to be damaged.

        Raises:
            ArtifactError: a file of the graph is damaged, or the disk does not keep what is written.
            OSError: a file cannot be read or written.
            ConfigError: the model cannot be sent to where the engine makes units.
        """

        def passes(work: Work) -> None:
            for step in self.plan.steps:
                with self._record(step), self._stage(step) as advance:
                    self._store(work, step, advance)
            with closing(self._output_windows()) as windows:
                write(windows)

        self._work.run(passes)

    def _store(self, work: Work, step: range, advance: Advance) -> None:
        plan, passes = self.plan, [self.plan.passes[number] for number in step]
        units = [unit for number in step for unit in units_of(plan, number, self._wanted)]
        num_tasks = self._engine.num_workers(self._resources)
        if isinstance(passes[0], RowPass):
            num_tasks *= _TASKS_PER_WORKER

        def run(missing: Iterator[WindowUnit]) -> Generator[tuple[WindowUnit, UnitFiles], None, None]:
            sent = send_model(self._engine, PassesMade(plan, self._stored_for(passes), instructions()))
            making = self._engine.made(
                make_windows, sent, self._folder, missing, self._resources, advance, max(1, num_tasks)
            )
            while True:
                try:
                    made = next(making)
                except StopIteration as ended:
                    for traffic in ended.value:
                        self.traffic += traffic
                    return
                yield made.unit, made.checksums

        dropped = [stored for each in passes for stored in each.drops]
        consumed: Collection[str] = [
            file for stored in dropped for file in window_files([stored], range(plan.num_windows(stored.node_type)))
        ]
        drops_at_once = self._engine.is_here and isinstance(passes[0], RowPass)  # elsewhere it may be read once more
        work.map(
            units, run, files=lambda unit: unit.files,
            consumes=lambda unit: window_files(dropped, [unit.window]) if drops_at_once else (),
            consumes_at_end=() if drops_at_once else consumed,
            adopted=lambda unit: advance(unit.amount),
        )  # fmt: skip

    def _stored_for(self, passes: Sequence[AnyPass]) -> StoredFiles:
        """Returns what passes before have stored for these. What was dropped is only asked for by units that are
        finished."""
        plan = self.plan
        names = [
            name for stored in dict.fromkeys(stored for each in passes for stored in reads_of(each))
            for name in window_files([stored], range(plan.num_windows(stored.node_type)))
        ]  # fmt: skip
        return StoredFiles(self._folder.staging, self._folder.checksums(names))

    def _output_windows(self) -> Generator[tuple[int, int, Rows], None, None]:
        plan = self.plan
        each = plan.passes[-1]
        assert isinstance(each, RowPass)
        number = len(plan.passes) - 1
        rows = RowPasses(plan, StoredWindows(plan, self._stored_for([each]), self.traffic))
        calls = (partial(rows.output, each, window) for window in plan.windows(each, self._wanted))
        with (
            self._record(range(number, number + 1)),
            self._stage(range(number, number + 1)) as advance,
            windows_side_by_side(plan) as pool,
        ):
            for found in in_order(pool, calls, plan.workers - 1):
                yield found
                advance(found[1] - found[0])

    @contextmanager
    def _record(self, step: range) -> Iterator[None]:
        traffic, started = self.traffic, time.perf_counter()
        before = traffic.read_bytes, traffic.written_bytes
        yield
        each = self.plan.passes[step[0]]
        what = {RowPass: "rows", SumPass: "sums", DegreePass: "degrees"}[type(each)]
        layer = 0 if isinstance(each, DegreePass) else each.layer
        seconds = time.perf_counter() - started
        self.records.append(
            PassRecord(layer, what, seconds, traffic.read_bytes - before[0], traffic.written_bytes - before[1])
        )

    def _stage(self, step: range) -> AbstractContextManager[Advance]:
        passes = [each for number in step if not isinstance(each := self.plan.passes[number], DegreePass)]
        if not passes:
            edges = self.plan.graph.edges.values()
            return self._resources.reporter.stage("degrees", sum(each.num_edges for each in edges), "edges")
        windows = ((each, window) for each in passes for window in self.plan.windows(each, self._wanted))
        bounds = (self.plan.window(each.node_type, window) for each, window in windows)
        num_rows = sum(last - first for first, last in bounds)
        return self._resources.reporter.stage(self._stage_name(passes), num_rows, "rows")

    def _stage_name(self, passes: Sequence[RowPass | SumPass]) -> str:
        each = passes[0]
        types = ", ".join(dict.fromkeys(found.node_type for found in passes))
        kind = f" {types}" if self.plan.graph.is_typed else ""
        if isinstance(each, RowPass):
            return f"{f'layer {each.layer + 1}: rows' if each.writes else 'output'}{kind}"
        panels = dict.fromkeys(found.panel + 1 for found in passes if isinstance(found, SumPass))
        of = len(self.plan.panels[each.layer])
        parts = f"part {each.panel + 1} of {of}" if len(panels) == 1 else f"all {of} parts"
        return f"layer {each.layer + 1}: neighbours{kind}, {parts}"


def send_model(engine: Engine, value: object) -> Sent:
    """Sends a network, or what has one, to the processes of an engine.

    Raises:
        ConfigError: the model cannot be sent.
    """
    return engine.send(
        value, "model: expected a module that can be pickled",
        "take out what holds a lock, a file or a connection, or use the engine 'local'", ["torch"],
    )  # fmt: skip
