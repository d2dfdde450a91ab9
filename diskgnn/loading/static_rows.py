"""The device tier and the pinned tier: static rows in memory, the hottest ones first.

They are shared by all loaders of one packed directory in this process, and the pinned tier by all ranks that train
together on this machine. With device="cpu" the device tier is a tensor in host memory, and everything runs through the
same code.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary, finalize

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import crc32c
from diskgnn.errors import callers_level
from diskgnn.files.row_reading import read_rows, row_buffer
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import RowSetConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.loading.row_file_check import CheckedRowFile, open_row_file
from diskgnn.specs.caches import cache_rows
from diskgnn.system.page_locking import PageLock
from diskgnn.system.shared_memory import SharedMemory
from diskgnn.units import parse_size

_LOAD_WINDOW_BYTES = 16 << 20
_DEVICE_RESERVE_SHARE = 2  # by default the device tier leaves this part of the free GPU memory to the model: 1 / 2


@dataclass(frozen=True, eq=False)
class StaticRows:
    """Holds the static rows of one packed directory, split between two tiers."""

    rows: RowFormat
    on_device: Tensor  # [num_device, stored_columns] on the device
    pinned: npt.NDArray[np.uint8]  # [(num_static - num_device) * row_bytes] in host memory
    shared: SharedMemory | None = None  # what `pinned` is, if other processes have it, too
    _locks: list[PageLock] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Returns the device that the device tier lies on."""
        return self.on_device.device

    @property
    def num_device(self) -> int:
        """Returns the number of rows in the device tier."""
        return len(self.on_device)

    @property
    def num_static(self) -> int:
        """Returns S, the number of rows in both tiers."""
        return self.num_device + len(self.pinned) // self.rows.row_bytes

    def page_lock(self) -> None:
        """Page-lock the pinned rows for as long as they exist, so that the device reads them by itself. Idempotent.

        Raises:
            ConfigError: the system refuses; names the limit.
        """
        if not self._locks:
            memory = self.pinned if self.shared is None else self.shared.data
            lock = PageLock([(memory.ctypes.data, memory.nbytes)], self.device)
            self._locks.append(lock)
            finalize(self, lock.release)


# Those in use, by digest, device, row set and num_device. Only their users keep them: the last one to go frees them.
_shared: WeakValueDictionary[tuple[str, str, int, int], StaticRows] = WeakValueDictionary()


def open_static_rows(
    packed: Packed, device: torch.device, *, device_cache: int | str | None = None, engine: str
) -> tuple[StaticRows, ...]:
    """Returns [K] the static rows of each row set of `packed`, read from disk unless they are in memory already.

    Args:
        device_cache: bytes of the device tier, see `diskgnn.Loader`; the pinned tier takes the rest.
        engine: what reads them.

    Raises:
        ArtifactError: a file does not fit the config, or does not have its checksum.
        ConfigError: `device_cache` is no size.
    """
    found = []
    for number, num_device in enumerate(_rows_on_device(packed, device, device_cache)):
        row_set = packed.config.row_sets[number]
        file = open_row_file(packed, artifacts.static_file(row_set.name), row_set.rows, row_set.num_static)
        key = (packed.digest, str(device), number, num_device)
        rows = _shared.get(key)
        if rows is None:
            rows = _shared[key] = _load(file, device, num_device, engine, _name_among_ranks(packed, number))
        found.append(rows)
    return tuple(found)


