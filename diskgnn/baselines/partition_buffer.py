"""MariusGNN's design: some partitions of the graph in memory at a time, sampling and training inside them only.

Waleffe et al., MariusGNN: Resource-Efficient Out-of-Core Training of Graph Neural Networks, EuroSys 2023.
`partitioning` writes what is read here, `partition_order` decides what is in memory when.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskgnn._native import NeighborSampler, gather_rows, read_ranges
from diskgnn.baselines.epoch_source import EpochSource, RowCounts
from diskgnn.baselines.online import as_blocks
from diskgnn.baselines.partition_order import ORDERS, BufferPlan, epoch_shape, num_slots, plan_epoch
from diskgnn.baselines.partitioning import EDGE_BYTES, EDGES, FEATURES, Partitions, partition_rows
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.draws import batch_key
from diskgnn.errors import ConfigError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import MiniBatch
from diskgnn.specs import PathLike
from diskgnn.storage.row_reading import ALIGNMENT, row_buffer, warn_if_no_io_uring
from diskgnn.units import parse_size

_READERS = 4
_GROUP = 4  # physical partitions in a logical one, where `fitting_partitions` may choose
_MOST_PARTITIONS = 128  # that it chooses: buckets of edges are p^2, and should not get too small to read
Edges = npt.NDArray[np.int32]  # [n, 2] destination and source, as positions in their partitions; by destination


@dataclass(frozen=True)
class BufferState:
    """What a buffer state's minibatches are made from. Node ids are places in the buffer: slot * stride + position."""

    sampler: NeighborSampler  # over the edges between resident partitions
    nodes: npt.NDArray[np.int64]  # [slots * stride] the graph's ids
    slot_of: npt.NDArray[np.int64]  # [p] where each resident partition is


@dataclass(frozen=True)
class _Loaded:
    state: BufferState
    read_bytes: int
    read_requests: int
    rows: int


class _Buffer:
    """The partitions in memory: rows, ids, and edges between them. `load` is for one thread at a time."""

    def __init__(self, partitions: Partitions, num_slots: int, engine: str) -> None:
        self._partitions, self._engine = partitions, engine
        memory = row_buffer(num_slots * partitions.stride, partitions.row_bytes)
        self.rows = memory[: num_slots * partitions.partition_bytes]  # [slots * stride * row_bytes]
        self._slot_rows = self.rows.reshape(num_slots, -1)
        self._slots = np.full(num_slots, -1, np.int64)  # the partition in each slot
        self._buckets: dict[tuple[int, int], Edges] = {}  # by (destination's, source's partition), both resident
        self._nodes = np.zeros((num_slots, partitions.stride), np.int64)

    def load(self, slots: npt.NDArray[np.int64]) -> _Loaded:
        """Read what is missing for `slots` to hold these partitions; slots that keep theirs are not touched."""
        entering = np.flatnonzero((slots >= 0) & (slots != self._slots)).tolist()
        self._slots[entering] = -1  # also should reading fail
        resident = set(slots[slots >= 0].tolist())
        self._buckets = {pair: edges for pair, edges in self._buckets.items() if resident.issuperset(pair)}
        missing = [pair for pair in product(sorted(resident), repeat=2) if pair not in self._buckets]
        with ThreadPoolExecutor(_READERS) as readers:  # buckets may be small: several at a time keep the disk busy
            row_counts = readers.map(self._read_rows, entering, slots[entering].tolist())
            buckets = readers.map(self._read_bucket, *zip(*missing, strict=True)) if missing else iter(())
            rows = sum(row_counts)
            self._buckets.update(zip(missing, buckets, strict=True))
        self._slots[entering] = slots[entering]
        read_bytes = rows * (self._partitions.row_bytes + self._partitions.nodes.itemsize)
        read_bytes += sum(self._buckets[pair].nbytes for pair in missing)
        slot_of = np.full(self._partitions.num_partitions, -1, np.int64)
        slot_of[slots[slots >= 0]] = np.flatnonzero(slots >= 0)
        state = BufferState(self._sampler(slots), self._nodes.reshape(-1).copy(), slot_of)
        return _Loaded(state, read_bytes, len(entering) + len(missing), rows)

    def _read_rows(self, slot: int, partition: int) -> int:
        """Read a partition's rows and ids into a slot; how many."""
        partitions = self._partitions
        first, last = int(partitions.starts[partition]), int(partitions.starts[partition + 1])
        offset, num_bytes = partition * partitions.partition_bytes, (last - first) * partitions.row_bytes
        path = str(partitions.manifest.file(FEATURES))
        read_ranges(path, self._engine, np.array([offset]), np.array([num_bytes]), offset, self._slot_rows[slot])
        self._nodes[slot, : last - first] = partitions.nodes[first:last]
        return last - first

    def _read_bucket(self, destination: int, source: int) -> Edges:
        first, last = self._partitions.buckets[destination, source : source + 2].tolist()
        if first == last:
            return np.empty((0, 2), np.int32)
        offset, num_bytes = first * EDGE_BYTES, (last - first) * EDGE_BYTES
        base = offset // ALIGNMENT * ALIGNMENT
        buffer = row_buffer(last - first, EDGE_BYTES)
        path = str(self._partitions.manifest.file(EDGES))
        read_ranges(path, self._engine, np.array([offset]), np.array([num_bytes]), base, buffer)
        return buffer[offset - base : offset - base + num_bytes].view(np.int32).reshape(-1, 2)

    def _sampler(self, slots: npt.NDArray[np.int64]) -> NeighborSampler:
        """Over the edges between the partitions in `slots`: in-neighbours by slot, then as in the graph."""
        stride = self._partitions.stride
        resident = [(slot, int(slots[slot])) for slot in np.flatnonzero(slots >= 0).tolist()]
        degrees = np.zeros((len(slots), stride), np.int64)
        counts = {}
        for slot, destination in resident:
            for _, source in resident:
                found = np.bincount(self._buckets[destination, source][:, 0], minlength=stride)
                counts[destination, source] = found
                degrees[slot] += found
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        indices = np.empty(int(indptr[-1]), np.int32 if len(slots) * stride < 2**31 else np.int64)
        for slot, destination in resident:
            cursor = indptr[slot * stride : (slot + 1) * stride].copy()
            for source_slot, source in resident:
                edges, found = self._buckets[destination, source], counts.pop((destination, source))
                # The edges of a destination lie together: edge e of the bucket goes `e - first of its destination`
                # places behind the cursor of its destination.
                shift = cursor - (np.cumsum(found) - found)
                indices[np.arange(len(edges)) + np.repeat(shift, found)] = edges[:, 1] + source_slot * stride
                cursor += found
        return NeighborSampler(indptr, indices)


