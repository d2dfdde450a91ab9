"""From what the pipeline staged on the host to minibatches on the device, one minibatch ahead of the training loop.

On a GPU a thread of its own takes staged minibatches, and enqueues their copies and the gathering of x on a stream of
its own. So the next minibatch moves while the training loop computes, also if the loop waits for the GPU at every step:

    disk      read i+3 | read i+4 | ...
    assemble  gather i+2 | gather i+3 | ...
    transfer  copy i+1 | wait until the loop is done with i | copy i+2 | ...
    loop      compute i | compute i+1 | ...

Nothing waits for the whole device. The loop's stream waits for the copy of a minibatch by an event. The thread waits
for the end of a copy, before the host buffer goes back to be filled again, and for the loop's work on a minibatch,
before the next but one is copied: so at most three are in GPU memory, however far ahead of the GPU the loop runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import Pipeline
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.blocks import tensors_of
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.files import faults
from diskgnn.loading.assembly import Assembler
from diskgnn.loading.header_decoding import HeaderReader
from diskgnn.loading.tracing import TraceEvent
from diskgnn.system.page_locking import PageLock

IN_FLIGHT = 3  # minibatches in device memory: computed on, transferred ahead, and one that is just being dropped

MAX_TRACED_COPIES = 1 << 16  # between two calls of `take_copies`; the last ones are kept


@dataclass(frozen=True)
class _Arrived:
    position: int  # in the sequence
    batch: AnyMiniBatch
    copied: Any  # event at the end of the copies; None without a GPU


class Transfer:
    """Takes the minibatches of one pipeline to the device; on a GPU in a thread, one minibatch ahead of the caller.

    It keeps no reference to whom it works for. So dropping a loader ends it.
    """

    def __init__(
        self, pipeline: Pipeline, assemblers: Sequence[Assembler], reader: HeaderReader, device: torch.device
    ) -> None:
        """On a GPU, page-locks the pipeline's buffers. `assemblers` are those of each row set.

        Raises:
            ConfigError: they cannot be page-locked.
        """
        self._pipeline, self._assemblers, self._reader, self._device = pipeline, assemblers, reader, device
        # On a cpu minibatches are where they are used: there is nothing to transfer ahead.
        self._ahead = faults.reading("loading.transfers_ahead", device.type == "cuda")
        self._stream: Any = None
        self._lock: PageLock | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._lock = PageLock(pipeline.allocate_locked(), device)
        self._thread: threading.Thread | None = None
        self._arrived: SimpleQueue[_Arrived | BaseException] = SimpleQueue()
        self._asked: SimpleQueue[Any] = SimpleQueue()  # an event or None for each minibatch; False to stop
        self._wait_seconds = 0.0  # of the caller for the thread
        self._tracing = False
        self._copies: deque[TraceEvent] = deque(maxlen=MAX_TRACED_COPIES)

    def stats(self) -> LoadStats:
        """Returns the pipeline's counters, with what it does not see."""
        found = LoadStats(**self._pipeline.stats())
        pinned_rows = sum(
            each.pinned_rows_read for each in self._assemblers
        )  # device rows to the pipeline: it does not stage them
        return replace(
            found,
            device_rows=found.device_rows - pinned_rows,
            pinned_rows=found.pinned_rows + pinned_rows,
            wait_seconds=self._wait_seconds if self._ahead else found.wait_seconds,  # else those of the thread
        )

    def start_tracing(self) -> None:
        """Keep copies from now on."""
        self._tracing = True

    def take_copies(self) -> list[TraceEvent]:
        """Returns the copies to the device since the last call, each from being enqueued until the host knows its
        end.
        """
        return [self._copies.popleft() for _ in range(len(self._copies))]

    def start(self, epoch: int, first: int, count: int) -> None:
        """Transfer minibatches `first` to `first + count` of an epoch, which the pipeline was started for."""
        self._join()
        if self._ahead:
            self._arrived, self._asked = SimpleQueue(), SimpleQueue()
            self._asked.put(None)
            # A daemon, so that it does not keep the interpreter from ending; the loader's finalizer joins it.
            self._thread = threading.Thread(
                target=self._run, args=(epoch, first, count), name="diskgnn-transfer", daemon=True
            )
            self._thread.start()

    def take(self, epoch: int, number: int) -> tuple[int, AnyMiniBatch]:
        """Returns (position in the sequence, the next minibatch), for the current stream.

        Raises:
            RuntimeError: stopped.
            Exception: what went wrong where the minibatch was read or transferred.
        """
        if not self._ahead:
            position, extent, header, rows = self._pipeline.next()
            return position, self._minibatch(extent, header, rows, epoch, number)
        loop_done = self._event(None)  # with all minibatches before
        began = time.perf_counter()
        found = self._arrived.get()
        self._wait_seconds += time.perf_counter() - began
        if isinstance(found, BaseException):
            raise found
        self._asked.put(loop_done)
        if found.copied is not None:
            self._hand_over(found)
        return found.position, found.batch

    def _run(self, epoch: int, first: int, count: int) -> None:
        try:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):  # of this thread
                for number in range(first, first + count):
                    self._transfer(epoch, number)
        except BaseException as error:  # whatever it is belongs to the caller
            self._arrived.put(error)
            if self._stream is not None:
                with suppress(RuntimeError):
                    self._event(self._stream).synchronize()  # what was enqueued before reads the host's buffers

    def _transfer(self, epoch: int, number: int) -> None:
        loop_done = self._asked.get()
        if loop_done is False:
            raise RuntimeError("the transfer was stopped")
        if loop_done is not None:
            loop_done.synchronize()
        faults.point("loading.transfer")
        position, extent, header, rows = self._pipeline.next()
        start_ns = time.perf_counter_ns()
        batch = self._minibatch(extent, header, rows, epoch, number)
        copied = self._event(self._stream)
        self._arrived.put(_Arrived(position, batch, copied))
        del batch  # the caller's alone: its memory is free when the caller drops it
        if copied is not None:
            copied.synchronize()  # then the buffer may be filled again
        if self._tracing:
            self._copies.append(TraceEvent("transfer", "copy", number, start_ns, time.perf_counter_ns()))

    def _minibatch(
        self,
        extent: int,
        header: npt.NDArray[np.uint8],
        staged: Sequence[npt.NDArray[np.uint8]],
        epoch: int,
        number: int,
    ) -> AnyMiniBatch:
        faults.point("loading.minibatch")

        def rows(row_set: int, addresses: Tensor, moved_addresses: Tensor) -> Tensor:
            return self._assemblers[row_set].x(addresses, moved_addresses, staged[row_set])

        return self._reader.read(extent, header, rows, epoch, number)

    def _event(self, stream: Any) -> Any:
        """Returns an event at the end of what is in `stream`, or in the caller's; None without a GPU."""
        if self._stream is None:
            return None
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # waiting must not spin
        event.record(torch.cuda.current_stream(self._device) if stream is None else stream)
        return event

    def _hand_over(self, arrived: _Arrived) -> None:
        """Let the caller's stream wait for the copies, and the allocator for that stream before memory is reused."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(arrived.copied)
        memory = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors_of(arrived.batch)}
        for tensor in memory.values():  # most lie in the same
            tensor.record_stream(stream)

    def stop(self) -> None:
        """Stop the pipeline and join the thread; what was transferred and not taken is dropped. Idempotent."""
        self._asked.put(False)
        self._pipeline.stop()
        self._join()

    def _join(self) -> None:
        # A garbage collection may drop the loader in this very thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stop, and unlock the pipeline's buffers. Idempotent."""
        self.stop()
        self._arrived = SimpleQueue()
        self._arrived.put(RuntimeError("the transfer was stopped"))  # to a thread that comes to `take` only now
        if self._lock is not None:
            self._lock.release()
