"""Superbatches: sample many minibatches, schedule an optimal cache for them, then gather: Ginex (VLDB 2022)."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from diskgnn._native import NeighborSampler
from diskgnn.baselines.cached_reads import RowsOnDisk
from diskgnn.baselines.epoch_source import EpochSource, SourceOptions
from diskgnn.baselines.neighbor_cache import sampler_with_neighbor_cache
from diskgnn.baselines.sampling_source import draw
from diskgnn.baselines.superbatches import SUPERBATCH, SuperbatchFiles, changeset, place_superbatch
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.ordered import in_order
from diskgnn.paths import PathLike
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.specs.caches import cache_rows
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Ginex(EpochSource):
    """A `BatchSource` that knows its next accesses, since it samples a superbatch of minibatches before gathering any.

    The original: Ginex (Park, Min and Lee, "Ginex: SSD-enabled Billion-scale Graph Neural Network Training on a Single
    Machine via Provably Optimal In-memory Caching", VLDB 2022).

    Kept: sampled minibatches and their changesets go through files. The feature cache is Belady's MIN within a
    superbatch at the granularity of minibatches; a row that is needed later than all that are cached is not admitted
    (bypass); nothing is carried over between superbatches. Missed rows are read one by one past the page cache. The
    neighbour cache takes nodes by out-degree / in-degree.

    Different: the cache starts empty, where Ginex fills it beforehand with the rows that are accessed first: the same
    rows are read, at their first access, and none in vain. Changesets are computed on the CPU by `BeladyPlanner`, not
    by masks on a GPU. Rows are read by io_uring, and neighbouring ones share a request, instead of by pread from many
    threads. Neighbours that are not cached come from a memory map, not from pread, so the page cache helps.
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
        **sampling: Unpack[SourceOptions],
    ) -> None:
        super().__init__(graph, split, **sampling)
        whole_number("superbatch", superbatch)
        if prefetch is not None:
            whole_number("prefetch", prefetch)
        self._check_shared(share)
        graph = self._graph
        self._superbatch, self._prefetch = superbatch, prefetch
        self._capacity = cache_rows(cpu_cache, graph.feature_file.row_bytes, graph.num_nodes)
        self._scratch = graph.manifest.folder.absolute().parent if scratch is None else Path(scratch)
        # The cache's memory is taken as it fills, and kept for later epochs, which forget what is in it.
        self._rows: RowsOnDisk | None = RowsOnDisk(graph.feature_file, self._capacity, engine=engine)
        self._sampler: NeighborSampler = (
            sampler_with_neighbor_cache(graph, neighbor_cache) if share is None else share._sampler
        )

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, LoadStats], None, None]:
        remaining = self._planned(epoch)[start:]
        superbatches = [remaining[i : i + self._superbatch] for i in range(0, len(remaining), self._superbatch)]
        stopping = threading.Event()
        with (
            tempfile.TemporaryDirectory(
                prefix=".diskgnn-ginex-", dir=self._scratch, ignore_cleanup_errors=True
            ) as folder,
            self._pools(stopping, inspect=1, gather=1) as (inspector, gatherer),
        ):
            files = SuperbatchFiles(Path(folder))
            # One superbatch ahead. All of one is handed out before the next one is waited for, so that what is
            # gathered does not wait, and an error comes in its turn.
            inspected = inspector.submit(self._sample_and_inspect, files, superbatches[0], stopping)
            for superbatch, upcoming in zip_longest(superbatches, superbatches[1:]):
                inspected.result()
                if upcoming is not None:
                    inspected = inspector.submit(self._sample_and_inspect, files, upcoming, stopping)
                gathers = (partial(self._gather, files, epoch, minibatch) for minibatch in superbatch)
                yield from in_order(gatherer, gathers, self._prefetch)

    def _sample_and_inspect(
        self, files: SuperbatchFiles, superbatch: Sequence[PlannedMinibatch], stopping: threading.Event
    ) -> None:
        # Threads of their own: what each holds for sampling is free again while rows are gathered.
        with self._pools(sample=self._threads) as (pool,):
            samples = (partial(self._sample, files, minibatch) for minibatch in superbatch)
            for _ in in_order(pool, samples, 2 * self._threads):
                if stopping.is_set():
                    raise CancelledError
        first = superbatch[0].number
        faults.point("ginex.inspect")
        with self._traced("inspect", first):
            self._inspect(files, range(first, first + len(superbatch)), stopping)

    def _sample(self, files: SuperbatchFiles, minibatch: PlannedMinibatch) -> None:
        faults.point("baseline.sample")
        with self._traced("sample", minibatch.number):
            files.save_sample(minibatch.number, draw(self._sampler, minibatch))

    def _inspect(self, files: SuperbatchFiles, numbers: range, stopping: threading.Event) -> None:
        """Computes the changesets of a superbatch beforehand."""

        def input_nodes(order: range) -> Iterator[npt.NDArray[Any]]:
            for number in order:
                if stopping.is_set():
                    raise CancelledError
                yield files.nodes(number)

        placements = place_superbatch(numbers, input_nodes, files, self._graph.num_nodes, self._capacity)
        for number, (addresses, disk_nodes, admissions) in zip(numbers, placements, strict=True):
            files.save_changeset(number, changeset(addresses, len(disk_nodes), admissions, self._capacity))

    def _gather(self, files: SuperbatchFiles, epoch: int, minibatch: PlannedMinibatch) -> tuple[MiniBatch, LoadStats]:
        assert self._rows is not None
        number = minibatch.number
        faults.point("baseline.gather")
        with self._traced("gather", number):
            sampled, changes = files.take(number)
            x, cost = self._rows.gather(sampled.nodes, changes.slots, changes.admissions)
        return sampled.minibatch(x, self._labels(sampled.seeds, minibatch.places), epoch, number), cost

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free the cache. Idempotent."""
        super().close()
        self._rows = None
