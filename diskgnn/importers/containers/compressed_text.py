"""Text files for Arrow, plain or compressed, which unpack to no more than is plausible."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile
from diskgnn.importers.containers.file_kinds import has_utf8_name, kind_of
from diskgnn.stores.locations import Location, bytes_of

# Tables are packed to a third or a tenth. What says that it is this many times as large as it is on disk is a mistake
# or an attack: some MB of it are a TB, which nobody would wait for.
_MOST_RATIO, _ALWAYS_BYTES = 200, 1 << 30
_BUFFER_BYTES, _PIECE_BYTES = 1 << 16, 1 << 20
Batches = Iterator[pa.RecordBatch]
COMPRESSED = (".gz", ".zst", ".bz2")


def open_text(name: str, path: Location) -> Any:
    """Returns the text of a file as a stream that Arrow reads; unpacked, if its name ends in .gz, .zst or .bz2.

    Args:
        name: for messages.
        path: of the file.

    Raises:
        InputError: from its reads, where it unpacks to more than 1 GiB and 200 times of what it has on disk.
        OSError: it cannot be opened.
    """
    stream = pa.input_stream(
        path if _is_arrows(path) else ReadableFile(path, front_to_back=True), compression=_compression(path)
    )
    return stream if _compression(path) is None else _Unpacked(name, path, stream)


def _is_arrows(path: Location) -> TypeGuard[Path]:
    """Returns True for a local file that Arrow opens by itself: its name has to be UTF-8."""
    return isinstance(path, Path) and has_utf8_name(path)


def _compression(path: Location) -> str | None:
    return pa.Codec.detect(path.name).name if path.suffix in COMPRESSED else None


def _most_bytes(path: Location) -> int:
    """Returns how many bytes it may unpack to."""
    return max(_ALWAYS_BYTES, _MOST_RATIO * bytes_of(path))


def _implausible(name: str, path: Location) -> InputError:
    return InputError(
        f"{name}: {path} unpacks to more than {_most_bytes(path):,} bytes, {_MOST_RATIO} times of what it has on disk, "
        f"or 1 GiB: is it the file that was meant? If it is, unpack it and give the unpacked file"
    )


def damage_of_compressed(error: Exception, path: Location) -> str:
    """Returns what is wrong with a compressed file that Arrow cannot unpack, and what mends it; "" of other errors."""
    if "Truncated" in str(error):
        return f"{path} ends before it is unpacked; was the download complete? Fetch it again"
    if "inflate failed" not in str(error) and "decompress failed" not in str(error):
        return ""
    if kind_of(path) in ("csv", "text"):
        return f"expected a file compressed as its name says, found plain text in {path}: rename it to {path.stem}"
    return f"{path} cannot be unpacked ({error}); was the download complete? Fetch it again"


@contextmanager
def text_for_arrow(
    name: str, path: Location, block_bytes: int
) -> Iterator[tuple[pa.NativeFile, Callable[[Batches], Batches]]]:
    """Yields the same for Arrow's threads to read within the block, and what gives the batches that Arrow makes of it,
    one of each block of `block_bytes` of text.

    A thread of Arrow's that calls Python, or gives back something of Python's, while the interpreter ends aborts the
    process. So local files are Arrow's own, which calls nothing. Of others it gets copies of what was read, and no
    exception: for such a thread the text just ends, perhaps within a row. The error is raised in place of the next
    batch, or at the end of the block.
    """
    if _is_arrows(path):
        if _compression(path) is None:
            with pa.input_stream(path, compression=None) as stream:
                yield stream, iter
        else:  # not closed while a thread unpacks: it goes with the last one that has it
            yield pa.input_stream(path, compression=_compression(path)), partial(_plausible, name, path, block_bytes)
        return
    with open_text(name, path) as stream:
        text = _EndingText(stream)
        buffered = pa.BufferedInputStream(pa.PythonFile(text, "r"), _BUFFER_BYTES)
        try:
            yield buffered, text.checked
            text.raise_error()
        except Exception:
            text.raise_error()
            raise
        finally:
            text.close()
            # Now, since whichever thread of Arrow's drops it last would call Python to close it.
            buffered.close()


def _plausible(name: str, path: Path, block_bytes: int, batches: Batches) -> Batches:
    """Yields the same, as long as the text is not much longer than its file."""
    most_blocks = _most_bytes(path) // block_bytes
    for number, batch in enumerate(batches):
        if number > most_blocks:
            raise _implausible(name, path)
        yield batch


class _EndingText(io.RawIOBase):
    """A file for Arrow: it has what `stream` holds, up to the first error, which is kept."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._error: Exception | None = None
        self._stream, self._reading, self._position = stream, threading.Lock(), 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the bytes read so far."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns the next `size` bytes, fewer at the end."""
        with self._reading:
            if self.closed or self._error is not None:
                return b""
            try:
                data: bytes = self._stream.read(None if size < 0 else size)
            except Exception as error:
                self._error = error
                return b""
            self._position += len(data)
            return data

    def raise_error(self) -> None:
        """Raises the error, if there was one."""
        if self._error is not None:
            raise self._error

    def checked(self, batches: Batches) -> Batches:
        """Yields the same, of what was read without an error. However it ends, Arrow's threads have nothing left to
        read."""
        try:
            for batch in batches:
                self.raise_error()
                yield batch
        finally:
            self.close()
            with suppress(OSError, pa.ArrowException):
                for _ in batches:
                    pass

    def close(self) -> None:
        """Waits for a read that is under way; later ones find the end. Idempotent."""
        with self._reading:
            super().close()


class _Unpacked(io.RawIOBase):
    """Reads what a compressed file holds, up to a limit. A file for Arrow."""

    def __init__(self, name: str, path: Location, stream: pa.NativeFile) -> None:
        super().__init__()
        self._name, self._path, self._stream, self._position = name, path, stream, 0
        self._most_bytes = _most_bytes(path)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the bytes unpacked so far."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Returns the next `size` bytes, fewer at the end."""
        if size < 0:  # piece by piece, as all may be more than there is memory for
            return b"".join(iter(partial(self.read, _PIECE_BYTES), b""))
        data: bytes = self._stream.read(size)
        self._position += len(data)
        if self._position > self._most_bytes:
            raise _implausible(self._name, self._path)
        return data

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._stream.close()
        super().close()
