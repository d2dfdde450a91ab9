"""`SequenceReader`: the tiers in memory and the threads that read, assemble and transfer one sequence's minibatches."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path

import numpy as np

from diskgnn._native import (
    EXTENT_FIELDS,
    ROWS_FIELDS,
    DamagedExtentError,
    DamagedFileError,
    FailedRequestError,
    Pipeline,
    PipelineOptions,
    RowFile,
    Tiers,
)
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.errors import ArtifactError, ConfigError, DiskGNNError, callers_level
from diskgnn.files import faults
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.loading.assembly import Assembler
from diskgnn.loading.cpu_tier import CpuTier
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.requested_ranges import RequestedRanges
from diskgnn.loading.sequence import MinibatchSequence
from diskgnn.loading.static_rows import StaticRows, open_static_rows
from diskgnn.loading.tracing import TraceEvent
from diskgnn.loading.transfer import Transfer
from diskgnn.stores.locations import StoredPath
from diskgnn.system.memory import anonymous_bytes, limit_bytes
from diskgnn.units import format_size


class SequenceReader:
    """Delivers minibatches of a sequence, in the order of their positions, to the device.

    `start` names the first one. Where the minibatches asked for follow those delivered, the threads just go on;
    otherwise they are stopped, and the cpu tier is restored. In between nothing is staged.

    Args:
        sequence: what to read.
        options: how.

    Raises:
        ArtifactError: files that do not fit what the config says, or do not have their checksums.
        ConfigError: `device_cache` or `zero_copy` make no sense here, memory cannot be page-locked, or the cpu tier is
            larger than what this process may have.
    """

    def __init__(self, sequence: MinibatchSequence, options: LoaderOptions) -> None:
        self._sequence, self._options, index = sequence, options, sequence.index
        _require_memory(sequence)
        static = open_static_rows(
            sequence.packed, sequence.device, device_cache=options.device_cache, engine=options.engine
        )
        self._cpu_tiers = [
            CpuTier(sequence.packed, sequence.split, number, engine=options.engine, verify=options.verify)
            for number in range(len(static))
        ]
        assemblers = [
            Assembler(rows, conversion, max_inputs, zero_copy=options.zero_copy)
            for rows, conversion, max_inputs in zip(static, sequence.conversions, index.max_inputs, strict=True)
        ]
        tiers = [_tiers(*each) for each in zip(static, assemblers, self._cpu_tiers, sequence.row_files, strict=True)]
        pipeline_options = PipelineOptions(
            prefetch=options.prefetch_for(sequence.device), threads=options.gather_threads, verify=options.verify
        )  # fmt: skip
        extents = np.ascontiguousarray(index.extents).view(np.int64).reshape(-1, len(EXTENT_FIELDS))
        records = np.ascontiguousarray(index.rows).view(np.int64).reshape(*index.rows.shape, len(ROWS_FIELDS))
        path = sequence.packed.extents(sequence.split)
        self._ranges = RequestedRanges(path) if isinstance(path, StoredPath) else None
        try:
            self._pipeline = Pipeline(
                os.fspath(path) if isinstance(path, Path) else str(path), extents, records, tiers, pipeline_options,
                engine=options.engine, requests=None if self._ranges is None else self._ranges.requests,
                num_bytes=0 if self._ranges is None else self._ranges.num_bytes,
            )  # fmt: skip
            faults.point("loading.page_lock")
            self._transfer = Transfer(self._pipeline, assemblers, sequence.header_reader(), sequence.device)
        except BaseException as error:
            if self._ranges is not None:
                self._ranges.close()
            if isinstance(error, ValueError) and not isinstance(error, DiskGNNError):  # of the native pipeline
                raise ArtifactError(f"{error}; prepare {sequence.packed.location} again") from error
            raise
        self._next_position: int | None = None  # that the running pipeline delivers; None when that is not known
        self._pending = 0  # minibatches that it will deliver without being asked again
        self._lent_bytes = 0  # of the cpu tiers, at most
        self._filled = LoadStats(filled_rows=sum(rows.num_static for rows in static))
        self._epoch = self._number = 0  # of the next minibatch
        # Also when the reader is dropped without being closed, no thread and no locked memory stays behind.
        self._finalizer = weakref.finalize(self, _close, self._transfer, self._ranges)

    def start(self, epoch: int, first: int) -> None:
        """Let `next` deliver minibatches `first` and later of `epoch`.

        Raises:
            ArtifactError: an extent that the cpu tier is restored from is damaged.
            OSError: the disk failed.
        """
        sequence = self._sequence
        position, count, order = sequence.position(epoch, first), sequence.num_batches - first, sequence.order(epoch)
        goes_on = self._next_position == position and self._pending == 0
        if goes_on:
            self._next_position = None  # not known any more if this fails
            self._take_back()
        else:
            self._transfer.stop()
            if self._ranges is not None:
                self._ranges.forget()
            self._next_position = None
            self._lent_bytes = 0
            restored_bytes = sum(tier.restore(sequence.index, position) for tier in self._cpu_tiers)
            filled_rows = sum(tier.initial_rows for tier in self._cpu_tiers)
            self._filled += LoadStats(read_bytes=restored_bytes, restored_bytes=restored_bytes, filled_rows=filled_rows)
        if order is not None:
            self._pipeline.set_order(order)
        if goes_on:
            self._pipeline.extend(count)
        else:
            self._pipeline.start(position, count)
            if self._ranges is None:
                warn_if_no_io_uring(self._options.engine)
        self._transfer.start(epoch, first, count)
        self._epoch, self._number = epoch, first
        self._next_position, self._pending = position, count

    def next(self) -> AnyMiniBatch:
        """Returns the next minibatch, for the current stream.

        Raises:
            ArtifactError: its extent is damaged.
            OSError: the disk, or the store, failed.
            RuntimeError: the reader was closed, or there is too little memory.
        """
        expected, self._next_position = self._next_position, None  # not known any more when what follows fails
        try:
            position, batch = self._transfer.take(self._epoch, self._number)
        except DamagedExtentError as error:
            raise self._sequence.damaged(error) from error
        except FailedRequestError as error:
            assert self._ranges is not None
            raise self._ranges.failure(error) from error
        except DamagedFileError as error:
            raise ArtifactError(f"{error}; restore it, or make the graph again") from error
        assert position == expected
        self._next_position = (position + 1) % len(self._sequence.index)
        self._pending -= 1
        self._number += 1
        return batch

    def release_idle_buffers(self) -> None:
        """Let the system take the memory of buffers, if it needs it, until the next `start`."""
        self._pipeline.release_idle_buffers()

    def release_memory(self, tier_bytes: int) -> None:
        """Join all threads and free all memory but the tiers', and of the cpu tier at most `tier_bytes`, until the next
        `start`; not in the midst of one.
        """
        if self._pending > 0 or self._next_position is None:
            return
        position, self._next_position = self._next_position, None  # not known any more if this fails
        self._pipeline.pause()
        if tier_bytes > self._lent_bytes:
            self._take_back()
            self._lent_bytes = tier_bytes
            for tier in self._cpu_tiers:
                tier_bytes -= tier.lend(self._sequence.index, position, tier_bytes)
        self._next_position = position

    def _take_back(self) -> None:
        self._lent_bytes = 0
        read_bytes = sum(tier.take_back(self._sequence.index) for tier in self._cpu_tiers)
        self._filled += LoadStats(read_bytes=read_bytes, restored_bytes=read_bytes)

    def stats(self) -> LoadStats:
        """Returns counters since the reader was made."""
        return self._filled + self._transfer.stats()

    def start_tracing(self) -> None:
        """Keep from now on what the threads do."""
        self._pipeline.start_tracing()
        self._transfer.start_tracing()

    def take_trace(self) -> list[TraceEvent]:
        """Returns the events since the last call: see `Loader.take_trace`."""
        found, lost = self._pipeline.take_trace()
        if lost:
            warnings.warn(
                f"{lost} events did not fit the trace: call take_trace more often", stacklevel=callers_level()
            )
        num_batches = self._sequence.num_batches
        return [
            TraceEvent("disk" if stage == "read" else "assemble", stage, position % num_batches, start_ns, end_ns)
            for stage, position, start_ns, end_ns in found
        ] + self._transfer.take_copies()

    def stop(self) -> None:
        """Join all threads. What was read and not delivered is dropped."""
        self._transfer.stop()
        self._next_position = None

    def close(self) -> None:
        """Join all threads and unlock memory. Idempotent."""
        self._finalizer()


def _close(transfer: Transfer, ranges: RequestedRanges | None) -> None:
    transfer.close()
    if ranges is not None:
        ranges.close()


def _require_memory(sequence: MinibatchSequence) -> None:
    """Refuses what the kernel would end the process for, without a word."""
    packed = sequence.packed
    sizes = packed.sequence(sequence.split).row_sets
    cpu_bytes = sum(
        size.cpu_rows * row_set.rows.row_bytes for size, row_set in zip(sizes, packed.config.row_sets, strict=True)
    )
    left_bytes = limit_bytes() - anonymous_bytes()
    if cpu_bytes > left_bytes:
        raise ConfigError(
            f"the cpu cache of {packed.location}: expected at most {format_size(max(0, left_bytes))}, which is what "
            f"the memory of this machine or the limit of this process's cgroup leaves it, found "
            f"{format_size(cpu_bytes)}; raise that limit, or prepare it again with a smaller `cpu_cache`"
        )


def _tiers(static: StaticRows, assembler: Assembler, cpu_tier: CpuTier, row_file: RowFile | None) -> Tiers:
    """Returns the tiers of one row set, as the pipeline sees them."""
    return Tiers(
        row_bytes=static.rows.row_bytes,
        num_device=assembler.num_readable,  # what the device reads by itself is not staged
        num_static=static.num_static,
        pinned=static.pinned[: 0 if assembler.zero_copy else None],
        cpu=cpu_tier.slots,
        next_cycle_slots=cpu_tier.next_cycle_slots,
        file=row_file,
    )
