"""A shuffle: pieces of bytes that one step writes in any order of partitions, and the next one reads by partition.

Where everything fits in memory it stays there. Otherwise it is one file, a log: pieces follow each other as they were
written, so that writing is sequential; what lies where is kept in memory, 32 bytes a piece. Whoever adds should bring
pieces of 100 KB and more, or reading them is slow on a disk that seeks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.storage import cache_hints, faults
from diskgnn.storage.checked_files import ChecksummedFile
from diskgnn.storage.disk_space import DiskBudget, file_bytes
from diskgnn.storage.file_reading import fill, opened

Bytes = npt.NDArray[np.uint8]


class DamagedStepError(ArtifactError):
    """What a step left is not what it wrote: the disk does not keep it, or somebody changed it."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{message}; run the same command again")
        self.step = step  # that has to be made again


class Shuffle:
    """Pieces of each partition, in the order in which they were added.

    Args:
        step: that fills it, for errors.
        path: of the log; None keeps all pieces in memory.
        num_partitions: P; partitions are in [0, P).
        disk: of which the log is claimed.
    """

    def __init__(self, step: str, path: Path | None, num_partitions: int, disk: DiskBudget) -> None:
        self.step, self.path = step, path
        self.partition_bytes = np.zeros(num_partitions, np.int64)  # [P], so far
        self._disk = disk
        self._log: ChecksummedFile | None = None
        self._held: list[list[npt.NDArray[Any]]] = [[] for _ in range(num_partitions if path is None else 0)]
        # Of each piece of the log; checksums are those of the log up to its end.
        self._partitions, self._lengths, self._crcs = array("i"), array("q"), array("I", [0])
        self._order = self._starts = self._offsets = np.empty(0, np.int64)  # see `close`

    @property
    def in_memory(self) -> bool:
        """True if there is no log."""
        return self.path is None

    @property
    def name(self) -> str:
        """Name of the log."""
        assert self.path is not None
        return self.path.name

    def open(self, state: Mapping[str, npt.NDArray[Any]] | None = None, *, for_more: bool = True) -> None:
        """Begins the log, or goes on where it was when it had this `state`; without `for_more` only to be read.

        Raises:
            DamagedStepError: the log is shorter than it was then.
        """
        if self.path is None:
            return
        if state is None:
            self._log = ChecksummedFile(self.path, disk=self._disk)
            return
        partitions, lengths = state["partitions"], state["lengths"]
        self._partitions.frombytes(partitions.tobytes())
        self._lengths.frombytes(lengths.tobytes())
        self._crcs.frombytes(state["crcs"].tobytes())
        np.add.at(self.partition_bytes, partitions, lengths)
        num_bytes = int(lengths.sum())
        if not for_more:
            return
        if not self.path.exists() or self.path.stat().st_size < num_bytes:
            raise DamagedStepError(self.step, f"{self.path} is shorter than what was written to it")
        self._log = ChecksummedFile(self.path, kept_bytes=num_bytes, crc32c=self._crcs[-1], disk=self._disk)

    def add(self, partition: int, content: npt.NDArray[Any]) -> None:
        """Adds a piece: contiguous `content` of any dtype. In memory it is kept as it is, not copied."""
        faults.point("shuffle.write")
        self.partition_bytes[partition] += content.nbytes
        if self.path is None:
            self._held[partition].append(content)
            return
        assert self._log is not None
        data = content.reshape(-1).view(np.uint8)
        self._log.write(data)
        self._partitions.append(partition)
        self._lengths.append(len(data))
        self._crcs.append(self._log.crc32c)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what `open` needs to go on from here."""
        crcs = np.array(self._crcs)[1:]
        return {"partitions": np.array(self._partitions), "lengths": np.array(self._lengths), "crcs": crcs}

    def close(self) -> None:
        """Ends writing: the pieces can be read now, by several threads if need be."""
        if self._log is not None:
            self._log.close()
        partitions, lengths = np.asarray(self._partitions), np.asarray(self._lengths)
        self._order, self._offsets = np.argsort(partitions, kind="stable"), np.cumsum(lengths) - lengths
        counts = np.bincount(partitions, minlength=len(self.partition_bytes))
        self._starts = np.concatenate([[0], np.cumsum(counts)])  # of each partition, in `_order`

    def pieces(self, partition: int) -> Iterator[npt.NDArray[Any]]:
        """Yields what was added to `partition`, piece by piece; from the log as uint8.

        Raises:
            DamagedStepError: it is not what was written.
            ReadError: the disk failed.
        """
        if self.path is None:
            yield from self._held[partition]
            return
        with self._reading() as file:
            for piece in self._pieces_of(partition):
                content = np.empty(self._lengths[piece], np.uint8)
                self._read(file, piece, content)
                yield content

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
            for piece in self._pieces_of(partition):
                self._read(file, piece, data[first : first + self._lengths[piece]])
                first += self._lengths[piece]
        return content

    def _pieces_of(self, partition: int) -> list[int]:
        found: list[int] = self._order[self._starts[partition] : self._starts[partition + 1]].tolist()
        return found

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """A descriptor of the log."""
        assert self.path is not None
        try:
            with opened(self.path) as file:
                yield file
        except DamagedStepError:
            raise
        except (ArtifactError, FileNotFoundError) as error:
            raise DamagedStepError(self.step, str(error)) from error

    def _read(self, file: int, piece: int, content: Bytes) -> None:
        assert self.path is not None
        offset = int(self._offsets[piece])
        fill(file, offset, content.data, self.path)
        cache_hints.forget(file, offset, len(content))
        if crc32c(content, self._crcs[piece]) != self._crcs[piece + 1]:
            raise DamagedStepError(self.step, f"{self.path} is not what was written from byte {offset} on")

    def remove(self) -> None:
        """Gives back what it holds: nobody reads it any more."""
        self._held.clear()
        if self.path is not None and self.path.exists():
            self._disk.remove(self.path, file_bytes(sum(self._lengths)))
