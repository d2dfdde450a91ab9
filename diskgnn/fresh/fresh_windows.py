"""Minibatches of a plan by position, in windows: one is sampled and packed while the one before is read."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from diskgnn._native import KeptPages
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.fresh.window_job import WindowJob, WindowPreparer
from diskgnn.fresh.window_sizes import WindowSizes
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.tracing import TraceEvent
from diskgnn.packing.row_sets import features_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import CacheSpec
from diskgnn.system.allocators import return_freed_memory
from diskgnn.system.memory import available_cores
from diskgnn.system.resources import Resources
from diskgnn.units import whole_number


@dataclass(frozen=True)
class WindowOptions:
    """Says how windows are prepared and read; see `FreshEpochs`."""

    window: int | None = None
    overlap: bool = True
    num_epochs: int | None = None
    memory: int | str = "auto"
    threads: int | None = None
    keep_input_nodes: bool = False
    device: str | torch.device = "cpu"
    reporter: Reporter = SILENT
    loader_options: LoaderOptions | None = None
    longest: int | None = None  # minibatches of a window, unless fewer are not worth preparing


class FreshWindows:
    """Yields the train minibatches of a plan at positions that mostly follow each other. Minibatch n of epoch e is at
    position e * B + n, where an epoch has B minibatches.

    Args:
        plan: with a train split.
        folder: where to make a directory for windows; on the disk to read from.
        caches: the tiers of each window.
        options: how they are prepared.

    Raises:
        ConfigError: arguments that make no sense; the budget is too small, with the smallest that works; `folder`
            cannot be written.
    """

    def __init__(self, plan: SamplingPlan, folder: Path, caches: CacheSpec, options: WindowOptions) -> None:
        if options.num_epochs is not None:
            whole_number("num_epochs", options.num_epochs)
        if options.window is not None:
            whole_number("window", options.window)
        resources = Resources.beside(options.memory, options.threads)  # refuses now what makes no sense
        tiers = TierBudgets.of(caches, features_of(plan.graph, plan.config()), resources)
        self._preparer = WindowPreparer(
            plan, tiers, options.memory, keep_input_nodes=options.keep_input_nodes,
            computes_here=torch.device(options.device).type == "cpu",
        )  # fmt: skip
        plan.hold_out(options.reporter)
        self._kept_pages: KeptPages | None = None  # from one window to the next
        self._options, self._parent = options, folder.absolute()
        self.num_batches = plan.sizes["train"].batches_per_epoch
        end = None if options.num_epochs is None else options.num_epochs * self.num_batches
        self._sizes = WindowSizes(
            self._parent, self.num_batches, options.window, end, self._preparer.shortest_window, options.longest
        )
        self._jobs: list[WindowJob] = []  # at most the one that trains and the one after it
        self._loader: Loader | None = None  # of the first of these
        self._batches: Iterator[AnyMiniBatch] = iter(())  # its minibatches, from `_position` on
        self._position = -1
        self._earlier = LoadStats()  # of loaders that were closed, and of preparing
        self._tracing, self._events = False, list[TraceEvent]()  # as `_earlier`
        try:
            scratch = ScratchFolder(self._parent, "diskgnn-fresh-", "folder")
        except BaseException:
            self._preparer.close()
            raise
        self._scratch = scratch.path
        # Also when it is dropped without being closed, no thread and no window stays behind.
        self._clean_up = _CleanUp(self, self._jobs, scratch)
        if options.overlap:
            self._prepare(0)

    def at(self, position: int) -> AnyMiniBatch:
        """Returns the minibatch at `position`, which follows the one before but where the user jumps.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing it failed, or reading it does.
        """
        if self._loader is None or position not in self._jobs[0].window:
            self._open_window(position)
        assert self._loader is not None
        if (
            position not in (self._position, self._jobs[0].window.start)
            and self._loader.sequence.packed.config.by_reference
        ):
            self._close_loader()
            self._jobs.pop(0).discard()  # it is read from its first minibatch on; another one costs little
            self._open_window(position)
        if position != self._position:
            self._seek(position)
        self._position = -1  # unknown if what follows fails
        batch = next(self._batches)
        self._position = position + 1
        return batch

    def begin(self, position: int) -> None:
        """Begin with the window of `position`, which is asked for next, if none is read now."""
        if self._options.overlap and self._loader is None:
            self._keep_only(position)
            if not self._jobs and position != self._sizes.end:
                self._prepare(position)

    def leave(self, position: int) -> None:
        """Give up what is read: an epoch was left before the minibatch at `position`. Later epochs are prepared up to
        there, as long as nobody asks for more of one; the next one is begun with.
        """
        epoch, number = divmod(position, self.num_batches)
        self._sizes.leave(number)
        self._close_loader()
        self.begin((epoch + 1) * self.num_batches)

    def pause(self) -> None:
        """Stop reading and preparing, delete the windows, and give memory back that was kept for the next ones; what is
        asked for next is prepared anew.
        """
        self._close_loader()
        self._keep_only(-1)
        self._kept_pages = None
        return_freed_memory()

    def _seek(self, position: int) -> None:
        assert self._loader is not None
        first = position - self._jobs[0].window[0]
        self._loader.load_state_dict({**self._loader.state_dict(), "epoch": 0, "batch": first})
        self._batches = self._loader.epoch(0)

    def _keep_only(self, position: int) -> None:
        """Discard the windows that do not have it."""
        for job in [job for job in self._jobs if position not in job]:
            job.discard()
            self._jobs.remove(job)

    def _open_window(self, position: int) -> None:
        """Let `_loader` read the window of `position`, prepared by now; the one before is deleted."""
        self._close_loader()
        self._keep_only(position)
        began = time.perf_counter()
        if not self._jobs:
            self._prepare(position)
        job = self._jobs[0]
        try:
            prepared = job.finish()
        except BaseException:
            self._jobs.clear()
            job.discard()
            raise
        finally:
            waited = time.perf_counter() - began
            self._earlier += LoadStats(prepare_wait_seconds=waited, wait_seconds=waited)
        self._earlier += prepared.stats
        self._sizes.note_prepared(job.window, prepared.stats.prepare_written_bytes)
        options = self._options
        self._loader = Loader.with_options(
            prepared.packed, "train", options.device, options.loader_options or LoaderOptions(), prepared.row_files
        )
        if self._tracing:
            self._loader.start_tracing()
            self._events += prepared.events
        following = self._sizes.after(job.window)
        if options.overlap and following != self._sizes.end:
            self._prepare(following)

    def _prepare(self, position: int) -> None:
        """Begin to prepare the window that starts at `position`."""
        self._kept_pages = self._kept_pages or KeptPages(self._preparer.window_bytes)
        options, is_beside = self._options, self._loader is not None
        threads = options.threads or preparing_threads(available_cores(), beside_training=is_beside)
        folder = self._scratch / f"window-{position:08d}"
        self._jobs.append(WindowJob(position, self._sizes.window, folder, self._preparer, threads, options.reporter))

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()
            self._events += self._trace_of_loader()
            self._earlier += self._loader.stats()
        self._loader, self._batches, self._position = None, iter(()), -1

    def _trace_of_loader(self) -> list[TraceEvent]:
        """Tells what the loader's threads did; minibatches are counted in their epochs, not in the window."""
        assert self._loader is not None
        first = self._jobs[0].window.start
        return [
            event if event.minibatch < 0 else replace(event, minibatch=(first + event.minibatch) % self.num_batches)
            for event in self._loader.take_trace()
        ]

    def stats(self) -> LoadStats:
        """Returns counters since it was made: those of the loaders of all windows, and of preparing."""
        return self._earlier if self._loader is None else self._earlier + self._loader.stats()

    def start_tracing(self) -> None:
        """Keep from now on what the threads of each window's `Loader` do, and when windows were prepared."""
        self._tracing = True
        if self._loader is not None:
            self._loader.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call; see `FreshEpochs.take_trace`."""
        found, self._events = self._events, []
        return found if self._loader is None else found + self._trace_of_loader()

    def close(self) -> None:
        """Stop preparing, join all threads, delete the windows; minibatches that you hold stay valid. Idempotent."""
        self._close_loader()
        self._clean_up()
        self._preparer.close()
        self._kept_pages = None


def preparing_threads(cores: int, beside_training: bool) -> int:
    """Returns how many threads prepare a window by default: training has the other half of the cores if it goes on
    meanwhile.
    """
    return max(1, cores // 2) if beside_training else cores


class _CleanUp:
    """Stops what prepares windows, joins its threads and deletes the files: when it is called, when the program ends,
    and soon after `owner` is dropped.
    """

    def __init__(self, owner: FreshWindows, jobs: list[WindowJob], scratch: ScratchFolder) -> None:
        self._jobs, self._scratch, self._process, self._lock = jobs, scratch, os.getpid(), threading.Lock()
        # The collector may drop it in any thread, in the midst of what the threads that are joined wait for: a lock of
        # the executors', or of `threading` itself.
        self._dropped = weakref.finalize(owner, _thread.start_new_thread, self, ())
        self._dropped.atexit = False
        atexit.register(self)

    def __call__(self) -> None:
        if os.getpid() != self._process:  # a child by fork has none of the threads, and the windows are not its own
            return
        with self._lock:
            while self._jobs:
                self._jobs.pop().discard()
            self._scratch.delete()
        self._dropped.detach()
        atexit.unregister(self)
