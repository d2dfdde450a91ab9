"""Spans of files that a step has written by itself: a run that goes on compares them with their checksums."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import checksum_of
from diskgnn.files.file_reading import fill, opened
from diskgnn.work.damage import DamagedStepError


class Written(Protocol):
    """Says what a step has written to a file."""

    @property
    def offset(self) -> int:
        """Returns where it begins."""
        ...

    def is_whole(self, file: SpanReader) -> bool:
        """Returns True if `file` still has it."""
        ...

    def load(self, file: SpanReader) -> None:
        """Reads what a step that goes on needs of it in memory."""
        ...


@dataclass(frozen=True)
class Span:
    """Bytes that are next to each other."""

    offset: int
    num_bytes: int
    crc32c: int
    tail: npt.NDArray[np.uint8] | None = None  # [4096], for the last page as far as these bytes reach; zeros follow
    padding_bytes: int = 0  # zeros behind them, less than a page
    crc32c_before: int = 0  # where `crc32c` goes on with that of something else

    def is_whole(self, file: SpanReader) -> bool:
        """Returns True if they are there."""
        num_bytes = self.num_bytes + self.padding_bytes
        crc = checksum_of(file.descriptor, file.path, self.offset, num_bytes, self.crc32c_before)
        return crc == crc32c(bytes(self.padding_bytes), self.crc32c)

    def load(self, file: SpanReader) -> None:
        """Reads the last page into `tail`, if there is one."""
        if self.tail is not None:
            end = self.offset + self.num_bytes
            self.tail[:] = 0
            file.read(end - end % DIRECT_ALIGNMENT, self.tail[: end % DIRECT_ALIGNMENT].data)


@dataclass(frozen=True)
class SpanReader:
    """An open file."""

    descriptor: int
    path: Path

    def read(self, offset: int, into: memoryview) -> memoryview:
        """Returns `into`, filled with the bytes from `offset` on."""
        return fill(self.descriptor, offset, into, self.path)


def require_written(path: Path, spans: Iterable[Written], step: str) -> None:
    """Compares what `step` has written to a file, and loads what going on with it needs.

    Raises:
        DamagedStepError: it is something else; or the file is missing, ends early or cannot be read.
    """
    try:
        with ExitStack() as opening:
            file = None
            for span in spans:
                file = file or SpanReader(opening.enter_context(opened(path)), path)  # it may not be there before
                if not span.is_whole(file):
                    raise DamagedStepError(step, f"{path} is not what was written from byte {span.offset} on")
                span.load(file)
    except DamagedStepError:
        raise
    except (ArtifactError, OSError) as error:
        raise DamagedStepError(step, str(error)) from error
