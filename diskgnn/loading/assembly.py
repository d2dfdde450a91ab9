"""x from rows in several places: by one kernel on a GPU (`device_gather`), with torch's operators elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.errors import ConfigError, callers_level
from diskgnn.files import faults
from diskgnn.formats.quantisation import dequantise
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import RowFormat
from diskgnn.loading.static_rows import StaticRows

_DEQUANTISED = (torch.float32, torch.float16, torch.bfloat16)


class RowConversion:
    """Says how rows become rows of x: as they are stored, widened to float32, or dequantised. Records stay as they are
    stored; what they show is read after that.

    Args:
        rows: how they are stored.
        dtype: of x: None for as stored, or torch.float32. Of rows with a scale: None for torch.float32, or that,
            torch.float16 or torch.bfloat16.
        scale, zero_point: of int8 and int4 rows, numbers or D numbers: x = (code - zero_point) * scale.
        device: where rows are converted.
        threads: of the host, where it dequantises.

    Attributes:
        rows: how they are stored.
        dtype: of x.
        scale, zero_point: [D] float32 on the device, or None.

    Raises:
        ConfigError: arguments that do not fit the rows.
    """

    def __init__(
        self,
        rows: RowFormat,
        *,
        dtype: torch.dtype | None = None,
        scale: float | Sequence[float] | Tensor | None = None,
        zero_point: float | Sequence[float] | Tensor = 0.0,
        device: torch.device,
        threads: int = 1,
    ) -> None:
        stored = rows.torch_dtype
        if scale is not None and (rows.dtype not in ("int8", "int4") or dtype not in (None, *_DEQUANTISED)):
            raise ConfigError(f"scale: expected int8 rows to be delivered as float32, found {stored} as {dtype}")
        if isinstance(rows, RecordFormat):  # columns have dtypes of their own, and x is float32
            if dtype not in (None, torch.float32):
                raise ConfigError(
                    f"dtype: rows that keep their columns have x in torch.float32, and each column in a dtype of its "
                    f"own; found {dtype}, leave it out"
                )
            dtype = None
        if scale is None and dtype not in (None, stored, torch.float32):
            raise ConfigError(f"dtype: expected None, which is {stored} here, or torch.float32, found {dtype}")
        self.rows, self.dtype = rows, dtype or (torch.float32 if scale is not None else stored)
        self._threads = threads
        self.scale: Tensor | None = None
        self.zero_point: Tensor | None = None
        if scale is not None:
            self.scale = _per_column("scale", scale, rows.num_features, device)
            self.zero_point = _per_column("zero_point", zero_point, rows.num_features, device)

    @property
    def changes(self) -> bool:
        """Returns True if rows of x differ from rows as they are stored."""
        return self.dtype is not self.rows.torch_dtype

    @property
    def x_row_bytes(self) -> int:
        """Returns the bytes of one row of x."""
        if isinstance(self.rows, RecordFormat):
            return self.rows.delivered_row_bytes
        return self.rows.num_features * self.dtype.itemsize

    @property
    def width(self) -> int:
        """Returns the numbers in a row of what this makes: D, or the words of a record."""
        return self.rows.num_features if self.changes else self.rows.stored_columns

    def into(self, x: Tensor, rows: Tensor) -> Tensor:
        """Fill x [n, D] from rows beside it, without the kernel: what that computes, operation by operation."""
        if self.scale is None or self.zero_point is None:
            return x.copy_(rows)
        return dequantise(rows, self.scale, self.zero_point, x, threads=self._threads)

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns `rows` as x has them."""
        if not self.changes:
            return rows
        return self.into(torch.empty((len(rows), self.rows.num_features), dtype=self.dtype, device=rows.device), rows)


def _per_column(name: str, value: float | Sequence[float] | Tensor, num_features: int, device: torch.device) -> Tensor:
    try:
        numbers = torch.as_tensor(value, dtype=torch.float32).cpu().expand(num_features).contiguous()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{name}: expected a number, or {num_features} of them, found {value!r}") from error
    if not torch.isfinite(numbers).all():
        raise ConfigError(f"{name}: expected finite numbers")
    return numbers.to(device)


def runs_kernel(device: torch.device) -> bool:
    """Returns True if the kernel fills x on `device`."""
    return faults.reading("loading.runs_kernel", device.type == "cuda" and _kernel_ran(device))


def try_kernel(device: torch.device) -> bool:
    """Returns True if the kernel runs on `device`. Triton may be missing, or the C compiler that it needs at its first
    use.
    """
    try:
        from diskgnn.loading.device_gather import gather_rows

        rows, address = torch.zeros((1, 4), device=device), torch.zeros(1, dtype=torch.int32, device=device)
        gather_rows(address, address, rows, rows[:0], rows[:0], torch.empty_like(rows))
    except Exception as error:  # whatever it is, there is another way
        warnings.warn(
            f"Triton's kernels do not run here ({type(error).__name__}: {error}): the host gathers the pinned tier, "
            "and rows of the device tier are copied once more. Triton comes with torch for CUDA (else: pip install "
            "triton), and needs a C compiler",
            stacklevel=callers_level(),
        )
        return False
    return True


_kernel_ran = cache(try_kernel)


