"""Training without reusing a sampled epoch: the next one is sampled and packed while this one trains."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from diskgnn.batch_source import LoadStats
from diskgnn.errors import ArtifactError, ConfigError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.loading.loader import Loader
from diskgnn.minibatch import MiniBatch
from diskgnn.packing.pack import pack
from diskgnn.progress import SILENT, Advance, Reporter, StageReport
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs import PathLike, SamplingSpec
from diskgnn.system.memory import available_cores
from diskgnn.tracing import TraceEvent

_Stages = list[tuple[StageReport, TraceEvent]]


class _StoppedError(Exception):
    """Preparing was given up because the source was closed."""


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


class _Preparation:
    """One epoch on its way to the disk. Whoever fails or is stopped leaves nothing in `folder`."""

    def __init__(self, epoch: int, folder: Path, prepare: Callable[[int, Path, Reporter], _Stages]) -> None:
        self.epoch, self.folder, self.packed = epoch, folder, folder / "packed"
        self.stages: _Stages = []
        self._prepare, self._stopped = prepare, threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def run(self, reporter: Reporter) -> None:
        """Prepare here and now; `finish` raises what goes wrong."""
        try:
            self.stages = self._prepare(self.epoch, self.folder, _StoppableReporter(reporter, self._stopped))
        except BaseException as error:
            # Nobody waits for what was stopped, and a traceback kept would keep the packer's threads.
            self._failure = None if isinstance(error, _StoppedError) else error
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, reporter: Reporter) -> None:
        """Prepare in a thread. A daemon: at the interpreter's end it is stopped, not awaited."""
        self._thread = threading.Thread(target=self.run, args=(reporter,), name="diskgnn-fresh-epoch", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for it."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)  # now and then, so that Ctrl-C is heard
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # or this frame and its traceback would keep each other

    def discard(self) -> None:
        """Stop it, join its thread, delete its files."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._failure = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _prepare_epoch(
    epoch: int,
    folder: Path,
    reporter: Reporter,
    *,
    graph: Path,
    sampling: Mapping[str, Any],
    packing: Mapping[str, Any],
    effort: Mapping[str, Any],
) -> _Stages:
    """Sample and pack one epoch into `folder`/packed."""
    opened = Graph.open(graph)  # anew: memory maps of its own, read in another order than the caller's
    samples = folder / "samples"
    began_ns = time.perf_counter_ns()
    sampled = sample(opened, samples, **sampling, first_epoch=epoch, **effort, reporter=reporter)
    between_ns = time.perf_counter_ns()
    packed = pack(opened, samples, folder / "packed", **packing, **effort, reporter=reporter)
    shutil.rmtree(samples)
    return [
        (sampled, TraceEvent("prepare", "sample the next epoch", -1, began_ns, between_ns)),
        (packed, TraceEvent("prepare", "pack the next epoch", -1, between_ns, time.perf_counter_ns())),
    ]


def _clean_up(preparations: list[_Preparation], folder: Path) -> None:
    while preparations:
        preparations.pop().discard()
    shutil.rmtree(folder, ignore_errors=True)


class FreshEpochs:
    """A `BatchSource` of the train split that never trains on the same sampled epoch twice.

    Epoch e has the minibatches that sampling online from the same seed would have (those of
    `baselines.in_memory.InMemory`), and they are read as any prepared epoch is, packed in order with a Belady cache.
    While epoch e trains, epoch e + 1 is sampled, placed and packed beside it; then the first one is deleted. So no more
    than two epochs are on the disk. They lie in a directory of their own under `folder`, which goes when the
    source is closed.

    Args:
        graph: graph directory, or an opened one.
        folder: where to make that directory; on the disk to read from.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        cpu_cache: the cpu tier, as `pack` takes it.
        static_cache: the static tiers, as `pack` takes them; none by default.
        seed: same seed, same minibatches.
        overlap: prepare the next epoch while one trains; otherwise every epoch is prepared when it is asked for.
        num_epochs: how many will be trained, so that none is prepared after them; None means no end.
        memory: budget of preparing, which comes on top of training's while they overlap.
        threads: of preparing; half of the cores by default when they overlap, otherwise all.
        keep_input_nodes: yield each minibatch's node ids, too.
        reporter: told about preparing, from another thread.
        loader_options: more arguments of the `Loader` of each epoch.

    Raises:
        ConfigError, InputError: arguments that make no sense, see `sample`.

    Example:
        >>> with FreshEpochs("graph", "scratch", fanouts=[10, 10], batch_size=1024, cpu_cache="10%") as source:
        ...     diskgnn.train(source, epochs=10)
    """

    def __init__(
        self,
        graph: PathLike | Graph,
        folder: PathLike,
        *,
        fanouts: Sequence[int],
        batch_size: int,
        cpu_cache: int | str,
        static_cache: int | str = 0,
        seed: int = 0,
        overlap: bool = True,
        num_epochs: int | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        keep_input_nodes: bool = False,
        device: str | torch.device = "cpu",
        reporter: Reporter = SILENT,
        **loader_options: Any,
    ) -> None:
        self._graph = graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        self._sampling: dict[str, Any] = {
            "fanouts": list(fanouts), "batch_size": batch_size, "seed": seed, "splits": ("train",),
        }  # fmt: skip
        plan = SamplingPlan(graph, SamplingSpec(**self._sampling))
        at_least_one("num_epochs", num_epochs)
        overlap = overlap and num_epochs != 1  # the first epoch has nothing to be prepared beside
        if threads is None:
            threads = max(1, available_cores() // 2) if overlap else available_cores()
        self._packing = {"cpu_cache": cpu_cache, "static_cache": static_cache, "keep_input_nodes": keep_input_nodes}
        self._effort: dict[str, Any] = {"memory": memory, "threads": threads}
        self._overlap, self._num_epochs, self._reporter = overlap, num_epochs, reporter
        self._loader_options = {"device": device, **loader_options}
        self.num_batches = plan.sizes["train"].batches_per_epoch
        self.num_classes, self.num_features = graph.num_classes, graph.feature_file.rows.num_features
        self.num_layers = plan.spec.num_layers
        self._identity = {
            "graph": graph.manifest.digest,
            "fanouts": list(plan.spec.fanouts),
            "batch_size": plan.spec.batch_size,
            "seed": plan.spec.seed,
        }
        self._folder: Path | None = None  # made when the first epoch is prepared
        self._parent = Path(folder).absolute()
        self._preparations: list[_Preparation] = []  # at most the one that trains and the one after it
        self._loader: Loader | None = None
        self._loaded: _Preparation | None = None
        self._position = (0, 0)  # epoch, and how many of its minibatches the user has received
        self._resume: tuple[int, int] | None = None
        self._iteration = 0
        self._counters = self._loaded_stats = LoadStats()  # of preparing; of loaders that were closed
        self._tracing, self._events = False, list[TraceEvent]()  # of loaders closed, and of preparing
        self._finalizer: Any = None
        self._closed = False

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing it failed, or reading it does.
            ConfigError: the source is closed, or `epoch` is negative.
        """
        if self._closed:
            raise ConfigError("this FreshEpochs source is closed; make a new one")
        if epoch < 0:
            raise ConfigError(f"epoch: expected at least 0, found {epoch}")
        self._iteration += 1
        first = self._resume[1] if self._resume is not None and self._resume[0] == epoch else 0
        self._resume = None
        self._position = (epoch, first)
        return self._iterate(epoch, first, self._iteration)

    def _iterate(self, epoch: int, first: int, iteration: int) -> Iterator[MiniBatch]:
        loader = self._load(epoch)
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "batch": first})
        for batch in loader.epoch(epoch):
            if iteration != self._iteration:
                raise ConfigError(f"the source was closed, or another epoch was started, while epoch {epoch} was read")
            self._position = (epoch, batch.batch_index + 1)
            yield batch

    def _load(self, epoch: int) -> Loader:
        """The loader of `epoch`, prepared by now; that of another epoch is closed and its files are deleted."""
        if self._loader is None or self._loaded is None or self._loaded.epoch != epoch:
            self._close_loader()
            for other in [p for p in self._preparations if p.epoch != epoch]:
                other.discard()
                self._preparations.remove(other)
            if not self._preparations:
                self._prepare(epoch, self._overlap)
            preparation = self._preparations[0]
            began = time.perf_counter()
            try:
                preparation.finish()
            except BaseException:
                self._preparations.clear()
                preparation.discard()
                raise
            finally:
                waited = time.perf_counter() - began
                self._counters += LoadStats(prepare_wait_seconds=waited, wait_seconds=waited)
            self._count(preparation)
            self._loader, self._loaded = Loader(preparation.packed, "train", **self._loader_options), preparation
            if self._tracing:
                self._loader.start_tracing()
                self._events += [event for _, event in preparation.stages]
        last = self._num_epochs is not None and epoch + 1 >= self._num_epochs
        if self._overlap and not last and len(self._preparations) == 1:
            self._prepare(epoch + 1, True)
        return self._loader

    def _prepare(self, epoch: int, in_background: bool) -> None:
        if self._folder is None:
            try:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="diskgnn-fresh-", dir=self._parent))
            except OSError as error:
                raise ConfigError(f"cannot write under {self._parent}: {error.strerror}; choose another") from error
            # Also when the source is dropped without being closed, no thread and no epoch stays behind.
            self._finalizer = weakref.finalize(self, _clean_up, self._preparations, self._folder)
        prepare = partial(
            _prepare_epoch,
            graph=self._graph.manifest.path,
            sampling=self._sampling,
            packing=self._packing,
            effort=self._effort,
        )
        preparation = _Preparation(epoch, self._folder / f"epoch-{epoch:06d}", prepare)
        self._preparations.append(preparation)
        if in_background:
            preparation.start(self._reporter)
        else:
            preparation.run(self._reporter)

    def _count(self, preparation: _Preparation) -> None:
        reports = [report for report, _ in preparation.stages]
        self._counters += LoadStats(
            prepared_epochs=1,
            prepare_seconds=sum(report.seconds for report in reports),
            prepare_read_bytes=sum(report.read_bytes for report in reports),
            prepare_written_bytes=sum(report.written_bytes for report in reports),
        )

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()
            self._events += self._loader.take_trace()
            self._loaded_stats += self._loader.stats()
        self._loader = self._loaded = None

    def stats(self) -> LoadStats:
        """Counters since the source was made: those of `Loader.stats` over all epochs, and of preparing.

        `wait_seconds` counts waiting for an epoch to be prepared (`prepare_wait_seconds`), too. `read_bytes` are the
        loader's: preparing read `prepare_read_bytes` and wrote `prepare_written_bytes` in `prepare_seconds`, for
        `prepared_epochs` epochs that were asked for.
        """
        now = self._counters + self._loaded_stats
        return now if self._loader is None else now + self._loader.stats()

    def start_tracing(self) -> None:
        """Keep from now on what the threads of each epoch's `Loader` do, and when epochs were prepared."""
        self._tracing = True
        if self._loader is not None:
            self._loader.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """The events since the last call: those of `Loader.take_trace`, and on track 'prepare' those of the next epoch.

        An epoch's preparing is told once it has ended and the epoch is asked for. None when tracing was not started.
        """
        found, self._events = self._events, []
        return found + (self._loader.take_trace() if self._loader is not None else [])

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands, counting the minibatches that the user's loop has received."""
        epoch, batch = self._resume if self._resume is not None else self._position
        return {"epoch": epoch, "batch": batch, "sampled": self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next call of `epoch(state['epoch'])` prepares it and skips what had been consumed.

        Raises:
            ArtifactError: the state belongs to minibatches that this source would not draw.
        """
        if state.get("sampled") != self._identity:
            raise ArtifactError(
                f"expected the state of a source that samples {self._identity}, found {state.get('sampled')}; "
                f"go on with the graph and the arguments that the state was saved with"
            )
        self._iteration += 1
        self._resume = (int(state["epoch"]), int(state["batch"]))

    def close(self) -> None:
        """Stop preparing, join all threads and delete the epochs; minibatches that you hold stay valid. Idempotent."""
        self._closed = True
        self._iteration += 1
        self._close_loader()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def __enter__(self) -> FreshEpochs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
