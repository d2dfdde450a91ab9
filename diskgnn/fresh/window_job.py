"""One window of fresh minibatches on its way to the disk: sampled and packed in a thread, and stopped if unwanted."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diskgnn._native import RowFile
from diskgnn.batches.batch_source import LoadStats
from diskgnn.files import faults
from diskgnn.files.row_reading import GAP_BYTES
from diskgnn.formats.samples import Samples
from diskgnn.fresh.rows_in_place import row_files, stay_in_the_graph
from diskgnn.loading.tracing import TraceEvent
from diskgnn.packing.pack import pack_request
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.packing_need import labels_bytes, packing_need
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.tiers import TierBudgets
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.sampling.fanout_sizes import most_minibatch_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import Sampler
from diskgnn.sampling.sample import sample_plan
from diskgnn.sampling.sampling_need import loads_topology, sampling_need
from diskgnn.sampling.window_plan import WindowPlan
from diskgnn.system.resources import Need, Resources

_SHARDS_PER_THREAD = 2
# Gaps between rows are read along. A window is worth packing if the stretches of that size that it has rows in are at
# most so many times these rows. With more, it has trained before the next one is prepared, and is waited for again.
_MOST_READ_PER_NEED = 4
# Each window is twice as long as the one before. Where rows stay in the graph, windows of any length are worth
# preparing, and each begins with an empty cache: so the first is a part of an epoch, and the next the rest. Preparing
# some tens of minibatches takes no longer than reading one or two of them: an epoch of so many is one window.
_GROWTH = 2
_IN_PLACE_PART, _LEAST_IN_PLACE = 8, 32
# The shortest window where the topology is swept, which the rows are not known for: a part of an epoch, and at most so
# many minibatches. Sweeps and the scan of the features take nearly as long for one minibatch as for these, and the more
# of them train, the less is waited for the next window.
_SWEPT_PART, _MOST_SWEPT = 2, 32


class WindowPreparer:
    """Samples and packs windows of a plan, one at a time.

    Labels, and topology that fits the budget beside what packing takes, are loaded once and kept; threads begin with
    that at once.

    Raises:
        ConfigError: the budget is too small; names the smallest that works.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        tiers: TierBudgets,
        memory: int | str,
        *,
        keep_input_nodes: bool,
        computes_here: bool = True,
    ) -> None:
        """`computes_here` says that the model computes on the processor that prepares."""
        self.plan, self._tiers, self._memory, self._keep_input_nodes = plan, tiers, memory, keep_input_nodes
        self._computes_here = computes_here
        target, num_seeds = plan.target, plan.batch_seeds("train") * plan.sizes["train"].batches_per_epoch
        # Of the budget: what is kept from window to window.
        kept_bytes = labels_bytes(plan.graph, target, num_seeds) + plan.held_out_bytes
        self._kept_bytes = faults.reading("memory.overhead", kept_bytes)
        resources = Resources.beside(memory).less(self._kept_bytes)
        beside_topology, packing = resources.less(plan.sampler_bytes), self._packing_need()
        loads = loads_topology(plan, resources) and beside_topology.has_room(packing)
        if not loads:
            resources.require_each(sampling_need(plan, resources), packing)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="diskgnn-fresh-reading")
        self._labels = self._pool.submit(SplitLabels.of, plan.graph, target, "train")
        self._loading: Future[Sampler] | None = None  # the topology, if it is not swept
        self._untold_bytes = 0  # of topology that was loaded
        self._stay: dict[int, bool] = {}  # whether rows are read where they are, by the length of the window
        self._verified = False  # topology that is swept; once is enough, as where it is loaded
        if loads:
            self._loading, self._untold_bytes = self._pool.submit(plan.load_sampler), plan.sampler_bytes
            self._kept_bytes += plan.sampler_bytes
            resources = beside_topology
        self.window_bytes = resources.divided(1)  # for one after another
        self._pool.shutdown(wait=False)  # the threads end when they are done

    def _packing_need(self) -> Need:
        """Returns what packing any window takes."""
        config, minibatch_bytes = self.plan.config(), most_minibatch_bytes(self.plan)
        return packing_need(self.plan.graph, config, config.spec.target, minibatch_bytes, labels_are_held=True)

    def _resources(self, threads: int, reporter: Reporter) -> Resources:
        """Returns the resources beside what is kept, which is not among what is available any more."""
        resources = Resources.beside(self._memory, threads, reporter)
        return resources if self._memory == "auto" else resources.less(self._kept_bytes)

    def _sampler(self) -> Sampler | None:
        """Draws from topology in memory, once that is there; None where it is swept."""
        return None if self._loading is None else self._loading.result()

    def close(self) -> None:
        """Join the threads. Idempotent."""
        self._pool.shutdown()

    def _rows_stay(self, window: range) -> bool:
        """Decides if rows are read where they are; of swept topology, minibatches are not known before.

        Minibatches are alike: a window is as any other of its length.
        """
        if (sampler := self._sampler()) is None:
            return False
        if len(window) not in self._stay:
            minibatch = next(iter(WindowPlan(self.plan, window).planned())).draw(sampler)
            row_sets = row_sets_of(self.plan.graph, self.plan.config())
            self._stay[len(window)] = stay_in_the_graph(
                row_sets, minibatch, len(window), computes_here=self._computes_here
            )
        return self._stay[len(window)]

    def shortest_window(self, window: range) -> tuple[int, int]:
        """Returns how many minibatches, the first ones of `window`, are worth preparing by themselves: at least 1. And
        how many times as long as the window before one may be.
        """
        if self._rows_stay(window):
            return max(-(-len(window) // _IN_PLACE_PART), min(len(window), _LEAST_IN_PLACE)), _IN_PLACE_PART
        return self._shortest_packed(window), _GROWTH

    def _shortest_packed(self, window: range) -> int:
        graph = self.plan.graph
        if (sampler := self._sampler()) is None:
            return min(-(-self.plan.sizes["train"].batches_per_epoch // _SWEPT_PART), _MOST_SWEPT)
        row_sets = row_sets_of(graph, self.plan.config())
        stretches = [np.zeros(-(-each.features.num_bytes // GAP_BYTES), np.bool_) for each in row_sets]
        needed_bytes = 0
        for number, planned in enumerate(WindowPlan(self.plan, window).planned(), 1):
            minibatch = planned.draw(sampler)
            for row_set, is_needed in zip(row_sets, stretches, strict=True):
                rows = row_set.needed(minibatch).astype(np.int64)
                is_needed[rows * row_set.row_bytes // GAP_BYTES] = True
                needed_bytes += len(rows) * row_set.row_bytes
            read_bytes = GAP_BYTES * sum(map(np.count_nonzero, stretches))
            if read_bytes <= _MOST_READ_PER_NEED * needed_bytes:
                return number
        return len(window)

    def prepare(self, window: range, folder: Path, threads: int, reporter: Reporter) -> PreparedWindow:
        """Sample and pack the minibatches at the positions of `window` into `folder`/packed."""
        graph, by_reference = self.plan.graph, self._rows_stay(window)
        resources = self._resources(threads, reporter)
        samples, began_ns = folder / "samples", time.perf_counter_ns()
        sampled = sample_plan(
            WindowPlan(self.plan, window), samples, resources,
            shard_minibatches=-(-len(window) // (_SHARDS_PER_THREAD * threads)),
            sampler=self._sampler(), verify=not self._verified, once=True,
        )  # fmt: skip
        self._verified = True
        loaded_bytes, self._untold_bytes = self._untold_bytes, 0
        between_ns = time.perf_counter_ns()
        faults.point("fresh_epochs.pack")
        request = PackRequest(
            graph, Samples.open(samples), self._tiers,
            keep_input_nodes=self._keep_input_nodes, once=True, by_reference=by_reference,
            labels=lambda _: self._labels.result(),
        )  # fmt: skip
        packed = pack_request(request, folder / "packed", resources)
        shutil.rmtree(samples)
        stats = LoadStats(
            prepared_batches=len(window),
            prepare_seconds=sampled.seconds + packed.seconds,
            prepare_read_bytes=loaded_bytes + sampled.read_bytes + packed.read_bytes,
            prepare_written_bytes=sampled.written_bytes + packed.written_bytes,
        )
        events = (
            TraceEvent("prepare", "sample the next window", -1, began_ns, between_ns),
            TraceEvent("prepare", "pack the next window", -1, between_ns, time.perf_counter_ns()),
        )
        files = row_files(row_sets_of(graph, self.plan.config())) if by_reference else ()
        return PreparedWindow(folder / "packed", stats, events, files)


@dataclass(frozen=True)
class PreparedWindow:
    """Names a window on the disk, and what preparing it took."""

    packed: Path
    stats: LoadStats
    events: tuple[TraceEvent, ...]
    row_files: tuple[RowFile, ...]  # [K] that rows stay in; none where they are packed


class _StoppedError(Exception):
    """Preparing was given up because nobody wants the window any more."""


@dataclass(frozen=True)
class _StoppableReporter:
    """Passes progress on, and raises at the next step once `stopped` is set: how a stage is interrupted."""

    reporter: Reporter
    stopped: threading.Event

    def stage(self, description: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        @contextmanager
        def stage() -> Iterator[Advance]:
            with self.reporter.stage(description, total, unit) as advance:
                yield lambda count: self._advance(advance, count)

        return stage()

    def _advance(self, advance: Advance, count: int) -> None:
        if self.stopped.is_set():
            raise _StoppedError
        advance(count)


class WindowJob:
    """Prepares the window that begins at a position, in a thread. What fails or is stopped leaves no files."""

    def __init__(
        self,
        first: int,
        choose: Callable[[int], range],
        folder: Path,
        preparer: WindowPreparer,
        threads: int,
        reporter: Reporter,
    ) -> None:
        """`choose` says how long the window is: in the thread, as it may have to wait for the topology."""
        self._first, self._choose, self._folder = first, choose, folder
        self._preparer, self._threads = preparer, threads
        self._window, self._chosen = range(first, first), threading.Event()
        self._prepared: PreparedWindow | None = None
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        # A daemon: at the interpreter's end it is stopped, not awaited.
        self._thread = threading.Thread(target=self._run, args=(reporter,), name="diskgnn-fresh-window", daemon=True)
        self._thread.start()

    @property
    def window(self) -> range:
        """Returns the positions of its minibatches, once they are chosen; none if that failed."""
        self._chosen.wait()
        return self._window

    def __contains__(self, position: int) -> bool:
        return position == self._first or position in self.window

    def _run(self, reporter: Reporter) -> None:
        try:
            try:
                self._window = self._choose(self._first)
            finally:
                self._chosen.set()
            reporter = _StoppableReporter(reporter, self._stopped)
            self._prepared = self._preparer.prepare(self._window, self._folder, self._threads, reporter)
        except BaseException as error:
            # Nobody waits for what was stopped, and a traceback kept would keep the packer's threads.
            self._failure = None if isinstance(error, _StoppedError) else error
            shutil.rmtree(self._folder, ignore_errors=True)

    def finish(self) -> PreparedWindow:
        """Wait until it is prepared.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing failed.
        """
        while self._thread.is_alive():
            self._thread.join(0.1)  # now and then, so that Ctrl-C is heard
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # or this frame and its traceback would keep each other
        assert self._prepared is not None
        return self._prepared

    def discard(self) -> None:
        """Stop it, join its thread, delete its files."""
        self._stopped.set()
        self._thread.join()
        self._failure = None
        shutil.rmtree(self._folder, ignore_errors=True)
