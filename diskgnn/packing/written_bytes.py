"""Compares what a killed run left of a packed directory with its checksums, before a run goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.file_reading import fill, opened
from diskgnn.work.shuffle import DamagedStepError

_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Comparison:
    """An open file that a killed run wrote in `step`. What is not as expected has that step made again."""

    descriptor: int
    path: Path
    step: str

    def pieces(self, begin: int, num_bytes: int) -> Iterator[memoryview]:
        """Yields the bytes from `begin` on; each piece is valid until the next one."""
        buffer = memoryview(bytearray(min(_READ_BYTES, num_bytes)))
        for offset in range(0, num_bytes, _READ_BYTES):
            yield fill(self.descriptor, begin + offset, buffer[: num_bytes - offset], self.path)

    def require(self, begin: int, num_bytes: int, expected_crc32c: int) -> None:
        """Compares bytes with their checksum.

        Raises:
            DamagedStepError: they have another one.
        """
        crc = 0
        for piece in self.pieces(begin, num_bytes):
            crc = crc32c(piece, crc)
        if crc != expected_crc32c:
            raise self.damaged(begin, num_bytes)

    def require_zeros(self, begin: int, end: int) -> None:
        """Compares the few bytes between two parts, or up to the end of a page, with zeros.

        Raises:
            DamagedStepError: there is something else.
        """
        if any(fill(self.descriptor, begin, memoryview(bytearray(end - begin)), self.path)):
            raise self.damaged(begin, end - begin)

    def read_tail(self, end: int, tail: npt.NDArray[np.uint8]) -> None:
        """Reads into `tail` [4096] what is before byte `end` on its page; zeros follow."""
        tail[:] = 0
        if open_bytes := end % DIRECT_ALIGNMENT:
            fill(self.descriptor, end - open_bytes, tail[:open_bytes].data, self.path)

    def damaged(self, begin: int, num_bytes: int) -> DamagedStepError:
        """Returns the error that says which bytes are not what was written."""
        message = f"{self.path} is not what was written between its bytes {begin} and {begin + num_bytes}"
        return DamagedStepError(self.step, message)


@contextmanager
def comparing(path: Path, step: str) -> Iterator[Comparison]:
    """Opens a file that a killed run wrote in `step`.

    Raises:
        DamagedStepError: it is missing, ends early or cannot be read.
    """
    try:
        with opened(path) as descriptor:
            yield Comparison(descriptor, path, step)
    except DamagedStepError:
        raise
    except (ArtifactError, OSError) as error:
        raise DamagedStepError(step, str(error)) from error
