"""The four tiers while training: device, pinned and cpu rows in memory, and the disk's extents behind them.

device: the hottest static rows, a tensor on the device. pinned: the other static rows, in host memory. cpu: C slots
under the schedule that was planned offline. With device="cpu" the device tier is a tensor in host memory and everything
runs through the same code. Static rows are shared by the stores of one packed directory.
"""

from __future__ import annotations

import errno
import itertools
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.specs import cache_rows
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import Manifest
from diskgnn.storage.row_format import FEATURE_STORAGE
from diskgnn.storage.row_reading import read_rows, row_buffer
from diskgnn.system.page_locking import PageLock
from diskgnn.units import format_size

TORCH_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
_LOAD_WINDOW_BYTES = _RESTORE_WINDOW_BYTES = 16 << 20
_DEVICE_RESERVE_SHARE = 2  # by default the device tier leaves this part of the free GPU memory to the model: 1 / 2


@dataclass(frozen=True, eq=False)
class StaticRows:
    """The static rows of one packed directory, split between two tiers."""

    device: Tensor  # [num_device, D] on the device
    pinned: npt.NDArray[np.uint8]  # [(num_static - num_device) * row_bytes]
    _locks: list[PageLock] = field(default_factory=list)

    def page_lock(self) -> None:
        """Page-lock the pinned rows, if they are not, for as long as they are there."""
        if not self._locks:
            lock = PageLock([(self.pinned.ctypes.data, self.pinned.nbytes)], self.device.device)
            self._locks.append(lock)
            finalize(self, lock.release)


# Those that some store uses now, by digest, device and num_device.
_shared_static_rows: WeakValueDictionary[tuple[str, str, int], StaticRows] = WeakValueDictionary()


