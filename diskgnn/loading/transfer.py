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
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from diskgnn._native import Pipeline
from diskgnn.batch_source import LoadStats
from diskgnn.errors import ConfigError
from diskgnn.loading.assembly import Assembler
from diskgnn.minibatch import Block, MiniBatch
from diskgnn.storage import extents
from diskgnn.system.page_locking import PageLock
from diskgnn.tracing import TraceEvent

IN_FLIGHT = 3  # minibatches in device memory: computed on, transferred ahead, and one that is just being dropped

MAX_TRACED_COPIES = 1 << 16  # between two calls of `take_trace`; the last ones are kept

_TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64}


def available_device(device: str | torch.device) -> torch.device:
    """`device`, unless it is a GPU and torch finds none. Takes no memory of it.

    Raises:
        ConfigError: as said, or there is no such kind of device.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device: expected cpu, cuda or cuda:1, found {str(device)!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={str(device)!r} cannot be used here: torch finds no CUDA device; use device='cpu'")
    return found


def goes_ahead(device: torch.device) -> bool:
    """Whether minibatches are transferred ahead: on a cpu they are where they are used."""
    return device.type == "cuda"


class UndecodableHeaderError(Exception):
    """A header that is no such record batch, although its checksum fits."""


class HeaderReader:
    """Makes minibatches of headers: their tensors are views of one copy of the header on the device."""

    def __init__(self, schema: pa.Schema, max_header_bytes: int, device: torch.device) -> None:
        self._schema, self._device = schema, device
        self.max_header_bytes = max_header_bytes

    def read(self, header: npt.NDArray[np.uint8], x: Any, epoch: int, number: int) -> MiniBatch:
        """The minibatch in `header`, moved on the current stream.

        Args:
            header: bytes of an extent's header, which must not change until the stream has got here.
            x: a function of (addresses [U] int32 on the host, the same on the device) that returns x.
            epoch, number: those of the minibatch.

        Raises:
            UndecodableHeaderError: it is not one.
        """
        try:
            decoded = extents.decode_header(header, self._schema)
        except (pa.ArrowException, EOFError, OSError) as error:
            raise UndecodableHeaderError(str(error)) from error
        host = moved = torch.from_numpy(header)
        if self._device.type != "cpu":
            # One copy instead of one for each array, and a block of the same size each time, as for x.
            moved = torch.empty(self.max_header_bytes, dtype=torch.uint8, device=self._device)[: len(header)]
            moved.copy_(host, non_blocking=True)

        def tensor(array: npt.NDArray[Any], source: Tensor = moved) -> Tensor:
            # Arrow's views are read-only; this one of the same bytes may be written, as torch expects.
            start = array.ctypes.data - header.ctypes.data if len(array) else 0
            return source[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name])

        num_src = [len(decoded.addresses), *(len(indptr) - 1 for indptr, _ in decoded.blocks)]
        return MiniBatch(
            x=x(tensor(decoded.addresses, host), tensor(decoded.addresses)),
            y=tensor(decoded.labels),
            blocks=tuple(
                Block(tensor(indptr), tensor(indices), num)
                for (indptr, indices), num in zip(decoded.blocks, num_src, strict=False)
            ),
            seeds=tensor(decoded.seeds),
            epoch=epoch,
            batch_index=number,
            input_nodes=None if decoded.input_nodes is None else tensor(decoded.input_nodes).long(),
        )


@dataclass(frozen=True)
class _Arrived:
    position: int  # in the sequence
    batch: MiniBatch
    copied: Any  # event at the end of the copies; None without a GPU


class Transfer:
    """Takes the minibatches of one pipeline to the device, a thread ahead of the caller where that pays.

    It keeps no reference to the loader that it works for: dropping the loader ends it.
    """

    def __init__(self, pipeline: Pipeline, assembler: Assembler, reader: HeaderReader, device: torch.device) -> None:
        """On a GPU, page-locks the pipeline's buffers.

        Raises:
            ConfigError: they cannot be page-locked.
        """
        self._pipeline, self._assembler, self._reader, self._device = pipeline, assembler, reader, device
        self._ahead = goes_ahead(device)
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
        """The pipeline's counters, with what it does not see."""
        found: dict[str, Any] = self._pipeline.stats()
        del found["minibatches"]
        found["device_rows"] -= self._assembler.pinned_rows_read  # all that the device reaches, to the pipeline
        found["pinned_rows"] += self._assembler.pinned_rows_read
        if self._ahead:
            found["wait_seconds"] = self._wait_seconds  # the pipeline's consumer is the thread
        return LoadStats(**found)

    def start_tracing(self) -> None:
        """Keep what the pipeline's threads and this one do from now on."""
        self._tracing = True
        self._pipeline.start_tracing()

    def take_trace(self) -> tuple[list[tuple[str, int, int, int]], int, list[TraceEvent]]:
        """What `Pipeline.take_trace` returns, and copies, each from being enqueued until the host knows its end."""
        found, lost = self._pipeline.take_trace()
        return found, lost, [self._copies.popleft() for _ in range(len(self._copies))]

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

    def take(self, epoch: int, number: int) -> tuple[int, MiniBatch]:
        """(position in the sequence, the next minibatch), for the current stream.

        Raises:
            RuntimeError: stopped.
            Exception: what went wrong where the minibatch was read or transferred.
        """
        if not self._ahead:
            position, header, rows = self._pipeline.next()
            return position, self._minibatch(header, rows, epoch, number)
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
        position, header, rows = self._pipeline.next()
        start_ns = time.perf_counter_ns()
        batch = self._minibatch(header, rows, epoch, number)
        copied = self._event(self._stream)
        self._arrived.put(_Arrived(position, batch, copied))
        del batch  # the caller's alone: its memory is free when the caller drops it
        if copied is not None:
            copied.synchronize()  # then the buffer may be filled again
        if self._tracing:
            self._copies.append(TraceEvent("transfer", "copy", number, start_ns, time.perf_counter_ns()))

    def _minibatch(
        self, header: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8], epoch: int, number: int
    ) -> MiniBatch:
        def x(addresses: Tensor, moved_addresses: Tensor) -> Tensor:
            return self._assembler.x(addresses, moved_addresses, rows)

        return self._reader.read(header, x, epoch, number)

    def _event(self, stream: Any) -> Any:
        """An event at the end of what is in `stream`, or in the caller's; None without a GPU."""
        if self._stream is None:
            return None
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # waiting must not spin
        event.record(torch.cuda.current_stream(self._device) if stream is None else stream)
        return event

    def _hand_over(self, arrived: _Arrived) -> None:
        """Let the caller's stream wait for the copies, and the allocator for that stream before memory is reused."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(arrived.copied)
        batch = arrived.batch
        for tensor in (batch.x, batch.seeds, batch.input_nodes):  # all others lie in the same memory as seeds
            if tensor is not None:
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
        if self._lock is not None:
            self._lock.release()
