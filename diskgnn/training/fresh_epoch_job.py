"""One fresh epoch on its way to the disk: sampled and packed, here and now or in a thread, and stopped if unwanted."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from diskgnn.batch_source import LoadStats
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack_samples
from diskgnn.packing.row_sets import features_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.progress import Advance, Reporter
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_plan
from diskgnn.specs import CacheSpec, SamplingSpec
from diskgnn.storage import faults
from diskgnn.storage.samples import Samples
from diskgnn.system.resources import Resources
from diskgnn.tracing import TraceEvent


@dataclass(frozen=True)
class EpochRecipe:
    """How every fresh epoch is prepared."""

    graph: Path
    sampling: SamplingSpec  # of one epoch of the train split
    cache: CacheSpec
    memory: int | str  # budget
    threads: int
    keep_input_nodes: bool

    def prepare(self, epoch: int, folder: Path, reporter: Reporter) -> PreparedEpoch:
        """Sample and pack `epoch` into `folder`/packed."""
        graph = Graph.open(self.graph)  # anew: memory maps of its own, read in another order than the caller's
        resources = Resources.of(self.memory, self.threads, reporter)
        samples = folder / "samples"
        began_ns = time.perf_counter_ns()
        sampled = sample_plan(SamplingPlan(graph, replace(self.sampling, first_epoch=epoch)), samples, resources)
        between_ns = time.perf_counter_ns()
        faults.point("fresh_epochs.pack")
        sampled_epoch = Samples.open(samples)
        tiers = TierBudgets.of(self.cache, features_of(graph, sampled_epoch.config), resources.memory_bytes)
        packed = pack_samples(
            graph, sampled_epoch, folder / "packed", tiers, resources, keep_input_nodes=self.keep_input_nodes
        )
        shutil.rmtree(samples)
        stats = LoadStats(
            prepared_epochs=1,
            prepare_seconds=sampled.seconds + packed.seconds,
            prepare_read_bytes=sampled.read_bytes + packed.read_bytes,
            prepare_written_bytes=sampled.written_bytes + packed.written_bytes,
        )
        events = (
            TraceEvent("prepare", "sample the next epoch", -1, began_ns, between_ns),
            TraceEvent("prepare", "pack the next epoch", -1, between_ns, time.perf_counter_ns()),
        )
        return PreparedEpoch(folder / "packed", stats, events)


@dataclass(frozen=True)
class PreparedEpoch:
    """An epoch on the disk, and what preparing it took."""

    packed: Path
    stats: LoadStats
    events: tuple[TraceEvent, ...]


class _StoppedError(Exception):
    """Preparing was given up because nobody wants the epoch any more."""


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


class FreshEpochJob:
    """Prepares one epoch in `folder`. What fails or is stopped leaves nothing there."""

    def __init__(self, epoch: int, folder: Path, recipe: EpochRecipe) -> None:
        self.epoch = epoch
        self._folder, self._recipe = folder, recipe
        self._prepared: PreparedEpoch | None = None
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, reporter: Reporter) -> None:
        """Prepare here and now; `finish` raises what goes wrong."""
        try:
            reporter = _StoppableReporter(reporter, self._stopped)
            self._prepared = self._recipe.prepare(self.epoch, self._folder, reporter)
        except BaseException as error:
            # Nobody waits for what was stopped, and a traceback kept would keep the packer's threads.
            self._failure = None if isinstance(error, _StoppedError) else error
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, reporter: Reporter) -> None:
        """Prepare in a thread. A daemon: at the interpreter's end it is stopped, not awaited."""
        self._thread = threading.Thread(target=self.run, args=(reporter,), name="diskgnn-fresh-epoch", daemon=True)
        self._thread.start()

    def finish(self) -> PreparedEpoch:
        """Wait until it is prepared.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing failed.
        """
        while self._thread is not None and self._thread.is_alive():
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
        if self._thread is not None:
            self._thread.join()
        self._failure = None
        shutil.rmtree(self._folder, ignore_errors=True)
