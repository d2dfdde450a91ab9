"""The hidden directory that a comparison writes to.

It is removed at the end; if the comparison was killed, the next one removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from diskgnn.errors import ConfigError

_PREFIX = ".diskgnn-compare-"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new directory in `parent`, gone when the block is left; what killed comparisons left there goes, too.

    `parent` is made where it is missing, and stays.

    Raises:
        ConfigError: `parent` may not be made or written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _lock(parent, wait=True):  # or another comparison could find the directory before it is locked
            for left in parent.glob(f"{_PREFIX}*"):
                with suppress(OSError), _lock(left):
                    shutil.rmtree(left)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            in_use = _lock(folder)
    except OSError as error:
        raise ConfigError(
            f"scratch: cannot write in {parent} ({error.strerror}); choose a folder on the disk to measure"
        ) from error
    with in_use:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, *, wait: bool = False) -> ExitStack:
    """`folder` is nobody else's until the result is closed; the kernel frees it when this process ends.

    Raises:
        BlockingIOError: it is somebody else's, unless `wait`.
    """
    with ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return stack.pop_all()
