"""Text files for Arrow, plain or compressed, which unpack to no more than is plausible."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.importers.containers.file_kinds import has_utf8_name
from diskgnn.storage.file_reading import ReadableFile
from diskgnn.stores.locations import Location, bytes_of

# Tables are packed to a third or a tenth. What says that it is this many times as large as it is on disk is a mistake
# or an attack: some MB of it are a TB, which nobody would wait for.
_MOST_RATIO, _ALWAYS_BYTES = 200, 1 << 30
_COMPRESSED = (".gz", ".zst", ".bz2")


def open_text(name: str, path: Location) -> Any:
    """The text of a file as a stream that Arrow reads; unpacked, if its name ends in .gz, .zst or .bz2.

    Args:
        name: for messages.
        path: of the file.

    Raises:
        InputError: from its reads, where it unpacks to more than 1 GiB and 200 times of what it has on disk.
        OSError: it cannot be opened.
    """
    compression = pa.Codec.detect(path.name).name if path.suffix in _COMPRESSED else None
    if isinstance(path, Path) and has_utf8_name(path):
        stream = pa.input_stream(path, compression=compression)
    else:  # Arrow opens no file whose name is no UTF-8
        stream = pa.input_stream(ReadableFile(path, front_to_back=True), compression=compression)
    if compression is None:
        return stream
    return _Unpacked(name, path, stream, bytes_of(path))


class _Unpacked(io.RawIOBase):
    """What a compressed file holds, up to a limit. A file for Arrow."""

    def __init__(self, name: str, path: Location, stream: pa.NativeFile, stored_bytes: int) -> None:
        super().__init__()
        self._name, self._path, self._stream = name, path, stream
        self._most_bytes, self._position = max(_ALWAYS_BYTES, _MOST_RATIO * stored_bytes), 0

    def readable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Bytes unpacked so far."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer at the end."""
        data: bytes = self._stream.read(None if size < 0 else size)
        self._position += len(data)
        if self._position > self._most_bytes:
            raise InputError(
                f"{self._name}: {self._path} unpacks to more than {self._most_bytes:,} bytes, {_MOST_RATIO} times of "
                f"what it has on disk, or 1 GiB: is it the file that was meant? If it is, unpack it and give the "
                f"unpacked file"
            )
        return data

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._stream.close()
        super().close()
