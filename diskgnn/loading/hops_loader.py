"""`HopsLoader`: iterate over the records of a hops directory, as minibatches of seeds with their hop features."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, repeat, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import KeptPages, copy_rows_at
from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.hop_batch import HopBatch
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats.artifacts import given_file
from diskgnn.formats.hops import Hops
from diskgnn.formats.hops_config import ALL_NODES
from diskgnn.formats.manifest import made_again
from diskgnn.formats.rank_directories import local_ranks, shard_of_environment
from diskgnn.loading.batch_memory import BatchMemory, Records, as_bytes, record_buffer
from diskgnn.loading.hop_order import HopOrder, Pool
from diskgnn.loading.hops_options import HopsOptions, RecordOptions
from diskgnn.loading.record_reading import Reading, RecordFile, RecordReader, reading_bytes
from diskgnn.ordered import Threads, in_order
from diskgnn.paths import PathLike
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.schema import NO_LABELS, SourceSchema
from diskgnn.specs.shard import Shard
from diskgnn.stores.locations import local
from diskgnn.system.device import located_device
from diskgnn.system.memory import memory_budget
from diskgnn.units import format_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KEPT_BYTES = 512 << 20  # of buffers that were given back, at most
# A minibatch: its number, numbers of its records in the file [B], and these.
_Found: TypeAlias = tuple[int, npt.NDArray[np.int64], Records]


class HopsLoader(CursorSource):
    """Yields the seeds of one split of a hops directory with their hop features, a `HopBatch` at a time.

    `for batch in loader` yields one epoch, as it does with torch's DataLoader. Train seeds come in another random order
    in each epoch, a function of `shuffle_seed` and the epoch alone; others as their split has them.

    Several processes that train together (RANK and WORLD_SIZE, which torchrun sets) each have a part of every epoch, in
    as many minibatches, unless there are fewer seeds than ranks, or minibatches have one seed each.

    Attributes:
        split: 'train', 'valid' or 'test'; 'nodes' where `propagate` was given nodes.
        device: where minibatches are delivered.
        hops: [H] names of the segments of a record: 'x', then 'mean/1', 'mean/2', ... for each operator, or paths of
            edge types, such as 'author:writes'.
        schema: the type of the seeds, what their labels are, and the segments.

    Example:
        with diskgnn.HopsLoader("hops", batch_size=4096) as loader:
            mean, deviation = loader.statistics()
            for _ in range(10):
                for batch in loader:
                    loss = F.cross_entropy(model((batch.x - mean) / deviation), batch.y)
    """

    @takes_options(RecordOptions, HopsOptions)
    def __init__(
        self,
        hops: PathLike | Hops,
        split: str = "train",
        *,
        device: str | torch.device = "cpu",
        rank: int | None = None,
        world_size: int | None = None,
        **reading: Unpack[RecordOptions],
    ) -> None:
        """Open a hops directory. Memory for records is taken when an epoch starts.

        Args:
            hops: directory written by `diskgnn.propagate`, or one that is open. Its files of now are read as long as
                the loader exists.
            split: 'train', 'valid' or 'test'; or 'nodes'.
            device: where the minibatches' tensors are wanted.
            rank, world_size: which rank of how many this process is; by default what RANK and WORLD_SIZE in the
                environment say, which torchrun sets.
            reading: `batch_size`, `memory` and what else `HopsOptions` says of how it reads.

        Raises:
            ArtifactError: not a hops directory, damaged, or without this split.
            ConfigError: options that cannot work.
        """
        self._open(hops, split, device, HopsOptions(**reading), Shard.given(rank, world_size))

    @classmethod
    def with_options(
        cls,
        hops: PathLike | Hops,
        split: str,
        device: str | torch.device,
        options: HopsOptions,
        shard: Shard | None = None,
    ) -> HopsLoader:
        """Opens a `HopsLoader` whose other keyword arguments are `options`.

        Raises:
            ArtifactError, ConfigError: see `HopsLoader`.
        """
        loader = HopsLoader.__new__(cls)
        loader._open(hops, split, device, options, shard)
        return loader

    def _open(
        self, hops: PathLike | Hops, split: str, device: str | torch.device, options: HopsOptions, shard: Shard | None
    ) -> None:
        hops = hops if isinstance(hops, Hops) else Hops.open(local(hops, "HopsLoader"))
        config, shard = hops.config, shard or shard_of_environment() or Shard()
        self.split, self.options = split, options
        self.device = located_device(device)
        self.schema = schema_of_hops(hops)
        self._hops = hops
        self._records = RecordFile.open(hops, split, verify=options.verify, engine=options.engine)
        seed = (options.shuffle_seed or 0) if split == "train" else None
        self._order = HopOrder(config.num_rows[split], config.row_bytes, options.batch_size, seed, shard)
        identity = {
            "hops": hops.manifest.digest, "split": split, "batch_size": options.batch_size, "shuffle_seed": seed,
            "rank": shard.rank, "world_size": shard.world_size,
        }  # fmt: skip
        super().__init__(Cursor("HopsLoader", self._order.num_batches, identity))
        self.num_layers = 0  # of blocks
        self.hops = tuple(segment.name for segment in config.segments)
        self._seeds, self._labels = _seeds_and_labels(hops, split)
        self._keeps = split == "train" and self._kept_bytes() <= memory_budget(options.memory) // local_ranks()
        self._kept: Records | None = None  # all records, from the first epoch on
        self._pages: KeptPages | None = None  # from the first epoch on: to get new ones takes longer than to fill them
        self._waited, self._done = LoadStats(), LoadStats()  # of the user's thread, and of the one that reads

    def _kept_bytes(self) -> int:
        """Returns what it takes to keep the records of this split, and to evaluate on another one beside them.

        Where they are read instead, evaluation is given the pages that training has given back, and needs no more.
        """
        others = [rows for split, rows in self._hops.config.num_rows.items() if split != self.split]
        evaluated = (reading_bytes(replace(self._order, num_records=rows, seed=None)) for rows in others)
        most_ahead = self.options.prefetch + 1  # and the one that is used
        minibatches = min(self._order.num_records, most_ahead * self.options.batch_size)
        return self._order.row_bytes * (self._order.num_records + minibatches) + max(evaluated, default=0)

    def __repr__(self) -> str:
        """Says what it reads, in a few lines."""
        config = self._hops.config
        num_bytes = config.num_rows[self.split] * config.row_bytes
        where = "kept in memory" if self._keeps else "read in every epoch"
        return "\n  ".join([
            f"HopsLoader({str(self._hops.manifest.path)!r}, {self.split!r}, device={str(self.device)!r})",
            f"minibatches: {self.num_batches} in an epoch, of at most {self.options.batch_size} seeds",
            f"records: {config.num_rows[self.split]}, {format_size(num_bytes)}, {where}",
            f"segments: {', '.join(f'{segment.name} [{segment.width}]' for segment in config.segments)}",
        ])  # fmt: skip

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on; outputs of other targets than classes."""
        return self.schema.num_outputs

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns of each segment.

        Raises:
            ConfigError: they have several widths: `schema.segments` has them.
        """
        width, *others = self._hops.config.widths
        if others:
            raise ConfigError(f"num_features: segments have {width}, {', '.join(map(str, others))} columns")
        return width

    def statistics(self) -> tuple[Any, Any]:
        """Returns means and deviations of the train records, in the shape of a record of x: [H, D] float32, or by
        segment, on `device`. Deviations that are 0 are 1.

        Raises:
            ArtifactError: they are damaged, or there are no train records.
        """
        mean, deviation = (torch.from_numpy(each).float().to(self.device) for each in self._hops.statistics())
        deviation[deviation == 0] = 1  # what float32 is too coarse for
        return self._shaped(mean[None], of_one=True), self._shaped(deviation[None], of_one=True)

    def epoch(self, epoch: int) -> Iterator[HopBatch]:
        """Yields the minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        Raises:
            ArtifactError: records are damaged.
            OSError: the disk failed.
            ConfigError: `epoch` is negative, the loader is closed, another epoch was started while this one was
                iterated, or it was started before a fork.
        """
        first = self._cursor.start(epoch)
        self._pages = self._pages or KeptPages(_KEPT_BYTES)
        return self._iterate(epoch, first, self._cursor.turn)

    def _iterate(self, epoch: int, first: int, turn: int) -> Iterator[HopBatch]:
        process = os.getpid()
        with ExitStack() as opened:
            made = opened.enter_context(closing(self._make_batches(epoch, first)))
            thread = opened.enter_context(Threads(1, "diskgnn-hops"))
            calls = repeat(partial(next, made), self.num_batches - first)
            batches = opened.enter_context(closing(in_order(thread, calls, self._ahead)))
            try:
                yield from self._deliver(batches, turn, process)
            finally:
                if process != os.getpid():
                    opened.pop_all()  # the threads are in the process that was forked: here, nobody can end them

    @property
    def _ahead(self) -> int:
        return self.options.prefetch - 1

    def _deliver(self, batches: Iterator[HopBatch], turn: int, process: int) -> Iterator[HopBatch]:
        while True:
            self._cursor.require(turn)
            if process != os.getpid():
                raise ConfigError("this epoch was started before a fork, and its threads did not survive it: start one")
            began = time.perf_counter()
            if (batch := next(batches, None)) is None:
                return
            self._waited += LoadStats(wait_seconds=time.perf_counter() - began)
            self._cursor.require(turn)
            if self.device.type != "cpu":  # on the stream, and the GPU, that the user's thread computes on
                batch = batch.to(self.device, non_blocking=True)
            self._cursor.batch = batch.batch_index + 1
            yield batch

    def _make_batches(self, epoch: int, first: int) -> Generator[HopBatch, None, None]:
        """Yields minibatches from number `first` on; runs in a thread beside the user's."""
        if first == self.num_batches:
            return
        found = self._gather(epoch, first) if self._keeps else self._read(self._order, epoch, first, _from_disk)
        with closing(found):
            yield from starmap(partial(self._batch, epoch), found)  # a loop's variable would keep the one before

    def _gather(self, epoch: int, first: int) -> Generator[_Found, None, None]:
        """Yields minibatches of records that stay in memory.

        One thread copies them: more would wait where the model computes with all cores.
        """
        kept = self._all_records()
        pools = map(self._count, self._order.pools(epoch, self._order.bounds(first)[0]))
        for number, numbers in self._order.minibatches(pools, first):
            yield number, numbers, self._copy(kept, numbers)

    def _copy(self, kept: Records, numbers: npt.NDArray[np.int64]) -> Records:
        row_bytes = self._order.row_bytes
        records = record_buffer(len(numbers), row_bytes)
        copy_rows_at(as_bytes(kept), row_bytes, row_bytes * numbers, as_bytes(records))
        return records

    def _count(self, pool: Pool) -> Pool:
        self._done += LoadStats(requested_rows=pool.num_records, cpu_rows=pool.num_records)
        return pool

    def _all_records(self) -> Records:
        """Returns records [n, V] as the file has them: the only minibatch of an order that mixes nothing."""
        if self._kept is None:
            count = self._hops.config.num_rows[self.split]
            whole = replace(self._order, batch_size=count, seed=None, shard=Shard())
            ((_, _, self._kept),) = self._read(whole, 0, 0, lambda num_records: LoadStats(filled_rows=num_records))
        return self._kept

    def _read(
        self, order: HopOrder, epoch: int, first: int, counted: Callable[[int], LoadStats]
    ) -> Generator[_Found, None, None]:
        """Yields minibatches of records that are read, and counts these. The next pool is read meanwhile."""
        memory = BatchMemory(order, first)
        with RecordReader(self._records, order) as reader:
            readings = (reader.begin(pool, memory.target(pool)) for pool in order.pools(epoch, order.bounds(first)[0]))
            pools = (self._waited_for(reading, counted) for reading in _one_ahead(readings))
            for number, numbers in order.minibatches(pools, first):
                yield number, numbers, memory.taken(number)

    def _waited_for(self, reading: Reading, counted: Callable[[int], LoadStats]) -> Pool:
        reading.wait()
        read = LoadStats(read_bytes=reading.read_bytes, read_requests=reading.requests)
        self._done += counted(reading.pool.num_records) + read
        return reading.pool

    def _batch(self, epoch: int, number: int, numbers: npt.NDArray[np.int64], records: Records) -> HopBatch:
        seeds = numbers if self._seeds is None else self._seeds[numbers]
        y = None if self._labels is None else torch.from_numpy(self._labels[numbers])
        batch = HopBatch(self._shaped(torch.from_numpy(records)), y, torch.from_numpy(seeds), epoch, number)
        return _pin(batch, self.device) if self.device.type == "cuda" else batch

    def _shaped(self, records: Tensor, *, of_one: bool = False) -> Any:
        """Returns records [n, V] as x has them; or the only one of them."""
        widths = {segment.name: segment.width for segment in self._hops.config.segments}
        if len({*widths.values()}) == 1:
            x = records.view(len(records), len(widths), -1)
            return x[0] if of_one else x
        parts = dict(zip(widths, torch.split(records, list(widths.values()), 1), strict=True))
        return {name: part[0] for name, part in parts.items()} if of_one else parts

    def stats(self) -> LoadStats:
        """Returns counters since the loader was made, of what was read, which may be ahead of what was received."""
        return self._waited + self._done

    def close(self) -> None:
        """Free the records, and memory of minibatches that is kept for the next epoch; those that you hold stay valid.
        Idempotent.
        """
        self._cursor.close()
        self._kept = self._pages = None


