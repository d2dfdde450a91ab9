"""What every baseline shares: its arguments, where iteration stands, what has been counted, and how it ends."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch, TypedMiniBatch
from diskgnn.errors import ConfigError, InputError
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.samples_config import drawing_to_json, spec_to_json
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import source_schema
from diskgnn.loading.tracing import TraceEvent
from diskgnn.paths import PathLike
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import DrawingOptions, SamplingSpec
from diskgnn.specs.schema import SPLITS, SourceSchema
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.memory import available_cores
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SourceOptions(DrawingOptions, total=False):
    """Keyword arguments of `EpochSource`, as the sources that derive from it take them."""

    threads: int | None
    sample_epochs: int | None


class EpochSource(CursorSource):
    """A `BatchSource` whose epochs are generators. Subclasses give `name` and `_minibatches`.

    One epoch can be iterated at a time. Another one ends it, and so does dropping its iterator (leaving a for loop
    early): its threads are joined there and then. Counters and position are those of the minibatches that the user
    has received, not of those that were prefetched.

    Args:
        graph: graph directory, or an opened one.
        split: whose nodes are the seeds; 'train' is shuffled every epoch, others come in the given order.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        seed: same seed, same minibatches.
        draws: 'independent' or 'coordinated', as in `diskgnn.sample`.
        draw_period: minibatches in which coordinated draws move round all neighbours once.
        group_seeds: train on seeds in groups of so many that are near each other, as in `diskgnn.sample`.
        threads: background threads; by default half of the cores, the other half being the model's.
        sample_epochs: how many epochs of 'train' are sampled before they repeat, as prepared ones do; None samples
            every epoch afresh. Other splits are sampled once, so that evaluations can be compared.

    Raises:
        ConfigError: an argument that makes no sense.
        InputError: the graph has no nodes in `split`.
        ArtifactError: see `Graph.open`.
    """

    name = "?"  # as in diskgnn.compare; threads are named after it
    takes_samplers = False  # of the user
    takes_without = False  # columns that tables keep, which minibatches shall not have
    reads_whole_rows = False  # as the graph has them: of columns that are left out, too
    takes_seeds = True  # that are given, in place of those of the graph's splits, with labels of their own

    @takes_options(DrawingOptions, SamplingSpec)
    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        threads: int | None = None,
        sample_epochs: int | None = None,
        **drawing: Unpack[DrawingOptions],
    ) -> None:
        self._graph = graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        if split not in SPLITS:
            raise ConfigError(f"split: expected one of {', '.join(SPLITS)}, found {split!r}")
        self.spec = SamplingSpec.of((split,), **drawing)
        if self.spec.sampler is not None and not self.takes_samplers:
            raise ConfigError(f"sampler: {self.name} draws in its own way; leave it out")
        if self.spec.without and not self.takes_without:
            raise ConfigError(f"without: {self.name} delivers whole rows; leave it out")
        if self.spec.target.seeds is not None and not self.takes_seeds:
            raise ConfigError(f"seeds: {self.name} takes those of the graph's splits; leave them out")
        if threads is not None:
            whole_number("threads", threads)
        if sample_epochs is not None:
            whole_number("sample_epochs", sample_epochs)
        target = self.spec.target
        of_graph = isinstance(target, NodeTarget) and target.seeds is None
        if not graph.is_typed and of_graph and not len(graph.splits.get(split, ())):
            raise InputError(f"{graph.manifest.path} has no {split} nodes: nothing to iterate over")
        self.split = split
        self._plan = SamplingPlan(graph, self.spec)
        self._graph = graph = self._plan.graph
        self.sampling = drawing_to_json(self._plan.config().spec)
        self._sample_epochs = sample_epochs if split == "train" else 1
        self._threads = threads or max(1, available_cores() // 2)
        self._stats = LoadStats()
        self._trace: list[TraceEvent] | None = None
        self._live: weakref.ref[Generator[Any, None, None]] | None = None  # of the epoch that is iterated
        drawn = {name: value for name, value in spec_to_json(self._plan.config().spec).items()
                 if name not in ("eval_fanouts", "first_epoch")}  # fmt: skip
        identity = {"graph": graph.manifest.digest, "split": split, **drawn, "sample_epochs": self._sample_epochs}
        super().__init__(Cursor(type(self).__name__, self._plan.sizes[split].batches_per_epoch, identity))

    def _require_independent_draws(self) -> None:
        """Refuse coordinated draws where nothing could make them.

        Raises:
            ConfigError: they were asked for.
        """
        if self.spec.draws != "independent":
            raise ConfigError(f"draws: {self.name} can only draw independently, found {self.spec.draws!r}")

    def _identify(self, num_batches: int | None = None, **identity: Any) -> None:
        """Say what else tells these minibatches from others, and how many an epoch has, if that is not the plan's."""
        cursor = self._cursor
        self._cursor = Cursor(cursor.name, num_batches or cursor.num_batches, {**cursor.identity, **identity})

    @cached_property
    def schema(self) -> SourceSchema:
        """Returns the types of nodes and edges, and what the seeds are for."""
        return source_schema(self._graph, self._plan.target)

    @property
    def graph(self) -> Graph:
        """Returns what is sampled from."""
        return self._graph

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on."""
        return self._graph.num_classes

    @property
    def num_features(self) -> int:
        """Returns D, columns of x."""
        return self._graph.feature_file.rows.num_features

    @property
    def num_layers(self) -> int:
        """Returns how many blocks a minibatch has."""
        return self.spec.num_layers

    def epoch(self, epoch: int) -> Iterator[AnyMiniBatch]:
        """Returns the minibatches of epoch `epoch`. If `load_state_dict` named this epoch, those that it counts are
        skipped.

        Raises:
            ConfigError: the source is closed, or `epoch` is negative; while iterating: another epoch was started.
        """
        first = self._cursor.start(epoch)
        self._end_epoch()
        minibatches = self._minibatches(epoch, first)
        self._live = weakref.ref(minibatches)
        return self._deliver(minibatches, first, self._cursor.turn)

    def _deliver(
        self, minibatches: Generator[tuple[AnyMiniBatch, LoadStats], None, None], first: int, turn: int
    ) -> Iterator[AnyMiniBatch]:
        try:
            for number in range(first, self.num_batches):
                self._cursor.require(turn)
                began = time.perf_counter()
                batch, cost = next(minibatches)
                batch = self._widened(batch)
                waited = time.perf_counter() - began
                served = cost.device_rows + cost.pinned_rows + cost.cpu_rows + cost.disk_rows
                self._stats += cost + LoadStats(requested_rows=served, wait_seconds=waited)
                self._cursor.batch = number + 1
                yield batch
                del batch  # the user has it; it need not stay in memory while the next one is waited for
        finally:
            minibatches.close()

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[AnyMiniBatch, LoadStats], None, None]:
        """Yields the minibatches of `epoch` from number `start` on, each with what it cost beside the user's time.

        Closing the generator joins its threads.
        """
        raise NotImplementedError

    def _sampled_epoch(self, epoch: int) -> int:
        """Returns the epoch whose draws epoch `epoch` uses."""
        return epoch if self._sample_epochs is None else epoch % self._sample_epochs

    def _planned(self, epoch: int) -> Sequence[PlannedMinibatch]:
        """Returns the minibatches of `epoch` before they are drawn."""
        return self._plan.minibatches(self.split, self._sampled_epoch(epoch))

    def _widened(self, batch: AnyMiniBatch) -> AnyMiniBatch:
        """Returns the minibatch with features in place of the codes of quantised rows, or of records."""
        files = {name: file for name, nodes in self._graph.nodes.items()
                 if (file := nodes.feature_file) is not None and not file.is_x}  # fmt: skip
        if not files:
            return batch

        def x_of(file: FeatureFile, rows: Tensor) -> Tensor:
            return file.x(file.cut(rows) if self.reads_whole_rows else rows)

        if isinstance(batch, TypedMiniBatch):
            x = {name: x_of(files[name], rows) if name in files else rows for name, rows in batch.x.items()}
            return replace(batch, x=x)
        (file,) = files.values()
        return replace(batch, x=x_of(file, batch.x))

    def _labels(self, seeds: npt.NDArray[np.int64], places: npt.NDArray[np.int64] | None = None) -> Tensor:
        """Returns y of seeds that are nodes, at these `places` of the split if they have labels of their own."""
        target = self.schema.target
        assert isinstance(target, str)
        if isinstance(self.spec.target, NodeTarget) and self.spec.target.labels is not None:
            assert places is not None
            found = torch.from_numpy(self.spec.target.labels[self.split][places])
            return found if self.schema.target_kind == "class" else found.view(len(seeds), -1)
        labels = self._graph.nodes[target].labels
        assert labels is not None
        found = torch.from_numpy(labels[seeds])
        return found if self.schema.target_kind == "class" else found.view(len(seeds), -1)

    def _check_shared(self, share: EpochSource | None) -> None:
        """Refuse to share what another kind of source, or one over another graph, holds."""
        if share is None:
            return
        if type(share) is not type(self):
            raise ConfigError(f"share: expected another {type(self).__name__}, found a {type(share).__name__}")
        if share._graph.manifest.digest != self._graph.manifest.digest:
            raise ConfigError(
                f"share: expected a source over {self._graph.manifest.path}, found one over another graph, "
                f"{share._graph.manifest.path}"
            )
        if set(share._graph.left_out) != set(self._graph.left_out):
            raise ConfigError(
                f"share: expected a source without {sorted(self._graph.left_out)}, found one without "
                f"{sorted(share._graph.left_out)}"
            )

    def stats(self) -> LoadStats:
        """Returns the counters since the source was made, of the minibatches received."""
        return self._stats

    def start_tracing(self) -> None:
        """Keep events from now on: see `diskgnn.loading.tracing`."""
        self._trace = []

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call; none when tracing was not started."""
        if self._trace is None:
            return []
        events, self._trace = self._trace, []
        return events

    @contextmanager
    def _traced(self, stage: str, number: int) -> Iterator[None]:
        """Traces what this thread does for minibatch `number` within the block."""
        began = time.perf_counter_ns()
        yield
        if self._trace is not None:
            track = threading.current_thread().name.removeprefix(self._thread_name(""))
            self._trace.append(TraceEvent(track, stage, number, began, time.perf_counter_ns()))

    def _thread_name(self, stage: str) -> str:
        return f"diskgnn-{self.name}-{stage}"

    @contextmanager
    def _pools(self, stopping: threading.Event | None = None, /, **threads: int) -> Iterator[list[ThreadPoolExecutor]]:
        """Yields a pool of so many threads for each stage. In the end, what has not begun never will, and all are
        joined.

        `stopping` is set before, for what is under way and takes long.
        """
        pools = [ThreadPoolExecutor(n, thread_name_prefix=self._thread_name(stage)) for stage, n in threads.items()]
        try:
            yield pools
        finally:
            if stopping is not None:
                stopping.set()
            for pool in reversed(pools):  # later stages first: what waits for an earlier one is not to begin
                pool.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: its epoch, when it is asked for next, skips what had been received.

        Raises:
            ArtifactError: the state is of other minibatches; names what differs.
            ConfigError: not a state of a source.
        """
        super().load_state_dict(state)
        self._end_epoch()

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free what the source holds. Idempotent."""
        self._cursor.close()
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._live is not None and (minibatches := self._live()) is not None:
            minibatches.close()