class PartitionBuffer(EpochSource):
    """A `BatchSource` of the train split over a directory from `prepare_partitions`.

    Kept of the original: nodes dealt out to p partitions at random, features by partition and edges in p^2 buckets on
    disk; c partitions resident, with the edges among them; neighbours drawn only from these; reads of whole partitions,
    the next ones while this buffer state trains; COMET's two levels (logical partitions of random physical ones, drawn
    every epoch; each pair of them resident together at some time) and its deferred assignment of training nodes to the
    states in which they could be used. Given `memory`, a state is two logical partitions, 2p / c in all as the paper
    has it, and a third one is read ahead. `order='cached'` is what the paper does for node classification when the
    training nodes' partitions fit the buffer: these stay, the others are drawn every epoch, and nothing is swapped in
    between. 'dispersed' is its authors' later order, in which each partition enters once.

    Different: blocks are sampled by our native sampler and deduplicated (the original's DENSE structure reuses samples
    across layers); sorted edges of a state are merged from the buckets' own order instead of sorted anew; a minibatch
    never spans two states, and all epochs have the same number of minibatches, which may therefore be smaller than
    `batch_size`; evaluation is not done here but with any source that samples all neighbours.

    In favour of this baseline: the original goes through its whole order however few training nodes there are. Here,
    where they would not fill a minibatch in each state, an epoch visits fewer states, drawn at random: as few as have
    no more than a minibatch each, while every logical partition is in one. Whatever their number, training nodes in all
    partitions cost a pass over the features, and p / c states with a minibatch each.

    Args:
        graph: graph directory, or an opened one; labels come from there.
        partitions: directory from `prepare_partitions`.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all that are resident.
        batch_size: seeds per minibatch, at most.
        resident: c, partitions in memory.
        memory: instead of `resident`: bytes, or '2GiB', for rows and edges, with those that are read ahead.
        order: 'comet', 'dispersed' or 'cached'.
        seed: same seed, same minibatches.
        threads: that sample and gather; by default half of the cores.
        prefetch: minibatches made ahead of the user; by default one per thread.
        sample_epochs: how many epochs are drawn before they repeat; None draws every epoch afresh.
        engine: 'auto', 'io_uring' or 'threads'.

    Raises:
        ConfigError: numbers that cannot work together.
        ArtifactError: partitions of another graph, or damaged.

    Example:
        >>> prepare_partitions("graph", "partitions", num_partitions=16)
        >>> with PartitionBuffer("graph", "partitions", fanouts=[10, 10], batch_size=1024, resident=4) as source:
        ...     diskgnn.train(source, epochs=10)
    """

    name = "partition-buffer"

    def __init__(
        self,
        graph: PathLike | Graph,
        partitions: PathLike,
        *,
        fanouts: Sequence[int],
        batch_size: int,
        resident: int | None = None,
        memory: int | str | None = None,
        order: str = "comet",
        seed: int = 0,
        threads: int | None = None,
        prefetch: int | None = None,
        sample_epochs: int | None = None,
        engine: str = "auto",
    ) -> None:
        super().__init__(graph, "train", fanouts=fanouts, batch_size=batch_size, seed=seed, threads=threads,
                         sample_epochs=sample_epochs)  # fmt: skip
        at_least_one("prefetch", prefetch)
        if order not in ORDERS:
            raise ConfigError(f"order: expected one of {', '.join(ORDERS)}, found {order!r}")
        self._partitions = found = Partitions.open(partitions, self._graph)
        if (resident is None) == (memory is None):
            raise ConfigError("expected one of resident and memory, found " + ("none" if resident is None else "both"))
        if resident is None:
            assert memory is not None
            resident = resident_partitions(found, parse_size(memory), order)
        if not (2 <= resident <= found.num_partitions or resident == found.num_partitions):
            raise ConfigError(f"resident: expected 2 to {found.num_partitions} partitions, found {resident}")
        if order == "cached" and not found.manifest.config["train_first"]:
            raise ConfigError(
                f"order='cached': {found.manifest.path} was not made with train_first=True; make it again"
            )
        self.order, self.resident = order, resident
        self._train = np.unique(found.train, axis=0)  # [n, 2] partition and position
        self._order: dict[str, Any] = {
            "order": order, "num_partitions": found.num_partitions, "resident": resident, "batch_size": batch_size,
        }  # fmt: skip
        self._num_batches = epoch_shape(self._train[:, 0], **self._order).num_batches
        self._plan(0)  # raises what no epoch could do with
        self._engine, self._prefetch = engine, prefetch or self._threads
        self._buffer: _Buffer | None = None  # taken when the first epoch starts
        self._x_buffers = RowBuffers(self._graph)
        self._loads = {"loaded_rows": 0, "load_seconds": 0.0, "buffer_states": 0}
        warn_if_no_io_uring(engine)

    def _plan(self, epoch: int) -> BufferPlan:
        return plan_epoch(self._train[:, 0], **self._order, seed=self._seed, epoch=self._sampled_epoch(epoch))

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        plan, key = self._plan(epoch), batch_key(self._seed, "train", self._sampled_epoch(epoch))
        if start == len(plan.batches):
            return
        if self._buffer is None:
            self._buffer = _Buffer(self._partitions, plan.slots.shape[1], self._engine)
        loader = ThreadPoolExecutor(1, thread_name_prefix=self._thread_name("load"))
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._thread_name("sample"))
        stopping = threading.Event()
        in_flight: deque[Future[MiniBatch]] = deque()
        try:
            submitted, current = start, -1
            states = [*plan.batch_state.tolist(), -1]  # of each minibatch, and then none
            loading: Future[_Loaded] | None = loader.submit(self._load, plan, states[start], (), stopping)
            cost: dict[int, _Loaded] = {}  # of a state, counted with its first minibatch
            loaded: _Loaded | None = None
            for index in range(start, len(plan.batches)):
                while submitted < len(plan.batches) and len(in_flight) <= self._prefetch:
                    if states[submitted] != current:
                        assert loading is not None
                        if in_flight and not loading.done():
                            break  # what is ready is wanted first
                        loaded, loading, current = loading.result(), None, states[submitted]
                        cost[submitted] = loaded
                        if current + 1 < len(plan.slots) and plan.enters_free_slots(current + 1):
                            loading = loader.submit(self._load, plan, current + 1, tuple(in_flight), stopping)
                    assert loaded is not None
                    in_flight.append(
                        pool.submit(self._make, loaded.state, epoch, submitted, plan.batches[submitted], key)
                    )
                    submitted += 1
                    if loading is None and states[submitted] > current:  # it overwrites what this one uses
                        loading = loader.submit(self._load, plan, states[submitted], tuple(in_flight), stopping)
                yield _counted(in_flight.popleft().result(), cost.pop(index, None))
        finally:
            stopping.set()
            for executor in (pool, loader):
                executor.shutdown(wait=False, cancel_futures=True)
            for executor in (pool, loader):
                executor.shutdown()

    def _load(
        self, plan: BufferPlan, state: int, after: Sequence[Future[MiniBatch]], stopping: threading.Event
    ) -> _Loaded:
        for future in after:
            with suppress(CancelledError):
                future.exception()  # waits; what failed is raised where its minibatch is due
        if stopping.is_set():
            raise CancelledError
        assert self._buffer is not None
        began = time.perf_counter()
        with self._traced("load partitions", int(np.searchsorted(plan.batch_state, state))):
            loaded = self._buffer.load(plan.slots[state])
        self._loads["load_seconds"] += time.perf_counter() - began
        self._loads["loaded_rows"] += loaded.rows
        self._loads["buffer_states"] += 1
        return loaded

    def _make(self, state: BufferState, epoch: int, index: int, chosen: npt.NDArray[np.int64], key: int) -> MiniBatch:
        assert self._buffer is not None
        partition, position = self._train[chosen].T
        places = state.slot_of[partition] * self._partitions.stride + position
        with self._traced("sample", index):
            found, sampled = state.sampler.sample(places, np.array(self._fanouts, np.int32), key, index)
        with self._traced("gather", index):
            x, x_bytes = self._x_buffers.take(len(found))
            gather_rows(self._buffer.rows, self._partitions.row_bytes, found, x_bytes, 1)
            nodes = state.nodes[found]
        seeds = nodes[: len(places)]
        return MiniBatch(
            x=x,
            y=self._labels(seeds),
            blocks=as_blocks(seeds, nodes, sampled).blocks,
            seeds=torch.from_numpy(seeds.copy()),
            epoch=epoch,
            index=index,
            input_nodes=torch.from_numpy(nodes),
        )

    def stats(self) -> Mapping[str, int | float]:
        """Those of `EpochSource.stats`: all rows are served by the cpu tier; read_bytes are of partitions and buckets.
        Beside them loaded_rows (read with partitions), buffer_states, and load_seconds in the background."""
        return {**super().stats(), **self._loads}

    def _identity(self) -> dict[str, Any]:
        return {
            **super()._identity(), "partitions": self._partitions.manifest.digest, "resident": self.resident,
            "order": self.order,
        }  # fmt: skip

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the buffer. Idempotent."""
        super().close()
        self._buffer = None
        self._x_buffers.clear()


def _counted(batch: MiniBatch, loaded: _Loaded | None) -> tuple[MiniBatch, RowCounts]:
    """What was read for a state counts with its first minibatch."""
    return batch, RowCounts(
        cpu_rows=len(batch.x),
        read_bytes=loaded.read_bytes if loaded else 0,
        read_requests=loaded.read_requests if loaded else 0,
    )


def resident_partitions(partitions: Partitions, memory_bytes: int, order: str = "comet") -> int:
    """The most partitions that fit `memory_bytes` with their edges, and what `order` reads ahead of the next state.

    That is all of them, or two logical partitions, c = 2g such that p / g = 2p / c; any number with 'cached'.

    Raises:
        ConfigError: not even two do.
    """
    p, num_edges = partitions.num_partitions, int(partitions.buckets[-1, -1])
    for resident in range(p, 1, -1):
        two_groups = resident == p or (resident % 2 == 0 and p % (resident // 2) == 0)
        needed_bytes = _buffer_bytes(p, resident, order, num_edges, partitions.stride, partitions.row_bytes)
        if (order == "cached" or two_groups) and needed_bytes <= memory_bytes:
            return resident
    raise ConfigError(
        f"memory: {memory_bytes} bytes do not hold two of the {p} partitions of {partitions.manifest.path}; raise it, "
        f"or prepare more partitions"
    )


def fitting_partitions(graph: Graph, memory_bytes: int) -> int:
    """How many partitions to prepare so that COMET's order makes the most of `memory_bytes`.

    Logical partitions are as large as fit, two and one that is read ahead, and of 4 physical ones each; of fewer when
    that makes too many. If the memory does not even hold the smallest, `PartitionBuffer` will say so.
    """
    row_bytes = graph.feature_file.row_bytes
    for num_logical in chain([2], range(4, _MOST_PARTITIONS + 1)):  # two are all; and so are three, one read ahead
        group = min(_GROUP, _MOST_PARTITIONS // num_logical)
        p = num_logical * group
        stride = partition_rows(graph.num_nodes, p, row_bytes)
        if _buffer_bytes(p, 2 * group, "comet", graph.num_edges, stride, row_bytes) <= memory_bytes:
            break
    return min(p, graph.num_nodes)


def _buffer_bytes(p: int, resident: int, order: str, num_edges: int, stride: int, row_bytes: int) -> int:
    """What a buffer takes in which `resident` of p partitions are sampled from."""
    # A slot has rows, ids and offsets. An edge takes 8 bytes in its bucket, and 4 in each of two states' topologies.
    slots_bytes = num_slots(order, p, resident) * stride * (row_bytes + 40)
    return slots_bytes + num_edges * resident * resident // (p * p) * 16
