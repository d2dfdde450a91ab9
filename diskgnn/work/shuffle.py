"""A shuffle: pieces of bytes that one step writes in any order of partitions, and the next one reads by partition.

Where everything fits in memory it stays there. Otherwise it is one file, a log: pieces follow each other as they were
written, so that writing is sequential, and each begins with where the one before it of the same partition is. So memory
and notes hold 16 bytes for each partition, however many pieces there are. Whoever adds should bring pieces of 100 KB
and more, or reading them is slow on a disk that seeks. What is read several times may keep in memory where its pieces
are, 32 bytes for each: following the links reads a page for each piece. Then what pieces hold can be read past the page
cache, which takes less of the processor, and used where it is.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files import cache_hints, faults
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.disk_space import DiskBudget
from diskgnn.files.file_reading import fill, opened
from diskgnn.files.row_reading import read_ranges_of, row_buffer
from diskgnn.work.damage import DamagedStepError

_LINK = struct.Struct("<qq")  # of a piece: where that before it of its partition begins (-1: nowhere), its length
_CRC = struct.Struct("<I")  # CRC-32C of the log's name, the link and the piece: no other log passes for it
_NOWHERE = -1
PIECE_BYTES = _LINK.size + _CRC.size  # of the log that each piece takes beside its content
PLACE_BYTES = (
    36  # of memory, of each piece whose place is kept: four numbers, and what arrays that grow have in reserve
)
_ALIGNMENT = 8  # of pieces whose places are kept


def piece_buffer(num_bytes: int, count: int = 1) -> npt.NDArray[np.uint8]:
    """Returns memory that so many pieces can be read to, of so many bytes each at most."""
    return row_buffer(count, num_bytes + 2 * DIRECT_ALIGNMENT)


class Piece(NamedTuple):
    """The place of a piece in the log."""

    before: int  # where the one before it of its partition begins, or -1
    crc32c: int
    offset: int  # of its content
    num_bytes: int


class Shuffle:
    """Pieces of each partition, in the order in which they were added.

    Args:
        step: that fills it, for errors.
        path: of the log; None keeps all pieces in memory.
        num_partitions: P; partitions are in [0, P).
        disk: of which the log is claimed.
        keeps_places: where pieces are stays in memory.
    """

    def __init__(
        self, step: str, path: Path | None, num_partitions: int, disk: DiskBudget, *, keeps_places: bool = False
    ) -> None:
        self.step, self.path = step, path
        self.partition_bytes = np.zeros(num_partitions, np.int64)  # [P], so far
        self._disk = disk
        self._log: ChecksummedFile | None = None
        self._log_bytes = 0
        self._last = np.full(num_partitions, _NOWHERE, np.int64)  # [P] where the last piece of each begins in the log
        self._name_crc = 0 if path is None else crc32c(path.name.encode())
        self._held: list[list[npt.NDArray[Any]]] = [[] for _ in range(num_partitions if path is None else 0)]
        self._keeps_places = keeps_places
        self._places: dict[int, array[int]] = {}  # by partition: the numbers of its pieces, one after the other

    @property
    def in_memory(self) -> bool:
        """Returns True if there is no log."""
        return self.path is None

    @property
    def name(self) -> str:
        """Name of the log; "" without one."""
        return "" if self.path is None else self.path.name

    def open(self, state: Mapping[str, npt.NDArray[Any]] | None = None, *, for_more: bool = True) -> None:
        """Begins the log, or goes on where it was when it had this `state`; without `for_more` only to be read.

        Raises:
            DamagedStepError: the log is shorter than it was then.
        """
        if self.path is None:
            return
        self._places.clear()
        if state is not None:
            self.partition_bytes[...], self._last[...] = state["partition_bytes"], state["last"]
            self._log_bytes = int(state["log_bytes"])
            if not for_more:
                return
            if not self.path.exists() or self.path.stat().st_size < self._log_bytes:
                raise DamagedStepError(self.step, f"{self.path} is shorter than what was written to it")
        self._log = ChecksummedFile(self.path, kept_bytes=self._log_bytes, disk=self._disk)

    def add(self, partition: int, content: npt.NDArray[Any]) -> None:
        """Adds a piece: contiguous `content` of any dtype. In memory it is kept as it is, not copied."""
        faults.point("shuffle.write")
        self.partition_bytes[partition] += content.nbytes
        if self.path is None:
            self._held[partition].append(content)
            return
        assert self._log is not None
        data = content.reshape(-1).view(np.uint8)
        link = _LINK.pack(self._last[partition], len(data))
        gap_bytes = -(self._log_bytes + PIECE_BYTES) % _ALIGNMENT if self._keeps_places else 0
        begin = self._log_bytes + gap_bytes
        piece = Piece(int(self._last[partition]), self._crc(link, data), begin + PIECE_BYTES, len(data))
        if self._keeps_places and (piece.before == _NOWHERE or partition in self._places):
            self._places.setdefault(partition, array("q")).extend(piece)
        self._last[partition] = begin
        self._log_bytes += self._log.write(bytes(gap_bytes) + link + _CRC.pack(piece.crc32c)) + self._log.write(data)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what `open` needs to go on from here."""
        return {
            "partition_bytes": self.partition_bytes.copy(),
            "last": self._last.copy(),
            "log_bytes": np.array(self._log_bytes),
        }

    def close(self) -> None:
        """Ends writing."""
        if self._log is not None:
            self._log.close()

    def pieces(
        self, partition: int, buffers: Sequence[npt.NDArray[np.uint8]] = ()
    ) -> Generator[npt.NDArray[Any], None, None]:
        """Yields what was added to `partition`, piece by piece; from the log as uint8. Several threads may read.

        With `buffers`, the pieces of a log are read into these in turns, as `read` does.

        Raises:
            DamagedStepError: (at the end, too) it is not what was written.
            ReadError: the disk failed.
        """
        if self.path is None:
            yield from self._held[partition]
            return
        with self._reading() as file:
            pieces = self._pieces_of(file, partition)
            for number, piece in enumerate(pieces):
                if buffers:
                    yield from self.read([piece], buffers[number % len(buffers)])
                    continue
                if number + 1 < len(pieces):
                    cache_hints.read_soon(file, pieces[number + 1].offset, pieces[number + 1].num_bytes)
                yield self._read(file, piece, np.empty(piece.num_bytes, np.uint8))

    def places(self, partition: int) -> list[Piece]:
        """Returns where the pieces of a partition are in the log, for `read`.

        Raises:
            DamagedStepError, ReadError: see `pieces`.
        """
        with self._reading() as file:
            return self._pieces_of(file, partition)

    def read(
        self, pieces: Sequence[Piece], buffer: npt.NDArray[np.uint8]
    ) -> Generator[npt.NDArray[np.uint8], None, None]:
        """Yields the content of pieces, of any partitions, in `buffer`: valid until the next one is asked for.

        They are read past the page cache, as many at a time as have room. `piece_buffer` returns such memory, which
        has to hold the largest one.

        Raises:
            DamagedStepError, ReadError: see `pieces`.
        """
        assert self.path is not None
        first = 0
        while first < len(pieces):
            places, used_bytes = list[int](), 0
            for piece in pieces[first:]:
                begin = piece.offset % DIRECT_ALIGNMENT
                end = -(-(begin + piece.num_bytes) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
                if used_bytes + end > len(buffer):
                    break
                places.append(used_bytes + begin)
                used_bytes += end
            assert places, "a buffer that holds no piece"
            together = pieces[first : first + len(places)]
            with self._known_damage():
                read_ranges_of(
                    self.path, np.array([piece.offset for piece in together]),
                    np.array([piece.num_bytes for piece in together]), np.array(places), buffer,
                )  # fmt: skip
            for piece, place in zip(together, places, strict=True):
                yield self._checked(piece, buffer[place : place + piece.num_bytes])
            first += len(together)

    def content(self, partition: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns what was added to `partition` as one array [items] of `dtype`; not to be changed.

        Raises:
            DamagedStepError, ReadError: see `pieces`.
        """
        if self.path is None and len(self._held[partition]) == 1:
            return self._held[partition][0].reshape(-1).view(dtype)
        content = np.empty(int(self.partition_bytes[partition]) // np.dtype(dtype).itemsize, dtype)
        data, first = content.view(np.uint8), 0
        if self.path is None:
            for held in self._held[partition]:
                data[first : first + held.nbytes] = held.reshape(-1).view(np.uint8)
                first += held.nbytes
            return content
        with self._reading() as file:
            for piece in self._pieces_of(file, partition):
                self._read(file, piece, data[first : first + piece.num_bytes])
                first += piece.num_bytes
        return content

    def _pieces_of(self, file: int, partition: int) -> list[Piece]:
        """Follows the links of a partition: to somewhere before, so that this ends. They are compared with checksums,
        as all that was added is, when the pieces are read."""
        if (kept := self._places.get(partition)) is not None:
            return [Piece._make(kept[first : first + 4]) for first in range(0, len(kept), 4)]
        assert self.path is not None
        found, end, begin = list[Piece](), self._log_bytes, int(self._last[partition])
        while begin != _NOWHERE:
            header = bytes(fill(file, begin, bytearray(PIECE_BYTES), self.path))
            (before, num_bytes), (crc,) = _LINK.unpack_from(header), _CRC.unpack_from(header, _LINK.size)
            piece = Piece(before, crc, begin + len(header), num_bytes)
            if not _NOWHERE <= before < begin or not 0 <= num_bytes <= end - piece.offset:
                raise self._damaged(piece)
            found.append(piece)
            end, begin = begin, before
        found.reverse()
        if self._keeps_places:
            self._places[partition] = array("q", [number for piece in found for number in piece])
        return found

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """Yields a descriptor of the log."""
        assert self.path is not None
        with self._known_damage(), opened(self.path) as file:
            yield file

    @contextmanager
    def _known_damage(self) -> Iterator[None]:
        """A log that is gone, or ends early, is not what was written."""
        try:
            yield
        except DamagedStepError:
            raise
        except (ArtifactError, FileNotFoundError) as error:
            raise DamagedStepError(self.step, str(error)) from error

    def _read(self, file: int, piece: Piece, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        assert self.path is not None
        fill(file, piece.offset, content.data, self.path)
        cache_hints.forget(file, piece.offset, piece.num_bytes)
        return self._checked(piece, content)

    def _checked(self, piece: Piece, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if self._crc(_LINK.pack(piece.before, piece.num_bytes), content) != piece.crc32c:
            raise self._damaged(piece)
        return content

    def _crc(self, link: bytes, content: npt.NDArray[np.uint8]) -> int:
        return crc32c(content, crc32c(link, self._name_crc))

    def _damaged(self, piece: Piece) -> DamagedStepError:
        return DamagedStepError(self.step, f"{self.path} is not what was written from byte {piece.offset} on")

    def remove(self) -> None:
        """Gives back what it holds: nobody reads it any more."""
        self._held.clear()
        self._places.clear()
        if self.path is not None:
            self._disk.remove(self.path)