class FeatureStore:
    """Rows in memory for one split of a packed directory."""

    def __init__(
        self,
        packed: Manifest,
        split: str,
        device: torch.device,
        *,
        device_cache: int | str | None,
        pinned_cache: int | str | None,
        engine: str,
        verify: bool,
    ) -> None:
        """Allocates the tiers and fills the static ones; `verify` compares all that is read with its checksum.

        Raises:
            ArtifactError: the files do not fit what the config says, or do not have their checksums.
            ConfigError: the static rows fit neither the device nor the pinned tier, or memory cannot be page-locked.
        """
        config = packed.config
        self.width, self.dtype = int(config["feature_width"]), TORCH_DTYPES[config["feature_dtype"]]
        self.row_bytes, self.num_static = int(config["row_bytes"]), int(config["num_static"])
        self._packed, self._split, self._engine, self._verify = packed, split, engine, verify
        self._device = device
        self._check_files_fit()
        if verify:
            for name in (artifacts.STATIC, artifacts.initial_file(split)):
                artifacts.verify_file(packed, name)
        self.num_device = self._split_static(device_cache, pinned_cache)
        key = (packed.digest, str(device), self.num_device)
        # Kept by the store, and by it alone: the last one to go frees the rows.
        self._static = _shared_static_rows.get(key) or self._load_static()
        _shared_static_rows[key] = self._static
        self.device_rows, self.pinned = self._static.device, self._static.pinned
        artifacts.verify_file(packed, artifacts.wrap_file(split))  # a wrong one would give wrong rows
        self.wrap: npt.NDArray[np.int32] = packed.array(artifacts.wrap_file(split), mmap=False)
        self.initial_rows = int(config["splits"][split]["initial_rows"])
        # The initial rows are read straight into place, so slot 0 lies where row 0 lies in the file.
        initial = packed.file(artifacts.initial_file(split))
        self._data_offset = artifacts.npy_data_offset(initial)
        self._memory = row_buffer(len(self.wrap) + -(-self._data_offset // self.row_bytes), self.row_bytes)
        self.cpu = self._memory[self._data_offset : self._data_offset + len(self.wrap) * self.row_bytes]

    def _check_files_fit(self) -> None:
        """Whether the files have the rows that the config speaks of: memory is taken and addressed by these numbers."""
        config, files = self._packed.config, self._packed.files
        itemsize = np.dtype(self._storage).itemsize
        rows = {artifacts.STATIC: self.num_static}
        rows[artifacts.initial_file(self._split)] = int(config["splits"][self._split]["initial_rows"])
        sound = self.width > 0 and self.row_bytes == self.width * itemsize
        for name, count in rows.items():
            sound = (
                sound
                and name in files
                and (files[name].dtype, files[name].shape) == (self._storage, (count, self.width))
            )
        wrap = files.get(artifacts.wrap_file(self._split))
        sound = sound and wrap is not None and wrap.dtype == "<i4" and wrap.shape is not None and len(wrap.shape) == 1
        if not sound or wrap.shape[0] < rows[artifacts.initial_file(self._split)]:  # type: ignore[union-attr,index]
            raise ArtifactError(
                f"{self._packed.path}: its files do not have the rows that it speaks of; prepare it again"
            )

    def _split_static(self, device_cache: int | str | None, pinned_cache: int | str | None) -> int:
        """How many static rows the device tier holds; the pinned tier must take the rest."""
        num_static, num_nodes = self.num_static, int(self._packed.config["num_nodes"])
        wanted = [None if cache is None else cache_rows(cache, self.row_bytes, num_nodes)
                  for cache in (device_cache, pinned_cache)]  # fmt: skip
        if num_static == 0 and any(wanted):
            warnings.warn(
                f"{self._packed.path} has no static rows for the device and pinned tiers: "
                "prepare it with static_cache (--static-cache) to use them",
                stacklevel=4,
            )
        device_rows, pinned_rows = wanted
        if device_rows is None:
            if pinned_rows is not None:
                device_rows = num_static - min(pinned_rows, num_static)
            elif shared := [rows for digest, device, rows in list(_shared_static_rows)
                            if (digest, device) == (self._packed.digest, str(self._device))]:  # fmt: skip
                device_rows = shared[0]  # not a second copy, split otherwise
            elif self._device.type == "cuda":
                device_rows = torch.cuda.mem_get_info(self._device)[0] // _DEVICE_RESERVE_SHARE // self.row_bytes
            else:
                device_rows = 0
        if pinned_rows is not None and device_rows + pinned_rows < num_static:
            raise ConfigError(
                f"{self._packed.path} was prepared with {format_size(num_static * self.row_bytes)} of static rows; "
                f"device_cache {format_size(device_rows * self.row_bytes)} and pinned_cache "
                f"{format_size(pinned_rows * self.row_bytes)} are too small together. Raise one, or prepare again with "
                "a smaller static_cache"
            )
        return min(device_rows, num_static)

    def _load_static(self) -> StaticRows:
        device = torch.empty((self.num_device, self.width), dtype=self.dtype, device=self._device)
        pinned = row_buffer(self.num_static - self.num_device, self.row_bytes)[
            : (self.num_static - self.num_device) * self.row_bytes
        ]
        path = self._packed.file(artifacts.STATIC)
        data_offset = artifacts.npy_data_offset(path)
        window_rows = max(1, _LOAD_WINDOW_BYTES // self.row_bytes)
        buffer = row_buffer(window_rows, self.row_bytes)
        for first in range(0, self.num_static, window_rows):
            last = min(first + window_rows, self.num_static)
            data, _ = read_rows(path, data_offset, self.row_bytes, np.arange(first, last), buffer, engine=self._engine)
            on_device = min(max(self.num_device - first, 0), last - first)
            if on_device:
                device[first : first + on_device] = self.as_rows(data[: on_device * self.row_bytes])
            begin = (first + on_device - self.num_device) * self.row_bytes
            if on_device < last - first:
                rest = data[on_device * self.row_bytes :]
                pinned[begin : begin + len(rest)] = rest
        return StaticRows(device, pinned)

    def as_rows(self, data: npt.NDArray[np.uint8]) -> Tensor:
        """[n, D] tensor over row bytes, sharing their memory."""
        bits = data.view(np.int16) if self.dtype is torch.bfloat16 else data.view(self._storage)
        rows = torch.from_numpy(bits)
        return (rows.view(torch.bfloat16) if self.dtype is torch.bfloat16 else rows).view(-1, self.width)

    @property
    def _storage(self) -> str:
        return FEATURE_STORAGE[self._packed.config["feature_dtype"]]

    def restore(self, index: npt.NDArray[Any], position: int) -> int:
        """Fill the cpu tier with what the schedule has in it before minibatch `position`; returns bytes read.

        A slot holds the row that was admitted last: it is read from that extent, or from the initial rows.
        """
        read_bytes = 0
        if self.initial_rows:
            path = self._packed.file(artifacts.initial_file(self._split))
            rows = np.arange(self.initial_rows)
            read_bytes += read_rows(path, self._data_offset, self.row_bytes, rows, self._memory, engine=self._engine)[1]
        last_extent = np.full(len(self.wrap), -1, np.int64)
        last_row = np.zeros(len(self.wrap), np.int64)
        for number, admissions in enumerate(self._admissions(index[:position])):
            last_extent[admissions[:, 1]], last_row[admissions[:, 1]] = number, admissions[:, 0]
            read_bytes += admissions.nbytes
        slots = np.flatnonzero(last_extent >= 0)
        slots = slots[np.lexsort((last_row[slots], last_extent[slots]))]
        bounds = np.flatnonzero(np.diff(last_extent[slots], prepend=-1, append=-1))
        for begin, end in itertools.pairwise(bounds):
            of_extent = slots[begin:end]
            read_bytes += self._copy_rows(index, int(last_extent[of_extent[0]]), last_row[of_extent], of_extent)
        return read_bytes

    def _admissions(self, index: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.int32]]:
        """[A, 2] extent row and slot, of each extent of `index`."""
        path = self._packed.file(artifacts.extents_file(self._split))
        with path.open("rb", buffering=0) as file:
            for number, record in enumerate(index):
                offset, length = int(record["admissions_offset"]), 8 * int(record["num_admissions"])
                first, last = (0, int(record["header_bytes"])) if self._verify else (offset, offset + length)
                data = os.pread(file.fileno(), last - first, int(record["offset"]) + first)
                if len(data) != last - first:
                    raise OSError(errno.EIO, f"{path} ends early: it was truncated")
                if self._verify and crc32c(data) != record["header_crc32c"]:
                    raise self._damaged(number, "its header does not have the checksum that was written")
                admissions = np.frombuffer(data, np.int32, length // 4, offset - first).reshape(-1, 2)
                limits = (int(record["num_rows"]), len(self.wrap))
                if ((admissions < 0) | (admissions >= limits)).any():
                    raise self._damaged(number, "an admission is out of range")
                yield admissions

    def _copy_rows(
        self, index: npt.NDArray[Any], number: int, rows: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> int:
        """Copy `rows` (ascending) of extent `number` to `slots`; to verify, all rows are read. Returns bytes read."""
        record, path = index[number], self._packed.file(artifacts.extents_file(self._split))
        data_offset, num_rows = int(record["offset"] + record["rows_offset"]), int(record["num_rows"])
        window_rows = min(max(1, _RESTORE_WINDOW_BYTES // self.row_bytes), num_rows)
        buffer = row_buffer(window_rows, self.row_bytes)
        cpu = self.cpu.reshape(-1, self.row_bytes)
        read_bytes = crc = 0
        for first in range(0, num_rows, window_rows):
            begin, end = np.searchsorted(rows, [first, first + window_rows])
            wanted = np.arange(first, min(first + window_rows, num_rows)) if self._verify else rows[begin:end]
            if len(wanted) == 0:
                continue
            data, was_read = read_rows(path, data_offset, self.row_bytes, wanted, buffer, engine=self._engine)
            cpu[slots[begin:end]] = data.reshape(-1, self.row_bytes)[rows[begin:end] - wanted[0]]
            read_bytes += was_read
            crc = crc32c(data, crc) if self._verify else 0
        if self._verify and crc != record["rows_crc32c"]:
            raise self._damaged(number, "its rows do not have the checksum that was written")
        return read_bytes

    def _damaged(self, number: int, what: str) -> ArtifactError:
        return ArtifactError(
            f"extent {number} of {self._packed.file(artifacts.extents_file(self._split))} is damaged: {what}; check "
            f"with `diskgnn verify {self._packed.path}`, prepare it again"
        )

    def page_lock_pinned(self) -> None:
        """Page-lock the pinned tier, once for all stores that share it, so that the device reads it by itself.

        Raises:
            ConfigError: the system refuses; names the limit.
        """
        self._static.page_lock()
