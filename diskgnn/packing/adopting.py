"""Compares what a killed run left of a packed directory with its checksums, before a run goes on with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.file_reading import fill, opened
from diskgnn.formats.extents import ExtentIndex, Part
from diskgnn.work.shuffle import DamagedStepError

_READ_BYTES = 4 << 20


STAGE, PLACING = "pack", "placing"  # the step under which the splits that are placed are noted; all rows follow from it


def damaged(message: str) -> DamagedStepError:
    """Returns the error that has everything made again, since headers and rows share pages."""
    return DamagedStepError(f"{STAGE}.{PLACING}", message)


@contextmanager
def opened_scratch(path: Path) -> Iterator[int]:
    """Opens a file that a killed run wrote, and yields its descriptor.

    Raises:
        DamagedStepError: the file is missing, ends early or cannot be read.
    """
    try:
        with opened(path) as descriptor:
            yield descriptor
    except DamagedStepError:
        raise
    except (ArtifactError, OSError) as error:
        raise damaged(str(error)) from error


@contextmanager
def changes_named(path: Path) -> Iterator[None]:
    """Raises an ArtifactError if native code finds bad numbers in scratch files beside `path`, which this run wrote
    itself.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:  # out of range, or at odds with each other
        raise ArtifactError(
            f"scratch files of {path} are not what was written to them ({error}): the disk does not keep what is "
            "written; the same command makes again what was damaged"
        ) from error


def adopt_extents(path: Path, index: ExtentIndex, tails: npt.NDArray[np.uint8]) -> None:
    """Compares all parts of extents that `index` [T] knows with the file, and restores `tails`.

    `tails` [T * 4096] gets the last page of each extent, which may not be full yet.

    Raises:
        DamagedStepError: the file is not what the index says.
    """
    if len(index) == 0:  # nor is there a file
        return
    with opened_scratch(path) as descriptor:
        for number, start in enumerate(index.extents["offset"].tolist()):
            tail = tails[number * DIRECT_ALIGNMENT :][:DIRECT_ALIGNMENT]
            adopt_parts(descriptor, path, start, index.parts(number), tail)


def adopt_parts(descriptor: int, path: Path, start: int, parts: Iterable[Part], tail: npt.NDArray[np.uint8]) -> None:
    """Compares the parts that begin at byte `start`, and the zeros between them, with what was recorded.

    The bytes after the last full page are copied to `tail`.

    Raises:
        DamagedStepError: they are not what was recorded.
        ArtifactError, ReadError: they cannot be read.
    """
    end, buffer = 0, memoryview(bytearray(_READ_BYTES))
    for part in parts:
        between = fill(descriptor, start + end, bytearray(part.offset - end), path)
        crc, end = 0, part.offset + part.num_bytes
        for offset in range(part.offset, end, _READ_BYTES):
            crc = crc32c(fill(descriptor, start + offset, buffer[: end - offset], path), crc)
        if crc != part.crc32c or any(between):
            raise damaged(f"{path} is not what was written between its bytes {start} and {start + end}")
    tail[:] = 0
    if open_bytes := end % DIRECT_ALIGNMENT:
        fill(descriptor, start + end - open_bytes, tail[:open_bytes].data, path)
