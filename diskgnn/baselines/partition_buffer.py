"""MariusGNN's design: some partitions of the graph in memory at a time, sampling and training inside them only.

Waleffe et al., MariusGNN: Resource-Efficient Out-of-Core Training of Graph Neural Networks, EuroSys 2023.
`partitioning` writes what is read here, `partition_order` decides what is in memory when, `partition_memory` holds it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from diskgnn._native import gather_rows
from diskgnn.baselines.epoch_source import EpochSource, SourceOptions
from diskgnn.baselines.partition_memory import BufferState, PartitionMemory
from diskgnn.baselines.partition_order import BufferSpec, EpochOrder, epoch_shape, order_epoch
from diskgnn.baselines.partition_sizes import resident_partitions
from diskgnn.baselines.partitions import Partitions
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.sampling_source import SampledBlocks, draw
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.errors import ConfigError
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.units import parse_size, whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PartitionBuffer(EpochSource):
    """A `BatchSource` of the train split over a directory from `write_partitions`.

    Kept of the original: nodes are dealt out to p partitions at random; features lie on disk by partition, edges in p^2
    buckets. c partitions are resident, with the edges among them, and neighbours are drawn from these alone. Whole
    partitions are read, the next ones while this buffer state trains. COMET's order has two levels: logical partitions
    consist of random physical ones, drawn every epoch, and each pair of them is resident together at some time.
    Training nodes are assigned to the states in which they could be used (deferred assignment). Given `memory`, a state
    is two logical partitions, 2p / c in all as the paper has it, and a third one is read ahead. `order='cached'` is
    what the paper does for node classification when the training nodes' partitions fit the buffer: these stay, the
    others are drawn every epoch, and nothing is swapped in between. 'dispersed' is its authors' later order, in which
    each partition enters once.

    Different: blocks are sampled by our native sampler and deduplicated (the original's DENSE structure reuses samples
    across layers). Sorted edges of a state are merged from the buckets' own order instead of sorted anew. A minibatch
    never spans two states, and all epochs have the same number of minibatches, which may therefore be smaller than
    `batch_size`. It serves no evaluation; use any source that samples all neighbours for that.

    In favour of this baseline: the original goes through its whole order however few training nodes there are. Here,
    where they would not fill a minibatch in each state, an epoch visits fewer states, drawn at random: as few as have
    no more than a minibatch each, while every logical partition is in one. Whatever their number, training nodes in all
    partitions cost a pass over the features, and p / c states with a minibatch each.

    All rows count as cpu_rows. What a state reads counts with its first minibatch: read_bytes of partitions and
    buckets, filled_rows of partitions.

    Args beside those of `EpochSource` (fanouts, batch_size, seed, threads, sample_epochs):
        graph: graph directory, or an opened one; labels come from there.
        partitions: directory from `write_partitions`.
        resident: c, partitions in memory.
        memory: instead of `resident`: bytes, or '2GiB', for rows and edges, with those that are read ahead.
        order: 'comet', 'dispersed' or 'cached'.
        prefetch: minibatches made ahead of the user; by default one per thread.
        engine: 'auto', 'io_uring' or 'threads'.

    Raises beside what `EpochSource` does:
        ConfigError: numbers that cannot work together.
        ArtifactError: partitions of another graph, or damaged.

    Example:
        >>> write_partitions("graph", "partitions", num_partitions=16)
        >>> with PartitionBuffer("graph", "partitions", fanouts=[10, 10], batch_size=1024, resident=4) as source:
        ...     diskgnn.train(source, epochs=10)
    """

    name = "partition-buffer"
    takes_seeds = False

    def __init__(
        self,
        graph: PathLike | Graph,
        partitions: PathLike,
        *,
        resident: int | None = None,
        memory: int | str | None = None,
        order: str = "comet",
        prefetch: int | None = None,
        engine: str = "auto",
        **sampling: Unpack[SourceOptions],
    ) -> None:
        super().__init__(graph, "train", **sampling)
        self._require_independent_draws()  # what is in memory is a graph of its own, in another order
        if prefetch is not None:
            whole_number("prefetch", prefetch)
        self._partitions = found = Partitions.open(partitions, self._graph)
        if (resident is None) == (memory is None):
            raise ConfigError("expected one of resident and memory, found " + ("none" if resident is None else "both"))
        if resident is None:
            assert memory is not None
            resident = resident_partitions(found, parse_size(memory), order)
        self.buffer = BufferSpec(order, found.config.num_partitions, resident, self.spec.batch_size)
        if order == "cached" and not found.config.train_first:
            raise ConfigError(
                f"order='cached': {found.manifest.path} was not made with train_first=True; make it again"
            )
        self._train = np.unique(found.train, axis=0)  # [n, 2] partition and position
        shape = epoch_shape(self._train[:, 0], self.buffer)
        self._identify(shape.num_batches, partitions=found.manifest.digest, resident=resident, order=order)
        self._order(0)  # raises what no epoch could do with
        self._engine, self._prefetch = engine, prefetch or self._threads
        self._memory: PartitionMemory | None = None  # taken when the first epoch starts
        self._x_buffers = RowBuffers(self._graph.feature_file.rows)
        warn_if_no_io_uring(engine)

    def _order(self, epoch: int) -> EpochOrder:
        sampled_epoch = self._sampled_epoch(epoch)
        return order_epoch(self._train[:, 0], self.buffer, seed=self.spec.seed, epoch=sampled_epoch)

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, LoadStats], None, None]:
        order = self._order(epoch)
        if self._memory is None:
            self._memory = PartitionMemory(self._partitions, self.buffer.num_slots, self._engine)
        stopping = threading.Event()
        # Not `in_order`: what replaces a partition in memory has to wait for the minibatches that still use it.
        in_flight: deque[Future[tuple[MiniBatch, LoadStats]]] = deque()
        with self._pools(stopping, load=1, sample=self._threads) as (loader, pool):

            def load(state: int) -> Future[BufferState]:
                return loader.submit(self._load, order, state, tuple(in_flight), stopping)

            states = order.batch_state.tolist()
            loading, upcoming = load(states[start]), None
            for number, state in enumerate(states[start:], start):
                is_first = number == start or state != states[number - 1]
                if is_first:
                    if upcoming is not None:
                        loading, upcoming = upcoming, None
                    if state + 1 < len(order.slots) and order.enters_free_slots(state + 1):
                        upcoming = load(state + 1)
                in_flight.append(pool.submit(self._make, order, number, loading, epoch, is_first))
                if upcoming is None and number + 1 < len(states) and state != states[number + 1]:
                    upcoming = load(state + 1)  # overwrites what this state uses
                if len(in_flight) > self._prefetch:
                    yield in_flight.popleft().result()
            while in_flight:
                yield in_flight.popleft().result()

    def _load(
        self,
        order: EpochOrder,
        state: int,
        after: Sequence[Future[tuple[MiniBatch, LoadStats]]],
        stopping: threading.Event,
    ) -> BufferState:
        for future in after:
            with suppress(CancelledError):
                future.exception()  # waits; what failed is raised where its minibatch is due
        if stopping.is_set():
            raise CancelledError
        assert self._memory is not None
        with self._traced("load partitions", int(np.searchsorted(order.batch_state, state))):
            return self._memory.load(order.slots[state])

    def _make(
        self, order: EpochOrder, number: int, loading: Future[BufferState], epoch: int, is_first: bool
    ) -> tuple[MiniBatch, LoadStats]:
        state = loading.result()
        assert self._memory is not None
        partition, position = self._train[order.batches[number]].T
        places = state.slot_of[partition] * self._partitions.config.stride + position
        key = self._plan.key(self.split, self._sampled_epoch(epoch))
        planned = PlannedMinibatch(places, self._plan.fanouts[self.split], key, number)
        with self._traced("sample", number):
            sampled = draw(state.sampler, planned)
        with self._traced("gather", number):
            x, x_bytes = self._x_buffers.take(len(sampled.nodes))
            gather_rows(self._memory.rows, self._partitions.config.row_bytes, sampled.nodes, x_bytes, 1)
            nodes = state.nodes[sampled.nodes]
        seeds = nodes[: len(places)].copy()
        batch = SampledBlocks(seeds, nodes, sampled.blocks).minibatch(x, self._labels(seeds), epoch, number)
        cost = LoadStats(cpu_rows=len(nodes))
        if is_first:
            cost += LoadStats(
                filled_rows=state.loaded_rows, read_bytes=state.read_bytes, read_requests=state.read_requests
            )
        return batch, cost

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the buffer. Idempotent."""
        super().close()
        self._memory = None
        self._x_buffers.clear()