def _from_disk(num_records: int) -> LoadStats:
    return LoadStats(requested_rows=num_records, disk_rows=num_records)


def _one_ahead(readings: Iterator[Reading]) -> Iterator[Reading]:
    """Yields each one when the next one has begun."""
    for reading, _ in pairwise(chain(readings, [None])):
        assert reading is not None
        yield reading


def _pin(batch: HopBatch, device: torch.device) -> HopBatch:
    """Returns the minibatch in page-locked memory: no other GPU than `device` is made ready for that."""

    def pinned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: each.pin_memory() for name, each in value.items()}
        return None if value is None else value.pin_memory()

    with torch.cuda.device(device):  # threads have the first one
        return HopBatch(pinned(batch.x), pinned(batch.y), pinned(batch.seeds), batch.epoch, batch.batch_index)


def schema_of_hops(hops: Hops) -> SourceSchema:
    """Returns the schema of the minibatches of a hops directory."""
    config = hops.config
    target = config.target
    of_types = [(config.node_type, config.num_nodes, config.rows, config.columns)]
    of_types += [(each.node_type, each.num_nodes, each.rows, each.columns) for each in config.others]
    return SourceSchema(
        tuple((name, count, None if rows is None else rows.num_features) for name, count, rows, _ in of_types), (),
        config.node_type, NO_LABELS if target is None else target.kind, 1 if target is None else target.num_outputs,
        None if target is None else target.classes,
        tuple((name, columns) for name, *_, columns in of_types if columns is not None),
        tuple((segment.name, segment.width) for segment in config.segments),
    )  # fmt: skip


def _seeds_and_labels(hops: Hops, split: str) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[Any] | None]:
    """Returns the nodes whose records these are (None: all, in ascending order), and their labels as y has them.

    Raises:
        ArtifactError: they are damaged, or say what cannot be.
    """
    config = hops.config
    seeds = None if config.nodes == ALL_NODES else hops.manifest.checked_array(given_file("seeds", split))
    if seeds is not None and len(seeds) and not 0 <= seeds.min() <= seeds.max() < config.num_nodes:
        raise _damage_error(hops, f"seeds that are none of its {config.num_nodes} nodes")
    if config.target is None:
        return seeds, None
    labels = hops.manifest.checked_array(given_file("labels", split))
    is_class = config.target.kind == "class" and len(labels)
    if is_class and not -1 <= labels.min() <= labels.max() < config.target.num_outputs:
        raise _damage_error(hops, f"labels that are none of its {config.target.num_outputs} classes")
    return seeds, labels[:, None] if config.target.kind == "regression" and labels.ndim == 1 else labels


def _damage_error(hops: Hops, what: str) -> ArtifactError:
    return ArtifactError(f"{hops.manifest.path} is damaged: it has {what}; {made_again(hops.manifest)}")