def _rows_on_device(packed: Packed, device: torch.device, device_cache: int | str | None) -> list[int]:
    """Returns [K] rows of each row set in the device tier."""
    row_sets = packed.config.row_sets
    if device_cache is not None:
        wanted = _rows_to_keep(row_sets, device_cache)
        if any(wanted) and packed.config.num_static == 0:
            warnings.warn(
                f"{packed.location} has no static rows for the device and pinned tiers: prepare it with static_cache "
                "to use them",
                stacklevel=callers_level(),
            )
    elif in_use := {
        number: rows for digest, place, number, rows in list(_shared) if (digest, place) == (packed.digest, str(device))
    }:
        wanted = [in_use.get(number, 0) for number in range(len(row_sets))]  # not a second copy, split otherwise
    elif device.type == "cuda":
        wanted = _divide_bytes(row_sets, torch.cuda.mem_get_info(device)[0] // _DEVICE_RESERVE_SHARE)
    else:
        wanted = [0] * len(row_sets)
    return [min(rows, row_set.num_static) for rows, row_set in zip(wanted, row_sets, strict=True)]


def _rows_to_keep(row_sets: Sequence[RowSetConfig], device_cache: int | str) -> list[int]:
    """Returns [K] rows that `device_cache` stands for: a share of all rows, or bytes for all row sets together."""
    rows = [cache_rows(device_cache, each.rows.row_bytes, each.num_rows, "device_cache") for each in row_sets]
    is_share = isinstance(device_cache, str) and device_cache.strip().endswith("%")
    return rows if is_share or len(row_sets) < 2 else _divide_bytes(row_sets, parse_size(device_cache))


def _divide_bytes(row_sets: Sequence[RowSetConfig], num_bytes: int) -> list[int]:
    """Returns [K] rows that `num_bytes` have room for: of each row set the same share, its hottest static rows."""
    static_bytes = sum(row_set.num_static * row_set.rows.row_bytes for row_set in row_sets)
    return [row_set.num_static * num_bytes // max(1, static_bytes) for row_set in row_sets]


def _name_among_ranks(packed: Packed, number: int) -> str | None:
    """Names the static rows of a row set in all ranks that have the same ones; None if they are for one process."""
    name = packed.config.row_sets[number].name
    nodes = packed.manifest.files.get(artifacts.static_nodes_file(name))
    if nodes is None:
        return None
    rows = packed.manifest.files[artifacts.static_file(name)]
    return f"{packed.config.graph} {name} {nodes.crc32c} {rows.crc32c} {rows.bytes}"


def _load(row_file: CheckedRowFile, device: torch.device, num_device: int, engine: str, name: str | None) -> StaticRows:
    """Returns the rows in memory: if `name` names them, in that of all ranks here, where one may have read them
    already."""
    rows, row_bytes, num_rows = row_file.file.rows, row_file.file.row_bytes, row_file.file.num_rows
    on_device = torch.empty((num_device, rows.stored_columns), dtype=rows.torch_dtype, device=device)
    if name is None or num_device == num_rows:
        num_bytes = (num_rows - num_device) * row_bytes
        pinned = row_buffer(num_rows - num_device, row_bytes)[:num_bytes]
        _read(row_file, on_device, pinned, engine)
        return StaticRows(rows, on_device, pinned)
    # All rows: how many of them a rank has on its device is its own matter.
    shared = SharedMemory(name, num_rows * row_bytes, lambda data: _read(row_file, on_device[:0], data, engine))
    on_device.copy_(rows.as_tensor(shared.data[: num_device * row_bytes]))
    return StaticRows(rows, on_device, shared.data[num_device * row_bytes :], shared)


def _read(row_file: CheckedRowFile, on_device: Tensor, pinned: npt.NDArray[np.uint8], engine: str) -> None:
    """Read the first rows to the device and the others to host memory, compared with their checksum."""
    file, crc, num_device = row_file.file, row_file.header_crc32c, len(on_device)
    row_bytes = file.row_bytes
    window_rows = max(1, _LOAD_WINDOW_BYTES // row_bytes)
    buffer = row_buffer(window_rows, row_bytes)
    for first in range(0, file.num_rows, window_rows):
        last = min(first + window_rows, file.num_rows)
        data, _ = read_rows(
            file.local_path, file.data_offset_bytes, row_bytes, np.arange(first, last), buffer, engine=engine
        )
        crc = crc32c(data, crc)
        split = min(max(num_device, first), last)  # rows from here on are pinned
        on_device[first:split] = file.rows.as_tensor(data[: (split - first) * row_bytes])
        pinned[max(0, first - num_device) * row_bytes : max(0, last - num_device) * row_bytes] = data[
            (split - first) * row_bytes :
        ]
    row_file.check(crc)
