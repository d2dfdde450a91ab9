"""What can go wrong, as exceptions. Every message says what was expected, what was found and what to do."""

from __future__ import annotations

import contextlib
import os
import sys

from diskgnn.redaction import redacted

_SKIPPED = (os.path.dirname(__file__) + os.sep, contextlib.__file__)  # noqa: PTH120  (as code objects name files)


class DiskGNNError(Exception):
    """Base of all errors that diskgnn raises on purpose. `exit_code` is what the command line exits with.

    Passwords, keys and tokens in URLs of its message are shown as ***.
    """

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(redacted(each) if isinstance(each, str) else each for each in args))


class ConfigError(DiskGNNError, ValueError):
    """An argument or a combination of arguments that cannot work."""

    exit_code = 2


class UnavailableError(ConfigError):
    """Something that needs a package which cannot be imported here."""


class InputError(DiskGNNError, ValueError):
    """Source data (edges, features, labels, splits) that is not a valid graph."""

    exit_code = 3


class ArtifactError(DiskGNNError):
    """A graph, samples, packed or hops directory that is missing, damaged, foreign, or made from something else."""

    exit_code = 4


class BusyError(DiskGNNError):
    """Another process is writing the same output."""

    exit_code = 4


class OutputExistsError(DiskGNNError, FileExistsError):
    """The output is there already and `overwrite` was not given."""

    exit_code = 5


class DiskFullError(DiskGNNError, OSError):
    """The disk has too little free space for what is about to be written, or ran full meanwhile."""

    exit_code = 6


class ReadError(DiskGNNError, OSError):
    """A disk that failed to read, several times over: `errno`, and which file and where in it."""

    exit_code = 8

    def __str__(self) -> str:
        return (
            f"{self.args[1]}: the disk failed, the data may be whole; see what the kernel says of it (dmesg), then run "
            f"this again"
        )


class WorkerLostError(DiskGNNError):
    """A cluster that lost its workers again and again; what they finished was kept. Or a rank that lost the others."""

    exit_code = 9


class StoreError(ReadError):
    """An object store that refused, or failed several times over: `errno`, and what was asked of it."""

    def __str__(self) -> str:
        return f"{self.args[1]}; what is there may be whole: run this again when the store answers"


class WriteError(DiskGNNError, OSError):
    """A disk that failed to write: `errno`, and what was being written."""

    exit_code = 10

    def __str__(self) -> str:
        return str(self.args[1])


class DivergedError(DiskGNNError, ArithmeticError):
    """Training produced a loss that is not finite."""

    exit_code = 7


class DataWarning(UserWarning):
    """Source data that can be used but probably is not what the user meant (NaN features, overlapping splits)."""


def callers_level() -> int:
    """Returns the `stacklevel` with which `warnings.warn` shows the line outside of diskgnn that led here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_code.co_filename.startswith(_SKIPPED) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level
