"""`Loader`: iterate over the minibatches of a packed directory, read from disk ahead of the training loop."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from diskgnn._native import DamagedExtentError, Pipeline, crc32c
from diskgnn.batch_source import LoadStats
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError, ConfigError, at_least_one
from diskgnn.loading.assembly import Assembler, RowConversion
from diskgnn.loading.feature_store import TORCH_DTYPES, FeatureStore
from diskgnn.loading.transfer import IN_FLIGHT, HeaderReader, Transfer, UndecodableHeaderError, available_device
from diskgnn.minibatch import MiniBatch
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts, extents
from diskgnn.storage.row_reading import check_engine, warn_if_no_io_uring
from diskgnn.system.memory import available_cores
from diskgnn.tracing import TraceEvent


class Loader:
    """The minibatches of one split of a packed directory, in the order in which they were prepared.

    Epoch e yields prepared epoch e modulo the number of prepared ones. Reading goes on in the background, at most
    `prefetch` minibatches ahead; between epochs the system may take all memory but the cpu tier's. A minibatch's
    tensors lie in a buffer that is reused once you have dropped all of them; keeping minibatches is fine and costs
    memory. One thread iterates at a time. A loader does not go with you into a forked process (its threads stay
    behind): using it there is refused, dropping it is fine; make one in each process.

    With `shuffle_seed`, each epoch's minibatches come in an order of its own (which the cpu tier's schedule rules out).

    Example:
        with diskgnn.Loader("packed") as loader:
            for epoch in range(10):
                for batch in loader.epoch(epoch):
                    loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y)
    """

    def __init__(
        self,
        packed: PathLike,
        split: str = "train",
        *,
        device: str | torch.device = "cpu",
        device_cache: int | str | None = None,
        pinned_cache: int | str | None = None,
        zero_copy: bool | None = None,
        dtype: torch.dtype | None = None,
        scale: float | Sequence[float] | Tensor | None = None,
        zero_point: float | Sequence[float] | Tensor = 0.0,
        prefetch: int | None = None,
        shuffle_seed: int | None = None,
        engine: str = "auto",
        verify: bool = False,
        threads: int | None = None,
    ) -> None:
        """Open a packed directory for training or evaluation. Memory is taken when the first epoch starts.

        Args:
            packed: directory written by `diskgnn.prepare` or `diskgnn.pack`.
            split: 'train', 'valid' or 'test'.
            device: where the minibatches' tensors are wanted.
            device_cache: static rows kept on the device, bytes or '4GiB'. By default as another loader of the directory
                has it, else all that fit half of the free GPU memory; none on a cpu. `diskgnn.train` tries the model
                first, and takes all that it leaves.
            pinned_cache: static rows kept in host memory; by default all that the device tier does not take.
            zero_copy: the device gathers rows of the pinned tier, page-locked, by itself, instead of the host; by
                default on a GPU (which takes Triton; it comes with torch).
            dtype: of x. By default that of the data set; torch.float32 widens float16 and bfloat16 on the device.
            scale, zero_point: of int8 rows, one number or one per column: x is (row - zero_point) * scale in float32,
                computed on the device.
            prefetch: minibatches assembled ahead of the user; by default 1 on a cpu, where each costs memory that
                training needs and computing outlasts reading, and 2 on a GPU, where one more is on the GPU already.
            shuffle_seed: yield the minibatches of epoch e in an order that follows from this number and e, instead of
                the prepared one; for directories prepared without a cpu tier.
            engine: 'io_uring', 'threads', or 'auto': io_uring where it is allowed.
            verify: compare all rows with their checksums as they are read (headers of minibatches always are).
            threads: threads that gather cached rows; half of the cores, at most 4, by default.

        Raises:
            ArtifactError: not a packed directory, damaged, or without this split.
            ConfigError: options that cannot work.
        """
        self._packed = artifacts.open_artifact(packed, artifacts.PACKED)
        config = self._packed.config
        if split not in config["splits"]:
            raise ArtifactError(
                f"{self._packed.path} has no {split!r} sequence, only {', '.join(config['splits'])}: "
                "prepare it with that split"
            )
        check_engine(engine)
        self._device = available_device(device)
        if self._device.type == "cuda" and self._device.index is None:  # threads have a current device of their own
            self._device = torch.device("cuda", torch.cuda.current_device())
        if prefetch is None:
            prefetch = 2 if self._device.type == "cuda" else 1
        at_least_one("prefetch", prefetch)
        at_least_one("threads", threads)
        self.split = split
        self.num_batches = int(config["splits"][split]["batches_per_epoch"])
        self.num_epochs = int(config["splits"][split]["epochs"])
        self.num_classes = int(config["num_classes"])
        self.num_features = int(config["feature_width"])
        self.num_layers = len(config["fanouts"])
        self.num_static = int(config["num_static"])
        self._engine, self._prefetch, self._verify = engine, prefetch, verify
        if shuffle_seed is not None and config["splits"][split]["cpu_rows"]:
            raise ConfigError(
                f"shuffle_seed: {self._packed.path} has a cpu tier, which is planned for one order; prepare it with "
                "cpu_cache=0"
            )
        self._shuffle_seed = shuffle_seed
        self._threads = max(1, min(4, available_cores() // 2)) if threads is None else threads
        self._tiers: dict[str, int | str | None] = {"device_cache": device_cache, "pinned_cache": pinned_cache}
        self._zero_copy = zero_copy
        self._conversion = RowConversion(
            TORCH_DTYPES[config["feature_dtype"]], self.num_features,
            dtype=dtype, scale=scale, zero_point=zero_point, device=self._device,
        )  # fmt: skip
        node_type = pa.from_numpy_dtype(config["node_dtype"]) if config["keep_input_nodes"] else None
        artifacts.verify_file(self._packed, artifacts.index_file(split))  # a wrong one would give wrong rows
        self._index = self._packed.array(artifacts.index_file(split), mmap=False)
        if self._index.dtype != extents.INDEX_DTYPE or len(self._index) != self.num_batches * self.num_epochs:
            raise ArtifactError(f"{self._packed.path}: the index of {split!r} is not one; prepare it again")
        self._max_inputs = int(self._index["num_inputs"].max(initial=0))
        schema = extents.header_schema(self.num_layers, node_type)
        self._reader = HeaderReader(schema, int(self._index["header_bytes"].max(initial=0)), self._device)
        self._pid = os.getpid()
        self._store: FeatureStore | None = None
        self._pipeline: Pipeline | None = None
        self._next_position: int | None = None  # that the running pipeline delivers
        self._pending = 0  # minibatches that it will deliver without being asked again
        self._iteration = 0
        self._epoch, self._consumed = 0, 0
        self._resume: tuple[int, int] | None = None
        self._restored_bytes = self._filled_rows = 0
        self._closed_stats = LoadStats()
        self._tracing = False
        self._closed_trace: list[TraceEvent] = []
        self._transfer: Transfer | None = None
        self._finalizer: Any = None

    def __len__(self) -> int:
        return self.num_batches

    def epoch(self, epoch: int) -> Iterator[MiniBatch]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch.

        Leaving the loop early is fine: the next call seeks. Asking for the epochs in order is free of seeks.

        Raises:
            ArtifactError: an extent is damaged.
            OSError: the disk failed.
            ConfigError: another epoch was started while this iterator was in use, or `epoch` is negative.
        """
        if epoch < 0:
            raise ConfigError(f"epoch: expected at least 0, found {epoch}")
        self._require_own_process()
        self._iteration += 1
        iteration = self._iteration
        first = self._resume[1] if self._resume is not None and self._resume[0] == epoch else 0
        self._resume = None
        self._epoch, self._consumed = epoch, first
        base = epoch % self.num_epochs * self.num_batches
        if first < self.num_batches:
            self._seek(base + first, self.num_batches - first, self._order(epoch, base))
        return self._iterate(epoch, first, iteration)

    def _order(self, epoch: int, base: int) -> npt.NDArray[np.int64] | None:
        """[T] the extent at each position of the sequence; None when it is in the order of the file."""
        if self._shuffle_seed is None:
            return None
        order = np.arange(len(self._index), dtype=np.int64)
        key = batch_key(self._shuffle_seed, f"{self.split}/order", epoch)
        order[base : base + self.num_batches] = base + permutation(self.num_batches, key)
        return order

    def _iterate(self, epoch: int, first: int, iteration: int) -> Iterator[MiniBatch]:
        for number in range(first, self.num_batches):
            self._require_current(epoch, iteration)
            yield self._next(epoch, number, iteration)
        if iteration == self._iteration and self._pipeline is not None:
            self._pipeline.rest()

    def _require_own_process(self) -> None:
        if self._pid != os.getpid():
            raise ConfigError("this Loader was made before a fork, its threads are not here: make one in each process")

    def _require_current(self, epoch: int, iteration: int) -> None:
        self._require_own_process()
        if iteration != self._iteration:
            raise ConfigError(
                f"the loader was closed, or another epoch was started, while epoch {epoch} was iterated: "
                "use one Loader for each loop that runs at the same time"
            )

    def _damaged(self, error: Exception) -> ArtifactError:
        return ArtifactError(f"{error}; check with `diskgnn verify {self._packed.path}`, prepare it again")

    def _next(self, epoch: int, number: int, iteration: int) -> MiniBatch:
        assert self._transfer is not None
        expected, self._next_position = self._next_position, None  # not known any more when what follows fails
        try:
            position, batch = self._transfer.take(epoch, number)
        except (DamagedExtentError, UndecodableHeaderError) as error:
            raise self._damaged(error) from error
        except RuntimeError:
            self._require_current(epoch, iteration)  # closed by another thread while this one waited
            raise
        assert position == expected
        self._next_position = (position + 1) % len(self._index)
        self._pending -= 1
        self._consumed = number + 1
        return batch

    def _seek(self, position: int, count: int, order: npt.NDArray[np.int64] | None) -> None:
        """Make the pipeline deliver `count` minibatches of the sequence, in `order`, from `position` on."""
        if self._next_position == position and self._pending == 0:
            assert self._pipeline is not None
            assert self._transfer is not None
            if order is not None:
                self._pipeline.set_order(order)
            self._pipeline.extend(count)
            self._transfer.start(self._epoch, position % self.num_batches, count)
            self._pending = count
            return
        if self._pipeline is None:
            self._open()
        assert self._pipeline is not None
        assert self._store is not None
        assert self._transfer is not None
        self._transfer.stop()
        self._next_position = None
        self._restored_bytes += self._store.restore(self._index, position)
        self._filled_rows += self._store.initial_rows
        if order is not None:
            self._pipeline.set_order(order)
        self._pipeline.start(position, count)
        self._transfer.start(self._epoch, position % self.num_batches, count)
        self._next_position, self._pending = position, count
        warn_if_no_io_uring(self._engine)

    def _open(self) -> None:
        self._store = FeatureStore(
            self._packed, self.split, self._device, engine=self._engine, verify=self._verify, **self._tiers
        )
        assembler = Assembler(self._store, self._conversion, self._max_inputs, zero_copy=self._zero_copy)
        try:
            pipeline = Pipeline(
                str(self._packed.file(artifacts.extents_file(self.split))),
                np.ascontiguousarray(self._index).view(np.int64),
                self._store.row_bytes,
                assembler.num_reached,  # what the device reaches by itself is not staged
                self._store.num_static,
                self._store.pinned[: 0 if assembler.zero_copy else None],
                self._store.cpu,
                self._store.wrap,
                self._engine,
                self._prefetch,
                self._threads,
                self._verify,
            )
        except ValueError as error:
            raise ArtifactError(f"{error}; prepare {self._packed.path} again") from error
        # May be refused, too: then nothing is open, and the next epoch tries again.
        self._transfer = Transfer(pipeline, assembler, self._reader, self._device)
        self._pipeline = pipeline
        self._filled_rows += self._store.num_static
        if self._tracing:
            self._transfer.start_tracing()
        # Also when the loader is dropped without being closed, no thread and no locked memory stays behind.
        self._finalizer = weakref.finalize(self, self._transfer.close)

    @property
    def device(self) -> torch.device:
        """Where minibatches are delivered."""
        return self._device

    @property
    def device_cache(self) -> int | str | None:
        """Static rows kept on the device, as `Loader` was given it; what is set counts until the first epoch starts."""
        return self._tiers["device_cache"]

    @device_cache.setter
    def device_cache(self, size: int | str | None) -> None:
        self._tiers["device_cache"] = size

    @property
    def device_bytes_ahead(self) -> int:
        """Device memory for minibatches, beyond the one that the caller computes on."""
        x_bytes = self._max_inputs * self.num_features * self._conversion.dtype.itemsize
        staged_bytes = self._max_inputs * self.num_features * self._conversion.stored.itemsize
        return (IN_FLIGHT - 1) * (x_bytes + self._reader.max_header_bytes) + staged_bytes

    def largest_minibatch(self) -> MiniBatch:
        """The minibatch of the sequence that takes most memory, with zeros for features: to try a model on.

        Reads its header, and takes memory for nothing else.

        Raises:
            ArtifactError: the header is damaged.
        """
        row_bytes = self.num_features * self._conversion.dtype.itemsize
        record = self._index[np.argmax(self._index["header_bytes"] + row_bytes * self._index["num_inputs"])]
        path = self._packed.file(artifacts.extents_file(self.split))
        header = np.fromfile(path, np.uint8, int(record["header_bytes"]), offset=int(record["offset"]))
        if crc32c(header) != record["header_crc32c"]:
            raise self._damaged(ArtifactError(f"an extent of {path} is damaged: its header"))

        def zeros(addresses: Tensor, _: Tensor) -> Tensor:
            return torch.zeros((len(addresses), self.num_features), dtype=self._conversion.dtype, device=self._device)

        try:
            return self._reader.read(header, zeros, 0, 0)
        except UndecodableHeaderError as error:
            raise self._damaged(error) from error

    def stats(self) -> LoadStats:
        """Counters since the loader was made, of what was assembled (which may be ahead of what was consumed).

        requested_rows, and of these device_rows, pinned_rows, cpu_rows, disk_rows; read_bytes from disk, of which
        restored_bytes filled the cpu tier and the rest came in read_requests; filled_rows, with which static and cpu
        tier started; wait_seconds that the user waited; and of the assembling thread read_wait_seconds (for the disk),
        header_seconds, gather_seconds (rows from memory), scatter_seconds (rows from
        the extent, and those admitted) and buffer_wait_seconds (for the user; pauses between epochs do not count).
        """
        now = self._closed_stats + self._transfer.stats() if self._transfer else self._closed_stats
        return now + LoadStats(
            read_bytes=self._restored_bytes, restored_bytes=self._restored_bytes, filled_rows=self._filled_rows
        )

    def start_tracing(self) -> None:
        """Keep from now on what the loader's threads do, for `take_trace`. Costs nothing before it is called.

        At most 2^20 events (32 MiB, some 2,000 minibatches of 100 MB) are kept between two calls of `take_trace`; later
        ones are dropped with a warning.
        """
        self._require_own_process()
        self._tracing = True
        if self._transfer is not None:
            self._transfer.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """The events since the last call, in no particular order; none when tracing was not started.

        Track 'disk': 'read', a chunk from submission to completion, with the minibatch that its first byte belongs to;
        several are in flight at once. Track 'assemble', one stage at a time: 'wait for consumer', 'wait for disk',
        'header', 'gather' and 'scatter', whose sums over all minibatches are what `stats` says. Track 'transfer', on a
        GPU: 'copy', a minibatch on its way to it.

        Example:
            with diskgnn.Loader("packed") as loader:
                loader.start_tracing()
                for batch in loader.epoch(0):
                    ...
                gathering_ns = sum(e.end_ns - e.start_ns for e in loader.take_trace() if e.stage == "gather")
        """
        self._require_own_process()
        events, self._closed_trace = self._closed_trace, []
        if self._transfer is not None:
            found, lost, copies = self._transfer.take_trace()
            if lost:
                warnings.warn(f"{lost} events did not fit the trace: call take_trace more often", stacklevel=2)
            events += [
                TraceEvent("disk" if stage == "read" else "assemble", stage, position % self.num_batches, start, end)
                for stage, position, start, end in found
            ]
            events += copies
        return events

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands: the epoch, how many of its minibatches were received, and of which artifact."""
        epoch, batch = self._resume if self._resume is not None else (self._epoch, self._consumed)
        state = {"epoch": epoch, "batch": batch, "split": self.split, "digest": self._packed.digest}
        return state if self._shuffle_seed is None else {**state, "shuffle_seed": self._shuffle_seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next `epoch(state['epoch'])` skips what had been received.

        Raises:
            ArtifactError: the state is that of another artifact or split.
            ConfigError: not a state of a Loader.
        """
        try:
            epoch, batch, split, digest = (state[key] for key in ("epoch", "batch", "split", "digest"))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"expected a state from Loader.state_dict(), found {state!r}") from error
        if (split, digest) != (self.split, self._packed.digest):
            raise ArtifactError(
                f"the state is of the {split!r} sequence of another packed directory than {self._packed.path}: "
                "resume with the one that it was saved with"
            )
        if state.get("shuffle_seed") != self._shuffle_seed:
            raise ArtifactError(
                f"the state is of minibatches shuffled with seed {state.get('shuffle_seed')}, these are with "
                f"{self._shuffle_seed}: resume with the shuffle_seed that it was saved with"
            )
        if not (isinstance(epoch, int) and isinstance(batch, int) and epoch >= 0 and 0 <= batch <= self.num_batches):
            raise ConfigError(f"expected an epoch and at most {self.num_batches} minibatches, found {epoch}, {batch}")
        self._iteration += 1
        self._resume = (epoch, batch)

    def close(self) -> None:
        """Join all threads and free the tiers; minibatches that you hold stay valid. Idempotent."""
        self._iteration += 1
        self._next_position = None
        if self._transfer is not None and self._pid == os.getpid():
            self._transfer.stop()
            self._closed_trace = self.take_trace()
            self._closed_stats += self._transfer.stats()
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        self._pipeline = self._store = self._transfer = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
