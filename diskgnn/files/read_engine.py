"""What makes the reads: io_uring, or a pool of threads where it cannot be used."""

from __future__ import annotations

import warnings
from functools import cache

from diskgnn._native import io_uring_refusal
from diskgnn.errors import ConfigError, callers_level


@cache
def _warn_once(refusal: str) -> None:
    warnings.warn(f"reading with a pool of threads, not io_uring: {refusal}", stacklevel=callers_level())


def warn_if_no_io_uring(engine: str = "auto") -> None:
    """Warn, once in this process, when `engine` 'auto' means threads because io_uring cannot be used here."""
    if engine == "auto" and (refusal := io_uring_refusal()):
        _warn_once(refusal)


def check_engine(engine: str) -> None:
    """Refuse an engine that there is not, or not here.

    Raises:
        ConfigError: `engine` is none of 'auto', 'io_uring' and 'threads', or io_uring is refused.
    """
    if engine not in ("auto", "io_uring", "threads"):
        raise ConfigError(f"engine: expected auto, io_uring or threads, found {engine!r}")
    if engine == "io_uring" and (refusal := io_uring_refusal()):
        raise ConfigError(f"engine='io_uring' cannot be used here: {refusal}; use engine='auto'")
