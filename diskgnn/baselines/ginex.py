"""Superbatches: sample many minibatches, plan an optimal cache for them, then gather: Ginex (VLDB 2022)."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import BeladyPlanner, NeighborSampler, exchange
from diskgnn.baselines.cached_reads import RowsOnDisk
from diskgnn.baselines.epoch_source import EpochSource, RowCounts
from diskgnn.baselines.neighbor_cache import sampler_with_neighbor_cache
from diskgnn.baselines.online import SampledBlocks, as_blocks, sample_blocks
from diskgnn.draws import batch_key
from diskgnn.errors import at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import MiniBatch
from diskgnn.specs import PathLike, cache_rows

SUPERBATCH = 1000  # minibatches


@dataclass(frozen=True)
class Changeset:
    """What the cache does for one minibatch."""

    slots: npt.NDArray[np.int32]  # [U] where each row is, -1 if it has to be read
    admissions: npt.NDArray[np.int32]  # [A, 2] position in the minibatch -> slot, once x is filled


class Ginex(EpochSource):
    """A `BatchSource` that knows its next accesses, since it samples a superbatch of minibatches before gathering any.

    Faithful to: Ginex (Park, Min and Lee, "Ginex: SSD-enabled Billion-scale Graph Neural Network Training on a Single
    Machine via Provably Optimal In-memory Caching", VLDB 2022).
    Kept: sampled minibatches and their changesets go through files; the feature cache is Belady's MIN within a
    superbatch at the granularity of minibatches, a row that is needed later than all that are cached is not admitted
    (bypass); nothing is carried over between superbatches; missed rows are read one by one past the page cache; the
    neighbour cache by out-degree / in-degree.
    Different: the cache starts empty, where Ginex fills it beforehand with the rows that are accessed first: the same
    rows are read, at their first access, and none in vain. Changesets are computed by `BeladyPlanner` on the
    CPU, not by masks on a GPU. Rows are read by io_uring, and neighbouring ones share a request, instead of by pread
    from many threads. Neighbours that are not cached come from a memory map, not from pread, so the page cache helps.
    The authors' program samples a superbatch, in two processes per core, while it computes the changesets of the one
    before; then it gathers that one and trains. Here a superbatch is sampled and inspected while the one before is
    gathered and trained on. In an epoch of one superbatch, nothing overlaps with sampling and inspecting it, so
    `compare` gives sampling all cores. After `load_state_dict`, a superbatch begins where iteration goes on.

    Args beside those of `EpochSource`:
        cpu_cache: the feature cache: bytes, '512MiB', or '10%' of all rows. It is in memory from the first epoch on.
        superbatch: minibatches sampled and planned together. The more, the better the cache does and the longer the
            first one takes before training begins. By default 1000, as in the authors' program. Inspecting one takes
            8 bytes a node of the graph.
        neighbor_cache: see `neighbor_cache.sampler_with_neighbor_cache`; by default all neighbours are in memory.
        scratch: folder for the files of two superbatches, about 4 bytes an edge and 12 an input node; by
            default beside the graph. They are gone when the epoch ends.
        engine: 'io_uring', 'threads', or 'auto': io_uring where it is allowed.
        prefetch: minibatches gathered ahead of the user.
        share: another Ginex over the same graph, whose topology to use.

    Raises beside what `EpochSource` does:
        ConfigError: no such size or engine; `share` of another graph or class.
        OSError: the scratch folder cannot be written, or the features cannot be read.

    Example:
        >>> source = Ginex("graph", fanouts=[10, 10], batch_size=1024, cpu_cache="10%", superbatch=1000)
    """

    name = "ginex"

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        cpu_cache: int | str = "10%",
        superbatch: int = SUPERBATCH,
        neighbor_cache: int | str = "100%",
        scratch: PathLike | None = None,
        engine: str = "auto",
        prefetch: int = 1,
        share: Ginex | None = None,
        **sampling: Any,
    ) -> None:
        super().__init__(graph, split, **sampling)
        at_least_one("superbatch", superbatch)
        at_least_one("prefetch", prefetch)
        self._check_shared(share)
        graph = self._graph
        self._superbatch, self._prefetch = superbatch, prefetch
        self._capacity = cache_rows(cpu_cache, graph.feature_file.row_bytes, graph.num_nodes)
        self._scratch = graph.manifest.path.absolute().parent if scratch is None else Path(scratch)
        # The cache's memory is taken as it fills, and kept for later epochs, which forget what is in it.
        self._rows: RowsOnDisk | None = RowsOnDisk(graph, self._capacity, engine=engine)
        self._sampler: NeighborSampler = (
            sampler_with_neighbor_cache(graph, neighbor_cache) if share is None else share._sampler
        )

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        sampled = self._sampled_epoch(epoch)
        seeds, key = self._seeds(sampled), batch_key(self._seed, self.split, sampled)
        superbatches = deque(
            range(first, min(first + self._superbatch, len(seeds)))
            for first in range(start, len(seeds), self._superbatch)
        )
        gathered: deque[Future[tuple[MiniBatch, RowCounts]]] = deque()
        stopping = threading.Event()
        with (
            tempfile.TemporaryDirectory(
                prefix=".diskgnn-ginex-", dir=self._scratch, ignore_cleanup_errors=True
            ) as folder,
            self._pools(stopping, inspect=1, gather=1) as (inspector, gatherer),
        ):
            files = SuperbatchFiles(Path(folder))

            def prepare(numbers: range) -> None:
                # Threads of its own: what each holds for sampling is free again while rows are gathered.
                with self._pools(sample=self._threads) as (pool,):
                    for saved in [pool.submit(self._sample, files, seeds[number], key, number) for number in numbers]:
                        saved.result()
                        if stopping.is_set():
                            raise CancelledError
                with self._traced("inspect", numbers.start):
                    self._inspect(files, numbers, stopping)

            prepared = inspector.submit(prepare, superbatches[0]) if superbatches else None
            while superbatches and prepared is not None:
                # What was gathered is handed out before this thread waits, or fails.
                while gathered and not (prepared.done() and prepared.exception() is None):
                    yield gathered.popleft().result()
                prepared.result()
                numbers = superbatches.popleft()
                prepared = inspector.submit(prepare, superbatches[0]) if superbatches else None
                for number in numbers:
                    gathered.append(gatherer.submit(self._gather, files, epoch, number))
                    if len(gathered) > self._prefetch:
                        yield gathered.popleft().result()
            while gathered:
                yield gathered.popleft().result()

    def _sample(self, files: SuperbatchFiles, seeds: npt.NDArray[np.int64], key: int, number: int) -> None:
        with self._traced("sample", number):
            files.save_sample(number, sample_blocks(self._sampler, seeds, self._fanouts, key, number))

    def _inspect(self, files: SuperbatchFiles, numbers: range, stopping: threading.Event) -> None:
        """Changeset precomputation."""

        def input_nodes(order: range) -> Iterator[npt.NDArray[Any]]:
            for number in order:
                if stopping.is_set():
                    raise CancelledError
                yield files.nodes(number)

        placements = place_superbatch(numbers, input_nodes, files, self._graph.num_nodes, self._capacity)
        for number, (addresses, disk_nodes, admissions) in zip(numbers, placements, strict=True):
            files.save_changeset(number, changeset(addresses, len(disk_nodes), admissions, self._capacity))

    def _gather(self, files: SuperbatchFiles, epoch: int, number: int) -> tuple[MiniBatch, RowCounts]:
        assert self._rows is not None
        with self._traced("gather", number):
            sampled, changes = files.take(number)
            x, counts = self._rows.gather(sampled.nodes, changes.slots, changes.admissions)
        return sampled.minibatch(x, self._labels(sampled.seeds), epoch, number), counts

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the cache. Idempotent."""
        super().close()
        self._rows = None


def place_superbatch(
    numbers: range,
    input_nodes: Callable[[range], Iterable[npt.NDArray[Any]]],
    files: SuperbatchFiles,
    num_nodes: int,
    capacity: int,
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.int32]]]:
    """What `BeladyPlanner.place` says of each minibatch of a superbatch, the cache being empty before it.

    A backward pass finds next uses, which wait in `files`; a forward pass plans. `input_nodes` gives those of some
    minibatches in order, each to be used before the next.
    """
    next_use = np.full(num_nodes, len(numbers), np.int32)  # that many stand for never
    backwards = numbers[::-1]
    for number, nodes in zip(backwards, input_nodes(backwards), strict=True):
        files.save_next_uses(number, exchange(next_use, nodes, number - numbers.start))
    del next_use
    planner = BeladyPlanner(np.full(num_nodes, -1, np.int32), 0, capacity, len(numbers))
    for number, nodes in zip(numbers, input_nodes(numbers), strict=True):
        yield planner.place(nodes, files.take_next_uses(number))


