"""Training without reusing a sampled minibatch: the next ones are sampled and packed while these ones train."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diskgnn._native import KeptPages
from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.files.scratch_folders import ScratchFolder
from diskgnn.formats.samples_config import drawing_to_json, spec_to_json
from diskgnn.fresh.window_job import WindowJob, WindowPreparer
from diskgnn.fresh.window_sizes import WindowSizes
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import minibatch_schema
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.tracing import TraceEvent
from diskgnn.packing.row_sets import features_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import DrawingOptions, SamplingSpec
from diskgnn.stores.locations import local
from diskgnn.system.memory import available_cores
from diskgnn.system.resources import Resources
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FreshEpochs(CursorSource):
    """Yields minibatches of the train split, and never trains on the same sampled one twice: a `BatchSource`.

    Epoch e has the minibatches that sampling online from the same seed would have, those of
    `baselines.in_memory.InMemory`. They are read as prepared ones are: packed in order, with a Belady cache. That is
    done for a window of consecutive minibatches at a time. The first one is begun with when the source is made, so that
    it gets ready while you make a model. While one window trains, the next one is sampled, placed and packed beside it,
    also across epochs. Then the first one is deleted, so no more than two windows are on the disk. Where packing costs
    more than it saves, a window has no rows, and these are read from the graph.
    Windows lie in a directory of their own under `folder`, which is deleted when the source is closed. What a killed
    process left there is deleted by the next one.

    Example:
        >>> with FreshEpochs("graph", "scratch", fanouts=[10, 10], batch_size=1024, cpu_cache="10%") as source:
        ...     diskgnn.train(source, epochs=10)
    """

    @takes_options(DrawingOptions, SamplingSpec)
    def __init__(
        self,
        graph: PathLike | Graph,
        folder: PathLike,
        *,
        cpu_cache: int | str = DEFAULT_CPU_CACHE,
        static_cache: int | str = 0,
        window: int | None = None,
        overlap: bool = True,
        num_epochs: int | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        keep_input_nodes: bool = False,
        device: str | torch.device = "cpu",
        reporter: Reporter = SILENT,
        loader_options: LoaderOptions | None = None,
        **drawing: Unpack[DrawingOptions],
    ) -> None:
        """Open the graph, and begin with the first window unless `overlap` is False.

        Args:
            graph: graph directory, or an opened one.
            folder: where to make that directory; on the disk to read from.
            cpu_cache: the cpu tier, as `prepare` takes it.
            static_cache: the static tiers, as `prepare` takes them; none by default.
            window: minibatches in a window. By default the first ones are small, so that training starts soon, and each
                is larger than the one before, up to an epoch, or what the free disk space holds.
            overlap: prepare the first window at once, and the next one while one trains; otherwise each is prepared
                when it is asked for.
            num_epochs: how many there are: nothing is prepared after them, and asking for more is an error. None means
                no end.
            memory: budget of preparing, which comes on top of training's while they overlap. Labels, and topology that
                fits beside them and what packing takes, are loaded once, stay, and count.
            threads: of preparing; half of the cores by default while a window trains, otherwise all.
            keep_input_nodes: yield each minibatch's node ids, too.
            device: where the minibatches' tensors are wanted.
            reporter: told about preparing, from another thread.
            loader_options: of the `Loader` of each window.
            drawing: `fanouts`, `batch_size` and what else `SamplingSpec` says of how minibatches are drawn, as `sample`
                takes it.

        Raises:
            ConfigError, InputError: arguments that make no sense, see `sample`; `memory` is too small, with the
                smallest that works; `folder` cannot be written.
        """
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        spec = SamplingSpec.of(("train",), **drawing)
        plan = SamplingPlan(graph, spec)
        graph = plan.graph
        plan.warn()
        if num_epochs is not None:
            whole_number("num_epochs", num_epochs)
        if window is not None:
            whole_number("window", window)
        resources = Resources.beside(memory, threads)  # refuses now what makes no sense
        tiers = TierBudgets.of(CacheSpec(cpu_cache, static_cache), features_of(graph, plan.config()), resources)
        self._preparer = WindowPreparer(
            plan, tiers, memory, keep_input_nodes=keep_input_nodes, computes_here=torch.device(device).type == "cpu"
        )
        plan.hold_out(reporter)
        self._kept_pages: KeptPages | None = KeptPages(self._preparer.window_bytes)  # from one window to the next
        spec = plan.config().spec  # whose target names its type
        drawn = {name: value for name, value in spec_to_json(spec).items()
                 if name not in ("eval_fanouts", "first_epoch")}  # fmt: skip
        identity = {"graph": graph.manifest.digest, **drawn}
        super().__init__(Cursor("FreshEpochs", plan.sizes["train"].batches_per_epoch, identity))
        self._graph, self.schema = graph, minibatch_schema(graph, spec)
        self.num_layers, self.sampling = spec.num_layers, drawing_to_json(spec)
        self._device, self._loader_options = device, loader_options or LoaderOptions()
        self._overlap, self._threads, self._reporter = overlap, threads, reporter
        self._parent = local(folder, "FreshEpochs").absolute()
        self.max_epochs = num_epochs
        end = None if num_epochs is None else num_epochs * self.num_batches
        self._sizes = WindowSizes(self._parent, self.num_batches, window, end, self._preparer.shortest_window)
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
        # Also when the source is dropped without being closed, no thread and no window stays behind.
        self._finalizer = weakref.finalize(self, _clean_up, self._jobs, scratch, os.getpid())
        # At the program's end it comes first: no finalizer runs while a thread makes new ones,
        # which changes what finalizers are looked up in.
        atexit.register(self._finalizer)
        if overlap:
            self._prepare(0)

    @property
    def graph(self) -> Graph:
        """Returns the graph that is sampled from."""
        return self._graph

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes): outputs of other targets than classes."""
        return self.schema.num_outputs

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns of x, on a graph of one type."""
        return self._graph.feature_file.rows.num_features

    def epoch(self, epoch: int) -> Iterator[AnyMiniBatch]:
        """Yields the minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing them failed, or reading them does.
            ConfigError: `epoch` is negative or not one of `num_epochs`, the source is closed, or another epoch was
                started while this one was iterated.
        """
        if self.max_epochs is not None and epoch >= self.max_epochs:
            raise ConfigError(
                f"num_epochs: this FreshEpochs was made for {self.max_epochs} epochs, and epoch {epoch} was asked for, "
                f"counted from 0: make one with num_epochs={epoch + 1} or more, or without"
            )
        first = self._cursor.start(epoch)
        return self._iterate(epoch, first, self._cursor.turn)

    def _iterate(self, epoch: int, first: int, turn: int) -> Iterator[AnyMiniBatch]:
        for number in range(first, self.num_batches):
            self._cursor.require(turn)
            batch = replace(self._next(epoch * self.num_batches + number), epoch=epoch, batch_index=number)
            self._cursor.batch = number + 1
            yield batch
            del batch  # the caller's alone, while the next one is waited for

    def _next(self, position: int) -> AnyMiniBatch:
        """Returns the minibatch at `position`, which follows the one before but where the user jumps."""
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

    def _seek(self, position: int) -> None:
        assert self._loader is not None
        first = position - self._jobs[0].window[0]
        self._loader.load_state_dict({**self._loader.state_dict(), "epoch": 0, "batch": first})
        self._batches = self._loader.epoch(0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `CursorSource.load_state_dict`. The window that it names is begun with."""
        super().load_state_dict(state)
        if self._overlap and self._loader is None:
            self._keep_only(position := self._cursor.epoch * self.num_batches + self._cursor.batch)
            if not self._jobs and position != self._sizes.end:
                self._prepare(position)

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
        self._sizes.prepared(job.window, prepared.stats.prepare_written_bytes)
        self._loader = Loader.with_options(
            prepared.packed, "train", self._device, self._loader_options, prepared.row_files
        )
        if self._tracing:
            self._loader.start_tracing()
            self._events += prepared.events
        if self._overlap and job.window.stop != self._sizes.end:
            self._prepare(job.window.stop)

    def _prepare(self, position: int) -> None:
        """Begin to prepare the window that starts at `position`."""
        threads = self._threads or preparing_threads(available_cores(), beside_training=self._loader is not None)
        folder = self._scratch / f"window-{position:08d}"
        self._jobs.append(WindowJob(position, self._sizes.window, folder, self._preparer, threads, self._reporter))

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
        """Returns counters since the source was made: those of the loaders of all windows, and of preparing.

        `wait_seconds` counts waiting for a window to be prepared (`prepare_wait_seconds`), too. Only windows that were
        asked for count as prepared.
        """
        return self._earlier if self._loader is None else self._earlier + self._loader.stats()

    def start_tracing(self) -> None:
        """Keep from now on what the threads of each window's `Loader` do, and when windows were prepared."""
        self._tracing = True
        if self._loader is not None:
            self._loader.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call: those of `Loader.take_trace`, and on track 'prepare' those of the
        windows.

        A window's preparing is told once it has ended and the window is asked for. None when tracing was not started.
        """
        found, self._events = self._events, []
        return found if self._loader is None else found + self._trace_of_loader()

    def close(self) -> None:
        """Stop preparing, join all threads, delete the windows; minibatches that you hold stay valid. Idempotent."""
        self._cursor.close()
        self._close_loader()
        self._finalizer()
        atexit.unregister(self._finalizer)
        self._preparer.close()
        self._kept_pages = None


def preparing_threads(cores: int, beside_training: bool) -> int:
    """Returns how many threads prepare a window by default: training has the other half of the cores if it goes on
    meanwhile.
    """
    return max(1, cores // 2) if beside_training else cores


def _clean_up(jobs: list[WindowJob], scratch: ScratchFolder, owner: int) -> None:
    if os.getpid() != owner:  # a child by fork, which has none of the threads, and whose windows these are not
        return
    while jobs:
        jobs.pop().discard()
    scratch.delete()
