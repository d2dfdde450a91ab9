"""Training without reusing a sampled minibatch: the next ones are sampled and packed while these ones train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.formats.samples_config import drawing_to_json, spec_to_json
from diskgnn.fresh.fresh_windows import FreshWindows, WindowOptions
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import minibatch_schema
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.tracing import TraceEvent
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import DrawingOptions, SamplingSpec
from diskgnn.stores.locations import local

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
        plan = SamplingPlan(graph, SamplingSpec.of(("train",), **drawing))
        graph = plan.graph
        plan.warn()
        spec = plan.config().spec  # whose target names its type
        self._graph, self.schema = graph, minibatch_schema(graph, spec)
        self._windows = FreshWindows(
            plan, local(folder, "FreshEpochs"), CacheSpec(cpu_cache, static_cache),
            WindowOptions(
                window, overlap, num_epochs, memory, threads, keep_input_nodes, device, reporter, loader_options
            ),
        )  # fmt: skip
        drawn = {name: value for name, value in spec_to_json(spec).items()
                 if name not in ("eval_fanouts", "first_epoch")}  # fmt: skip
        identity = {"graph": graph.manifest.digest, **drawn}
        super().__init__(Cursor("FreshEpochs", plan.sizes["train"].batches_per_epoch, identity))
        self.num_layers, self.sampling = spec.num_layers, drawing_to_json(spec)
        self.max_epochs = num_epochs

    @property
    def graph(self) -> Graph:
        """Returns the graph that is sampled from."""
        return self._graph

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on; outputs of other targets than classes."""
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
            batch = replace(self._windows.at(epoch * self.num_batches + number), epoch=epoch, batch_index=number)
            self._cursor.batch = number + 1
            yield batch
            del batch  # the caller's alone, while the next one is waited for

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `CursorSource.load_state_dict`. The window that it names is begun with."""
        super().load_state_dict(state)
        self._windows.begin(self._cursor.epoch * self.num_batches + self._cursor.batch)

    def stats(self) -> LoadStats:
        """Returns counters since the source was made: those of the loaders of all windows, and of preparing.

        `wait_seconds` counts waiting for a window to be prepared (`prepare_wait_seconds`), too. Only windows that were
        asked for count as prepared.
        """
        return self._windows.stats()

    def start_tracing(self) -> None:
        """Keep from now on what the threads of each window's `Loader` do, and when windows were prepared."""
        self._windows.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call: those of `Loader.take_trace`, and on track 'prepare' those of the
        windows.

        A window's preparing is told once it has ended and the window is asked for. None when tracing was not started.
        """
        return self._windows.take_trace()

    def close(self) -> None:
        """Stop preparing, join all threads, delete the windows; minibatches that you hold stay valid. Idempotent."""
        self._cursor.close()
        self._windows.close()
