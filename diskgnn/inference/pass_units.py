"""Units of passes: windows, each of which follows from the plan, its number and the files of passes before.

So whoever has the plan and sees the files can make it: a thread, or another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import torch

from diskgnn.engines.work_units import MadeUnit
from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.files.disk_space import file_bytes
from diskgnn.files.traffic import Traffic
from diskgnn.inference.pass_schedule import DegreePass, InferencePlan, RowPass, SumPass
from diskgnn.inference.row_passes import RowPasses
from diskgnn.inference.stored_windows import StoredFiles, StoredWindows, window_files
from diskgnn.inference.sum_passes import SumPasses
from diskgnn.ordered import as_finished
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources
from diskgnn.work.runner import UnitFiles


@dataclass(frozen=True)
class WindowUnit:
    """A window of all that a pass writes, or all windows of a `DegreePass`; see `engines.work_units.Unit`."""

    number: int  # of the pass
    window: int
    files: tuple[str, ...]
    amount: int  # rows; edges of a `DegreePass`
    disk_share: int  # bytes of its files, in whole pages


@dataclass(frozen=True)
class PassesMade:
    """From what windows are made. Picklable."""

    plan: InferencePlan
    stored: StoredFiles  # of passes before
    instructions: str  # that torch computes with: others round differently


def instructions() -> str:
    """Returns the name of the processor's instructions that torch computes with here, such as 'AVX2'."""
    return str(torch.backends.cpu.get_cpu_capability())


def units_of(plan: InferencePlan, number: int, wanted: Sequence[int] | None) -> list[WindowUnit]:
    """Returns the units of a pass but the last one, in the order of their rows.

    Args:
        plan: has the pass.
        number: of the pass.
        wanted: windows of the last layer's sums that anybody needs; None: all.
    """
    each = plan.passes[number]
    if isinstance(each, DegreePass):
        (stored,) = each.writes
        windows = range(plan.num_windows(stored.node_type))
        files, num_edges = window_files([stored], windows), sum(edges.num_edges for edges in plan.graph.edges.values())
        return [WindowUnit(number, 0, tuple(files), num_edges, _disk_bytes(plan, each, windows))]
    found = []
    for window in plan.windows(each, wanted):
        first, last = plan.window(each.node_type, window)
        files = window_files(each.writes, [window])
        found.append(WindowUnit(number, window, tuple(files), last - first, _disk_bytes(plan, each, [window])))
    return found


def _disk_bytes(plan: InferencePlan, each: DegreePass | RowPass | SumPass, windows: Iterable[int]) -> int:
    """Returns what the files of windows take of the disk."""
    spans = [(stored.row_bytes, *plan.window(stored.node_type, window)) for window in windows for stored in each.writes]
    return sum(file_bytes((last - first) * row_bytes) for row_bytes, first, last in spans)


def make_windows(
    given: PassesMade, units: Iterator[WindowUnit], folder: Path, resources: Resources, advance: Advance
) -> Generator[MadeUnit[WindowUnit], None, Traffic]:
    """Makes the files of `units` in `folder`, yields each, and returns what was read and written; see
    `engines.work_units.Make`.

    Windows of one pass are computed side by side. What they share, a panel, is loaded when the first one is asked for.

    Raises:
        ConfigError: torch computes with other instructions here than where the command runs.
        DamagedStepError: a file of passes before is not what was written.
    """
    if (found := instructions()) != given.instructions:
        raise ConfigError(
            f"engine: torch computes with {found} on a worker, and with {given.instructions} where the command runs: "
            f"the bytes would differ. Set ATEN_CPU_CAPABILITY to the lesser of both on all nodes, or leave those out"
        )
    plan, traffic = given.plan, Traffic()
    stored = StoredWindows(plan, given.stored, traffic, made=folder, disk=resources.disk)
    with windows_side_by_side(plan) as pool:
        for number, same_pass in groupby(units, lambda unit: unit.number):
            each = plan.passes[number]
            if isinstance(each, DegreePass):
                for unit in same_pass:
                    yield MadeUnit(unit, SumPasses(plan, 0, stored, pool).count_degrees(each, advance))
                continue
            # What windows share goes with `_calls`, before the next pass loads something else.
            for made in as_finished(pool, _calls(plan, each, same_pass, stored, pool), plan.workers - 1):
                yield made
                advance(made.unit.amount)
    return traffic


@contextmanager
def windows_side_by_side(plan: InferencePlan) -> Iterator[ThreadPoolExecutor]:
    """Yields threads that compute windows, of which torch has only one each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(plan.workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _calls(
    plan: InferencePlan,
    each: RowPass | SumPass,
    units: Iterator[WindowUnit],
    stored: StoredWindows,
    pool: ThreadPoolExecutor,
) -> Iterator[Callable[[], MadeUnit[WindowUnit]]]:
    if isinstance(each, RowPass):
        store: Callable[[int], UnitFiles] = partial(RowPasses(plan, stored).store, each)
    else:
        sums = SumPasses(plan, each.layer, stored, pool)
        store = partial(sums.store, each, sums.loaded(each))
    yield from (partial(_make, store, unit) for unit in units)


def _make(store: Callable[[int], UnitFiles], unit: WindowUnit) -> MadeUnit[WindowUnit]:
    faults.point("infer.window")
    return MadeUnit(unit, store(unit.window))