def changeset(
    addresses: npt.NDArray[np.int32], num_read: int, admissions: npt.NDArray[np.int32], capacity: int
) -> Changeset:
    """What `BeladyPlanner.place` returned, in terms of positions in the minibatch instead of rows of an extent."""
    missed = np.flatnonzero(addresses >= capacity).astype(np.int32)
    position_of_row = np.empty(num_read, np.int32)
    position_of_row[addresses[missed] - capacity] = missed
    pairs = admissions.reshape(-1, 2)
    slots = np.where(addresses < capacity, addresses, np.int32(-1))
    return Changeset(slots, np.column_stack([position_of_row[pairs[:, 0]], pairs[:, 1]]))


@dataclass(frozen=True)
class SuperbatchFiles:
    """Minibatches in a scratch folder, each in files of consecutive .npy arrays."""

    folder: Path

    def save_sample(self, number: int, sampled: SampledBlocks) -> None:
        """Until `take`."""
        with self._sample(number).open("wb") as file:
            np.save(file, sampled.nodes)
            np.save(file, sampled.seeds)
            for block in sampled.blocks:
                np.save(file, block.indptr.numpy())
                np.save(file, block.indices.numpy())

    def nodes(self, number: int) -> npt.NDArray[Any]:
        """The input nodes of a saved minibatch."""
        with self._sample(number).open("rb") as file:
            return np.asarray(np.load(file))

    def save_next_uses(self, number: int, next_uses: npt.NDArray[np.int32]) -> None:
        """Of the minibatch's nodes, until `take_next_uses`."""
        np.save(self._next_uses(number), next_uses)

    def take_next_uses(self, number: int) -> npt.NDArray[np.int32]:
        """What was saved; the file is removed."""
        (next_uses,) = _load_all(self._next_uses(number))
        self._next_uses(number).unlink()
        return next_uses

    def save_changeset(self, number: int, changes: Changeset) -> None:
        """Until `take`."""
        with self._changeset(number).open("wb") as file:
            np.save(file, changes.slots)
            np.save(file, changes.admissions)

    def take(self, number: int) -> tuple[SampledBlocks, Changeset]:
        """The minibatch and what the cache does for it; its files are removed."""
        nodes, seeds, *blocks = _load_all(self._sample(number))
        slots, admissions = _load_all(self._changeset(number))
        self._sample(number).unlink()
        self._changeset(number).unlink()
        return as_blocks(seeds, nodes, list(zip(blocks[::2], blocks[1::2], strict=True))), Changeset(slots, admissions)

    def _sample(self, number: int) -> Path:
        return self.folder / f"{number}-sample"

    def _next_uses(self, number: int) -> Path:
        return self.folder / f"{number}-next-uses.npy"

    def _changeset(self, number: int) -> Path:
        return self.folder / f"{number}-changeset"


def _load_all(path: Path) -> list[npt.NDArray[Any]]:
    size, arrays = path.stat().st_size, []
    with path.open("rb") as file:
        while file.tell() < size:
            arrays.append(np.load(file))
    return arrays
