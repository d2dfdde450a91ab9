"""Training without reusing a sampled epoch: the next one is sampled and packed while this one trains."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from diskgnn.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.loading.loader import Loader
from diskgnn.loading.options import LoaderOptions
from diskgnn.minibatch import MiniBatch
from diskgnn.progress import SILENT, Reporter
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.schema import one_type_schema
from diskgnn.specs import CacheSpec, PathLike, SamplingSpec, whole_number
from diskgnn.system.memory import available_cores
from diskgnn.system.resources import Resources
from diskgnn.tracing import TraceEvent
from diskgnn.training.fresh_epoch_job import EpochRecipe, FreshEpochJob


class FreshEpochs(CursorSource):
    """A `BatchSource` of the train split that never trains on the same sampled epoch twice.

    Epoch e has the minibatches that sampling online from the same seed would have, those of
    `baselines.in_memory.InMemory`. They are read as any prepared epoch is: packed in order, with a Belady cache.
    While epoch e trains, epoch e + 1 is sampled, placed and packed beside it. Then epoch e is deleted, so no more than
    two epochs are on the disk. They lie in a directory of their own under `folder`, which is deleted when the source is
    closed.

    Args:
        graph: graph directory, or an opened one.
        folder: where to make that directory; on the disk to read from.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        cpu_cache: the cpu tier, as `pack` takes it.
        static_cache: the static tiers, as `pack` takes them; none by default.
        draws: 'independent' or 'coordinated', as `sample` takes it.
        draw_period: as `sample` takes it.
        seed: same seed, same minibatches.
        overlap: prepare the next epoch while one trains; otherwise every epoch is prepared when it is asked for.
        num_epochs: how many will be trained, so that none is prepared after them; None means no end.
        memory: budget of preparing, which comes on top of training's while they overlap.
        threads: of preparing; half of the cores by default when they overlap, otherwise all.
        keep_input_nodes: yield each minibatch's node ids, too.
        device: where the minibatches' tensors are wanted.
        reporter: told about preparing, from another thread.
        loader_options: of the `Loader` of each epoch.

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
        draws: str = "independent",
        draw_period: int = 1,
        seed: int = 0,
        overlap: bool = True,
        num_epochs: int | None = None,
        memory: int | str = "auto",
        threads: int | None = None,
        keep_input_nodes: bool = False,
        device: str | torch.device = "cpu",
        reporter: Reporter = SILENT,
        loader_options: LoaderOptions | None = None,
    ) -> None:
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        spec = SamplingSpec(fanouts, batch_size, seed=seed, splits=("train",), draws=draws, draw_period=draw_period)
        plan = SamplingPlan(graph, spec)
        if num_epochs is not None:
            whole_number("num_epochs", num_epochs)
        self._overlap, self._num_epochs = overlap and num_epochs != 1, num_epochs  # a lone epoch is beside nothing
        if threads is None:
            threads = preparing_threads(available_cores(), self._overlap)
        Resources.of(memory, threads)  # refuses now what makes no sense
        self._recipe = EpochRecipe(
            graph.manifest.path, spec, CacheSpec(cpu_cache, static_cache), memory, threads, keep_input_nodes
        )
        identity = {"graph": graph.manifest.digest, "fanouts": list(spec.fanouts), "batch_size": spec.batch_size,
                    "seed": spec.seed, "draws": spec.draws, "draw_period": spec.draw_period}  # fmt: skip
        super().__init__(Cursor("FreshEpochs", plan.sizes["train"].batches_per_epoch, identity))
        self.num_classes, self.num_features = graph.num_classes, graph.feature_file.rows.num_features
        self.schema = one_type_schema(graph.num_nodes, self.num_features, self.num_classes)
        self.num_layers = spec.num_layers
        self._device, self._loader_options = device, loader_options or LoaderOptions()
        self._reporter = reporter
        self._parent = Path(folder).absolute()
        self._folder: Path | None = None  # made when the first epoch is prepared
        self._jobs: list[FreshEpochJob] = []  # at most the one that trains and the one after it
        self._loader: Loader | None = None
        self._loaded_epoch: int | None = None
        self._earlier = LoadStats()  # of loaders that were closed, and of preparing
        self._tracing, self._events = False, list[TraceEvent]()  # as `_earlier`
        self._finalizer: weakref.finalize[..., FreshEpochs] | None = None

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        Raises:
            ArtifactError, DiskFullError, OSError: preparing it failed, or reading it does.
            ConfigError: `epoch` is negative, the source is closed, or another epoch was started while this one was
                iterated.
        """
        first = self._cursor.start(epoch)
        return self._iterate(epoch, first, self._cursor.turn)

    def _iterate(self, epoch: int, first: int, turn: int) -> Iterator[MiniBatch]:
        self._cursor.require(turn)
        loader = self._load(epoch)
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "batch": first})
        batches = loader.epoch(epoch)
        while True:
            self._cursor.require(turn)
            batch = next(batches, None)
            if batch is None:
                return
            self._cursor.batch = batch.batch_index + 1
            yield batch
            del batch  # the caller's alone, while the next one is waited for

    def _load(self, epoch: int) -> Loader:
        """The loader of `epoch`, prepared by now; that of another epoch is closed and its files are deleted."""
        if self._loader is None or self._loaded_epoch != epoch:
            self._close_loader()
            for other in [found for found in self._jobs if found.epoch != epoch]:
                other.discard()
                self._jobs.remove(other)
            if not self._jobs:
                self._prepare(epoch)
            job = self._jobs[0]
            began = time.perf_counter()
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
            self._loader = Loader.with_options(prepared.packed, "train", self._device, self._loader_options)
            self._loaded_epoch = epoch
            if self._tracing:
                self._loader.start_tracing()
                self._events += prepared.events
        last = self._num_epochs is not None and epoch + 1 >= self._num_epochs
        if self._overlap and not last and len(self._jobs) == 1:
            self._prepare(epoch + 1)
        return self._loader

    def _prepare(self, epoch: int) -> None:
        if self._folder is None:
            try:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix="diskgnn-fresh-", dir=self._parent))
            except OSError as error:
                raise ConfigError(f"cannot write under {self._parent}: {error.strerror}; choose another") from error
            # Also when the source is dropped without being closed, no thread and no epoch stays behind.
            self._finalizer = weakref.finalize(self, _clean_up, self._jobs, self._folder)
        job = FreshEpochJob(epoch, self._folder / f"epoch-{epoch:06d}", self._recipe)
        self._jobs.append(job)
        if self._overlap:
            job.start(self._reporter)
        else:
            job.run(self._reporter)

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()
            self._events += self._loader.take_trace()
            self._earlier += self._loader.stats()
        self._loader = self._loaded_epoch = None

    def stats(self) -> LoadStats:
        """Counters since the source was made: those of the loaders of all epochs, and of preparing.

        `wait_seconds` counts waiting for an epoch to be prepared (`prepare_wait_seconds`), too. Only epochs that were
        asked for count as prepared.
        """
        return self._earlier if self._loader is None else self._earlier + self._loader.stats()

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
        return found if self._loader is None else found + self._loader.take_trace()

    def close(self) -> None:
        """Stop preparing, join all threads and delete the epochs; minibatches that you hold stay valid. Idempotent."""
        self._cursor.close()
        self._close_loader()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None


def preparing_threads(cores: int, overlap: bool) -> int:
    """Threads that prepare an epoch by default: training has the other half of the cores if it goes on meanwhile."""
    return max(1, cores // 2) if overlap else cores


def _clean_up(jobs: list[FreshEpochJob], folder: Path) -> None:
    while jobs:
        jobs.pop().discard()
    shutil.rmtree(folder, ignore_errors=True)
