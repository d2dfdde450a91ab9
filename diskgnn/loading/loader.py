"""`Loader`: iterate over the minibatches of a packed directory, read from disk ahead of the training loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diskgnn._native import RowFile
from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import open_rank
from diskgnn.formats.samples_config import drawing_to_json
from diskgnn.loading.loader_options import LoaderOptions, ReadingOptions
from diskgnn.loading.sequence import MinibatchSequence
from diskgnn.loading.sequence_reader import SequenceReader
from diskgnn.loading.tracing import TraceEvent
from diskgnn.paths import PathLike
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.shard import Shard
from diskgnn.units import counted, format_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Loader(CursorSource):
    """Yields the minibatches of one split of a packed directory, in the order in which they were prepared.

    `for batch in loader` yields one epoch, as it does with torch's DataLoader: the first loop epoch 0, the next one
    epoch 1, unless `set_epoch` says otherwise. `epoch(e)` yields epoch e. Epoch e is prepared epoch e modulo the number
    of prepared ones.

    Threads read at most `prefetch` minibatches ahead. Between epochs the system may take the memory of minibatches, and
    `release_memory` gives it all but the tiers' and what is page-locked.
    A minibatch's tensors lie in a buffer that is reused once you have dropped all of them. Keeping minibatches is fine
    and costs memory. One thread iterates at a time. Another one may close the loader meanwhile: iterating ends in a
    ConfigError then.

    A loader cannot be used in a forked process, because its threads stay behind. Using it there raises ConfigError, and
    dropping it is fine. Make one in each process.

    Attributes:
        split: 'train', 'valid' or 'test'.
        device: where minibatches are delivered.
        sequence: what is read; knows the size of the largest minibatch.

    Example:
        with diskgnn.Loader("packed") as loader:
            for _ in range(10):
                for batch in loader:
                    loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y)
    """

    @takes_options(ReadingOptions, LoaderOptions)
    def __init__(
        self,
        packed: PathLike | Packed,
        split: str = "train",
        *,
        device: str | torch.device = "cpu",
        rank: int | None = None,
        world_size: int | None = None,
        **reading: Unpack[ReadingOptions],
    ) -> None:
        """Open a packed directory for training or evaluation. Memory is taken when the first epoch starts.

        Args:
            packed: directory written by `diskgnn.prepare` or `diskgnn.pack`, or one that is open, or a folder with one
                for each rank (`prepare(..., ranks=4)`). Its files of now are read as long as the loader exists, also
                when the directory is replaced.
            split: 'train', 'valid' or 'test'.
            device: where the minibatches' tensors are wanted.
            rank, world_size: which rank of how many this process is; by default what RANK and WORLD_SIZE in the
                environment say, which torchrun sets.
            reading: `device_cache`, `prefetch` and what else `LoaderOptions` says of how it reads.

        Raises:
            ArtifactError: not a packed directory, damaged, or without this split; the rank's is missing.
            ConfigError: options that cannot work; a directory that was prepared for other ranks.
            StoreError: the store failed; while iterating, too.
        """
        options = LoaderOptions(**reading)
        shard = Shard.given(rank, world_size)
        self._open(open_rank(packed, shard, stream=options.stream), split, device, options, ())

    @classmethod
    def with_options(
        cls,
        packed: PathLike | Packed,
        split: str,
        device: str | torch.device,
        options: LoaderOptions,
        row_files: Sequence[RowFile] = (),
    ) -> Loader:
        """Opens a `Loader` whose other keyword arguments are `options`.

        `row_files` [K] are those that rows lie in, of a directory that refers to them.

        Raises:
            ArtifactError, ConfigError: see `Loader`.
        """
        loader = Loader.__new__(cls)
        loader._open(open_rank(packed, stream=options.stream), split, device, options, row_files)
        return loader

    def _open(
        self,
        packed: Packed,
        split: str,
        device: str | torch.device,
        options: LoaderOptions,
        row_files: Sequence[RowFile],
    ) -> None:
        self.options = options
        self.sequence = sequence = MinibatchSequence.open(packed, split, device, options, row_files)
        super().__init__(Cursor("Loader", sequence.num_batches, sequence.identity()))
        self.split, self.device = split, sequence.device
        config = sequence.packed.config
        self.num_epochs = sequence.num_epochs  # prepared ones
        self.schema = config.schema()
        self.num_layers = config.samples.spec.num_layers
        self.sampling = drawing_to_json(config.samples.spec)
        self._pid = os.getpid()
        self._reader: SequenceReader | None = None  # until the first epoch starts
        self._starting = threading.RLock()  # an epoch starts, or the loader is closed
        self._tracing = False
        self._stats, self._events = LoadStats(), list[TraceEvent]()  # of the reader that was closed

    def __repr__(self) -> str:
        """Says what it reads, in a few lines."""
        packed = self.sequence.packed
        lines = [
            f"Loader({str(packed.location)!r}, {self.split!r}, device={str(self.device)!r})",
            f"minibatches: {self.num_batches} in an epoch, {counted(self.num_epochs, 'prepared epoch')}, "
            f"{counted(self.num_layers, 'layer')}",
        ]
        for row_set, held in zip(packed.config.row_sets, packed.sequence(self.split).row_sets, strict=True):
            rows = row_set.rows
            lines.append(
                f"features of {row_set.name}: {rows.dtype} [{row_set.num_rows}, {rows.num_features}], "
                f"{format_size(held.cpu_rows * rows.row_bytes)} of them in the cpu tier"
            )
        return "\n  ".join(lines)

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on; outputs of other targets than classes."""
        return self.schema.num_outputs

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns of x.

        Raises:
            ConfigError: there are the features of several types, or none: `schema` has them.
        """
        return self.sequence.packed.config.one_row_set.rows.num_features

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Yields the minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        `MiniBatch`es of a graph of one node type and one edge type, `TypedMiniBatch`es of others.

        Leaving the loop early is fine: the next call seeks. Asking for the epochs in order is free of seeks.

        Raises:
            ArtifactError: an extent is damaged.
            OSError: the disk failed.
            ConfigError: `epoch` is negative, the loader is closed, or another epoch was started while this one was
                iterated.
        """
        self._require_own_process()
        with self._starting:
            first = self._cursor.start(epoch)
            if first < self.num_batches:
                self._opened().start(epoch, first)
            return self._iterate(first, self._cursor.turn)

    def _iterate(self, first: int, turn: int) -> Iterator[AnyMiniBatch]:
        for number in range(first, self.num_batches):
            yield self._next(number, turn)
        reader = self._reader
        if turn == self._cursor.turn and reader is not None and self._pid == os.getpid():
            reader.release_idle_buffers()

    def _next(self, number: int, turn: int) -> AnyMiniBatch:
        self._require_own_process()
        reader = self._reader  # before the turn is checked: closing ends the turn before it drops the reader
        self._cursor.require(turn)
        assert reader is not None
        try:
            batch = reader.next()
        except RuntimeError:
            self._cursor.require(turn)  # another thread closed the loader while this one waited
            raise
        self._cursor.batch = number + 1
        return batch

    def _opened(self) -> SequenceReader:
        if self._reader is None:
            self._reader = SequenceReader(self.sequence, self.options)
            if self._tracing:
                self._reader.start_tracing()
        return self._reader

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError(
                "this Loader was made before a fork, and its threads did not survive it: make a Loader in each process"
            )

    @property
    def device_cache(self) -> int | str | None:
        """Returns the size of the static rows kept on the device, as `Loader` was given it or `choose_device_cache` has
        set it.
        """
        return self.options.device_cache

    def choose_device_cache(self, size: int | str) -> None:
        """Keep static rows of this size on the device. It counts if no epoch was started yet.

        A method, not a property to set: a wrapper that passes attributes on (`__getattr__`) passes this on, too.
        """
        self.options = replace(self.options, device_cache=size)

    def stats(self) -> LoadStats:
        """Returns counters since the loader was made, of what was assembled, which may be ahead of what was received.

        Raises:
            ConfigError: in a forked process.
        """
        self._require_own_process()
        reader = self._reader
        return self._stats if reader is None else reader.stats()

    @property
    def tier_bytes(self) -> int:
        """Returns the bytes of the cpu tier, which are in memory from the first epoch on."""
        packed = self.sequence.packed
        sizes = zip(packed.config.row_sets, packed.sequence(self.split).row_sets, strict=True)
        return sum(held.cpu_rows * row_set.rows.row_bytes for row_set, held in sizes)

    def release_memory(self, tier_bytes: int = 0) -> None:
        """Free all memory but the tiers' and page-locked buffers, between epochs: the next epoch takes it again.

        For what else needs memory between epochs, such as the loader of another split: `diskgnn.train` does this before
        it evaluates. Memory of minibatches that you hold is freed when you drop them. Buffers that are page-locked, as
        all are on a GPU, stay. Within an epoch, nothing happens.

        Args:
            tier_bytes: how much of the cpu tier is freed, too, at most. Its rows are read again when the next epoch
                starts, or when more is to be freed.

        Raises:
            ArtifactError: an extent is damaged.
            OSError: the disk failed.
        """
        self._require_own_process()
        with self._starting:
            if (reader := self._reader) is not None:
                reader.release_memory(tier_bytes)

    def start_tracing(self) -> None:
        """Keep from now on what the loader's threads do, for `take_trace`. Costs nothing before it is called.

        At most 2^20 events (32 MiB, some 2,000 minibatches of 100 MB) are kept between two calls of `take_trace`; later
        ones are dropped with a warning.
        """
        self._require_own_process()
        self._tracing = True
        if (reader := self._reader) is not None:
            reader.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call, in no particular order; none when tracing was not started.

        Track 'disk': 'read', a chunk from submission to completion, with the minibatch that its first byte belongs to;
        several are in flight at once. Track 'assemble', one stage at a time: 'wait for consumer', 'wait for disk',
        'header', 'gather' and 'scatter', whose sums over all minibatches are what `stats` says. Track 'transfer', on a
        GPU: 'copy', a minibatch on its way to it.

        Example:
            with diskgnn.Loader("packed") as loader:
                loader.start_tracing()
                for batch in loader:
                    ...
                gathering_ns = sum(e.end_ns - e.start_ns for e in loader.take_trace() if e.stage == "gather")
        """
        self._require_own_process()
        reader = self._reader
        events, self._events = self._events, []
        return events if reader is None else events + reader.take_trace()

    def close(self) -> None:
        """Join all threads and free the tiers; minibatches that you hold stay valid. Idempotent.

        While another thread seeks, this waits until it has.
        """
        if self._pid != os.getpid():  # locks may be held by threads that are not here
            self._cursor.close()
            self._reader = None
            return
        with self._starting:
            self._cursor.close()
            if (reader := self._reader) is None:
                return
            reader.stop()
            self._stats, self._events = reader.stats(), reader.take_trace()
            self._reader = None
            reader.close()