class Assembler:
    """Fills x from the device tier, the pinned tier and what was staged on the host; keeps its device memory.

    Rows that the device reads by itself, at addresses below `num_readable`, need not be staged. They are those of the
    device tier and, with `zero_copy`, of the pinned one. Everything is enqueued on the current stream, always the same
    one: so the memory for staged rows is free when the next minibatch's copy into it starts.

    Attributes:
        zero_copy: whether the device reads pinned rows from host memory.
        num_readable: rows that the device reads by itself.
        pinned_rows_read: by the device, until now.
    """

    def __init__(
        self, static: StaticRows, conversion: RowConversion, max_inputs: int, *, zero_copy: bool | None = None
    ) -> None:
        """Takes the device memory that every minibatch of up to `max_inputs` rows needs, except for x itself.

        Args:
            static: the device and the pinned tier.
            zero_copy: the device reads pinned rows from host memory; by default where the kernel runs.

        Raises:
            ConfigError: `zero_copy` on a GPU without the kernel, or memory cannot be page-locked.
        """
        self._static, self._conversion, self._max_inputs = static, conversion, max_inputs
        self._rows, self._device = conversion.rows, static.device
        self._kernel = runs_kernel(self._device)
        if zero_copy and self._device.type == "cuda" and not self._kernel:
            raise ConfigError(
                "zero_copy: expected Triton's kernels to run here (pip install triton); use zero_copy=False"
            )
        self.zero_copy = self._kernel if zero_copy is None else zero_copy
        self.num_readable = static.num_static if self.zero_copy else static.num_device
        self.pinned_rows_read = 0
        self._pinned = self._rows.as_tensor(static.pinned) if self.zero_copy else static.on_device[:0]
        if self._device.type == "cuda" and self.num_readable > static.num_device:
            static.page_lock()
        if self._kernel and self._selects:
            shape = (max_inputs, self._rows.stored_columns)
            self._staged = torch.empty(shape, dtype=self._rows.torch_dtype, device=self._device)
            self._is_staged = torch.empty(max_inputs, dtype=torch.bool, device=self._device)
            self._positions = torch.empty(max_inputs, dtype=torch.int32, device=self._device)

    @property
    def _selects(self) -> bool:
        """Returns True if x is more than the staged rows as they are."""
        return self.num_readable > 0 or self._conversion.changes

    def x(self, addresses: Tensor, moved_addresses: Tensor, staged_bytes: npt.NDArray[np.uint8]) -> Tensor:
        """Returns x [U, D] on the device.

        Args:
            addresses: [U] int32, on the host.
            moved_addresses: the same on the device.
            staged_bytes: on the host, [M * row_bytes]: rows that the device does not read by itself, in the order of
                the inputs. With a GPU they are page-locked and must not change until the stream has got here.
        """
        staged = self._rows.as_tensor(staged_bytes)
        if self.zero_copy:
            numbers = addresses.numpy()
            self.pinned_rows_read += int(((numbers >= self._static.num_device) & (numbers < self.num_readable)).sum())
        if not self._selects and self._device.type == "cpu":
            return staged
        # Of the same size for every minibatch, so that torch's allocator gives the same blocks again and again.
        num_rows = len(addresses)
        shape = (self._max_inputs, self._conversion.width)
        x = torch.empty(shape, dtype=self._conversion.dtype, device=self._device)[:num_rows]
        if not self._selects:
            return x.copy_(staged, non_blocking=True)
        if self._kernel:
            return self._fill_with_kernel(x, moved_addresses, staged)
        return self._fill_with_torch(x, addresses, staged)

    def _fill_with_kernel(self, x: Tensor, addresses: Tensor, staged: Tensor) -> Tensor:
        from diskgnn.loading.device_gather import gather_rows

        is_staged, positions = self._is_staged[: len(x)], self._positions[: len(x)]
        torch.ge(addresses, self.num_readable, out=is_staged)
        torch.cumsum(is_staged, 0, dtype=torch.int32, out=positions)
        moved = self._staged[: len(staged)]
        moved.copy_(staged, non_blocking=True)
        return gather_rows(
            addresses, positions, self._static.on_device, self._pinned, moved, x,
            scale=self._conversion.scale, zero_point=self._conversion.zero_point,
        )  # fmt: skip

    def _fill_with_torch(self, x: Tensor, addresses: Tensor, staged: Tensor) -> Tensor:
        # Positions are found on the host: on the device, finding them would have the host wait for it.
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, non_blocking=True)

        if self.num_readable == 0:  # nothing to place: one pass over the staged rows
            return self._conversion.into(x, move(staged))
        numbers = addresses.long()
        num_device = self._static.num_device
        tier = (numbers >= num_device).int() + (numbers >= self.num_readable).int()
        for number, (source, first) in enumerate(((self._static.on_device, 0), (self._pinned, num_device))):
            positions = (tier == number).nonzero().squeeze(1)
            if len(positions):
                rows = source.index_select(0, (numbers[positions] - first).to(source.device))
                x.index_copy_(0, move(positions), self._conversion(move(rows)))
        x.index_copy_(0, move((tier == 2).nonzero().squeeze(1)), self._conversion(move(staged)))
        return x
